"""Members of a population on the stand-in for the CUDA driver, beside the same runs alone.

    python -m tests.ptx.members FILE.json [CASE MEMBERS | mistakes 12 | jobs FOLDER]...

writes by case what of a member is not, bit for bit, what it is alone, and how many launches both have made.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from tests.agents import plan_for
from tests.ptx.hosted import Driver
from tests.ptx.off_policy import cuda_steps
from tests.ptx.project import DEVICE
from tests.simulation import rollouts
from tests.simulation.rollouts import Arrays
from warprun.algorithms import agent_class
from warprun.cli.job import train_job
from warprun.kernels import ahead
from warprun.learning import on_policy
from warprun.learning.communicator import SingleProcess
from warprun.learning.interfaces import Context
from warprun.learning.kernels import choose
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.learning.settings.plan import Choice
from warprun.runs import build, checkpoint, signals
from warprun.runs.records.jsonl import read_rows
from warprun.simulation import cuda_layers, cuda_members, launches, members
from warprun.simulation.members import Members
from warprun.sweeps import plan

ITERATIONS, N_ENVS = 7, 5
ON_POLICY = {"horizon": 4, "network": NetworkConfig(hidden=[9, 8])}
OFF_POLICY = {"horizon": 3, "network": LayersConfig(hidden=[9]), "learning_starts": 20, "batch_size": 16, "utd_ratio": 0.2}
OFF_POLICY |= {"replay": ReplayConfig(60)}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a2c": ("cartpole", "a2c", ON_POLICY | {"normalize_reward": True, "entropy_coef_end": 0.0}),
    "ppo": ("pendulum", "ppo", ON_POLICY | {"epochs": 2, "minibatches": 2, "desired_kl": 0.01}),
    "dqn": ("cartpole", "dqn", OFF_POLICY | {"replay": ReplayConfig(60, prioritized=True), "target_update_interval": 2}),
    "sac": ("pendulum", "sac", OFF_POLICY),
}
"""Environment, agent and settings."""
FEW = ["n_envs=8", "agent.horizon=8", "agent.network.hidden=[16]", "total_steps=2000", "eval.episodes=8", "checkpoint.every=640 steps"]
JOBS = 3


def settings_of(member: int, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a member, with numbers of its own."""
    own = {"learning_rate": 1e-3 * (1 + member), "gamma": 0.99 / (1.0 + 0.01 * member), "max_grad_norm": 0.5 + 0.01 * member}
    if name in ("a2c", "ppo"):
        own |= {"entropy_coef": 0.01 * (1 + member), "gae_lambda": 0.9 / (1.0 + 0.01 * member)}
    return settings | own | ({"clip": 0.1 + 0.01 * member} if name == "ppo" else {})


def state_after(case: str, member: int) -> Arrays:
    """Train a member, alone or as one of a set, and return all of its tensors."""
    world, name, settings = CASES[case]
    environment = replace(rollouts.CASES[world], time_limit=6).environment
    config = agent_class(name).Config(**settings_of(member, name, settings))
    how = replace(plan_for(config, environment.spec, fused=True), repeated=Choice("members" if state.set.inside() else "Python"))
    agent = agent_class(name)(config, environment.spec, Context(torch.device("cpu"), N_ENVS, 1, member, how, SingleProcess()))
    repeats = partial(state.set.Joined, device=torch.device("cpu")) if state.set.inside() else None
    given = {"n_envs": N_ENVS, "horizon": config.horizon, "seed": 5 + member, "exploration": agent.exploration}
    engine = rollouts.make(environment, world, device=DEVICE, networks=agent.networks(), repeats=repeats, **given)
    # Members leave the set one after the other.
    for n in range(ITERATIONS + member % 3):
        metrics = agent.update(engine.collect(agent.act), n / ITERATIONS)
    found = agent.state() | engine.arrays.by_name() | {f"metrics/{key}": torch.as_tensor(value) for key, value in metrics.items()}
    return {key: tensor.detach().numpy().copy() for key, tensor in found.items()}


def states_together(case: str, numbers: Sequence[int], launched: Callable[[], int] = lambda: 0) -> tuple[dict[int, Arrays], list[int]]:
    """Return what `state_after` does of members that train together, and how many were launched each time that they went on."""
    found: dict[int, Arrays] = {}
    run = state.set.Members()
    for number in numbers:
        run.begin(lambda number=number: found.update({number: state_after(case, number)}))  # type: ignore[misc]
    counts = [launched()]
    while run:
        run.go_on()
        counts.append(launched())
    return found, [after - before for before, after in pairwise(counts)]


def differences(alone: Sequence[Arrays], together: dict[int, Arrays]) -> list[str]:
    return [
        f"{member}/{name}"
        for member, expected in enumerate(alone)
        for name, array in expected.items()
        if array.tobytes() != together[member][name].tobytes()
    ]


def compared(case: str, count: int, driver: Driver) -> list[Any]:
    """Return what differs between members alone and together, the launches of an iteration of one alone, and those of all together."""
    begun = driver.number("launches")
    alone = [state_after(case, 0)]
    of_one = driver.number("launches") - begun
    alone += [state_after(case, member) for member in range(1, count)]
    together, counts = states_together(case, range(count), lambda: driver.number("launches"))
    # Without the first iteration, which each member does for itself.
    return [differences(alone, together), of_one, sum(counts)]


def found_mistakes() -> dict[str, bool]:
    """Return of each planted mistake whether it is found: by a result, by an exception, or by launches that are not made together."""
    alone = [state_after("a2c", member) for member in range(3)]
    found = {}
    for name, (module, text, instead) in MISTAKES.items():
        with planted(module, text, instead):
            before = len(launches._kinds)
            try:
                wrong = bool(differences(alone, states_together("a2c", range(3))[0]))
            except Exception:
                wrong = True
        found[name] = wrong or len(launches._kinds) > before
    return found


