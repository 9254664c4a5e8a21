"""What a member of a population costs on a CPU: processor milliseconds, files and bytes; with --pbt the seconds of each round.

Trains members in this process, as a worker of the launcher `local` does. Run it with OMP_NUM_THREADS=1, on one core (`taskset -c 0`).
"""

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path

import warprun.runs.train  # noqa: F401  # what members import is no cost of theirs
from warprun.cli.job import train_job
from warprun.sweeps import plan
from warprun.sweeps.launch import TuneSettings

SETTINGS = ["env=cartpole", "agent=ppo", "n_envs=64", "agent.horizon=128", "device=cpu"]
STEPS, EVERY, PBT_STEPS = 50_000, 16_384, 82_000
FIRST = 4  # members that load kernels, and do not count
SEARCH = ["agent.learning_rate=tag(log,interval(1e-4,1e-2))", "agent.gamma=interval(0.9,0.999)"]


def seconds(job: plan.Job) -> float:
    gc.collect()  # as a worker does between two jobs
    began = time.process_time()
    assert train_job(str(job.run.parent), job.number) == 0, f"see {job.log}"
    return time.process_time() - began


def population(folder: Path, members: int) -> str:
    planned = plan.planned(folder, [[*SETTINGS, f"total_steps={STEPS}", f"seed={n}"] for n in range(FIRST + members)])
    plan.claimed(planned, folder.parent)
    spent = [1e3 * seconds(job) for job in planned.jobs][FIRST:]
    files = [file for place in (planned.jobs[-1].run, planned.jobs[-1].folder) for file in place.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return f"{members} members: {statistics.median(spent):.1f} ms each ({min(spent):.1f} at least), {len(files)} files, {size:,} bytes"


def rounds(folder: Path, members: int) -> str:
    from warprun.sweeps import pbt, study  # need the extra tune

    space, settings = study.read_space([*SETTINGS, f"total_steps={PBT_STEPS}", *SEARCH]), TuneSettings(members=members, every=EVERY)
    planned = plan.studied(folder, space.text)
    plan.claimed(planned, folder.parent)
    found, spent = pbt.Population(planned, space, settings, PBT_STEPS), dict[int, float]()
    while job := found.next():
        number, began = found.round, time.process_time()
        seconds(job)
        found.ended(job)  # copies runs after the last member
        spent[number] = spent.get(number, 0.0) + time.process_time() - began
    return f"rounds of {members} members: {', '.join(f'{each:.2f} s' for each in spent.values())}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("members", type=int, nargs="?", default=16, help="how many count; 16 by default")
    parser.add_argument("--pbt", action="store_true", help="rounds of population-based training")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print((rounds if given.pbt else population)(Path(place) / "sweep", given.members))
