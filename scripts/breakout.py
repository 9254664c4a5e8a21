"""Train Breakout of MinAtar with Stable-Baselines3 as an experiment of warprun does: the same network, settings and steps, on one thread.

    python scripts/breakout.py breakout_ppo breakout_dqn [--seeds 5]

The runs take the place of those that docs/benchmarks/results.json has. It needs

    pip install minatar "warprun[gymnasium,sb3]"

The settings of Stable-Baselines3 are read from the experiment, and the layers before its heads are those of warprun. What differs: its PPO
has twice the weight of the value loss for the same number, as its loss lacks a factor of 1/2, so it gets half; its DQN explores in all
environments at once or in none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from common import described, machine, require, settings
from result_tables import Run
from results import keep

from warprun.config.compose import compose
from warprun.config.schema import Config
from warprun.learning.networks import ACTIVATIONS, hidden_layers, make_encoder
from warprun.runs.build import set_up
from warprun.simulation.external.registered import check_id
from warprun.state import derived_seed

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecEnv

EPISODES = 200
"""Fresh episodes that judge a run, those of `warprun eval RUN episodes=200 seed=1`."""


def trained(overrides: list[str]) -> Run:
    """Train with the settings of a run of warprun; return the numbers of the run."""
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    config = compose([*overrides, "device=cpu", "concurrency.threads=1"])
    began = time.perf_counter(), time.process_time()
    envs = environments(config, config.seed)
    model = peer(config, envs)
    model.learn(config.total_steps)
    found = {"wall_s": time.perf_counter() - began[0], "cpu_s": time.process_time() - began[1]}
    envs.close()
    judge = environments(config, derived_seed(1, "eval") % 2**31)
    played, _ = evaluate_policy(model, judge, EPISODES, deterministic=True, return_episode_rewards=True)
    judge.close()
    returns = torch.tensor(played, dtype=torch.float64)
    found |= {"last/return": float(returns.mean()), "last/return_stderr": float(returns.std()) / EPISODES**0.5}
    about = {"overrides": " ".join(overrides), "machine": described(machine())}
    return {"state": "finished", "env_steps": model.num_timesteps} | found | about


def environments(config: Config, seed: int) -> VecEnv:
    """Return the environments of a run, one after the other in this process."""
    from stable_baselines3.common.env_util import make_vec_env

    assert config.env.id is not None
    check_id(config.env.id, config.env.register)
    limit = {"max_episode_steps": config.env.time_limit}
    return make_vec_env(config.env.id, config.n_envs, seed=seed, env_kwargs=limit)


def peer(config: Config, envs: VecEnv) -> BaseAlgorithm:
    """Return the algorithm of Stable-Baselines3 with the settings of a run of warprun."""
    import stable_baselines3
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch import nn

    agent: Any = config.agent
    network = agent.network
    observation = set_up(config).environment.spec.groups[0].observation

    class Features(BaseFeaturesExtractor):
        """All layers of the network of warprun but the last."""

        def __init__(self, space: Any) -> None:
            sizes = [network.layout(observation).outputs, *network.first_hidden]
            super().__init__(space, sizes[-1])
            layers = *make_encoder(observation, network), *hidden_layers(sizes, network.activation)
            self.layers = nn.Sequential(nn.Flatten(), *layers)

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layers(observations.float())
            return found

    assert not agent.normalize_obs and network.activation in ACTIVATIONS
    shared = {
        "policy_kwargs": {"features_extractor_class": Features, "net_arch": []},
        "learning_rate": agent.learning_rate,
        "gamma": agent.gamma,
        "max_grad_norm": agent.max_grad_norm,
        "seed": config.seed,
        "device": "cpu",
    }
    if agent.name == "ppo":
        assert not agent.normalize_reward and network.shared and agent.desired_kl is None
        return stable_baselines3.PPO(
            "MlpPolicy",
            envs,
            n_steps=agent.horizon,
            batch_size=agent.horizon * config.n_envs // agent.minibatches,
            n_epochs=agent.epochs,
            gae_lambda=agent.gae_lambda,
            clip_range=agent.clip,
            ent_coef=agent.entropy_coef,
            vf_coef=agent.value_coef / 2,
            normalize_advantage=agent.normalize_advantage,
            **shared,
        )
    assert agent.name == "dqn" and not (agent.double or agent.dueling or agent.quantiles or agent.replay.prioritized)
    return stable_baselines3.DQN(
        "MlpPolicy",
        envs,
        buffer_size=agent.replay.capacity,
        learning_starts=agent.learning_starts,
        batch_size=agent.batch_size,
        tau=agent.tau,
        train_freq=agent.horizon,
        gradient_steps=round(agent.utd_ratio * config.n_envs * agent.horizon),
        target_update_interval=round(agent.target_update_interval / agent.utd_ratio),
        exploration_fraction=agent.exploration_fraction,
        exploration_initial_eps=agent.epsilon_start,
        exploration_final_eps=agent.epsilon_end,
        **shared,
    )


def main() -> None:
    """Train the runs of experiments, and keep their numbers."""
    chosen = settings(__doc__, "experiments*", seeds=5)
    require("minatar", "minatar")
    require("stable_baselines3", "stable-baselines3")
    for experiment in chosen.experiments:
        case = f"{experiment.rpartition('_')[2].upper()}, Stable-Baselines3"
        runs = {str(seed): trained([f"experiment={experiment}", f"seed={seed}"]) for seed in range(chosen.seeds)}
        keep("minatar", {case: runs})


if __name__ == "__main__":
    main()
