"""The pendulums above in NVIDIA Warp: a thread of a kernel for each."""

import warp as wp

from warprun.environment import Box


@wp.func
def look(x: wp.array2d(dtype=float), n: int, seen: wp.array2d(dtype=float)):
    seen[n, 0] = wp.cos(x[0, n])
    seen[n, 1] = wp.sin(x[0, n])
    seen[n, 2] = x[1, n]


@wp.kernel
def begin(seed: int, mask: wp.array(dtype=bool), x: wp.array2d(dtype=float), seen: wp.array2d(dtype=float)):
    n = wp.tid()
    if mask[n]:
        rng = wp.rand_init(seed, n)
        x[0, n] = 2.0 * wp.randn(rng)
        x[1, n] = 2.0 * wp.randn(rng)
    look(x, n, seen)


@wp.kernel
def advance(
    gravity: float,
    actions: wp.array2d(dtype=float),
    x: wp.array2d(dtype=float),
    seen: wp.array2d(dtype=float),
    rewards: wp.array(dtype=float),
):
    n = wp.tid()
    angle = x[0, n]
    speed = x[1, n]
    torque = actions[n, 0]
    away = angle - 2.0 * wp.pi * wp.floor(angle / (2.0 * wp.pi) + 0.5)
    speed = wp.clamp(speed + 0.05 * (1.5 * gravity * wp.sin(angle) + 3.0 * torque), -8.0, 8.0)
    rewards[n] = -(away * away + 0.1 * speed * speed + 0.001 * torque * torque)
    x[0, n] = angle + 0.05 * speed
    x[1, n] = speed
    look(x, n, seen)


class Warped:
    arrays, observation_space, action_space = wp, Box(3), Box(1, -2.0, 2.0)

    def __init__(self, n_envs, gravity=10.0):
        self.n_envs, self.gravity = n_envs, gravity
        self.state = wp.zeros((2, n_envs), dtype=float, device="cpu")  # angles and speeds
        self.seen, self.rewards = (wp.zeros(shape, dtype=float, device="cpu") for shape in ((n_envs, 3), n_envs))
        self.never = wp.zeros(n_envs, dtype=bool, device="cpu")

    def reset(self, seed, mask):
        wp.launch(begin, self.n_envs, [seed, mask, self.state, self.seen], device="cpu")
        return self.seen

    def step(self, actions, out):  # out: the row of the rollout for these observations
        wp.launch(advance, self.n_envs, [self.gravity, actions, self.state, out, self.rewards], device="cpu")
        return out, self.rewards, self.never, self.never


environment = Warped