@contextmanager
def planted(module: ModuleType, text: str, instead: str) -> Iterator[None]:
    """Let the module of members, or the one that merges their launches, have a mistake."""
    assert module.__file__
    source = Path(module.__file__).read_text()
    assert source.count(text) == 1, text
    made = ModuleType(module.__name__)
    vars(made).update({"__file__": module.__file__})
    exec(compile(source.replace(text, instead), module.__file__, "exec"), vars(made))
    places = {members: (state, "set", made), launches: (launches, "_form", vars(made).get("_form"))}
    with patch.object(*places.get(module, (cuda_members, "merged", vars(made).get("merged")))):
        yield


class State:
    """What mistakes change."""

    set = members


state = State()
MISTAKES = {
    "arrays of the first member": (cuda_members, "place += cuda.blockIdx.y * places_of_one", "place += 0"),
    "numbers of the first member": (cuda_members, "number += cuda.blockIdx.y * numbers_of_one", "number += 0"),
    "numbers in single precision": (cuda_members, 'np.float32) else "float64"', 'np.float32) else "float32"'),
    "numbers of the next launch": (cuda_members, "at_number + of_number", "at_number + of_number + 1"),
    "numbers of the first launch": (cuda_members, "at_number + of_number", "at_number"),
    "numbers of other members": (cuda_members, "np.stack([work.numbers for work in works])", "np.stack([w.numbers for w in works[::-1]])"),
    "arrays of other members": (
        cuda_members,
        "np.stack([work.places for work in works])",
        "np.stack([w.places for w in (first, *works[:0:-1])])",
    ),
    "a member too few": (cuda_members, "members=len(works))", "members=len(works) - 1)"),
    "a launch too few": (cuda_members, "for launch in first.launches:", "for launch in first.launches[:-1]:"),
    "seeds in common": (launches, "float | np.floating | np.uint32", "float | np.floating"),
    "sets that are not made anew": (members, "works = tuple(each.work for each in wanted)", "works = wanted[0].work.kind, "),
    "work done twice": (members, "        self._merged[works]()\n", "        self._merged[works]()\n        self._merged[works]()\n"),
}
"""Name -> module, its text, and what stands there instead."""


# Jobs of a sweep ----------------------------------------------------------------------------------------------------


def jobs(folder: Path) -> list[str]:
    """Train jobs of a sweep one by one, together, and together with an interruption; return what differs."""
    with (
        patch.object(ahead, "helpers", lambda *_: 0),
        patch.object(build, "choose", lambda _: DEVICE),
        patch.object(cuda_layers, "verify", lambda *_: None),
    ):
        alone, together, stopped = (swept(folder / name) for name in ("alone", "together", "stopped"))
        make_plan = build.make_plan
        with patch.object(build, "make_plan", lambda *given: replace(make_plan(*given), repeated=Choice("Python"))):
            codes = [train_job(str(alone.folder), number) for number in range(JOBS)]
        codes += trained(together)
        assert trained(stopped, rounds=40) == [143] * JOBS
        codes += trained(stopped)
    wrong = [f"exit codes {codes}"] if any(codes) else []
    for other in (together, stopped):
        for one, same in zip(alone.jobs, other.jobs, strict=True):
            rows, others = (read_rows(each.run / "metrics.jsonl") for each in (one, same))
            if [counted(row) for row in rows] != [counted(row) for row in others]:
                wrong.append(f"records of {same.run}")
            states, resumed = (checkpoint.load(each.run).tensors for each in (one, same))
            wrong += [f"{name} of {same.run}" for name, tensor in states.items() if not same_bits(tensor, resumed[name])]
    return wrong


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numpy().tobytes() == other.numpy().tobytes()


def swept(folder: Path) -> plan.Plan:
    """Return the plan of jobs that differ in seed and learning rate."""
    given = ["env=cartpole", "agent=a2c", "device=cpu", *FEW]
    found = plan.planned(folder, [[*given, f"seed={n}", f"agent.learning_rate={0.001 * (n + 1)}"] for n in range(JOBS)])
    plan.claimed(found, folder.parent).release()
    return found


def trained(found: plan.Plan, rounds: int | None = None) -> list[int]:
    """Train the jobs of a plan together, and stop after so many rounds, if given; return their exit codes."""
    codes: list[int] = []
    run = Members()
    for number in range(JOBS):
        run.begin(lambda number=number: codes.append(train_job(str(found.folder), number)))  # type: ignore[misc]
    with signals.requests.deferred():
        while run:
            run.go_on()
            rounds = None if rounds is None else rounds - 1
            if rounds == 0:
                signals.requests.number = 15
    signals.requests.number = None
    return codes


def counted(row: dict[str, float]) -> dict[str, float]:
    """Return what of a record does not depend on the clock."""
    return {name: value for name, value in row.items() if not name.startswith("perf/") and name != "wall_s"}


@contextmanager
def on_a_gpu() -> Iterator[None]:
    """Let agents on the CPU have the operations of a GPU."""
    with patch.object(on_policy, "operations", lambda reference, context: choose.on_cuda(reference)), cuda_steps():
        yield


def main(file: str, *given: str) -> None:
    signals.watch()  # as a worker of a sweep does
    driver, found = Driver(), dict[str, Any]()
    with on_a_gpu():
        for name, more in zip(given[::2], given[1::2], strict=True):
            if name == "jobs":
                found[name] = jobs(Path(more))
            elif name == "mistakes":
                found[name] = found_mistakes()
            else:
                found[f"{name} {more}"] = compared(name, int(more), driver)
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
