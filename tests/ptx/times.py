"""Expected times of kernels on an H200, from the instructions that they execute here (`tests.ptx.expected`).

python -m tests.ptx.times [a2c] [ppo] [members] [recurrent] [off_policy]
"""

import argparse

PARTS = {
    "a2c": "iterations of A2C with 1,000 to 1,000,000 CartPoles",
    "ppo": "iterations of PPO, 4 epochs of 4 minibatches, with 10,000 and 100,000 CartPoles",
    "members": "2,048 agents that train together",
    "recurrent": "a step of recurrent layers",
    "off_policy": "a gradient step of SAC, TD3 and DQN",
}


def main() -> None:
    """Print the calibration, and the expected times of the parts that are named."""
    told = "\n".join(f"  {name:10} {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser("python -m tests.ptx.times", None, "Expected times on an H200.", f"parts (all by default):\n{told}")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to print")
    parts = parser.parse_args().parts
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part {unknown[0]!r}: give {', '.join(PARTS)}")

    from tests.ptx import expected  # imports torch and Numba, which takes seconds

    expected.show(parts or list(PARTS))


if __name__ == "__main__":
    main()
