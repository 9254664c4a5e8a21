"""Damaged checkpoints: every changed bit is detected."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.runs import command
from warprun.cli.main import run
from warprun.errors import UserError
from warprun.runs import checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a run whose checkpoints are one of the last."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    assert run(command("dqn", folder, "checkpoint.keep=1")) == 0
    return folder


def flip(data: bytearray, draw: random.Random) -> None:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def truncate(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def zero(data: bytearray, draw: random.Random) -> None:
    while True:
        begin = draw.randrange(len(data) // 512) * 512
        if any(data[begin : begin + 512]):
            data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))
            return


KINDS: dict[str, tuple[Callable[[bytearray, random.Random], None], int]] = {
    "flip": (flip, 2000),
    "truncate": (truncate, 1000),
    "zero": (zero, 500),
}


def undetected(saved: Path, place: Path, kind: str, count: int) -> int:
    """Damage the checkpoint `count` times and return how often it was loaded nevertheless."""
    damage, draw, missed = KINDS[kind][0], random.Random(kind), 0
    shutil.copytree(saved, place)
    path = next((place / checkpoint.LAST).glob("*.ckpt"))
    whole = path.read_bytes()
    for _ in range(count):
        data = bytearray(whole)
        damage(data, draw)
        path.write_bytes(data)
        try:
            checkpoint.load(place)
            missed += 1
        except UserError as error:
            assert "\n" not in str(error)
    path.write_bytes(whole)
    checkpoint.load(place)
    return missed


@pytest.mark.parametrize("often", [False, pytest.param(True, marks=pytest.mark.reliability)])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_detected(saved, tmp_path, kind, often):
    count = KINDS[kind][1] if often else 30
    assert undetected(saved, tmp_path / "run", kind, count) == 0
    print(f"{kind}: {count} of {count} detected")
