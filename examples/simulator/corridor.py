"""Walkers in a corridor, simulated with torch: action 1 goes right, 0 left; the goal ends the episode."""

import torch

from warprun.simulation.simulator import Episodes
from warprun.simulation.trajectory import allocate
from warprun.spec import Box, Discrete, GroupSpec, Spec
from warprun.state import Counter, derived_seed

GOAL = 8  # cells from the start


class Corridor:
    """A `Simulator` of `n_envs` corridors."""

    def __init__(self, spec, n_envs, horizon, seed, device, exploration):
        self.spec, self.n_envs, self.seed, self.device, self.exploration = spec, n_envs, seed, device, exploration
        self.trajectory = allocate(spec, horizon, n_envs, device.torch)
        self.walkers = torch.zeros((3, n_envs), device=device.torch)
        self.cell, self.age, self.total = self.walkers  # views: place, steps and return of the current episode
        self.ended = torch.zeros(3, dtype=torch.float64, device=device.torch)  # episodes, their steps, their returns
        self.counter = Counter()

    @property
    def steps(self):
        return self.counter.value

    def reset(self):
        self.walkers.zero_()
        self.trajectory.forget()

    prepare = reset  # there is nothing to compile

    def observe(self):
        return (self.cell / GOAL)[:, None, None]  # [N, A, F], one actor, one feature

    def probabilities(self, output):
        """Return the probabilities [N, 2] of the actions, from the policy output [N, 2]."""
        if self.exploration is None:
            return output.softmax(-1)  # logits
        share = self.exploration.numbers["walker"][0]  # of uniform actions; the output holds values of the actions
        return (1 - share) * torch.nn.functional.one_hot(output.argmax(-1), 2) + share / 2

    def collect(self, act, greedy=False):
        taken, walker = self.trajectory, self.trajectory.groups["walker"]
        # A stream for each rollout, so that the state needs no generator.
        rng = torch.Generator(self.device.torch).manual_seed(derived_seed(self.seed, "actions", self.steps))
        walker.obs[0] = self.observe()
        for row in range(taken.horizon):
            act(taken, row)
            output = walker.policy_output[:, 0]
            chances = self.probabilities(output)
            action = output.argmax(-1, keepdim=True) if greedy else torch.multinomial(chances, 1, generator=rng)
            walker.action[row, :, 0] = action
            walker.log_prob[row] = chances.gather(-1, action).log()

            self.cell.add_(2 * action[:, 0] - 1).clamp_(min=0)
            self.age += 1
            at_goal = self.cell >= GOAL
            cut = ~at_goal & (self.age >= self.spec.time_limit)
            walker.reward[row, :, 0] = torch.where(at_goal, 1.0, -0.01)
            taken.terminated[row], taken.truncated[row] = at_goal, cut
            self.total += walker.reward[row, :, 0]

            # Autoreset: keep the final observation of truncated episodes, count what ended, begin anew.
            for env in cut.nonzero()[:, 0]:
                walker.final_obs[taken.truncated[:row, env].sum(), env] = self.observe()[env]
            over = at_goal | cut
            self.ended += torch.stack([over.sum(), self.age[over].sum(), self.total[over].sum()])
            self.walkers.masked_fill_(over, 0)
            walker.obs[row + 1] = self.observe()
        self.counter.value += taken.horizon
        return taken

    def episodes(self):
        count = int(self.ended[0])
        _, length, mean_return = (self.ended / count).tolist()  # NaN without episodes
        self.ended.zero_()
        return Episodes(count, length, {"walker": mean_return})

    def fault(self, wait=False):
        return None  # all numbers are finite by construction

    def close(self):
        pass  # there are no processes to end

    def state(self):
        return {"walkers": self.walkers, "ended": self.ended, "steps": self.counter.tensor}


class Corridors:
    """A `SimulatorFactory`."""

    spec = Spec((GroupSpec("walker", 1, Box(1), Discrete(2)),), time_limit=40)

    def make_simulator(self, *, n_envs, first_env, horizon, seed, device, exploration):
        seed = derived_seed(seed, "first", first_env) if first_env else seed  # another process has other environments
        return Corridor(self.spec, n_envs, horizon, seed, device, exploration)


environment = Corridors()
