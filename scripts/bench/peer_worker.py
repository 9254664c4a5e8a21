"""Run one peer in its own process: `peer_worker.py MODULE THREADS` reads lines of JSON from stdin and answers on stdout."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from typing import Any

from peer_work import WORKS


def main() -> None:
    """Answer {"work", "variant", "n_envs"} with the settings, {"seconds"} with steps and time, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    module, threads = importlib.import_module(sys.argv[1]), int(sys.argv[2])
    iterate = None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        if "work" in asked:
            iterate = None
            gc.collect()
            start = time.perf_counter()
            iterate, settings = module.prepare(WORKS[asked["work"]], asked["variant"], asked["n_envs"], threads)
            # Twice: the first call compiles, the second allocates.
            iterate()
            iterate()
            answer = {"settings": settings, "prepared_s": time.perf_counter() - start}
        else:
            assert iterate
            steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < asked["seconds"]:
                steps += iterate()
            answer = {"steps": steps, "wall_s": time.perf_counter() - start}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
