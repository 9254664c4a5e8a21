"""`concurrency=seed`: learners act. Actors send observations and get what the policy gives; here rollouts arise.

SEED RL (Espeholt et al. 2020, section 3). There the learner samples the actions; here actors draw them from what the
policy gives, so that every simulator draws as in a single process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from mpi4py import MPI

from warprun.kernels.mlp import Network
from warprun.parallel.exchange import LearnerExchange, Part, RolloutBuffer, WeightsBuffer
from warprun.parallel.messages import OUTPUTS, ROLLOUT, MessageActor, ranks_of_actors, send_end, send_weights
from warprun.parallel.world import World, taken_back
from warprun.simulation.exploration import Exploration
from warprun.simulation.simulator import Act
from warprun.simulation.trajectory import GroupTrajectory, Trajectory, allocate
from warprun.spec import PolicyKind, Spec
from warprun.state import State


@dataclass(frozen=True)
class Drawing:
    """The part of a policy that an actor needs to draw actions."""

    exploration: Exploration | None
    """As `Agent.exploration`."""
    carry: Mapping[str, int] = field(default_factory=dict)
    """As `Agent.carry`: nothing."""

    @staticmethod
    def of(spec: Spec, policies: PolicyKind, device: torch.device) -> Drawing:
        """Return that of an agent with such policies; the learner sends the numbers."""
        if policies == "sampled":
            return Drawing(None)
        return Drawing(Exploration(policies, {group.name: torch.zeros(3, device=device) for group in spec.groups}))

    def policy_state(self) -> State:
        """Return the numbers by name: they travel in the place of weights."""
        return {f"{name}/exploration": numbers for name, numbers in (self.exploration.numbers.items() if self.exploration else ())}

    def networks(self) -> Mapping[str, Network]:
        """Return none."""
        return {}


class Types:
    """How MPI finds the parts of a rollout in its buffer."""

    def __init__(self, world: World, rollout: RolloutBuffer) -> None:
        self.seen = [self._type(world, rollout.seen(row)) for row in range(rollout.trajectory.horizon)]
        """For each row what the policy sees."""
        self.results = self._type(world, rollout.results())
        """All else that an actor makes."""

    @staticmethod
    def _type(world: World, parts: Sequence[Part]) -> MPI.Datatype:
        begins, sizes = zip(*parts, strict=True)
        made = MPI.BYTE.Create_hindexed(sizes, begins).Commit()
        world.shared.callback(made.Free)
        return made


class SeedActor(MessageActor):
    """An `ActorExchange` that asks the learner how to act."""

    def __init__(self, world: World, weights: WeightsBuffer, rollout: RolloutBuffer) -> None:
        super().__init__(world, weights, self._ask)
        self._rollout, self._types = rollout, Types(world, rollout)

    def send(self, rollout: RolloutBuffer) -> None:
        """Send what has come of the actions."""
        self._world.wait_for([self._world.comm.Isend([rollout.memory, 1, self._types.results], self._learner, ROLLOUT)])

    def _ask(self, trajectory: Trajectory, row: int) -> None:
        own, comm = self._rollout, self._world.comm
        own.fill_row(trajectory, row)
        sent = comm.Isend([own.memory, 1, self._types.seen[row]], self._learner, ROLLOUT)
        self._world.wait_for([sent, comm.Irecv(own.outputs, self._learner, OUTPUTS)])
        for name, group in trajectory.groups.items():
            group.policy_output.copy_(own.trajectory.groups[name].policy_output)


class SeedLearner(LearnerExchange):
    """It acts for its actors, on the observations of as many at a time as have arrived."""

    def __init__(self, world: World, rollout: RolloutBuffer, device: torch.device, patience_s: float) -> None:
        """`patience_s`: how long the observations of an actor wait for those of others."""
        self._world, self._ranks = world, ranks_of_actors(world)
        self._types, self._patience_s = Types(world, rollout), patience_s
        whole = allocate(rollout.spec, 1, len(self._ranks) * rollout.trajectory.n_envs, device)
        self._batches = [_first(whole, count * rollout.trajectory.n_envs) for count in range(1, len(self._ranks) + 1)]
        """Rollouts of one step, of the environments of 1, 2, ... actors."""
        self._calls = self._envs = 0
        """Calls of the policy since the last record, and the environments in them."""

    def publish(self, weights: WeightsBuffer) -> None:
        """Send the numbers of exploration, which travel in the place of weights, to all actors."""
        send_weights(self._world, weights, self._ranks)

    def close(self) -> None:
        send_end(self._world, self._ranks)

    def receive(self, into: Sequence[RolloutBuffer], act: Act) -> int:
        """Act for all actors until each has made a rollout."""
        comm, horizon = self._world.comm, len(self._types.seen)
        rows = [0] * len(into)
        """The row of each actor that its next observations are for; `horizon`: it sends the results."""

        def expect(n: int) -> MPI.Request:
            datatype = self._types.seen[rows[n]] if rows[n] < horizon else self._types.results
            return comm.Irecv([into[n].memory, 1, datatype], self._ranks[n], ROLLOUT)

        arriving, answers = [expect(n) for n in range(len(into))], [MPI.REQUEST_NULL] * len(into)
        with taken_back(arriving), taken_back(answers):
            while min(rows) <= horizon:
                arrived = self._world.wait_for_some(arriving, self._patience_s)
                asking = sorted(n for n in arrived if rows[n] < horizon)
                self._world.wait_for([answers[n] for n in asking])  # done already: the next observations came after them
                self._act([(into[n], rows[n]) for n in asking], act)
                for n in arrived:
                    rows[n] += 1
                for n in asking:
                    answers[n], arriving[n] = comm.Isend(into[n].outputs, self._ranks[n], OUTPUTS), expect(n)
            self._world.wait_for(answers)
        return len(into)

    def metrics(self) -> Mapping[str, float]:
        """Return the mean number of environments that the policy acts for at once."""
        mean = self._envs / max(self._calls, 1)
        self._calls = self._envs = 0
        return {"actors/batch_envs": mean}

    def _act(self, asking: Sequence[tuple[RolloutBuffer, int]], act: Act) -> None:
        """Write outputs and values for rows of rollouts."""
        if not asking:
            return
        batch, places = self._batches[len(asking) - 1], []
        for number, (rollout, row) in enumerate(asking):
            n_envs = rollout.trajectory.n_envs
            envs = slice(number * n_envs, (number + 1) * n_envs)
            for name, group in batch.groups.items():
                places.append((group, envs, rollout.trajectory.groups[name], row))
        for group, envs, own, row in places:
            group.obs[0, envs].copy_(own.obs[row])
            if group.mask is not None and own.mask is not None:
                group.mask[0, envs].copy_(own.mask[row])
        act(batch, 0)
        for group, envs, own, row in places:
            own.policy_output.copy_(group.policy_output[envs])
            own.value[row].copy_(group.value[0, envs])
        self._calls, self._envs = self._calls + 1, self._envs + batch.n_envs


def _first(whole: Trajectory, n_envs: int) -> Trajectory:
    """Return the first environments of a rollout of one step."""
    groups = {}
    for name, group in whole.groups.items():
        cut = {key: None if tensor is None else tensor[:, :n_envs] for key, tensor in vars(group).items()}
        groups[name] = GroupTrajectory(**cut | {"policy_output": group.policy_output[:n_envs]})  # type: ignore[arg-type]
    return Trajectory(whole.terminated[:, :n_envs], whole.truncated[:, :n_envs], groups)
