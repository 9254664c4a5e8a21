"""The settings that `warprun tune` searches if the command names none: of each agent those that matter most."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from warprun.config.schema import Config
from warprun.errors import UserError

RATE = "tag(log,interval(1e-4,5e-3))"
GAMMAS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Discounts that are searched, beside that of a run without a search."""
UNITS = "null,[32,32],[128,128],[256,256]"
"""null: [64,64], or what belongs to an encoder."""
UNITS_OF_CRITICS = "choice([32,32],[64,64],[128,128],[256,256])"

GAMMA_KEY, RATE_KEY, FOLLOWING = "agent.gamma", "agent.learning_rate", "agent.desired_kl"
"""Of the last two one is searched."""

ON_POLICY = {
    RATE_KEY: RATE,
    "agent.gae_lambda": "choice(0.8,0.9,0.95,0.98)",
    "agent.entropy_coef": "tag(log,interval(1e-5,3e-2))",
    "agent.network.hidden": UNITS,
    "agent.network.activation": "choice(tanh,relu)",
}
OFF_POLICY = {
    RATE_KEY: RATE,
    "agent.n_step": "choice(1,3,5)",
    "agent.batch_size": "choice(64,128,256,512)",
    "agent.network.hidden": UNITS,
}
ACTOR_CRITIC = OFF_POLICY | {
    "agent.network.hidden": UNITS_OF_CRITICS,
    "agent.actor_learning_rate": RATE,
    "agent.tau": "tag(log,interval(1e-3,5e-2))",
}
NOISE = {"agent.noise_std": "interval(0.05,0.5)"}

SPACES: dict[str, dict[str, str]] = {
    "a2c": ON_POLICY,
    "ppo": ON_POLICY | {FOLLOWING: "tag(log,interval(3e-3,3e-2))"},
    "dqn": OFF_POLICY | {"agent.target_update_interval": "choice(50,250,1000)", "agent.exploration_fraction": "interval(0.05,0.5)"},
    "ddpg": ACTOR_CRITIC | NOISE,
    "td3": ACTOR_CRITIC | NOISE,
    "sac": ACTOR_CRITIC | {"agent.temperature_learning_rate": RATE},
}
"""Agent -> key -> its values, in Hydra's sweep syntax."""


def default_space(config: Config, given: Sequence[str], networks: bool = True) -> list[str]:
    """Return the overrides that search the settings of an agent, without those that `given` sets. Raises UserError.

    What follows from the run is left to it, but for the discount and the learning rate, and what is off (null) stays so. Where the
    learning rate follows the policy, its aim is searched in the place of the rate. Without `networks`, and of a network of the user or
    with memory, no size is searched.
    """
    agent = config.agent
    if agent.name not in SPACES:
        raise UserError(f"agent={agent.name}: tune has no search space of its own for it; name one, such as '{RATE_KEY}={RATE}'")
    fixed = [override.partition("=")[0].lstrip("+") for override in given]
    derived = {override.partition("=")[0] for override in config.origin.derived} - {RATE_KEY, FOLLOWING, GAMMA_KEY}
    without = {*fixed, *derived, *([RATE_KEY] if getattr(agent, "desired_kl", None) is not None else [])}
    sizes = networks and config.agent.network.module is None and not config.agent.network.remembers
    space = {GAMMA_KEY: f"choice({','.join(map(str, sorted({*GAMMAS, agent.gamma})))})"} | SPACES[agent.name]
    free = {key: values for key, values in space.items() if key not in without and not _is_off(config, key, values)}
    return [f"{key}={values}" for key, values in free.items() if sizes or not key.startswith("agent.network.")]


def value_of(config: Config, key: str) -> object:
    """Return the value of a key of a config."""
    return reduce(getattr, key.split("."), config)


def _is_off(config: Config, key: str, values: str) -> bool:
    return value_of(config, key) is None and "null" not in values
