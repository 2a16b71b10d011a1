"""Hindsight: what was found on the way through a log, judged once more now that its end is known.

A live run must be warned when it happens. Of a finished one people ask how it went: a start that was slow and then
learnt, a gradient that leapt and harmed nothing, validation that rose for a while and came back are notes. Only logs of
other people's runs are judged like this; a journal gives the report that the live run gave, in which a start without
any gain is a note once the run has learnt all the same, and an end in the middle of a descent is one as well.

>>> chart = Chart.of(loss=[3.0] * 30 + [3.0 * 0.9**step for step in range(30)], context={"source": "CSV"})
>>> chart.episodes.append(Symptom("not-learning", "LO04", "warning", 0.8, 0, 29, message="loss has stayed at 3"))
>>> print(*in_hindsight(chart).episodes)
step 0: LO04 not-learning (info): loss has stayed at 3; later it fell to 0.157
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import SEVERITIES, Symptom
from torchdoctor.symptoms.hindsight.constant import frozen, no_gradient, nothing_right
from torchdoctor.symptoms.hindsight.departures import dead, diverged, set_back, spiked, unlearnt
from torchdoctor.symptoms.hindsight.forgotten import forgotten, worse_than_guessing, worsened
from torchdoctor.symptoms.hindsight.gains import idle, lost_ground
from torchdoctor.symptoms.hindsight.guessing import at_chance, part_at_rest, unlearnable
from torchdoctor.symptoms.hindsight.missing import broke_off, counted, left_empty, not_finite, scaled_away, vanished
from torchdoctor.symptoms.hindsight.overfitted import replace_overfitting
from torchdoctor.symptoms.hindsight.rewards import estimates_diverge, lost, unearned, unmoved
from torchdoctor.symptoms.hindsight.softening import outgrown, outlived, softened
from torchdoctor.symptoms.hindsight.standstill import hardly, one_answer
from torchdoctor.symptoms.hindsight.too_good import too_good
from torchdoctor.symptoms.hindsight.unfinished import unfinished
from torchdoctor.symptoms.hindsight.unstable import ends_beyond, unstable

__all__ = ["at_the_end", "in_hindsight"]

MANY = 3
"""Notes of one name that are shown one by one."""

LOOKS: tuple[Callable[[Chart], Iterator[Symptom]], ...] = (
    *(diverged, lost_ground, unlearnt, forgotten, worsened, worse_than_guessing, spiked, set_back, dead),
    *(idle, hardly, at_chance, part_at_rest, unlearnable, one_answer),
    *(frozen, no_gradient, nothing_right, unstable, ends_beyond, too_good),
    *(vanished, not_finite, left_empty, broke_off, scaled_away, lost, unearned, unmoved, estimates_diverge),
)
"""All looks at a whole run but that at overfitting, which replaces what was said on the way."""


def in_hindsight(chart: Chart, names: Collection[str] | None = None) -> Chart:
    """The chart with its episodes as they look from the end; of a live run, with few of them changed.

    `names` are the findings that are asked for, None: all.
    """
    judged = copy.copy(chart)
    if "source" not in chart.context:
        judged.episodes = [outgrown(chart, episode) for episode in chart.episodes]
        for found in at_the_end(chart, names):
            _enter(judged, found)
        return judged
    with np.errstate(all="ignore"):
        episodes = [softened(chart, counted(chart, episode)) for episode in chart.episodes]
        judged.episodes = [episode for episode in episodes if not outlived(chart, episode)]
        replace_overfitting(judged)
        for found in (found for look in LOOKS for found in _seen(look, chart, judged)):
            _enter(judged, found)
    if names is not None:
        judged.episodes = [episode for episode in judged.episodes if episode.name in names]
    judged.episodes = sorted(_gathered(judged.episodes), key=lambda episode: episode.first_step)
    return judged


def _seen(look: Callable[[Chart], Iterator[Symptom]], chart: Chart, judged: Chart) -> list[Symptom]:
    """What a look finds; where it stumbles over what a log has made up, the others are not lost, and it is said."""
    try:
        return list(look(chart))
    except Exception as error:  # noqa: BLE001
        said = f"one look at the whole log ({look.__name__}) failed: {type(error).__name__}: {error}"
        judged.notes = [*judged.notes, (chart.step, said)]
        return []


def at_the_end(chart: Chart, names: Collection[str] | None = None) -> list[Symptom]:
    """What only the end of a live run tells; where something is wrong with it, more steps are no remedy."""
    asked = "source" not in chart.context and (names is None or "slow-learning" in names)
    wrong = any(episode.name == "slow-learning" or episode.severity != "info" for episode in chart.episodes)
    return list(unfinished(chart)) if asked and not wrong else []


def _enter(chart: Chart, found: Symptom) -> None:
    """Add what the whole run shows, in place of what was found of it on the way, unless that was graver."""
    same = [episode for episode in chart.episodes if episode.name == found.name]
    if any(SEVERITIES.index(episode.severity) > SEVERITIES.index(found.severity) for episode in same):
        return
    found = replace(found, first_step=min(episode.first_step for episode in (found, *same)))
    if found.name == "loss-divergence" and not chart["loss"] and _overfits(chart):
        return  # one curve that rose is one finding
    chart.episodes = [episode for episode in chart.episodes if episode.name != found.name] + [found]


def _overfits(chart: Chart) -> bool:
    return any(episode.name == "overfitting" and episode.severity != "info" for episode in chart.episodes)


def _gathered(episodes: list[Symptom]) -> Iterator[Symptom]:
    """Episodes as they are, but many notes of one name as one: a log of a million steps would fill a page with them."""
    notes: dict[str, list[Symptom]] = {}
    for episode in episodes:
        if episode.severity == "info":
            notes.setdefault(episode.name, []).append(episode)
        else:
            yield episode
    for same in notes.values():
        if len(same) <= MANY:
            yield from same
            continue
        first, last = min(item.first_step for item in same), max(item.last_step for item in same)
        count = sum(item.count for item in same)
        leading = max(same, key=lambda item: item.value if item.value is not None else 0.0)
        message = f"{leading.message} (step {leading.first_step}, the highest of {len(same)})"
        yield replace(leading, first_step=first, last_step=last, count=count, message=message)
