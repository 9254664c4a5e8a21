"""warprun: reinforcement learning at very high data throughput, for people whose environment is a scientific simulation."""
