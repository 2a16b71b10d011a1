"""Earlier content of a log that is emptied or renamed when it is full, and so loses its beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchdoctor.sources.run import Piece, Run
from torchdoctor.stretch import Stretch

RECORDS = ("vitals", "validation")


class Past:
    """The parts of a run that its log has held, one after another."""

    def __init__(self) -> None:
        self._parts: list[Run] = []
        """As they were last read; the steps of each come after those of the one before."""

    def with_it(self, run: Run) -> Run:
        """The run as its log is now, preceded by what the log held before and no longer holds.

        A log that begins after the last known step continues the run; one with any other new beginning is another run.
        """
        first, before = _first(run), self._parts[-1] if self._parts else None
        if before is not None and first > before.step and _clock(run) == _clock(before) and _shares(run, before):
            self._parts.append(run)
        elif before is not None and first == _first(before):
            self._parts[-1] = run
        elif first >= 0:
            self._parts = [run]
        if len(self._parts) < 2:
            return run
        parts = tuple(self._parts)
        note = f"steps before {first} are no longer in {run.path.name}; what was read of them is still used"
        return replace(run, remarks=(*run.remarks, note), open=lambda: _one_after_another(parts))


def _one_after_another(parts: tuple[Run, ...]) -> Iterator[Piece]:
    for place, part in enumerate(parts):
        for piece in part.pieces:
            kind = piece["type"] if isinstance(piece, Mapping) else ""
            if not (kind == "header" and place) and not (kind == "end" and place < len(parts) - 1):
                yield piece


def _first(run: Run) -> int:
    """The first step of a run, -1 if there is none."""
    for piece in run.pieces:
        if isinstance(piece, Stretch):
            return int(piece.steps[0])
        if piece["type"] in RECORDS:
            return int(piece["step"])
    return -1


def _clock(run: Run) -> object:
    return run.header.get("context", {}).get("clock")


def _shares(run: Run, other: Run) -> bool:
    """Whether two runs have some of the same measures."""
    one, two = (each.header.get("context", {}).get("columns", {}) for each in (run, other))
    return not {*one}.isdisjoint(two)
