"""Reads many runs: in this process, or in several if there are enough runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from torchdoctor.comparing.naming import short_names
from torchdoctor.comparing.summary import Summary, summarise
from torchdoctor.errors import TorchDoctorError
from torchdoctor.sources import labels, locate, read_all

WORTHWHILE = 40
"""Number of runs from which starting more processes is worthwhile."""
TOGETHER = 8
"""Number of runs that a process gets at a time."""
Progress = Callable[[int, int], None]
"""Called with the number of places that were read, and of all places."""


@dataclass(frozen=True)
class Place:
    """The runs at one path."""

    summaries: tuple[Summary, ...]
    error: str = ""


def read_runs(
    places: Sequence[str], *, examine: bool = True, processes: int = 1, progress: Progress | None = None
) -> tuple[list[Summary], list[str]]:
    """The runs at some places with short names, and a sentence for each place that could not be read."""
    summaries: dict[str, Summary] = {}
    errors: list[str] = []
    for found in read_places(places, examine=examine, processes=processes, progress=progress):
        for summary in found.summaries:
            identity = os.path.realpath(summary.path) if summary.label == summary.path else summary.label
            summaries.setdefault(identity, summary)  # a run may be given twice: as a folder and as a file
        if found.error:
            errors.append(found.error)
    names = short_names([summary.label for summary in summaries.values()])
    return [replace(summary, run=name) for summary, name in zip(summaries.values(), names, strict=True)], errors


def places_of(paths: Sequence[str | Path]) -> list[str]:
    """The places to read one by one: for a folder, each log in it, or the folder itself if it has none."""
    return list(dict.fromkeys(str(place) for path in paths for place in locate(path) or [Path(path)]))


def read_places(
    places: Sequence[str], *, examine: bool, processes: int, progress: Progress | None = None
) -> Iterator[Place]:
    """The runs at each of some places, in order."""
    for number, found in enumerate(_read(places, examine, processes), 1):
        yield found
        if progress is not None:
            progress(number, len(places))


def _read(places: Sequence[str], examine: bool, processes: int) -> Iterator[Place]:
    task = partial(read_place, examine=examine)
    if processes < 2 or len(places) < WORTHWHILE:
        yield from map(task, places)
        return
    # Fresh interpreters: forking a process that has threads (torch, a notebook) may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(task, places, chunksize=TOGETHER)


def read_place(place: str, *, examine: bool) -> Place:
    """The runs at one place, or the reason why there are none."""
    try:
        runs = read_all(place)
        found = [
            replace(summarise(run, examine=examine), run=label, label=label, place=place)
            for run, label in zip(runs, labels(runs), strict=True)
        ]
    except TorchDoctorError as error:
        return Place((), str(error))
    return Place(tuple(found))
