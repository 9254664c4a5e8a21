"""Runs of sleeping ranks: claims of EXARL."""
