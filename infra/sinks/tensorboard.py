"""A run as TensorBoard events: each projection adds one event file, whole, with the points that no file has yet.

TensorBoard keeps events whose step is below an earlier one's in files of version 2, which these are. Which points a file has,
it says itself, under a tag of its own.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infra import local_files
from infra.sinks import Place, needs_package
from infra.sinks.metrics import TrackedPoint

POINT = "pinpoint/point"
PATTERN = "events.out.tfevents.*"
VERSION = "brain.Event:2"


class TensorBoard:
    def __init__(self, place: Place) -> None:
        try:
            import tensorboard  # noqa: F401
        except ImportError as error:
            needs_package("tensorboard", "tensorboard", "install pinpoint-eval[tensorboard]", error)
        self.folder = place.folder / "tensorboard" / place.run

    @property
    def target(self) -> str:
        return f"{socket.gethostname()}:{self.folder}"

    def write(self, points: Sequence[TrackedPoint]) -> int:
        written = {key for file in sorted(self.folder.glob(PATTERN)) for key in _points_in(file)}
        new = [point for point in points if point.key not in written]
        if new:
            _write(self.folder, new)
        return len(new)


def _write(folder: Path, points: Sequence[TrackedPoint]) -> None:
    """Under a name that sorts after those of earlier files: TensorBoard reads a folder's files in that order."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    seconds, rest = divmod(time.time_ns(), 10**9)
    name = f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
    with local_files.replacing(folder / name) as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=time.time(), file_version=VERSION).SerializeToString())
        for point in points:
            writer.write(_event(point).SerializeToString())


def _event(point: TrackedPoint) -> Any:
    """All numbers of a point are one event: a file has them together or not at all."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    text = TensorProto(dtype="DT_STRING", string_val=[point.key.encode()])
    values = [Summary.Value(tag=name, simple_value=value) for name, value in point.metrics.items()]
    named = Summary.Value(tag=POINT, metadata=plugin, tensor=text)
    return Event(wall_time=point.at, step=point.step, summary=Summary(value=[*values, named]))


def _points_in(file: Path) -> Iterator[str]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for event in LegacyEventFileLoader(str(file)).Load():
        yield from (value.tensor.string_val[0].decode() for value in event.summary.value if value.tag == POINT)
