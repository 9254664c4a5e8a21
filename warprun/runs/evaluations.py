"""The evaluations of a run: often with few episodes, and with many fresh ones where the result decides."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from warprun import signals
from warprun.config.cadence import AUTO, Cadence, parse
from warprun.config.registry import Defined
from warprun.config.schema import Config
from warprun.environment import Environment
from warprun.runs.evaluate import CHUNK, Evaluator
from warprun.state import State, restore

SHARE = 0.05
"""Largest share of the steps of training that evaluations take by default, without the one at the end."""
SHORTEST, LONGEST = 0.01, 0.25
"""Shares of `total_steps` between two evaluations by default."""


def interval(config: Config, environment: Defined) -> Cadence:
    """Return the interval between evaluations.

    By default it counts environment steps, and follows from the settings alone: episodes as long as they can be are `SHARE` of it. A step
    of an agent that learns from many rows of replay memory counts as so many, unless the simulator may be slow.
    """
    if config.eval.every != AUTO:
        return parse("eval.every", config.eval.every)
    chunks = math.ceil((environment.spec.time_limit or config.eval.max_steps) / CHUNK)
    steps = config.eval.episodes * chunks * CHUNK / SHARE / (config.agent.work() if isinstance(environment, Environment) else 1.0)
    return Cadence("env_steps", min(max(steps, SHORTEST * config.total_steps), LONGEST * config.total_steps))


class Evaluations:
    """Evaluates the agent of a run with episodes of its own, and says whether it has solved the environment."""

    def __init__(self, config: Config, returns: str, often: Evaluator, decisive: Evaluator) -> None:
        """`returns` names the return that decides, among the metrics of an evaluation; `decisive` has other episodes than `often`."""
        self._returns, self._greedy, self._bar = returns, config.eval.greedy, config.env.solved_at
        self._ends_when_solved = config.stop_when_solved
        self._often, self._decisive = often, decisive

    def play(self) -> dict[str, float]:
        """Return the metrics of an evaluation. Raises StoppedError if a signal asks the run to stop."""
        return self._often.play(self._greedy, is_stopped).metrics()

    def play_decisive(self) -> dict[str, float]:
        """Return the metrics of one with fresh episodes, more of them. Raises StoppedError as `play`."""
        return self._decisive.play(self._greedy, is_stopped).metrics()

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

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Take the state of the evaluators from the tensors of a checkpoint. Raises UserError if it does not fit."""
        restore(self.state(), {name: tensor for name, tensor in saved.items() if "evaluator/" in name})


def is_stopped() -> bool:
    """Return whether a signal asks the run to stop."""
    return signals.requests.number is not None
