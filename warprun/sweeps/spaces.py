"""The settings that `warprun tune` searches if the command names none: of each agent those that matter most."""

from __future__ import annotations

from collections.abc import Sequence

from warprun.errors import UserError

RATE = "tag(log,interval(1e-4,5e-3))"
GAMMA = "choice(0.9,0.95,0.98,0.99,0.995,0.999)"
UNITS = "choice([32,32],[64,64],[128,128],[256,256])"

ON_POLICY = {
    "agent.learning_rate": RATE,
    "agent.gamma": GAMMA,
    "agent.gae_lambda": "choice(0.8,0.9,0.95,0.98)",
    "agent.entropy_coef": "tag(log,interval(1e-5,3e-2))",
    "agent.network.hidden": UNITS,
    "agent.network.activation": "choice(tanh,relu)",
}
OFF_POLICY = {
    "agent.learning_rate": RATE,
    "agent.gamma": GAMMA,
    "agent.n_step": "choice(1,3,5)",
    "agent.batch_size": "choice(64,128,256,512)",
    "agent.network.hidden": UNITS,
}
ACTOR_CRITIC = OFF_POLICY | {"agent.actor_learning_rate": RATE, "agent.tau": "tag(log,interval(1e-3,5e-2))"}
NOISE = {"agent.noise_std": "interval(0.05,0.5)"}

SPACES: dict[str, dict[str, str]] = {
    "a2c": ON_POLICY | {"agent.horizon": "choice(8,16,32,64)"},
    "ppo": ON_POLICY
    | {"agent.horizon": "choice(16,32,64,128,256)", "agent.epochs": "choice(4,10,20)", "agent.clip": "choice(0.1,0.2,0.3)"},
    "dqn": OFF_POLICY | {"agent.target_update_interval": "choice(50,250,1000)", "agent.exploration_fraction": "interval(0.05,0.5)"},
    "ddpg": ACTOR_CRITIC | NOISE,
    "td3": ACTOR_CRITIC | NOISE,
    "sac": ACTOR_CRITIC | {"agent.temperature_learning_rate": RATE},
}
"""Agent -> key -> its values, in Hydra's sweep syntax."""


def default_space(agent: str, given: Sequence[str]) -> list[str]:
    """Return the overrides that search the settings of an agent, without those that `given` sets. Raises UserError."""
    if agent not in SPACES:
        raise UserError(f"agent={agent}: tune has no search space of its own for it; name one, such as 'agent.learning_rate={RATE}'")
    fixed = [override.partition("=")[0].lstrip("+") for override in given]
    # agent.network=lstm and agent.network.module=... choose another network, whose sizes are those of its own settings.
    own_network = any(key in ("agent.network", "agent.network.module", "agent.network.type") for key in fixed)
    free = {key: values for key, values in SPACES[agent].items() if key not in fixed}
    return [f"{key}={values}" for key, values in free.items() if not (own_network and key.startswith("agent.network."))]
