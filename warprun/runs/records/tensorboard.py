"""TensorBoard: scalars over environment steps, and the entry of the run on the HPARAMS page.

Written through TensorBoard's own record format and messages: `torch.utils.tensorboard` loads for seconds, writes from a thread that prints
tracebacks on a full disk, and puts the hyperparameters into a second run.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata, plugin_data_pb2, summary_v2
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.summary.writer.record_writer import RecordWriter

from warprun.runs.records.jsonl import Appender
from warprun.runs.records.sink import PREFIX, Row, Sink, flatten
from warprun.runs.rundir import ENDED

METRICS = ("train/return", "eval/return", "perf/env_steps_per_s")


class EventFile:
    """A new event file in a folder. It is made by the first write."""

    def __init__(self, folder: Path) -> None:
        self._file = Appender(folder / f"{PREFIX}{time.time():.6f}.{socket.gethostname()}.{os.getpid()}")
        self.is_begun = False
        """Whether it has been written to."""

    def write(self, events: Sequence[Event]) -> None:
        """Write events. The file has either all of them or none, and begins with the head of event files. Raises OSError."""
        buffer = io.BytesIO()
        records = RecordWriter(buffer)
        head = Event(wall_time=events[0].wall_time, file_version="brain.Event:2")
        for event in (*([] if self.is_begun else [head]), *events):
            records.write(event.SerializeToString())
        self._file.write(buffer.getvalue())
        self.is_begun = True

    def sizes(self) -> dict[str, int]:
        """Return the name of the file and its size, if it has been written to."""
        return {self._file.path.name: self._file.position} if self.is_begun else {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def scalars(values: Mapping[str, float], step: int, time_s: float) -> Event:
    """Return the event of the values by tag at a step; `time_s`: seconds since 1970."""
    return Event(wall_time=time_s, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=values[tag]) for tag in values]))


class TensorBoard(Sink):
    """Write an event file into `folder`."""

    name = "TensorBoard"

    def __init__(self, folder: Path, config: Mapping[str, object], after: int | None = None, began_s: float | None = None) -> None:
        """Begin a new file.

        `after`: `env_steps` of the last valid scalars in the files of a resumed run; TensorBoard drops later ones. `began_s`: when a run
        began whose rows are those of earlier, in seconds since 1970; None: each row is of the time when it is logged.
        """
        self._after = after
        self._trial = folder.name
        self._hparams = flatten(config)
        self._began_s = began_s
        self._file = EventFile(folder)

    def log(self, row: Row) -> None:
        """Write the values as scalars over environment steps."""
        time_s = time.time() if self._began_s is None else self._began_s + row.wall_s
        self._write(scalars(row.values, row.env_steps, time_s))

    def finish(self, summary: Mapping[str, float | str], status: str) -> None:
        """Record on the HPARAMS page that the run ended, and how."""
        outcome = Status.STATUS_SUCCESS if status in ENDED else Status.STATUS_FAILURE
        end = plugin_data_pb2.SessionEndInfo(status=outcome, end_time_secs=time.time())
        plugin = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=end))
        value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=plugin, tensor=metadata.NULL_TENSOR)
        self._write(Event(wall_time=time.time(), summary=Summary(value=[value])))

    def files(self) -> dict[str, int]:
        """Return the size of the file, if it has been written to."""
        return self._file.sizes()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        self._file.write([*([] if self._file.is_begun else self._head()), event])

    def _head(self) -> list[Event]:
        now = time.time() if self._began_s is None else self._began_s
        experiment = summary_v2.hparams_config_pb(
            hparams=[summary_v2.HParam(name) for name in self._hparams], metrics=[summary_v2.Metric(tag) for tag in METRICS]
        )
        session = summary_v2.hparams_pb(self._hparams, trial_id=self._trial, start_time_secs=now)
        events = [Event(wall_time=now, summary=summary) for summary in (experiment, session)]
        if self._after is not None:
            events.append(Event(wall_time=now, step=self._after + 1, session_log=SessionLog(status=SessionLog.START)))
        return events


def write_images(folder: Path) -> None:
    """Write the PNG files of a folder to an event file beside them, which replaces that of an earlier call."""
    images = sorted(folder.glob("*.png"))
    if not images:
        return
    for old in folder.glob(f"{PREFIX}*"):
        old.unlink()
    shown = {image.stem: Summary.Image(encoded_image_string=image.read_bytes()) for image in images}
    now, file = time.time(), EventFile(folder)
    file.write([Event(wall_time=now, summary=Summary(value=[Summary.Value(tag=tag, image=shown[tag])])) for tag in shown])
    file.close()
