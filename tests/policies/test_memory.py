"""Policies with memory after training: continued, evaluated, recorded, loaded and exported with what they remember."""

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import torch

import warprun
from tests.policies.runs import SHORT, by_onnx, by_torch
from warprun.cli.main import run
from warprun.config.schema import from_dict
from warprun.errors import UserError
from warprun.learning.networks import ACTIVATIONS
from warprun.policies.export import export
from warprun.policies.policy import Policy
from warprun.runs import checkpoint, rundir
from warprun.runs.build import Setup, make_simulator, prepare, set_up
from warprun.runs.evaluation import Evaluator
from warprun.runs.opening import open_config, trained_agent
from warprun.runs.recording import Player

ROOT = Path(__file__).parents[2]
RUNS = {
    "maze": ["env=t_maze", "env.length=2", "agent=ppo", "agent.network=lstm", "agent.network.hidden=[7]", "agent.network.units=[6,5]"],
    "pendulum": [
        *("env=pendulum", "env.velocity=false", "agent=a2c", "agent.network=gru", "agent.network.hidden=[]", "agent.network.units=[6]"),
        *("agent.network.after=[5]", "agent.network.shared=false", "agent.network.sequence=7", "agent.normalize_obs=true"),
    ],
}
REPLAY = [
    *("agent.horizon=16", "agent.learning_starts=128", "agent.utd_ratio=0.05", "agent.batch_size=6", "agent.replay.capacity=400"),
    *("agent.replay.sequence=6", "agent.replay.burn_in=3", "agent.replay.prioritized=true", "agent.replay.beta_end=0.4"),
]
"""Nothing that depends on the length of the run: one that continues becomes longer."""
RUNS |= {
    "values": [*RUNS["maze"], "agent=dqn", "agent.quantiles=3", "agent.epsilon_start=0.3", "agent.epsilon_end=0.3", *REPLAY],
    "actor": [
        *("env=pendulum", "env.velocity=false", "agent=td3", "agent.network=gru", "agent.network.hidden=[5]", "agent.network.units=[6,4]"),
        *("agent.network.after=[5]", "agent.network.sequence=7", "agent.normalize_obs=true", "agent.n_step=2", *REPLAY),
    ],
}
STEPS = 8 * 16 * 6
Trained = Callable[[str], Path]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("memory")

    def made(name: str) -> Path:
        if not (home / name).exists():
            with chdir(home):
                warprun.train([*SHORT, *RUNS[name], f"total_steps={STEPS}", f"run_dir={name}"])
        return home / name

    return made


def setup_of(folder: Path) -> Setup:
    return set_up(open_config(folder, from_dict(rundir.read_config(folder)), trusted=False))


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_continues_equals_one_that_was_left_alone(trained: Trained, tmp_path: Path, name: str) -> None:
    """Bit for bit, also what is remembered of the episodes that go on."""
    with chdir(tmp_path):
        warprun.train([*SHORT, *RUNS[name], f"total_steps={STEPS // 2}", "run_dir=run"])
        assert run(["resume=run", f"total_steps={STEPS}"]) == 0
    alone, continued = (checkpoint.load(folder).tensors for folder in (trained(name), tmp_path / "run"))
    assert alone.keys() == continued.keys()
    assert not [key for key in alone if "evaluator" not in key and not torch.equal(alone[key], continued[key])]
    assert alone["trajectory/agent/carry"].abs().sum() > 0


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", RUNS)
def test_actions_of_a_loaded_policy_are_those_of_an_evaluation(trained: Trained, name: str) -> None:
    setup = setup_of(trained(name))
    agent = trained_agent(setup, checkpoint.load(trained(name)))
    simulator = make_simulator(setup, 9, 50, 5, agent)
    prepare(setup, simulator)
    taken = simulator.collect(agent.act, greedy=True)
    group, policy, carry = taken.groups["agent"], warprun.load(trained(name)), None
    assert (taken.terminated | taken.truncated).any()
    for row in range(50):
        action, carry = policy.step(group.obs[row, :, 0], carry)
        if group.action.dtype == torch.int32:
            assert torch.equal(action, group.action[row, :, 0, 0].long())
        else:
            torch.testing.assert_close(action, 2.0 * group.action[row, :, 0].clamp(-1.0, 1.0), rtol=0.0, atol=1e-4)
        carry[taken.terminated[row] | taken.truncated[row]] = 0.0


