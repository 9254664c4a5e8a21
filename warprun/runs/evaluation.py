"""Evaluations: the mean return of a trained agent over whole episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from warprun.config.memory_estimate import evaluation_envs
from warprun.errors import TrainingFailed, UserError, printable
from warprun.files import refuse_links
from warprun.learning.interfaces import Agent
from warprun.runs import checkpoint, signals
from warprun.runs.build import Setup, make_simulator, prepare, set_up, uncaptured
from warprun.runs.opening import load_checkpoint, open_run, trained_agent
from warprun.runs.paired import Paired, Sample, seems_better
from warprun.runs.recording import Player
from warprun.runs.sentinel import refuse
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.state import State, copied, derived_seed, restore

CHUNK = 64
"""Steps between two checks whether all episodes have ended."""


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation."""

    returns: dict[str, NDArray[np.float64]]
    """Per group, an actor's sum of rewards in each episode, [episodes]: of several actors the mean."""
    mean_length: float
    """Steps."""
    terminated: float
    """Share of the episodes that ended in a terminal state, not at the time limit."""
    unfinished: int | None
    """Number of episodes that were cut after `eval.max_steps` steps; their returns are partial sums. None with a time limit."""
    resets_on_nan: int | None
    """Number of resets because of a fault while the evaluation ran; an episode counts up to its fault. None unless `env.on_nan=reset`."""

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(next(iter(self.returns.values())))

    @property
    def mean_return(self) -> dict[str, float]:
        """Per group, the mean over episodes."""
        return {group: Sample.of(returns).mean for group, returns in self.returns.items()}

    def stderr(self, group: str) -> float:
        """Return the standard error of a group's mean return; NaN for one episode."""
        return Sample.of(self.returns[group]).stderr

    def metrics(self) -> dict[str, float]:
        """Return the results by name: `return`, or `GROUP/return` for each of several groups, whose returns have no meaningful mean."""
        found: dict[str, float] = {}
        for group, returns in self.returns.items():
            part, (mean, stderr) = "" if len(self.returns) == 1 else f"{group}/", Sample.of(returns)
            found[f"{part}return"] = mean
            if self.episodes > 1:
                found |= {f"{part}return_stderr": stderr, f"{part}return_std": stderr * math.sqrt(self.episodes)}
        found |= {"episode_length": self.mean_length, "terminated": self.terminated, "episodes": self.episodes}
        optional = {"unfinished": self.unfinished, "resets_on_nan": self.resets_on_nan}
        return found | {name: count for name, count in optional.items() if count is not None}


class StoppedError(Exception):
    """An evaluation was stopped before its end."""


