"""The schema, its checks, and how names are found."""

import ast
import itertools
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from warprun.config import schema as config_module
from warprun.config.compose import compose, rewrite
from warprun.config.registry import options
from warprun.config.schema import bytes_per_env, check, from_dict, load_environment, parameters, to_dict
from warprun.environment import Box, Discrete, Environment, Group, MultiDiscrete, Phase, float32
from warprun.errors import UserError
from warprun.kernels import driver as devices
from warprun.learning.settings import A2CConfig, PPOConfig

ROOT = Path(__file__).parents[2]
MY_ENVIRONMENT = """
from typing import NamedTuple
from warprun.environment import Box, Discrete, float32, single_agent
import neighbour

class State(NamedTuple):
    x: float32

class Params(NamedTuple):
    size: int = 3
    speed: float = neighbour.SPEED

def reset(rng):
    return State(0.0)

def step(s, action, p):
    return State(s.x + p.speed), 1.0, s.x > p.size

def observe(s):
    return (s.x,)

environment = single_agent(
    state=State, params=Params, observation=Box(1), action=Discrete(2), reset=reset, step=step, observe=observe, time_limit=9
)
"""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A user's folder with an environment of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "myenv.py").write_text(MY_ENVIRONMENT)
    (tmp_path / "neighbour.py").write_text("SPEED = 0.5\n")
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "myenv.yaml").write_text("name: myenv\nmodule: ./myenv.py\n")
    return tmp_path


@pytest.mark.parametrize("agent", options("agent"))
@pytest.mark.parametrize("env", options("env"))
def test_every_shipped_pair_composes_or_is_refused_for_its_actions(env, agent):
    try:
        config = compose([f"env={env}", f"agent={agent}"])
    except UserError as error:
        assert agent in ("dqn", "ddpg", "td3")
        assert re.match(rf"agent={agent} (cannot choose the \w+ actions of|knows no action masks, which) group '\w+'", str(error))
        return
    assert config.env.name == env
    assert config.agent.name == agent


@pytest.mark.parametrize("name", options("experiment"))
def test_every_shipped_experiment_composes(name):
    try:
        assert compose([f"experiment={name}"])
    except UserError as error:
        # Published data that was not fetched; the error says how.
        assert "warprun data" in str(error)


@pytest.mark.parametrize(
    "path", [path for group in ("env", "agent") for path in (ROOT / "conf" / group).glob("*.yaml")], ids=lambda p: p.stem
)
def test_an_environment_or_agent_takes_ten_lines(path):
    assert len(path.read_text().splitlines()) <= 10


def test_every_tuned_file_is_of_a_pair_that_exists():
    pairs = {f"{env}_{agent}" for env in options("env") for agent in options("agent")}
    assert set(options("tuned")) <= pairs


def test_every_field_is_explained():
    # Python keeps no docstrings of fields, so the source is read.
    classes = [node for node in ast.parse(Path(config_module.__file__).read_text()).body if isinstance(node, ast.ClassDef)]
    assert len(classes) > 5
    for schema in classes:
        for node, after in itertools.pairwise([*schema.body, None]):
            if isinstance(node, ast.AnnAssign):
                explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert explained, f"{schema.name}: {ast.unparse(node)}"


def test_agents_have_their_own_schema():
    assert type(compose(["agent=ppo", "agent.clip=0.1"]).agent) is PPOConfig
    assert type(compose(["agent=a2c"]).agent) is A2CConfig


def test_command_line_wins_over_experiment_and_experiment_over_tuned(workplace):
    files = {
        "tuned/myenv_a2c.yaml": "n_envs: 11\nseed: 11\nagent:\n  gamma: 0.11\n",
        "experiment/mine.yaml": "defaults:\n  - override /env: myenv\n  - override /agent: a2c\nseed: 22\n",
    }
    for name, content in files.items():
        path = workplace / "conf" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# @package _global_\n{content}")
    config = compose(["experiment=mine", "agent.gamma=0.33"])
    assert (config.env.name, config.n_envs, config.seed, config.agent.gamma) == ("myenv", 11, 22, 0.33)
    assert compose(["env=myenv", "agent=a2c", "tuned=none"]).n_envs == config_module.Config.n_envs


