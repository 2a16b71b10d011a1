"""TensorBoard: each episode as text at its step, the number of open findings as a curve, and the last report.

``tensorboard:FOLDER`` writes its own event files with the tensorboard library, without torch. An object may be any
writer with ``add_text`` and ``add_scalar``, such as torch's ``SummaryWriter``; it stays open.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchdoctor.errors import SettingsError
from torchdoctor.records import Record
from torchdoctor.reports import markdown
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import label
from torchdoctor.sinks.messages import Bulletin, as_markdown
from torchdoctor.sinks.sink import Subject, library


class TensorBoard:
    """Writes findings next to the curves."""

    def __init__(self, writer: Any, subject: Subject) -> None:
        self._writer = writer
        self._bulletin = Bulletin(subject)
        self._drawn = -1

    def take(self, records: Sequence[Record]) -> None:
        """Write texts, and the number of open findings if it changed."""
        self._bulletin.read(records)
        waiting = self._bulletin.waiting
        told = bool(waiting)
        while waiting:
            message = waiting[0]
            step = message.report.step if message.event == "closed" else message.symptom.first_step
            self._writer.add_text(f"torchdoctor/{label(message.symptom)}", as_markdown(message), step)
            waiting.popleft()
        if self._draw() or told:
            self._writer.flush()

    def close(self, report: Report | None) -> None:
        """Write the whole report, and close the writer if it is our own."""
        if report is not None:
            self._writer.add_text("torchdoctor/report", markdown.render(report), max(report.step, 0))
        self._writer.flush()
        if isinstance(self._writer, Events):
            self._writer.close()

    def _draw(self) -> bool:
        count = len(self._bulletin.open)
        changed = count != self._drawn
        if changed:
            self._writer.add_scalar("torchdoctor/open_findings", count, max(self._bulletin.step, 0))
            self._drawn = count
        return changed


class Events:
    """The parts of a SummaryWriter that are needed here, without torch."""

    def __init__(self, folder: Path) -> None:
        library("tensorboard", "tensorboard")
        self._proto = library("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._tensor = library("tensorboard.compat.proto.tensor_pb2", "tensorboard")
        self._event = library("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._text = library("tensorboard.plugins.text.metadata", "tensorboard")
        writers = library("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._file = writers.EventFileWriter(str(folder), filename_suffix=".torchdoctor")

    def add_text(self, tag: str, text: str, step: int) -> None:
        """Add a Markdown text at a step."""
        tensor = self._tensor.TensorProto(dtype="DT_STRING", string_val=[text.encode("utf-8", "replace")])
        tensor.tensor_shape.dim.add(size=1)
        metadata = self._text.create_summary_metadata(display_name="", description="")
        self._add(self._proto.Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor), step)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point of a curve."""
        self._add(self._proto.Summary.Value(tag=tag, simple_value=value), step)

    def flush(self) -> None:
        """Write everything to disk."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, value: Any, step: int) -> None:
        summary = self._proto.Summary(value=[value])
        self._file.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))


def open_tensorboard(target: str, subject: Subject) -> TensorBoard:
    """``tensorboard:FOLDER``."""
    if not target:
        raise SettingsError("tensorboard needs a folder to write to, as in tensorboard:runs/exp.")
    try:
        return TensorBoard(Events(Path(target)), subject)
    except OSError as error:
        raise SettingsError(f"cannot write TensorBoard events to {target!r}: {error.strerror or error}.") from error