class Evaluator:
    """Player of whole episodes in environments of its own: it resets them, plays one episode in each, and repeats this for the rest."""

    def __init__(self, setup: Setup, agent: Agent, episodes: int, seed: int) -> None:
        time_limit = setup.environment.spec.time_limit
        self.endless = time_limit is None
        self.max_steps = time_limit or setup.config.eval.max_steps
        self.replaces = setup.config.env.on_nan == "reset"
        self.device = setup.device.torch
        self.agent = agent
        self.episodes = episodes
        n_envs = evaluation_envs(setup.config, setup.environment, episodes)
        self.simulator = make_simulator(uncaptured(setup), n_envs, min(CHUNK, self.max_steps), seed, agent)
        if not isinstance(setup.environment, ExternalEnvironment):  # their processes begin with the first evaluation
            prepare(setup, self.simulator)

    def state(self) -> State:
        """Return all that later evaluations of the same policy depend on, by name."""
        return self.simulator.state()

    def close(self) -> None:
        """Free what the environments hold."""
        self.simulator.close()

    def play(self, greedy: bool, is_stopped: Callable[[], bool] = lambda: False) -> Evaluation:
        """Play the episodes and return the results. Each call plays new ones.

        Raises StoppedError as soon as `is_stopped`, and TrainingFailed.
        """
        played: list[_Played] = []
        left = self.episodes
        while left > 0:
            played.append(self._play_once(min(left, self.simulator.n_envs), greedy, is_stopped))
            left -= self.simulator.n_envs
        return Evaluation(
            {name: torch.cat([each.returns[name] for each in played]).cpu().numpy() for name in played[0].returns},
            float(torch.cat([each.length for each in played]).mean()),
            float(torch.cat([each.terminated for each in played]).float().mean()),
            int(torch.cat([each.unfinished for each in played]).sum()) if self.endless else None,
            self.simulator.episodes().replaced if self.replaces else None,
        )

    def _play_once(self, count: int, greedy: bool, is_stopped: Callable[[], bool]) -> _Played:
        """Play one episode in each of the first `count` environments."""
        simulator, taken = self.simulator, self.simulator.trajectory
        simulator.reset()
        going_on = torch.arange(simulator.n_envs, device=self.device) < count
        length = torch.zeros(simulator.n_envs, device=self.device)
        terminated = torch.zeros_like(going_on)
        total = {name: torch.zeros_like(length, dtype=torch.float64) for name in taken.groups}
        row = torch.arange(taken.horizon, device=self.device)[:, None]
        for first in range(0, self.max_steps, taken.horizon):
            if is_stopped():
                raise StoppedError
            try:
                simulator.collect(self.agent.act, greedy)
                refuse(simulator.fault(wait=True))
            except TrainingFailed as error:
                raise TrainingFailed(f"in an evaluation {error}") from error
            ends = (taken.terminated | taken.truncated) & going_on
            if first + taken.horizon <= self.max_steps and not bool(ends.any()):  # so it is for most rollouts
                length.add_(going_on, alpha=taken.horizon)
                for name, group in taken.groups.items():
                    total[name] += group.reward.mean(-1).sum(0, dtype=torch.float64) * going_on
                continue
            # The step that ends an episode still counts. Later steps belong to the next episode.
            counts = going_on & (ends.cumsum(0, dtype=torch.int32) <= ends) & (row < self.max_steps - first)
            length += counts.sum(0)
            for name, group in taken.groups.items():
                total[name] += (group.reward.mean(-1) * counts).sum(0, dtype=torch.float64)
            terminated |= (taken.terminated & counts).any(0)
            going_on &= ~(ends & counts).any(0)
            if not going_on.any():
                break
        return _Played({name: returns[:count] for name, returns in total.items()}, length[:count], terminated[:count], going_on[:count])


@dataclass(frozen=True)
class _Played:
    """Episodes, one in each environment."""

    returns: dict[str, torch.Tensor]
    """Group -> [N]: the mean over actors of the sum of rewards."""
    length: torch.Tensor
    terminated: torch.Tensor
    unfinished: torch.Tensor


def describe_checkpoint(folder: Path, line: str) -> list[str]:
    """Return lines that describe the checkpoint in `folder/<line>`, and the other one if it was better in the run's final episodes."""
    words = {checkpoint.LAST: "last", checkpoint.BEST: "best"}
    own = checkpoint.load(folder, line)
    group = own.meta.get("group")
    chosen = f", by the return of group {printable(group)} (eval.group)" if group and line == checkpoint.BEST else ""
    said = [f"checkpoint: {words[line]}, after {own.env_steps:,} env_steps{chosen}"]
    other = checkpoint.BEST if line == checkpoint.LAST else checkpoint.LAST
    with suppress(UserError):  # it may not exist
        there = checkpoint.load(folder, other)
        last, best = (own, there) if line == checkpoint.LAST else (there, own)
        compared = last.meta.get("evaluation", {})
        more = Sample(compared.get("more", math.nan), compared.get("more_stderr", math.nan))
        better = (more if line == checkpoint.LAST else more.negative).is_above_zero
        if better and compared.get("best_env_steps") == best.env_steps:
            to = f" to group {printable(group)}" if group else ""
            said.append(
                f"the {words[other]} one, after {there.env_steps:,} env_steps, returned {abs(more.mean):.4g} more{to} in the same final"
                f" episodes of the run: checkpoint={words[other]} evaluates it"
            )
    return said


def evaluate_run(
    folder: Path, episodes: int | None, greedy: bool, device: str, seed: int, line: str = checkpoint.LAST, trusted: bool = False
) -> dict[str, float]:
    """Evaluate a checkpoint of a run folder; return the metrics of the `Evaluation` and those that the environment's report adds.

    `line` selects the newest checkpoint or the best one. `episodes` None: as many as in the run's final evaluation. The run's own
    evaluations play other episodes, for every `seed`.

    `trusted`: code of the run folder may run even if no run of this user put it there (`runs.opening`).

    If the environment module defines `report(play, folder)`, it is called with a `Player` and the run's folder `eval`. It may write files
    and figures there; TensorBoard also shows the PNG files.
    """
    refuse_links(folder / "eval")
    run = open_run(folder, device, trusted, episodes)
    saved = load_checkpoint(run, line)
    setup = set_up(run.config)
    agent = trained_agent(setup, saved)
    played = episodes or run.config.eval.episodes_at_end
    with closing(Evaluator(setup, agent, played, derived_seed(seed, "eval"))) as evaluator:
        result = evaluator.play(greedy).metrics()
    report = getattr(run.module, "report", None)
    if report:
        from warprun.runs.records.tensorboard import write_images  # imports TensorBoard

        (folder / "eval").mkdir(exist_ok=True)
        result |= report(Player(setup, agent, derived_seed(seed, "report")), folder / "eval")
        write_images(folder / "eval")
    return result


