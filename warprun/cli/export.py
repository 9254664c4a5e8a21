"""`warprun export`: the policy of a run as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warprun.cli.settings import read_settings
from warprun.errors import MOST_PRINTED, UserError, printable


@dataclass
class _ExportSettings:
    """The settings of `warprun export`."""

    checkpoint: str = "last"
    overwrite: bool = False
    output_root: str = "outputs"
    trust: bool = False
    """Run the code of a run folder that this user did not make."""


def export_run(arguments: Sequence[str]) -> None:
    """Write the policy of a run to a file, and print what the file has. Raises UserError."""
    settings = _ExportSettings()
    names = read_settings("export", settings, arguments)
    if len(names) != 2:
        raise UserError("export takes a run and a file, such as `warprun export latest policy.onnx`")
    run, file = names[0], Path(names[1])
    from warprun.policies.export import check_file, export
    from warprun.policies.loading import load
    from warprun.runs import rundir

    check_file(file, settings.overwrite)
    folder = rundir.latest(Path(settings.output_root)) if run == "latest" else Path(run)
    policy = load(folder, settings.checkpoint, trust=settings.trust)  # type: ignore[arg-type]
    written = export(policy, file, settings.overwrite)
    print(f"{printable(policy.path, MOST_PRINTED)}, after {policy.env_steps:,} env_steps")
    print(f"{printable(file, MOST_PRINTED)}: {', '.join(written)}")