def test_a_recorded_episode_is_that_of_an_evaluation(trained: Trained) -> None:
    """Also the second episode of the same player: it begins without memory of the first."""
    setup = setup_of(trained("maze"))
    agent = trained_agent(setup, checkpoint.load(trained("maze")))
    evaluator = Evaluator(setup, agent, 3, seed=4)
    evaluated = evaluator.play(greedy=True)
    assert evaluator.play(greedy=True).episodes == 3
    player = Player(setup, agent, 4, episodes=3)
    returns = [
        sum(float(moment.taken.rewards["agent"][0]) for moment in player.moments(episode) if moment.taken)
        for episode in (2, 0, 1)  # in another order
    ]
    assert np.mean(returns) == pytest.approx(evaluated.mean_return["agent"], abs=1e-5)


def test_actions_are_drawn_with_memory_too(trained: Trained) -> None:
    policy = warprun.load(trained("maze"))
    one, two = (policy.step(np.ones((2000, 3), np.float32), greedy=False, rng=seed)[0] for seed in (0, 0))
    assert (one == two).all() and len(set(one.tolist())) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.act(np.zeros(3)), r"the policy of group 'agent' has memory: action, carry = policy.step\(obs, carry\)"),
        (lambda p: p.step(np.zeros(3), np.zeros(4)), r"carry of group 'agent' must have the shape \[22\], not \[4\]"),
        (lambda p: p.step(np.zeros((2, 3)), np.full((2, 22), np.nan)), "carry of group 'agent' has NaN"),
        (lambda p: p.step({"agent": np.zeros(3)}, np.zeros(22)), "carry must be a dict by the name of the group"),
    ],
)
def test_mistakes_are_one_line(trained: Trained, call: Callable[[Policy], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(warprun.load(trained("maze")))


def by_numpy(file: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Use the program that docs/policies.md links to."""
    source = (ROOT / "examples" / "policies" / "use_memory_numpy.py").read_text().rpartition("\nprint(")[0]
    program: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {}
    exec(source.replace('"policy.npz"', repr(str(file))), program)
    output, after = program["step"](inputs["obs"], inputs["carry"])
    return {"policy_output": output, "next_carry": after}


def test_the_program_in_numpy_has_all_activations(tmp_path: Path) -> None:
    np.savez(tmp_path / "policy.npz")
    source = (ROOT / "examples" / "policies" / "use_memory_numpy.py").read_text().rpartition("\nprint(")[0]
    program: dict[str, dict[str, Callable[[np.ndarray], np.ndarray]]] = {}
    exec(source.replace('"policy.npz"', repr(str(tmp_path / "policy.npz"))), program)
    x = np.linspace(-3.0, 3.0, 13, dtype=np.float32)
    for name, activation in ACTIVATIONS.items():
        np.testing.assert_allclose(program["activations"][name](x), activation()(torch.from_numpy(x)), atol=1e-6)


@pytest.mark.by_default(3)
@pytest.mark.parametrize(("kind", "program"), [(".pt2", by_torch), (".onnx", by_onnx), (".npz", by_numpy)])
@pytest.mark.parametrize("name", RUNS)
def test_a_file_remembers(
    trained: Trained, tmp_path: Path, name: str, kind: str, program: Callable[[Path, dict[str, np.ndarray]], dict[str, np.ndarray]]
) -> None:
    if kind == ".onnx":
        pytest.importorskip("onnxscript")
    policy, file = warprun.load(trained(name)), tmp_path / f"policy{kind}"
    export(policy, file)
    module, random = policy.modules["agent"], np.random.default_rng(0)
    expected = torch.zeros(5, module.carry)
    own = len(np.load(file)["carry"]) if kind == ".npz" else module.carry  # without what the value remembers
    carry = np.zeros((5, own), np.float32)
    for _ in range(9):
        obs = random.normal(size=(5, module.group.observation.size)).astype(np.float32)
        outputs = program(file, {"obs": obs, "carry": carry})
        with torch.no_grad():
            output, expected = module.step(torch.from_numpy(obs), expected)
        carry = outputs["next_carry"]
        found = outputs["policy_output"]
        np.testing.assert_allclose(found, output[:, : found.shape[1]], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(carry, expected[:, :own], rtol=1e-4, atol=1e-5)
