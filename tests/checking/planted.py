"""Mistakes planted in copies of environments, and words of the line with which the check must tell each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {name: ROOT / "envs" / f"{name}.py" for name in ("cartpole", "mountain_car", "mountain_car_continuous", "pendulum", "acrobot")} | {
    "market": ROOT / "tests" / "environments" / "market.py"
}
"""Environments to plant in. The last one, of the tests, has several groups, masks and tables in one file."""


@dataclass(frozen=True)
class Planted:
    """A mistake: texts to replace in the file of an environment."""

    environment: str
    changes: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    """All in one line of the result."""
    processes: bool = False
    """Whether the checks that need other processes find it."""


def planted(environment: str, old: str, new: str, *words: str, processes: bool = False) -> Planted:
    """Return a mistake of one replacement."""
    return Planted(environment, ((old, new),), words, processes)


OBSERVE = "return s.x, s.x_dot, s.theta, s.theta_dot"
FORCE = "force = p.force if action == 1 else -p.force"
TERMINATED = "terminated = abs(x) > p.x_limit or abs(theta) > p.theta_limit"
NUMPY = ("from typing import NamedTuple\n", "from typing import NamedTuple\nimport random\nimport numpy as np\n")
SEEN = "return cos(s.theta), sin(s.theta), s.omega"
ALLOWED = "return k <= s.stock and k <= regulator.quota"
START = tuple((f"uniform(rng, {n}, -p.start, p.start)", "0.2 * p.start") for n in range(4))

PLANTED: dict[str, Planted] = {
    "wrong index of the action": planted("pendulum", "action[0]", "action[1]", "pendulum.py:", "in step"),
    "swapped observations": planted(
        "cartpole", OBSERVE, "return s.x, s.theta, s.x_dot, s.theta_dot", "observation 2 of agent (s.x_dot)", "in observe", "beyond"
    ),
    "swapped fields": planted(
        "cartpole",
        "State(x, s.x_dot + p.dt * x_acc, theta,",
        "State(x, theta, s.x_dot + p.dt * x_acc,",
        "in step gives State.x_dot theta",
        "swapped",
    ),
    "bound too small": planted("mountain_car", "(Params().x_max, Params().v_max)", "(Params().x_max, 0.01)", "observation 1", "(s.v)"),
    "missing wrap": planted("pendulum", SEEN, "return s.theta / pi, sin(s.theta), s.omega", "observation 0 of agent (s.theta / pi)"),
    "off by one in an array field": planted("market", "s.history[t % MEMORY]", "s.history[t % (MEMORY + 1)]", "index 3", "in produce"),
    "table out of range": planted("market", "tables.demand[t % 7, i]", "tables.demand[t, i]", "index 7", "in produce"),
    "other actors out of range": planted("market", "neighbour = (i + 1) % PRODUCERS", "neighbour = i + 1", "index 5", "in produce"),
    "negative index": planted("market", "[(i + PRODUCERS - 1) % PRODUCERS]", "[i - 1]", "producers.price", "index -1", "in look"),
    "integer division": Planted(
        "mountain_car",
        (("def observe(s):", "def observe(s, t):"), ("return s.x, s.v", "return s.x, float32(t // 500)")),
        ("observation 1 of agent (float32(t // 500))", "always 0"),
    ),
    "float64": planted(
        "cartpole", "x = s.x + p.dt * s.x_dot", "x = s.x + p.dt * s.x_dot * (action + 1)", "float64", "step", "line 52", processes=True
    ),
    "random of Python": Planted(
        "cartpole", (NUMPY, ("uniform(rng, 0, -p.start, p.start)", "random.uniform(-0.05, 0.05)")), ("in reset", "random")
    ),
    "global state": Planted(
        "cartpole", (NUMPY, ("def step", "COUNT = np.zeros(1)\n\n\ndef step"), (FORCE, FORCE + "\n    COUNT[0] += 1.0")), ("read-only",)
    ),
    "array of the module": Planted(
        "cartpole", (NUMPY, ("def step", "LIMITS = np.array([2.4])\n\n\ndef step"), ("p.x_limit", "LIMITS[0]")), ("LIMITS", "in step")
    ),
    "rare NaN": Planted(
        "cartpole",
        (("import cos, sin", "import cos, sin, sqrt"), (", 1.0, terminated", ", sqrt(3.0 - abs(s.theta_dot)), terminated")),
        ("reward of nan", "in step"),
    ),
    "infinite observation": planted("mountain_car", "return s.x, s.v", "return s.x, 1.0 / s.v", "observation of inf", "in observe"),
    "mask forbids everything": planted(
        "market", ALLOWED, "return k < s.stock and k <= regulator.quota", "forbade every action", "can_sell"
    ),
    "mask never forbids": planted("market", ALLOWED, "return k >= 0", "allowed every action", "can_sell"),
    "mask never allows": planted("market", ALLOWED, "return k == 0 or k <= 1 and k <= s.stock", "never allowed action 2, 3", "can_sell"),
    "variable set in one branch": planted("cartpole", FORCE, "if action == 1:\n        force = p.force", "variable force", "no value"),
    "integer wraps": planted("market", "int32(s.stock - sold + delivered)", "(s.stock + delivered) * 70000", "Producer.stock", "wraps"),
    "float in an integer field": planted("market", "int32(1 + 2 * action[1])", "1.5 * float32(action[1])", "Regulator.quota", "cut"),
    "field not reset": planted(
        "market", "for n in range(MEMORY):", "for n in range(MEMORY - 1):", "Producer.history (elements 2)", "open_shop"
    ),
    "constant reset": Planted("cartpole", START, ("begins with the same observation", "in reset")),
    "never done": planted("cartpole", TERMINATED, "terminated = abs(x) > 1e9", "terminated was never set", "in step"),
    "done at once": planted("cartpole", TERMINATED, "terminated = abs(x) < p.x_limit", "first step", "in step"),
    "writes to others": planted(
        "market",
        "    peak = max(s.peak, producers.price[0])",
        "    producers.price[0] = 0.5\n    peak = max(s.peak, producers.price[0])",
        "writes to producers.price",
        "in account",
    ),
    "unused parameter": planted("cartpole", "mass = p.cart_mass + p.pole_mass", "mass = 1.0 + p.pole_mass", "parameter cart_mass"),
    "too many actions": planted("cartpole", "Discrete(2)", "Discrete(3)", "options 0 and 2", "in step"),
    "ignored action": planted("cartpole", FORCE, "force = p.force * s.theta", "the action of agent changes nothing", "in step"),
    "constant feature": planted("cartpole", OBSERVE, "return s.x, s.x_dot, s.theta, 0.0 * s.x", "observation 3 of agent", "always 0"),
    "large reward": planted("pendulum", "-cost, False", "-1e6 * cost, False", "reward of agent is large", "in step"),
    "small reward": planted("mountain_car", "State(x, v), -1.0,", "State(x, v), -1e-6,", "reward of agent is small", "in step"),
    "unlike rewards": planted(
        "market", "return state, price * float32(sold)", "return state, 1e5 * price * float32(sold)", "rewards differ in scale", "producers"
    ),
    "time limit of one step": planted("pendulum", "time_limit=200", "time_limit=1", "time_limit=1 ends every episode"),
    "time limit as termination": Planted(
        "cartpole",
        (("def step(s, action, p):", "def step(s, action, p, t):"), (TERMINATED, TERMINATED + " or t >= 29")),
        ("every episode that reached step 30", "in step"),
    ),
    "no end": planted("pendulum", "time_limit=200", "time_limit=None", "no episode ended", "in step"),
    "time limit far away": planted("pendulum", "time_limit=200", "time_limit=10_000_000", "time_limit=10,000,000", "too large"),
    "same draw": planted("cartpole", "uniform(rng, 1,", "uniform(rng, 0,", "uses draw 0", "in reset"),
    "huge observation": Planted(
        "pendulum",
        (("Box(3, (-1.0, -1.0, -Params().omega_limit), (1.0, 1.0, Params().omega_limit))", "Box(3)"), (SEEN, SEEN + " * 1e7")),
        ("observation 2 of agent (s.omega * 10000000.0)", "so large"),
    ),
    "tiny observation": planted("mountain_car", "return s.x, s.v", "return s.x, s.v * 1e-30", "observation 1", "so small"),
    "field that stays": planted(
        "mountain_car", "return State(x, v), -1.0", "return State(x, s.v), -1.0", "State.v never changed", "in step"
    ),
    "random table": planted(
        "market", "demand = scale *", "demand = np.random.default_rng().random() * scale *", "table 'demand'", "made again"
    ),
    "random constant of the module": Planted(
        "cartpole",
        (NUMPY, ("def step", "WIND = random.random()\n\n\ndef step"), ("push = (force", "push = (WIND * 100.0 + force")),
        ("compiled kernels and the CUDA simulator differ", "in step"),
        processes=True,
    ),
}


def write(mistake: Planted, folder: Path) -> Path:
    """Write the environment with the mistake and return its file."""
    text = FILES[mistake.environment].read_text()
    for old, new in mistake.changes:
        assert old in text, old
        text = text.replace(old, new)
    file = folder / f"{mistake.environment}.py"
    file.write_text(text)
    return file
