"""Which of many runs to diagnose: a diagnosis takes several times as long as reading a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchdoctor.comparing.outcome import choose, outcome, ranked
from torchdoctor.comparing.reading import Progress, read_places
from torchdoctor.comparing.summary import Summary

ALL = 500
"""Up to this many runs, all are diagnosed."""
BEST, LOST, SPREAD = 50, 50, 150
"""Of more runs: how many of the best, of those that diverged, and of the rest, evenly spaced in the ranking."""


def chosen(summaries: Sequence[Summary], metric: str | None = None) -> list[int]:
    """The places of the runs to diagnose."""
    if len(summaries) <= ALL:
        return list(range(len(summaries)))
    measure = choose(summaries, metric)
    outcomes = [outcome(summary, measure) for summary in summaries]
    order = ranked(outcomes, measure)
    lost = [place for place in order if outcomes[place].diverged]
    rest = order[BEST : len(order) - len(lost)]
    return sorted({*order[:BEST], *lost[:LOST], *rest[:: max(1, -(-len(rest) // SPREAD))]})


def diagnosed(
    summaries: Sequence[Summary], places: Sequence[int], *, processes: int, progress: Progress | None
) -> list[Summary]:
    """The same runs, with diagnoses for those at `places`, whose files are read again."""
    files = list(dict.fromkeys(summaries[place].place for place in places))
    wanted = {summaries[place].label for place in places}
    known = {
        found.label: found
        for read in read_places(files, examine=True, processes=processes, progress=progress)
        for found in read.summaries
        if found.label in wanted
    }
    return [
        replace(known[summary.label], run=summary.run) if summary.label in known else summary for summary in summaries
    ]
