"""REINFORCE with a learned baseline: Williams 1992; Sutton & Barto 2018, section 13.4."""

from dataclasses import dataclass

from warprun.errors import UserError
from warprun.learning.on_policy import OnPolicyAgent
from warprun.learning.settings import OnPolicyConfig


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

        def loss(log_prob, entropy, value, rows):
            policy = -(log_prob * rows.advantage).mean()
            value_error = (value - rows.returns).square().mean()
            total = policy + learner.config.value_coef * value_error - learner.entropy_coef * entropy.mean()
            return total, policy, value_error

        gradient, means = learner.gradient(loss, batch, batch.advantage)
        norm = learner.step(gradient)
        return {"policy": means[1], "value": means[2], "grad_norm": norm}
