"""Observations that are fields, and convolutions over them."""

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import warprun
from tests.environments import quadrants
from tests.learning.torch_replay import TorchReplay
from tests.words import words
from tests.written import add_environment
from warprun.algorithms.settings import DQNConfig
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.config.memory_estimate import estimate
from warprun.config.overrides import rewrite
from warprun.config.schema import load_environment
from warprun.errors import ContractError, UserError
from warprun.learning.critics import Critics, Head
from warprun.learning.encoders import Encoder, picture
from warprun.learning.networks import ActorCritic
from warprun.learning.normalization import ObservationNormalizer, inverse_deviation
from warprun.learning.replay import Replay
from warprun.learning.settings.byte_counts import RunSizes
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.policies.policy import read
from warprun.runs.saved_spec import from_data, to_data
from warprun.spec import Box, Discrete, Field, GroupSpec, Spec

CPU = torch.device("cpu")
TWO = Box(3 + 2 * 7 * 9 + 4 * 12 + 2, fields=(Field(3, (2, 7, 9)), Field(3 + 2 * 7 * 9, (4, 12), channels_last=True)))
"""3 numbers, a picture of 2 channels, a line of 4 channels, 2 numbers."""


# Spaces ----------------------------------------------------------------------------------------------------------------------------


def test_a_shape_is_short_for_one_field() -> None:
    box = Box((2, 5, 7))
    assert (box.size, box.fields, box.rest, box.bytes) == (70, (Field(0, (2, 5, 7)),), (), False)
    assert TWO.rest == (slice(0, 3), slice(177, 179))
    assert Field(0, (2, 5, 7), channels_last=True).order == (5, 7, 2)
    assert Box(4, fields=(Field(0, (1, 2)), Field(2, (1, 2), kind="image"))).bytes is False
    assert Box(4, fields=(Field(0, (1, 2), kind="binary"), Field(2, (1, 2), kind="image"))).bytes


def test_saved_spaces_keep_fields() -> None:
    image = Box(24, fields=(Field(0, (3, 4, 2), True, "image"),))
    spec = Spec((GroupSpec("a", 1, TWO, Discrete(2)), GroupSpec("b", 2, image, Box(1))), 9)
    assert from_data(to_data(spec)) == spec
    before: Any = to_data(spec)
    del before["groups"][0]["fields"]
    assert from_data(before).group("a").observation == Box(TWO.size)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Box((3,)), "shape of a Field must be"),
        (lambda: Box((3, 0)), "from 1 to"),
        (lambda: Box((3, 4), fields=(Field(0, (1, 2)),)), "is one field"),
        (lambda: Box(9, fields=(Field(4, (2, 3)),)), "takes the columns 4 to 9 of a Box of 9"),
        (lambda: Box(9, fields=(Field(0, (2, 3)), Field(5, (1, 2)))), "after 6 that others take"),
        (lambda: Box(9, fields=[Field(0, (2, 3))]), "must be a tuple of Field"),  # type: ignore[arg-type]
        (lambda: Field(0, (2, 3), kind="colour"), "real, image, binary"),  # type: ignore[arg-type]
        (lambda: GroupSpec("a", 1, Box(1), Box((2, 3))), "fields, which are for observations"),
    ],
)
def test_what_is_no_field_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ContractError, match=told):
        make()


# The encoder -----------------------------------------------------------------------------------------------------------------------


