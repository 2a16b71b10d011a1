"""What a log held when it was looked at before: one that is emptied or renamed when it is full loses its beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchdoctor.sources.run import Piece, Run
from torchdoctor.stretch import Stretch

RECORDS = ("vitals", "validation")


class Past:
    """The parts of a run that its log held, one after another."""

    def __init__(self) -> None:
        self._parts: list[Run] = []
        """As they were read last, each of the steps after those of the one before."""

    def with_it(self, run: Run) -> Run:
        """The run as its log is now, behind what it held before and does not hold any more.

        A log that begins after the last step that was seen goes on; one that begins elsewhere than it did is another.
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
        note = f"steps before {first} are no longer in {run.path.name}: what was seen of them is judged all the same"
        return replace(run, remarks=(*run.remarks, note), open=lambda: _one_after_another(parts))


def _one_after_another(parts: tuple[Run, ...]) -> Iterator[Piece]:
    for place, part in enumerate(parts):
        for piece in part.pieces:
            kind = piece["type"] if isinstance(piece, Mapping) else ""
            if not (kind == "header" and place) and not (kind == "end" and place < len(parts) - 1):
                yield piece


def _first(run: Run) -> int:
    """The first step of a run, -1 where there is none."""
    for piece in run.pieces:
        if isinstance(piece, Stretch):
            return int(piece.steps[0])
        if piece["type"] in RECORDS:
            return int(piece["step"])
    return -1


def _clock(run: Run) -> object:
    return run.header.get("context", {}).get("clock")


def _shares(run: Run, other: Run) -> bool:
    """Whether two runs measure some of the same."""
    one, two = (each.header.get("context", {}).get("columns", {}) for each in (run, other))
    return not {*one}.isdisjoint(two)
