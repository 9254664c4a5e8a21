"""Loops of learning over arrays (CPU), of which kernels are made. No module here imports torch: another process compiles them."""