class Evaluations:
    """The evaluations of a run: frequent ones, and decisive ones that tell whether the agent has solved the
    environment.
    """

    def __init__(self, setup: Setup, agent: Agent, returns: str) -> None:
        """Make both evaluators; `returns`: the metric of an evaluation that decides whether the environment is solved."""
        config = setup.config
        self._agent, self._returns, self._greedy, self._bar = agent, returns, config.eval.greedy, config.env.solved_at
        self._ends_when_solved = config.stop_when_solved
        self._often = Evaluator(setup, agent, config.eval.episodes, derived_seed(config.seed, "evaluation"))
        self._decisive = Evaluator(setup, agent, config.eval.episodes_at_end, derived_seed(config.seed, "final evaluation"))

    def play(self) -> Evaluation:
        """Return an evaluation. Raises StoppedError if a signal asks the run to stop."""
        return self._often.play(self._greedy, is_stopped)

    def play_decisive(self) -> Evaluation:
        """Return an evaluation with more episodes, all of them new.

        Raises StoppedError as `play` does.
        """
        return self._decisive.play(self._greedy, is_stopped)

    def compare(self, folder: Path, last: Evaluation, begins: Mapping[str, torch.Tensor]) -> Paired | None:
        """Play the best checkpoint of a run folder in the episodes of `last`, a decisive evaluation that began in the state `begins`.

        Return None without playing if its evaluation was not clearly better than `last`: as the best of many it mostly is better by chance;
        or if another group decided that it is the best. Agent and evaluators are then as before. Raises StoppedError as `play` does.
        """
        results = last.metrics()
        now = {"mean": results[self._returns], "stderr": results.get(f"{self._returns}_stderr", 0.0)}
        # There may be none that can be read, and a fault of the environment then must not end a run that is done.
        with suppress(UserError, TrainingFailed):
            best = checkpoint.load(folder, checkpoint.BEST)
            by = f"{best.meta['group']}/return" if "group" in best.meta else "return"
            if by != self._returns or not seems_better(best.meta.get("evaluation", {}), now):
                return None
            own, state = copied(self._agent.policy_state()), copied(self.state())
            policy = {name: best.tensors[f"agent/{name}"] for name in own if f"agent/{name}" in best.tensors}
            try:
                restore(self._agent.policy_state(), policy)
                restore(self.state(), begins)
                return Paired.of(best.env_steps, self._decisive.play(self._greedy, is_stopped).returns, last.returns)
            finally:
                restore(self._agent.policy_state(), own)
                restore(self.state(), state)
        return None

    def ends_run(self, results: Mapping[str, float]) -> bool:
        """Return whether the run ends if a decisive evaluation confirms `results`."""
        return self._ends_when_solved and self._bar is not None and results[self._returns] >= self._bar

    def are_solved(self, results: Mapping[str, float]) -> bool:
        """Return whether decisive `results` show that the environment is solved: their mean minus two standard errors reaches the bar.

        The evaluation that reaches the bar first is the best of many, so its mean is biased upwards, and does not decide.
        """
        lowest = results[self._returns] - 2.0 * results.get(f"{self._returns}_stderr", 0.0)
        return self._bar is not None and lowest >= self._bar

    def state(self) -> State:
        """Return the state of both evaluators, by the names that it has in a checkpoint."""
        tensors = {f"evaluator/{name}": tensor for name, tensor in self._often.state().items()}
        return tensors | {f"final_evaluator/{name}": tensor for name, tensor in self._decisive.state().items()}

    def close(self) -> None:
        """Free what the environments hold."""
        self._often.close()
        self._decisive.close()

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Take the state of the evaluators from the tensors of a checkpoint. Raises UserError if it does not fit."""
        restore(self.state(), {name: saved[name] for name in saved if "evaluator/" in name})


def is_stopped() -> bool:
    """Return whether a signal asks the run to stop."""
    return signals.requests.number is not None