def test_an_own_environment_is_found_in_the_working_folder(workplace):
    config = compose(["env=myenv", "env.params.size=5", "env.vary.speed=[0.1,1e0]", "env.time_limit=4"])
    environment, module = load_environment(config.env)
    assert environment.time_limit == 4
    assert environment.phases[0].function is module.step
    assert parameters(environment, config.env) == module.Params(size=5, speed=0.5)
    assert config.env.vary == {"speed": [0.1, 1.0]}
    assert "myenv" in options("env")
    assert not list(workplace.rglob("__pycache__"))
    with pytest.raises(UserError, match=r"env.params.size=0.5 must be a whole number, as its default 3"):
        compose(["env=myenv", "env.params.size=0.5"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef f(:\n", r"myenv.py:2: SyntaxError"),
        ("import math\nmath.sqrt(-1)\n", r"myenv.py:2: ValueError"),
        ("import numpy as np\nx = 1\nnp.zeros(-1)\n", r"myenv.py:3: ValueError"),
        ("x = 1\n", "does not define `environment`"),
        ("from warprun.environment import *\n\nenvironment = Environment((), ())\n", "myenv.py:3: ContractError: an environment needs"),
    ],
)
def test_a_broken_environment_is_told_with_file_and_line(workplace, text, message):
    (workplace / "myenv.py").write_text(text)
    with pytest.raises(UserError, match=message):
        compose(["env=myenv"])


def test_an_installed_package_brings_config_groups(tmp_path, monkeypatch):
    (tmp_path / "theirs" / "conf" / "env").mkdir(parents=True)
    for package in ("theirs", "theirs/conf"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "theirs" / "conf" / "env" / "lattice.yaml").write_text("name: lattice\nmodule: warprun.envs.cartpole\n")
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text("[warprun.conf]\ntheirs = theirs.conf\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert compose(["env=lattice"]).env.name == "lattice"
    assert "lattice" in options("env")


def test_free_keys_need_no_plus():
    config = compose(
        ["env.params.length=0.7", "env.vary.force=[5,15]", "agent.groups.agent.entropy_coef=0.5", "agent.network.options.depth=3"]
    )
    assert config.env.params == {"length": 0.7}
    assert config.env.vary == {"force": [5, 15]}
    assert config.agent.groups == {"agent": {"entropy_coef": 0.5}}
    assert config.agent.network.options == {"depth": 3}


@pytest.mark.parametrize(
    ("typed", "handed_on"),
    [
        ("n_envs=1e4", "n_envs=10000"),
        ("n_envs=1e2,1.5E+3", "n_envs=100,1500"),
        ("agent.learning_rate=3e-4", "agent.learning_rate=3e-4"),
        ("agent.gamma=1.23e1", "agent.gamma=12.3e0"),
        ("name=run1e4", "name=run1e4"),
        ("name=lr-1e5", "name=lr-1e5"),
        ("name=1e5", "name=1e5"),
        ("run_dir=out/1e3", "run_dir=out/1e3"),
        ("env.file=data/3e8", "++env.options.file=data/3e8"),
        ("env.vary.force=[1e1,2e1]", "++env.vary.force=[10,20]"),
        ("n_envs=range(1e1,2e1)", "n_envs=range(10,20)"),
        ("name='1e4'", "name='1e4'"),
        ("env.params.x=1", "++env.params.x=1"),
        ("+env.params.x=1", "++env.params.x=1"),
        ("+seed=1", "seed=1"),
        ("+hydra.verbose=true", "+hydra.verbose=true"),
    ],
)
def test_rewrite(typed, handed_on):
    key, _, number = handed_on.partition("=")
    got_key, _, got = rewrite(typed).partition("=")
    assert got_key == key
    assert got == number or (typed.startswith("agent") and float(got) == float(number))


def test_a_config_survives_its_file(tmp_path):
    config = compose(["agent=a2c", "env.params.length=0.7", "agent.groups.agent.entropy_coef=0.5", "max_minutes=2"])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(to_dict(config)))
    assert from_dict(yaml.safe_load(path.read_text())) == config


def test_a_config_of_an_older_version_takes_new_defaults():
    saved = to_dict(compose(["agent=a2c"]))
    del saved["checkpoint"], saved["agent"]["gamma"]
    assert from_dict(saved).agent.gamma == A2CConfig().gamma
    with pytest.raises(UserError, match="does not fit this version"):
        from_dict({**saved, "of_another_version": 1})


class State(NamedTuple):
    x: float32


def group(name, size, action, mask=None):
    """A group of actors that do nothing."""

    def reset():
        return State(0.0)

    def observe(s):
        return (s.x, s.x, s.x)

    return Group(name, size, State, Box(3), action, reset, observe, mask)


def two_groups() -> Environment:
    """An environment with all that takes memory: two groups, masks, several truncations in a rollout."""

    def allowed(k):
        return k != 1

    def act(s):
        return s, 0.0, False

    groups = (group("many", 5, MultiDiscrete((2, 3)), allowed), group("one", 1, Box(2)))
    return Environment(groups, (Phase("many", act), Phase("one", act)), time_limit=3)


@pytest.mark.parametrize("horizon", [1, 3, 16])
def test_the_memory_estimate_is_what_the_tensors_take(horizon):
    from warprun.simulation.trajectory import bytes_needed

    environment = two_groups()
    state = 4 * (5 * 1 + 1 * 1)
    assert bytes_per_env(environment, horizon) == bytes_needed(environment, horizon, n_envs=1) + state


def test_too_many_environments_for_the_memory(monkeypatch):
    config = compose(["device=cpu", "n_envs=1000"])
    needed = 1000 * bytes_per_env(load_environment(config.env)[0], config.agent.horizon)
    monkeypatch.setattr(config_module, "available_memory", lambda: needed)
    check(config)
    monkeypatch.setattr(config_module, "available_memory", lambda: needed - 1)
    with pytest.raises(UserError, match=r"n_envs=1000 would take .* KiB of memory or more; this machine has free .* KiB"):
        check(config)


def test_available_memory_is_that_of_a_machine():
    assert 2**26 < devices.available_memory() < 2**50


def test_an_agent_that_cannot_do_the_actions_is_refused(monkeypatch):
    monkeypatch.setattr(A2CConfig, "SPACES", (Discrete,), raising=False)
    assert compose(["env=cartpole", "agent=a2c"])
    with pytest.raises(UserError, match="agent=a2c cannot choose the Box actions of group 'agent'; agents that can: ppo"):
        compose(["env=pendulum", "agent=a2c"])


class Driver:
    """A CUDA driver that does as it is told."""

    def __init__(self, code: int, release: int = 13000) -> None:
        self.code, self.release = code, release

    def cuInit(self, flags):
        return self.code

    def cuDriverGetVersion(self, number):
        number._obj.value = self.release
        return 0

    def cuGetErrorName(self, code, name):
        name._obj.value = b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        return 0


@pytest.mark.parametrize(
    ("driver", "numba_cuda", "torch", "reason"),
    [
        (None, True, "2.13.0", "no NVIDIA driver on this machine"),
        (Driver(100), True, "2.13.0", "finds no GPU"),
        (Driver(803), True, "2.13.0", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (Driver(0), False, "2.13.0", 'pip install "warprun[cuda13]"'),
        (Driver(0, 12040), False, "2.13.0", 'pip install "warprun[cuda12]"'),
        (Driver(0), True, "2.13.0+cpu", "torch 2.13.0+cpu is built without CUDA"),
    ],
)
def test_why_cuda_does_not_work(monkeypatch, driver, numba_cuda, torch, reason):
    monkeypatch.setattr(devices, "_driver", lambda: driver)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: numba_cuda or None)
    monkeypatch.setattr(devices, "version", lambda name: torch)
    assert reason in devices.why_no_cuda()
    with pytest.raises(UserError, match="device=cuda: "):
        devices.check_cuda()


def test_cuda_that_works(monkeypatch):
    monkeypatch.setattr(devices, "_driver", lambda: Driver(0))
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(devices, "version", lambda name: "2.13.0")
    assert devices.why_no_cuda() is None
    devices.check_cuda()


TYPOS: dict[str, dict[str, str]] = {
    "ppo": {
        "agent.clipp": "did you mean 'agent.clip'?",
        "agent.network.nmae": "did you mean 'agent.network.name'?",
        "agent.replay.capacity": "unknown key 'agent.replay'",
        "agent.hiden": "did you mean 'agent.network.hidden'?",
        "lr": "did you mean 'agent.learning_rate'?",
    },
    "a2c": {
        "agent.clip": "agent has name, horizon, learning_rate,",
        "agent.valeu_coef": "did you mean 'agent.value_coef'?",
        "agent.network.orthogona": "did you mean 'agent.network.orthogonal'?",
    },
    "dqn": {
        "agent.network.name": "agent.network has hidden, activation",
        "agent.network.activaton": "did you mean 'agent.network.activation'?",
        "agent.epsilon_ned": "did you mean 'agent.epsilon_end'?",
        "agent.replay.capcity": "did you mean 'agent.replay.capacity'?",
        "agent.entropy_coef": "agent has name, horizon, gradient_steps,",
        "capacity": "did you mean 'agent.replay.capacity'?",
    },
    "ddpg env=pendulum": {
        "agent.network.name": "agent.network has hidden, activation",
        "agent.policy_delay": "agent has name, horizon, gradient_steps,",
        "agent.noise_sdt": "did you mean 'agent.noise_std'?",
    },
    "td3 env=pendulum": {
        "agent.network.orthogonal": "agent.network has hidden, activation",
        "agent.epsilon": "agent has name, horizon, gradient_steps,",
        "agent.policy_dealy": "did you mean 'agent.policy_delay'?",
        "agent.warm_up": "did you mean 'agent.warmup'?",
    },
}


@pytest.mark.parametrize("agent", TYPOS)
def test_a_misspelt_key_is_told_with_the_keys_of_the_agent_in_use(agent):
    for typed, says in TYPOS[agent].items():
        with pytest.raises(UserError) as failure:
            compose([*f"agent={agent}".split(), f"{typed}=1"])
        assert str(failure.value).startswith("unknown key ")
        assert says in str(failure.value)
        assert f"mean '{typed}'" not in str(failure.value)


def test_an_experiment_chooses_whose_keys_are_suggested():
    with pytest.raises(UserError, match=r"unknown key 'agent\.critics'; agent has name, horizon, gradient_steps,"):
        compose(["experiment=td3_or_ddpg", "agent.critics=3"])
