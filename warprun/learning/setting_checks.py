"""What is wrong with the settings of an agent, told with the key as the user types it. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from warprun.environment import Environment
from warprun.errors import UserError
from warprun.learning.settings import (
    ACTIVATIONS,
    ADVANTAGES,
    NOISES,
    OPTIMIZERS,
    AgentConfig,
    DDPGConfig,
    DQNConfig,
    LayersConfig,
    NetworkConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    PPOConfig,
    TD3Config,
    did_you_mean,
    group_config,
)


def check(config: AgentConfig) -> None:
    """Raise a UserError, with the key as the user types it, for a value that cannot work, in a group's overrides too."""
    _check(config, "agent")
    for name in config.groups:
        _check(group_config(config, name), f"agent.groups.{name}")


def check_groups(config: AgentConfig, names: Iterable[str]) -> None:
    """Raise a UserError if `agent.groups` names a group that the environment, with groups `names`, does not have."""
    names = list(names)
    for name in config.groups:
        if name not in names:
            raise UserError(f"agent.groups.{name}: the environment has no such group; {did_you_mean(name, names)}")


def check_run(config: AgentConfig, environment: Environment, n_envs: int, total_steps: int) -> None:
    """Raise a UserError if a run of `total_steps` environment steps of `n_envs` environments has no room for what `config` wants."""
    if not isinstance(config, OffPolicyConfig):
        _check_rows(config, environment, n_envs)
        return
    if config.warmup >= total_steps:
        raise UserError(f"agent.warmup={config.warmup}: the run has only total_steps={total_steps}, so nothing would be learned")
    for group in environment.groups:
        capacity = group_config(config, group.name).replay.capacity
        if n_envs * group.size > capacity:
            raise UserError(f"agent.replay.capacity={capacity}: a single step of n_envs={n_envs} has {n_envs * group.size} transitions")


def _check_rows(config: OnPolicyConfig, environment: Environment, n_envs: int) -> None:
    for group in environment.groups:
        own = group_config(config, group.name)
        rows, least = config.horizon * n_envs * group.size, 2 if own.normalize_advantage else 1
        parts = own.minibatches if isinstance(own, PPOConfig) else 1
        if rows < least * parts:
            fewer = ", or lower agent.minibatches" if parts > 1 else ""
            given = f"agent.horizon={config.horizon} x n_envs={n_envs} x {group.size} actors give {rows} rows"
            raise UserError(f"{given}, and each of {parts} gradient steps needs {least} or more: raise n_envs or agent.horizon{fewer}")


def _check(config: AgentConfig, key: str) -> None:
    _at_least(config, key, 1, "horizon", "n_step")
    _within(config, key, 0, 1, "gamma")
    _positive(config, key, "learning_rate", "max_grad_norm")
    _not_negative(config, key, "learning_rate_end")
    _one_of(config.optimizer, f"{key}.optimizer", "name", OPTIMIZERS)
    _below_one(config.optimizer, f"{key}.optimizer", "beta1", "beta2", "alpha")
    _positive(config.optimizer, f"{key}.optimizer", "eps")
    _check_layers(config.network, f"{key}.network")
    if isinstance(config, OnPolicyConfig):
        _check_on_policy(config, key)
    else:
        _check_off_policy(config, key)


def _check_on_policy(config: OnPolicyConfig, key: str) -> None:
    _within(config, key, 0, 1, "gae_lambda")
    _not_negative(config, key, "entropy_coef", "entropy_coef_end", "value_coef")
    _one_of(config, key, "advantage", ADVANTAGES)
    if not math.isfinite(config.network.log_std_init):
        raise UserError(f"{key}.network.log_std_init={config.network.log_std_init}: it must be finite")
    if isinstance(config, PPOConfig):
        _at_least(config, key, 1, "epochs", "minibatches")
        _positive(config, key, "clip", "clip_value", "target_kl")


def _check_off_policy(config: OffPolicyConfig, key: str) -> None:
    _at_least(config, key, 1, "batch_size", "target_every")
    _at_least(config, key, 0, "warmup")
    _positive(config, key, "gradient_steps")
    _within(config, key, 0, 1, "target_tau")
    replay = config.replay
    _at_least(replay, f"{key}.replay", 1, "capacity")
    _within(replay, f"{key}.replay", 0, 1, "alpha", "beta", "beta_end")
    _positive(replay, f"{key}.replay", "eps")
    if config.batch_size > replay.capacity:
        raise UserError(f"{key}.batch_size={config.batch_size}: the buffer holds only {key}.replay.capacity={replay.capacity}")
    if isinstance(config, DQNConfig):
        _within(config, key, 0, 1, "epsilon", "epsilon_end", "epsilon_fraction")
    if isinstance(config, DDPGConfig | TD3Config):
        _positive(config, key, "actor_learning_rate")
        _not_negative(config, key, "noise_std")
        _within(config, key, 0, 1, "noise_theta")
        _one_of(config, key, "noise", NOISES)
    if isinstance(config, TD3Config):
        _at_least(config, key, 1, "policy_delay")
        _not_negative(config, key, "smoothing_std", "smoothing_clip")


def _check_layers(network: NetworkConfig | LayersConfig, key: str) -> None:
    sizes = network.hidden
    if not sizes or any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise UserError(f"{key}.hidden={sizes}: give one size of at least 1 for each hidden layer, such as [64,64]")
    _one_of(network, key, "activation", ACTIVATIONS)


def _at_least(config: Any, key: str, least: int, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must be at least {least}")


def _within(config: Any, key: str, low: float, high: float, *names: str) -> None:
    for name in names:
        if not low <= getattr(config, name) <= high:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must lie between {low} and {high}")


def _below_one(config: Any, key: str, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise UserError(f"{key}.{name}={getattr(config, name)}: it must be at least 0 and below 1")


def _positive(config: Any, key: str, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{key}.{name}={value}: it must be above 0 and finite")


def _not_negative(config: Any, key: str, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value < math.inf:
            raise UserError(f"{key}.{name}={value}: it must be 0 or more, and finite")


def _one_of(config: Any, key: str, name: str, known: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in known:
        raise UserError(f"{key}.{name}={value}: unknown; {did_you_mean(value, list(known))}")
