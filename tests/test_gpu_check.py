"""The check of a GPU machine with a stand-in for the card: limits of time, exit codes, the report, and the archive to send."""

import json
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scripts import load
from tests.written import add_programs
from warprun.config.compose import compose

CHECK, PARTS, TABLES, WORK = map(load, ("gpu_check", "gpu_parts", "gpu_tables", "gpu_work"))
CARD = "NVIDIA Stand-in 9000"
ABOUT = {"gpu": CARD, "problem": None, "cores": 4, "commit": "0123456789+", "python": "3.12", "packages": {"torch": "2.11"}}
KERNELS = [{"kernel": f"cartpole: {name}", "launches": 1.0, "us": us} for name, us in (("gradient", 30), ("rollout", 20), ("step", 5))]
WORKER = """
import json, os, sys, time
what, until, given = sys.argv[1:]
print("a warning of a library")
for work, (overrides, sizes) in json.loads(given).items():
    if os.environ.get("BREAKS") in (what, *overrides.split()):
        sys.exit(3)
    if os.environ.get("SILENT") in overrides.split():
        time.sleep(600)
    for n in sizes:
        row = dict(work=work, n_envs=n, training_steps_per_s=9e6 + n, training_rounds=[9e6 + n] * 5, gradient_steps_per_s=50.0)
        row |= dict(steps=n, us=60.0, plan="fused", kernels=KERNELS, rollout_steps_per_s=2e7)
        if what == "curves":
            row |= dict(s=[0.2, 0.1, None], env_steps=[200, 100, None])
        if what == "layers":
            row |= dict(error=9e-6, why_not="", float32_rollout_steps_per_s=5e6, float32_training_steps_per_s=4e6)
            row |= dict(torch_rollout_steps_per_s=3e6, torch_training_steps_per_s=2e6)
        print(json.dumps(row), flush=True)
        if what == "bench" and os.environ.get("HANGS") in overrides.split():
            print('{"n_envs": 5, "kernels": {}', end="", flush=True)
            time.sleep(600)
    if what == "bench" and os.environ.get("ENDS_EARLY") in overrides.split():
        print(json.dumps({"work": work, "cut": "1,000,000 environments and more: about 99 s, which are not left"}))
"""
RUN = """
import sys
from pathlib import Path
if sys.argv[1] == "data":
    sys.exit(0)
folder = Path(next(word for word in sys.argv if word.startswith("run_dir="))[8:])
folder.mkdir(parents=True)
(folder / "status.json").write_text('{"state": "solved", "eval": 500.0, "env_steps": 1000, "wall_s": 2.0}')
(folder / "weights.ckpt").touch()
"""
NCU = """
import re, sys
name = next(word for word in sys.argv if word.startswith("regex:"))[7:]
print("==PROF== Connected")
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
read = {"Duration": ("us", "1,234.5"), "Registers Per Thread": ("register/thread", "160"), "Achieved Occupancy": ("%", "18.5")}
for metric, (unit, value) in read.items():
    print(f'"0","{name}","{metric}","{unit}","{value}"')
"""


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Return a function that checks the stand-in: its exit code, last line, report, data and names in the archive."""
    tools = tmp_path / "tools"
    add_programs(tools, {"ncu": NCU, "nvidia-smi": "print('Driver Version: 580.15  CUDA Version: 13.0')"}, sys.executable)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(PARTS, "WORK", [sys.executable, "-c", f"KERNELS = {KERNELS}\n{WORKER}"])
    monkeypatch.setattr(PARTS, "WARPRUN", [sys.executable, "-c", RUN])
    monkeypatch.setattr(PARTS, "STARTS_S", 0.5)
    monkeypatch.setattr(CHECK, "about", lambda: dict(ABOUT))
    out = tmp_path / "report"

    def run(*arguments, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["gpu_check", "--out", str(out), *arguments])
        code = CHECK.main()
        text, data = out.with_suffix(".md").read_text(), json.loads(out.with_suffix(".json").read_text())
        archive = set(zipfile.ZipFile(out.with_suffix(".zip")).namelist())
        said = capsys.readouterr().out.splitlines()[-1]
        return SimpleNamespace(
            code=code, said=said, text=text, data=data, archive=archive, parts=data["parts"], path=out.with_suffix(".json")
        )

    return run


EVERY = ("versions", "training", "bench", "layers", "steady", "profile", "curves", "ncu", "peers")


def test_a_card_is_checked_and_leaves_a_raw_file_for_the_docs(check, tmp_path, monkeypatch):
    found = check(*EVERY)
    assert (found.code, found.said) == (0, f"gpu_check: passed; send {tmp_path / 'report.zip'}")
    assert found.text.startswith(f"# GPU check of {CARD}, ")
    assert list(found.parts) == ["compile", *EVERY] and all(part["good"] for part in found.parts.values())
    assert {row["work"]: row["state"] for row in found.parts["training"]["found"]} == dict.fromkeys(PARTS.TRAININGS, "solved")
    assert "tensor cores are 9.0e-06 of the largest number off" in found.text and "| 20 | 5 | 3 | 10 | 4 | 2 |" in found.text
    assert len(found.parts["bench"]["found"]) == sum(len(sizes) for _, sizes in PARTS.BENCH.values())
    counters = {"duration": "1234.5 us", "registers": 160, "occupancy": 18.5}
    kernels = [{"kernel": each["kernel"], "n_envs": 1_000_000} | counters for each in KERNELS]
    assert found.parts["ncu"]["found"] == kernels
    assert {"report.md", "report.json", "logs/nvidia_smi.txt", "runs/cartpole_a2c/status.json"} <= found.archive
    assert not [name for name in found.archive if name.endswith(".ckpt")]
    # Into the pages.
    monkeypatch.setattr(TABLES, "FOLDER", tmp_path)
    (tmp_path / "gpu_check.txt").touch()
    TABLES.keep(found.path)
    assert (tmp_path / "gpu_stand_in_9000.json").exists()
    (tmp_path / "report.json").unlink()
    cards = TABLES.kept()
    assert list(cards) == [CARD]
    texts = {mark: text for _, mark, text in TABLES.places(cards)}
    assert "| A2C 64-64 | 1,000,000 |  | 20 | 10 |  |  |  |" in texts["gpu throughput"]
    assert "| cartpole | 10,000 | 0.2 (0.1 to 0.2) | 200 | 2 of 3 |" in texts["gpu times"]
    assert "driver 580.15" in texts["gpu machines"] and "9 million of them with 10,000" in TABLES.sentence(cards)
    answer = load("claims").rate(8.6, "A2C 64-64", 10_000, "throughput", "x")({"reproduce": {}, "gpu": cards})
    assert answer == (f"9.01 [9.01, 9.01] million steps/s, {CARD}", load("evidence").IN_KIND)


def test_what_a_report_lacks_is_of_an_older_one(check, tmp_path, monkeypatch):
    monkeypatch.setattr(TABLES, "FOLDER", tmp_path)
    TABLES.keep(check("bench", "steady").path)
    monkeypatch.setattr(PARTS, "WORKS", {"bench": {"new": ("env=cartpole", (10,)), "A2C 64-64": ("env=cartpole", (100,))}})
    monkeypatch.setattr(CHECK, "about", lambda: ABOUT | {"commit": "abcdef012345"})
    TABLES.keep(check("bench").path)
    (tmp_path / "report.json").unlink()
    (card,) = TABLES.kept().values()
    assert [TABLES.commit(report) for report in card] == ["abcdef0", "0123456"]
    text = TABLES.throughput(TABLES.found(card, "bench"))
    assert "| new | 10 |" in text and "| A2C 64-64 | 100 |" in text and "| A2C 64-64 (0123456) | 1,000 |" in text
    assert "| SAC (0123456) | 64 |" in TABLES.by_columns(TABLES.STEADY, TABLES.found(card, "steady"))


def test_a_part_alone_compiles_only_its_own(check):
    found = check("steady").parts
    assert list(found) == ["compile", "steady"] and found["compile"]["found"].keys() == PARTS.STEADY.keys()


def test_what_fails_is_named_and_the_others_go_on(check):
    found = check("bench", "steady", BREAKS="agent=sac")
    assert (found.code, found.said.partition(";")[0]) == (1, "gpu_check: failed: compile")
    assert found.parts["compile"]["failed"] == {"SAC": "exit code 3"}
    assert "a warning of a library" in found.text
    assert found.parts["steady"]["cut"] == {"SAC": "not compiled"}  # it would compile in the time of the others
    assert {row["work"] for row in found.parts["steady"]["found"]} == PARTS.STEADY.keys() - {"SAC"}
    assert check("bench", BREAKS="bench").said.startswith("gpu_check: failed: bench")


def test_what_a_part_has_found_before_it_is_stopped_is_kept(check, monkeypatch):
    monkeypatch.setattr(PARTS, "WORKS", {"bench": {"A2C": ("env=cartpole", (10, 100)), "bad": ("env=acrobot", (10, 100))}})
    monkeypatch.setitem(
        CHECK.BESIDE, "compile", PARTS.Part(lambda turn: turn.machine.compiled.update(("A2C", "bad")) or PARTS.Found({}), 1)
    )
    began = time.monotonic()
    found = check("bench", "--minutes", "0.08", HANGS="env=acrobot")
    assert time.monotonic() - began < 30 and found.code == 0
    assert "did not end within" in found.parts["bench"]["cut"]["bench"]
    assert [(row["work"], row["n_envs"]) for row in found.parts["bench"]["found"]] == [("A2C", 10), ("A2C", 100), ("bad", 10)]
    found = check("bench", "--minutes", "0.08", SILENT="env=cartpole")  # it has found nothing, so that may be a fault
    assert found.code == 1 and "did not end within" in found.parts["bench"]["failed"]["bench"]


def test_what_had_no_time_is_cut_and_not_failed(check):
    found = check("bench", ENDS_EARLY="env=acrobot")
    assert (found.code, found.said.partition("; send")[0]) == (0, "gpu_check: passed; cut: bench")
    assert "## bench (cut)" in found.text and "- cut: 1,000,000 environments and more" in found.text
    found = check("training", "--minutes", "0.0001")
    assert found.code == 0 and len(found.parts["training"]["cut"]) == len(PARTS.TRAININGS)


def test_what_raises_ends_no_other_part(check, monkeypatch):
    def broken(turn):
        raise RuntimeError("this part is broken")

    monkeypatch.setitem(CHECK.ALONE, "profile", PARTS.Part(broken, 1))
    found = check("profile", "versions")
    assert found.code == 1 and "this part is broken" in found.text and "## versions\n" in found.text


@pytest.mark.parametrize(
    ("about", "code", "words"),
    [
        ({"gpu": None, "problem": "no NVIDIA driver"}, 0, "nothing to check: no NVIDIA driver"),
        ({"gpu": CARD, "problem": "torch is built for CUDA 13, the driver for 12"}, 2, "gpu_check: torch is built"),
        ({"missing": "ModuleNotFoundError: No module named 'pytest'; run: pip install"}, 2, "No module named 'pytest'; run: pip install"),
    ],
    ids=["no card", "a driver that does not fit", "a package that is missing"],
)
def test_what_cannot_be_checked_is_said(about, code, words, monkeypatch, capsys):
    monkeypatch.setattr(CHECK, "about", lambda: about)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert CHECK.main() == code
    assert words in capsys.readouterr().err


def test_a_package_that_is_missing_is_found(monkeypatch):
    monkeypatch.setattr(CHECK, "ABOUT", "import no_such_package")
    assert CHECK.about()["missing"].startswith("ModuleNotFoundError: No module named 'no_such_package'; run: pip install")


@pytest.mark.parametrize("content", ["", "{}", '{"device": "cpu", "machine": {"gpu": null}, "parts": {}}'])
def test_only_reports_of_a_card_are_kept(content, tmp_path, capsys):
    file = tmp_path / "report.json"
    file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        TABLES.keep(file)
    assert ended.value.code == 2 and "is no report" in capsys.readouterr().err


# The worker -----------------------------------------------------------------------------------------------------------


def test_sizes_that_would_not_end_in_time_do_not_begin(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(WORK, "time", SimpleNamespace(time=lambda: now[0]))

    def find(config):
        now[0] += {"a2c": 25.0, "ppo": 1.0}[config.agent.name]
        return {}

    works = {name: [f"env=cartpole agent={name} device=cpu", [10, 100, 1000]] for name in ("ppo", "a2c")}
    rows = [(row["work"], row.get("n_envs", row.get("cut"))) for row in WORK.in_time(60.0, works, find)]
    cut = "1,000 environments and more: about 25 s, which are not left"
    assert rows == [("a2c", 10), ("ppo", 10), ("a2c", 100), ("ppo", 100), ("a2c", cut), ("ppo", 1000)]


def test_kernels_have_readable_names():
    names = {
        "_ZN41warprun_kernels_cartpole_3cce538a9814d17e7rolloutB2v3B104cw51cXTLSUwv1sDUaK": "cartpole: rollout",
        "_ZN53warprun_kernels_a2c_derivatives_cuda_4960e30cb28c3e4c8gradientB4v129B108cw5": "a2c_derivatives: gradient",
        "warprun_kernels_returns_cuda_6717f314e5641a0c::advantages[abi:v76][abi:cw51cXTL": "returns: advantages",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::(": "torch: CatArrayBatchedCopy_contig",
        "Memcpy DtoD (Device -> Device)": "torch: Memcpy DtoD (Device -> Device)",
    }
    assert {name: WORK.short(name) for name in names} == names


def test_gradient_steps_follow_from_the_settings():
    ppo = compose([*PARTS.BENCH["PPO 4 x 4, LSTM"][0].split(), "n_envs=1024", "device=cpu"])
    assert WORK.gradient_steps(ppo) == 16 / (1024 * 16)
    assert WORK.gradient_steps(compose([*PARTS.STEADY["SAC"][0].split(), "device=cpu"])) == 0.25


WORKS = [f"{given} n_envs={sizes[0]}" for works in PARTS.WORKS.values() for given, sizes in works.values()]


@pytest.mark.parametrize("given", [*WORKS, *PARTS.TRAININGS.values()])
def test_settings_of_the_check_exist(given):
    assert compose([*given.split(), "device=cpu"]).n_envs


def test_what_needs_more_memory_than_there_is_is_cut():
    (row,) = WORK.in_time(time.time() + 60, {"A2C": ("env=cartpole agent=a2c device=cpu", (2 * 10**9,))}, lambda config: {})
    assert "2,000,000,000 environments and more: n_envs=2000000000 needs" in row["cut"]


def test_tests_that_the_check_chooses_exist():
    root = Path(CHECK.__file__).parents[1]
    files = [word for word in PARTS.TESTS if word.endswith(".py")]
    marked = {str(file.relative_to(root)) for file in (root / "tests").rglob("test_*.py") if "pytest.mark.gpu" in file.read_text()}
    assert {*files} == marked - {"tests/test_gpu_check.py"}
