"""Throughput of rejax's learner on the GPU that JAX finds, else a line that says what is missing (a part of scripts/gpu_check.sh)."""

from __future__ import annotations

import importlib.util
import time

SIZES = (1_000, 10_000, 100_000)
SECONDS = 2.0
NEEDED = ("jax", "rejax", "gymnax")


def main() -> None:
    """Print a table in markdown."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)} (scripts/bench/requirements.txt, and jax with the extra cuda12 or cuda13)")
        return
    import jax

    if jax.default_backend() != "gpu":
        print(f"JAX {jax.__version__} finds no GPU: pip install 'jax[cuda12]' or 'jax[cuda13]'")
        return
    from peer_rejax import prepare
    from peer_work import WORKS

    print("| work | environments | env steps/s |\n|---|---|---|")
    for name in ("a2c-64", "a2c-32"):
        for n_envs in SIZES:
            iterate, _ = prepare(WORKS[name], "rbg", n_envs, 1)
            iterate()
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < SECONDS:
                steps += iterate()
            rate = steps / (time.perf_counter() - began)
            print(f"| rejax, {WORKS[name].label} | {n_envs:,} | {rate:,.0f} |")


if __name__ == "__main__":
    main()
