"""What lies in the working folder, and streams that are closed: one line, or no effect."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warprun.cli import main as cli

ROOT = Path(__file__).parents[2]
ENV = "module: warprun.envs.cartpole\n"


def write(path: str, content: str | bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def test_files_of_another_program_in_conf_have_no_effect(started, capsys):
    for path in ("conf/config.yaml", "conf/warprun.yaml", "conf/hydra/job_logging/none.yaml", "conf/db/x.yaml", "conf/env/theirs.yaml"):
        write(path, "a: [1\nb: {")
    os.mkfifo("conf/env/fifo.yaml")
    assert cli.run(["env=pendulum"]) == 0 and started[0].env.name == "pendulum"
    assert cli.run(["envs"]) == 0
    told = capsys.readouterr()
    assert "theirs: conf/env/theirs.yaml:2: expected" in told.out and "pendulum" in told.out and told.err == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1\nb: {", "conf/env/mine.yaml:2: expected ',' or ']', but got ':'"),
        (b"name: a\nmodule: \xff", "conf/env/mine.yaml:2: it is not text in UTF-8"),
        ("name: \0", "conf/env/mine.yaml: unacceptable character"),
        ("- 1", "conf/env/mine.yaml:1: it must hold keys with values"),
        ("name: x\nname: y\n" + ENV, "conf/env/mine.yaml:2: found duplicate key name"),
        ("name: !!python/object/apply:os.getcwd []\n" + ENV, "conf/env/mine.yaml:1: could not determine a constructor"),
        (ENV + "name: x\nparams: " + "{a: " * 200 + "1" + "}" * 200, "nested deeper than 20 levels"),
        ("name: " + "[" * 5000, "conf/env/mine.yaml is nested too deeply"),
        ("a: &a {b: *a}", "conf/env/mine.yaml is larger than 50,000 values"),
        ("a: 1\n" * 400_000, "conf/env/mine.yaml is larger than 1024 KiB"),
        (ENV + "name: ${oc.env:HOME}", "env.name='${oc.env:HOME}': ${...} can name another key"),
        (ENV + "name: x\nparams: null", "env.params cannot be null"),
    ],
)
def test_a_broken_file_is_one_line_with_its_place(started, refusal, content, message):
    write("conf/env/mine.yaml", content)
    assert message in refusal("env=mine") and not started


def test_a_working_folder_that_is_gone(tmp_path):
    script = f"import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); import sys; sys.path.insert(0, {str(ROOT)!r})"
    script += "; from warprun.cli.main import run; sys.exit(run(['env=cartpole']))"
    done = subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "warprun: error: the working folder cannot be used: No such file or directory; change to another folder\n"


@pytest.mark.parametrize(
    ("streams", "codes"),
    [(">&-", {0}), ("2>&-", {0}), ("<&- >&- 2>&-", {0}), ("| true", {0, 141}), ("| head -1", {0, 141}), ("> /dev/full", {1})],
)
def test_streams_that_are_closed_or_full(tmp_path, streams, codes):
    command = f"set -o pipefail; {sys.executable} -m warprun --help {streams}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}  # as in most shells: the help fits into the buffer
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode in codes
    assert done.stderr == ("warprun: error: standard output: No space left on device\n" if 1 in codes else "")


def test_dicts_are_merged_like_single_keys(started):
    dicts = ["env.params={length:0.7}", "env.randomize={gravity:[9,10]}", "agent.groups={agent:{gamma:0.5}}"]
    assert cli.run(["env.params.force=9", *dicts]) == 0
    config = started[0]
    assert config.env.params == {"length": 0.7, "force": 9} and config.env.randomize == {"gravity": [9, 10]}
    assert config.agent.groups == {"agent": {"gamma": 0.5}}


def test_a_reference_to_another_key_is_stored_with_its_value(started):
    assert cli.run(["agent.horizon=${agent.n_step}"]) == 0
    assert started[0].agent.horizon == 5 and started[0].origin.overrides == ["agent.horizon=5"]
