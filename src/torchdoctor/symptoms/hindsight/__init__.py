"""Hindsight: the findings of a run, judged again once its end is known.

A live run must be warned at once. For a finished run, what counts is how it went: a slow start that then learned, a
gradient jump without harm, or validation that rose for a while and came back is reported as info. Only imported logs
are judged like this. A journal gives the same report as the live run, in which a start without progress becomes info
once the run has learned, and so is an end in the middle of a descent.

>>> chart = Chart.of(loss=[3.0] * 30 + [3.0 * 0.9**step for step in range(30)], context={"source": "CSV"})
>>> chart.episodes.append(Symptom("not-learning", "LO04", "warning", 0.8, 0, 29, message="loss has stayed at 3"))
>>> print(*in_hindsight(chart).episodes)
step 0: LO04 not-learning (info): loss has stayed at 3; later it fell to 0.157
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import SEVERITIES, Symptom
from torchdoctor.symptoms.changes import unhealed
from torchdoctor.symptoms.hindsight.constant import frozen, no_gradient, nothing_right, without_targets
from torchdoctor.symptoms.hindsight.departures import all_diverged, dead, diverged, unlearnt, went_astray
from torchdoctor.symptoms.hindsight.forgotten import forgotten, worse_than_guessing, worsened
from torchdoctor.symptoms.hindsight.gains import idle, lost_ground
from torchdoctor.symptoms.hindsight.guessing import at_chance, cannot_rank, part_at_rest, unlearnable
from torchdoctor.symptoms.hindsight.missing import (
    broke_off,
    counted,
    left_empty,
    lost_for_good,
    not_finite,
    scaled_away,
    vanished,
)
from torchdoctor.symptoms.hindsight.never_better import explains_nothing, never_better
from torchdoctor.symptoms.hindsight.overfitted import replace_overfitting
from torchdoctor.symptoms.hindsight.recovered import sank_for_long, set_back, spiked
from torchdoctor.symptoms.hindsight.rewards import estimates_diverge, lost, stagnant, unearned, unmoved
from torchdoctor.symptoms.hindsight.softening import outgrown, outlived, softened
from torchdoctor.symptoms.hindsight.stairs import stairs
from torchdoctor.symptoms.hindsight.standstill import hardly, one_answer
from torchdoctor.symptoms.hindsight.too_good import right_at_once, too_good
from torchdoctor.symptoms.hindsight.unfinished import unfinished
from torchdoctor.symptoms.hindsight.unstable import ends_beyond, unstable

__all__ = ["at_the_end", "in_hindsight"]

MANY = 3
"""Findings of one name at severity info that are listed one by one; more of them are merged into one."""

CONSEQUENCES = ("loss-divergence", "validation-anomaly")
"""Findings about rewards and metrics that say nothing new once the loss is not finite up to the end."""

LOOKS: tuple[Callable[[Chart], Iterator[Symptom]], ...] = (
    went_astray,
    *(
        all_diverged,
        diverged,
        lost_ground,
        unlearnt,
        forgotten,
        worsened,
        worse_than_guessing,
        spiked,
        set_back,
        sank_for_long,
        dead,
        never_better,
        explains_nothing,
    ),
    *(idle, hardly, at_chance, part_at_rest, unlearnable, cannot_rank, one_answer),
    *(frozen, no_gradient, nothing_right, without_targets, unstable, ends_beyond, too_good, right_at_once, stairs),
    *(vanished, not_finite, lost_for_good, left_empty, broke_off, scaled_away),
    *(lost, stagnant, unearned, unmoved, estimates_diverge),
)
"""All checks of a whole run, except the one for overfitting, which replaces the findings made on the way."""


def in_hindsight(chart: Chart, names: Collection[str] | None = None) -> Chart:
    """The chart with its episodes judged from the end of the run; for a live run only a few of them change.

    `names` are the findings to report; None means all.
    """
    judged = copy.copy(chart)
    if "source" not in chart.context:
        judged.episodes = [unhealed(chart, outgrown(chart, episode)) for episode in chart.episodes]
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
    """What a check finds. If it fails on a strange log, the failure is noted and the other checks still run."""
    try:
        return list(look(chart))
    except Exception as error:  # noqa: BLE001
        said = f"one check of the whole log ({look.__name__}) failed: {type(error).__name__}: {error}"
        judged.notes = [*judged.notes, (chart.step, said)]
        return []


def at_the_end(chart: Chart, names: Collection[str] | None = None) -> list[Symptom]:
    """Findings that only the end of a live run shows; none if something else is wrong: more steps would not help."""
    asked = "source" not in chart.context and (names is None or "slow-learning" in names)
    wrong = any(episode.name == "slow-learning" or episode.severity != "info" for episode in chart.episodes)
    return list(unfinished(chart)) if asked and not wrong else []


def _enter(chart: Chart, found: Symptom) -> None:
    """Add a finding of the whole run; it replaces those of the same name, unless one of them is more severe."""
    same = [episode for episode in chart.episodes if episode.name == found.name]
    if any(SEVERITIES.index(episode.severity) > SEVERITIES.index(found.severity) for episode in same):
        return
    if found.name in CONSEQUENCES and _is_broken(chart, found.first_step):
        return
    found = replace(found, first_step=min(episode.first_step for episode in (found, *same)))
    if found.name == "loss-divergence" and not chart["loss"] and _overfits(chart):
        return  # a single rising curve is a single finding
    chart.episodes = [episode for episode in chart.episodes if episode.name != found.name] + [found]


def _is_broken(chart: Chart, step: int) -> bool:
    """Whether the loss (or one of several, if none is the main one) is NaN or infinite from this step on, or before."""
    losses = [chart[name] for name in (("loss",) if "loss" in chart else chart.losses)]
    return any(not math.isfinite(item.latest) and 0 <= item.broken_since <= step for item in losses)


def _overfits(chart: Chart) -> bool:
    return any(episode.name == "overfitting" and episode.severity != "info" for episode in chart.episodes)


def _gathered(episodes: list[Symptom]) -> Iterator[Symptom]:
    """The episodes, with many infos of one name merged into one: a log of a million steps would fill a page."""
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
