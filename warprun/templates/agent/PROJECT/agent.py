"""REINFORCE with a learned baseline: Williams 1992; Sutton & Barto 2018, section 13.4."""

from dataclasses import dataclass
from typing import NamedTuple

from warprun.errors import UserError
from warprun.learning.on_policy import OnPolicyAgent
from warprun.learning.operations import RowLoss
from warprun.learning.settings.on_policy import OnPolicyConfig


@dataclass
class Settings(OnPolicyConfig):
    """Settings of PROJECT: `agent.NAME=value`."""

    name: str = "PROJECT"
    """Name of the agent."""
    normalize_advantage: bool = False
    """PROJECT takes advantages as they are."""

    def check(self, key):
        """Raise UserError for a value that cannot work."""
        super().check(key)
        if self.normalize_advantage:
            raise UserError(f"{key}.normalize_advantage=true: PROJECT takes advantages as they are; set it to false")


class Agent(OnPolicyAgent[Settings]):
    """Make one gradient step per rollout."""

    Config = Settings

    def learn_group(self, learner, batch):
        """Train the policy of one group on a rollout; return its metrics."""
        batch = batch.samples()  # [T, B] -> rows
        gradient, means = learner.gradient(batch, batch.advantage)
        return learner.shown(means, learner.step(gradient))

    @classmethod
    def loss(cls, config):
        """Return the loss of a row, without the entropy bonus: -log pi A + value_coef (V - R)^2."""
        return RowLoss(row_loss, Coefficients(config.value_coef), Terms._fields)


class Coefficients(NamedTuple):
    """Numbers of the loss."""

    value_coef: float


class Terms(NamedTuple):
    """Terms of the loss, shown as `loss/NAME`."""

    policy: float
    value: float


def row_loss(log_prob, value, row, p):
    """Return the derivatives of the loss by log_prob and value, and its terms; kernels compile this."""
    error = value - row.returns
    return -row.advantage, 2.0 * p.value_coef * error, Terms(-row.advantage * log_prob, error * error)