def test_convolutions_are_those_of_torch_on_the_picture() -> None:
    """In float64, of a picture and a line given as arrays of their own."""
    torch.manual_seed(0)
    config = LayersConfig(encoder="conv", filters=[5, 6], kernels=[3, 2], strides=[2, 1])
    encoder = Encoder(TWO, config).double()
    image, line, first, last = (torch.randn(11, *shape, dtype=torch.float64) for shape in ((2, 7, 9), (4, 12), (3,), (2,)))
    rows = torch.cat((first, image.flatten(1), line.mT.flatten(1), last), 1)

    own = nn.Sequential(nn.Conv2d(2, 5, 3, 2), nn.ReLU(), nn.Conv2d(5, 6, 2), nn.ReLU(), nn.Flatten())
    other = nn.Sequential(nn.Conv1d(4, 5, 3, 2), nn.ReLU(), nn.Conv1d(5, 6, 2), nn.ReLU(), nn.Flatten())
    together = nn.ModuleList([own, other]).double()
    for mine, theirs in zip(encoder.parameters(), together.parameters(), strict=True):
        theirs.data.copy_(mine)
    expected = torch.cat((own(image), other(line), first, last), 1)
    torch.testing.assert_close(encoder(rows), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(encoder(rows.view(1, 11, -1))[0], expected, rtol=1e-12, atol=1e-12)


def test_impala_is_that_of_its_figure() -> None:
    """Espeholt et al. 2018, figure 3 right, as one writes it for one picture."""
    torch.manual_seed(0)
    encoder = Encoder(Box((3, 9, 6)), LayersConfig(encoder="impala")).double()
    x = torch.randn(4, 3, 9, 6, dtype=torch.float64)
    weights = list(encoder.parameters())
    own, f = iter(weights), nn.functional
    y = x
    for _ in range(3):
        y = f.max_pool2d(f.conv2d(y, next(own), next(own), padding=1), 3, 2, 1)
        for _ in range(2):
            inner = f.conv2d(f.relu(y), next(own), next(own), padding=1)
            y = y + f.conv2d(f.relu(inner), next(own), next(own), padding=1)
    expected = f.relu(f.linear(f.relu(y).flatten(1), next(own), next(own)))
    torch.testing.assert_close(encoder(x.flatten(1)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", [{"encoder": "conv", "strides": [2, 1]}, {"encoder": "nature"}, {"encoder": "impala"}], ids=str)
@pytest.mark.parametrize("shape", [(4, 84, 60), (2, 97)], ids=str)
def test_sizes_are_known_without_torch(config: dict[str, Any], shape: tuple[int, ...]) -> None:
    settings, box = LayersConfig(**config), Box(5 + int(np.prod(shape)), fields=(Field(2, shape),))
    encoder, layout = Encoder(box, settings), settings.layout(box)
    assert encoder(torch.zeros(2, box.size)).shape == (2, layout.outputs)
    assert sum(p.numel() for p in encoder.parameters()) == layout.parameters
    network = ActorCritic(box, 3, NetworkConfig(**config, hidden=[7]))
    assert sum(p.numel() for p in network.parameters()) == layout.parameters + settings.__class__(hidden=[7]).parameters(layout.outputs, 4)


def test_nature_and_impala_end_as_they_were_published() -> None:
    """Mnih et al. 2015 of Pong: 512 units, then 6 values, 1,687,206 parameters. Espeholt et al. 2018: 256 units, then logits and value."""
    q_values = Head(Box((4, 84, 84)), 6, LayersConfig(encoder="nature"))
    assert sum(p.numel() for p in q_values.parameters()) == 1_687_206
    policy = ActorCritic(Box((3, 72, 96)), 9, NetworkConfig(encoder="impala"))
    (last,) = (layer for layer in policy.modules() if isinstance(layer, nn.Linear) and layer.out_features == 10)
    assert last.in_features == 256 and policy(torch.zeros(2, 3 * 72 * 96))[0].shape == (2, 9)


@pytest.mark.parametrize(
    ("given", "hidden"),
    [
        ("agent=ppo agent.network=impala", []),
        ("agent=a2c agent.network=impala agent.network.type=lstm", []),
        ("agent=ppo agent.network=impala agent.network.hidden=[32]", [32]),
        ("agent=ppo agent.network=cnn", [64, 64]),
        ("agent=ppo agent.network=gru", [64, 64]),
        ("agent=td3 agent.network=impala", [64, 64]),
        ("agent=sac agent.network=impala", [64, 64]),
        ("agent=ddpg agent.network=impala agent.network.hidden=[32]", [32]),
    ],
)
def test_hidden_layers_follow_from_the_encoder(given: str, hidden: list[int]) -> None:
    network = compose(["env=gray_scott", "tuned=none", "device=cpu", "n_envs=8", *given.split()]).agent.network
    assert network.first_hidden == hidden
    assert network.last_hidden == ([] if network.remembers else hidden)


def test_critics_without_a_layer_behind_the_action_are_refused() -> None:
    with pytest.raises(UserError, match=r"agent.network.hidden=\[\]: values would be linear in the action"):
        compose(["env=gray_scott", "tuned=none", "n_envs=8", "agent=td3", "agent.network=impala", "agent.network.hidden=null"])


def test_critics_share_one_encoder() -> None:
    torch.manual_seed(0)
    critics = Critics(Box((2, 5, 5)), 3, LayersConfig(encoder="conv", hidden=[7]), 2).double()
    rows, action = torch.randn(6, 50).double(), torch.randn(6, 3).double()
    (encoder,) = critics.encoder
    inputs = torch.cat((encoder(rows), action), 1)
    for values, each in zip(critics(rows, action), critics.each, strict=True):
        torch.testing.assert_close(values, each(inputs)[:, 0])
    torch.testing.assert_close(critics.first(rows, action), critics(rows, action)[0])


@pytest.mark.parametrize("channels", ["first", "last"])
def test_the_order_of_gymnasiums_images(channels: str) -> None:
    spaces = pytest.importorskip("gymnasium.spaces")
    from warprun.simulation.external.spaces import observations

    shape = (3, 6, 8) if channels == "first" else (6, 8, 3)
    for space in (spaces.Box(0, 255, shape, np.uint8), spaces.Box(-1.0, 1.0, shape), spaces.Box(0, 1, shape, np.bool_)):
        space.seed(1)
        images = np.stack([space.sample() for _ in range(5)])
        seen = observations(space)
        rows = torch.from_numpy(np.stack([seen.flatten(image) for image in images]))
        expected = torch.from_numpy(images.astype(np.float32) / (255 if space.dtype == np.uint8 else 1))
        expected = expected if channels == "first" else expected.permute(0, 3, 1, 2)
        assert torch.equal(picture(rows, seen.fields[0]), expected)
        np.testing.assert_array_equal(seen.flatten_batch(images, space), rows)


@pytest.mark.parametrize(("field", "shape"), [(Field(0, (1, 4, 5), kind="image"), (4, 5)), (Field(0, (3, 4, 5), True, "image"), (4, 5, 3))])
def test_programs_give_images_as_the_environment_does(field: Field, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    group = GroupSpec("a", 1, Box(size, fields=(field,)), Discrete(2))
    images = np.arange(7 * size).reshape(7, *shape).astype(np.uint8)
    expected = torch.from_numpy(images.reshape(7, size).astype(np.float32) / np.float32(255))
    for given in (images, images.reshape(7, *field.order), images.reshape(7, size), expected):
        assert torch.equal(read(group, given, None, CPU).obs, expected)
    assert torch.equal(read(group, images[2], None, CPU).obs, expected[2:3])
    with pytest.raises(UserError, match="must have the shape"):
        read(group, images[:, :3], None, CPU)


def test_orthogonal_weights_and_their_gain() -> None:
    network = ActorCritic(Box((2, 9, 9)), 3, NetworkConfig(encoder="conv", filters=[8], kernels=[3], strides=[1], hidden=[16]))
    (layer,) = (layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    weights = layer.weight.flatten(1)
    torch.testing.assert_close(weights @ weights.T, 2.0 * torch.eye(8), rtol=1e-4, atol=1e-4)
    assert layer.bias is not None and not layer.bias.any()


# Settings --------------------------------------------------------------------------------------------------------------------------


def test_words_for_networks() -> None:
    assert rewrite("agent.network=cnn") == "agent.network.encoder=conv"
    assert rewrite("agent.network=nature,impala,cnn") == "agent.network.encoder=nature,impala,conv"
    assert rewrite("agent.network=lstm") == "agent.network.type=lstm"


BASE = words("env=cartpole agent=ppo device=cpu tuned=none n_envs=8")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("agent.network=cnn", "agent.network.encoder=conv reads fields, and the observations, 4 numbers, have none"),
        ("agent.network.encoder=fourier", "conv, nature"),
        ("agent.network.type=cnn", "agent.network.type=cnn is an encoder; write agent.network.encoder=conv"),
        ("agent.network.filters=[8,8]", "agent.network.filters=[8, 8]: it is for agent.network.encoder=conv"),
        ("agent.network=cnn agent.network.strides=[1]", "agent.network.strides=[1] and agent.network.filters=[16, 32] must have"),
        ("agent.network=cnn agent.network.kernels=[0,3]", "agent.network.kernels=[0, 3]"),
        ("agent.network=cnn agent.network.module=./own.py:Own", "leave one of them out"),
        ("env.channels=last", "env.channels is for environments with the interface of Gymnasium"),
        ("env.channels=middle", "env.channels=middle must be first or last"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(given: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        compose([*BASE, *given.split()])
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_a_kernel_larger_than_its_field_is_refused() -> None:
    with pytest.raises(UserError, match=r"encoder=nature: a kernel of 8 does not fit into 6 x 9 cells \(the field: 6 x 9\)"):
        LayersConfig(encoder="nature").layout(Box((1, 6, 9)))
    with pytest.raises(UserError, match=r"a kernel of 3 does not fit into 2 cells \(the field: 4\)"):
        LayersConfig(encoder="conv").layout(Box((1, 4)))


# Normalisation ---------------------------------------------------------------------------------------------------------------------


def test_channels_are_normalised_as_a_whole() -> None:
    torch.manual_seed(0)
    scales = torch.rand(TWO.size) * 5
    obs = torch.randn(500, TWO.size) * scales + 3 * scales.flip(0)
    normalizer = ObservationNormalizer(TWO.size, CPU, fields=TWO.fields)
    for part in obs.split(100):
        normalizer.statistics.update(part)
    normalizer.refresh()
    found = normalizer(obs)
    for field in TWO.fields:
        for channel, given in zip(picture(found, field).transpose(0, 1), picture(obs, field).transpose(0, 1), strict=True):
            exact = given.double()
            scale = inverse_deviation(exact.mean(), exact.var(correction=0))
            torch.testing.assert_close(channel.double(), (exact - exact.mean()) * scale, rtol=1e-4, atol=1e-4)
    alone = obs[:, 0].double()
    torch.testing.assert_close(found[:, 0].double(), (alone - alone.mean()) / alone.std(correction=0), rtol=1e-4, atol=1e-4)


# Runs ------------------------------------------------------------------------------------------------------------------------------

SHORT = words("""
    tuned=none n_envs=16 concurrency.threads=1 device=cpu log.live=false log.tensorboard=false checkpoint.best=false
    eval.every=never eval.final_episodes=40 stop_when_solved=false concurrency.workers=0
""")
PPO = words("agent=ppo agent.horizon=32 agent.minibatches=4 agent.epochs=4 agent.learning_rate=3e-3")
DQN = words("""
    agent=dqn agent.learning_starts=256 agent.batch_size=64 agent.utd_ratio=0.1 agent.target_update_interval=20
    agent.exploration_fraction=0.5 agent.learning_rate=2e-3 agent.gamma=0.5 agent.replay.capacity=20000
""")
KINDS = {
    "compiled": "environment = environment",
    "gymnasium": "environment = quadrants()",
    "batch": "environment = Batch",
}


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A working folder with the environment `quadrants` of a kind."""
    source = Path(quadrants.__file__).read_text()
    (tmp_path / "quadrants.py").write_text(f"{source}\n\n{KINDS[getattr(request, 'param', 'compiled')]}\n")
    add_environment(tmp_path, "quadrants")
    with chdir(tmp_path):
        yield tmp_path


def test_bytes_in_replay_memory_are_counted_exactly() -> None:
    for kind in ("image", "real"):
        group = GroupSpec("agent", 1, Box(54, fields=(Field(0, (6, 3, 3), kind=kind),)), Discrete(2))  # type: ignore[arg-type]
        config = DQNConfig(batch_size=8, replay=ReplayConfig(capacity=50), network=LayersConfig(encoder="conv", kernels=[2, 2]))
        held = Replay(config, group, CPU, 1, 0, None, TorchReplay).ring
        counted = config.memory(Spec((group,)), RunSizes(1, 1, False, False, False, False, False)).replay
        assert counted == sum(part.numel() * part.element_size() for part in held)


def test_the_memory_of_convolutions_is_estimated(folder: Path) -> None:
    def parts(*given: str) -> dict[str, int]:
        config = compose(
            ["env=quadrants", "device=cpu", "n_envs=64", "agent=dqn", "engine.fused=false", "agent.replay.capacity=1000", *given]
        )
        return estimate(config, load_environment(config.env)[0], False).parts

    plain, small, large = (parts(*more) for more in ([], ["agent.network=cnn"], ["agent.network=impala"]))
    assert plain["networks"] < small["networks"] < large["networks"]
    assert plain["working memory"] < large["working memory"]
    assert plain["replay"] == small["replay"]


@pytest.mark.parametrize("folder", ["gymnasium"], indirect=True)
def test_a_check_of_images_needs_no_network(folder: Path) -> None:
    """A run without convolutions is refused; a check plays no agent."""
    needed = r"observations are images, and agent.network.encoder=null has no convolutions .*; add agent.network=cnn$"
    with pytest.raises(UserError, match=needed):
        compose([*SHORT, "env=quadrants", "agent=ppo"])
    assert cli.run(["check", "env=quadrants", "device=cpu"]) == 0


@pytest.mark.by_default(0)
@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_learning_what_only_the_picture_says(folder: Path) -> None:
    """Without it 2 of 8 steps are right."""
    result = warprun.train([*SHORT, *PPO, "env=quadrants", "agent.network=cnn", "total_steps=30000", "run_dir=run"])
    assert (result.eval_return or 0.0) > 7.0


@pytest.mark.long
@pytest.mark.parametrize("folder", ["gymnasium"], indirect=True)
def test_values_of_pictures_are_learned_from_bytes(folder: Path) -> None:
    result = warprun.train([*SHORT, *DQN, "env=quadrants", "agent.network=cnn", "total_steps=20000", "run_dir=run"])
    assert (result.eval_return or 0.0) > 6.5


@pytest.mark.by_default(1)
@pytest.mark.parametrize("folder", ["gymnasium"], indirect=True)
@pytest.mark.parametrize("network", ["agent.network=cnn", "agent.network=cnn agent.network.type=lstm agent.network.hidden=[]"])
def test_what_a_program_does_with_a_policy_of_pictures(folder: Path, network: str) -> None:
    """A resumed run has the same bits; a loaded policy takes the images of the environment; a file gives the same actions."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from tests.policies.runs import by_onnx, by_torch
    from warprun.policies.export import export

    given = [*SHORT, *PPO, "env=quadrants", *network.split(), "agent.normalize_obs=true"]
    whole = warprun.train([*given, "total_steps=2048", "run_dir=whole"])
    warprun.train([*given, "total_steps=2048", "until_steps=1024", "run_dir=parts"])
    warprun.train(["resume=parts", "until_steps=2048"])
    assert whole.summary["env_steps"] == 2048
    policy, resumed = warprun.load("whole"), warprun.load("parts")
    for mine, theirs in zip(policy.modules["agent"].parameters(), resumed.modules["agent"].parameters(), strict=True):
        assert torch.equal(mine, theirs)

    images = np.random.default_rng(0).integers(0, 256, (50, 6, 6, 2)).astype(np.uint8)
    rows = images.reshape(50, -1).astype(np.float32) / np.float32(255)
    actions, _ = policy.step(images)
    np.testing.assert_array_equal(actions, policy.step(rows)[0])
    np.testing.assert_array_equal(policy.step(images[3])[0], actions[3])
    module = policy.modules["agent"]
    inputs = {"obs": rows} | ({"carry": np.zeros((50, module.carry), np.float32)} if module.carry else {})
    for name, run in (("policy.onnx", by_onnx), ("policy.pt2", by_torch)):
        export(policy, Path(name))
        found = run(Path(os.fspath(name)), inputs)
        expected = module.policy_output(torch.from_numpy(rows)).detach().numpy()
        np.testing.assert_allclose(found["policy_output"], expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match=r"has convolutions .*: export \.onnx or \.pt2$"):
        export(policy, Path("policy.npz"))
