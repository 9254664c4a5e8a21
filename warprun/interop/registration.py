"""Ids in Gymnasium, `warprun/NAME-v0`, of the environments of one actor that warprun ships.

Imports neither numba nor torch. The import of this module registers them, and so does
`gymnasium.make("warprun.interop.registration:warprun/CartPole-v0")`.
"""

from __future__ import annotations

from warprun.errors import needs

with needs("gymnasium", "gymnasium"):
    from gymnasium import register, registry

IDS = {
    "warprun/Acrobot-v0": "acrobot",
    "warprun/BoosterSurrogate-v0": "booster",
    "warprun/BoosterSurrogateContinuous-v0": "booster_continuous",
    "warprun/CartPole-v0": "cartpole",
    "warprun/Catalysis-v0": "catalysis",
    "warprun/CatalysisContinuous-v0": "catalysis_continuous",
    "warprun/GrayScott-v0": "gray_scott",
    "warprun/MountainCar-v0": "mountain_car",
    "warprun/MountainCarContinuous-v0": "mountain_car_continuous",
    "warprun/Pendulum-v0": "pendulum",
    "warprun/TMaze-v0": "t_maze",
}
"""Id of Gymnasium -> name of the environment."""

for _id, _env in IDS.items():
    if _id not in registry:
        register(
            _id,
            entry_point="warprun.interop.vector:WarprunEnv",
            vector_entry_point="warprun.interop.vector:make_vec",
            kwargs={"env": _env},
        )
