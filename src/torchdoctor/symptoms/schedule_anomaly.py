"""OP02 schedule-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, goes_straight, median_ratio, outline_levels, trend_gain

RISING = ("OneCycleLR", "CyclicLR")
"""Schedules that begin far below the rate that they are for."""
TOP = {"SGD": 1.0}
"""The highest rate that an optimizer is built with to be used; else it is a factor, as in Noam's schedule, and"""
ADAPTIVE = 0.05
"""this is the highest for one that scales its steps itself."""
RISEN = 32
"""Steps in a row for which a rate must have risen, where it had its level before."""


@dataclass(frozen=True)
class ScheduleAnomaly(Detector):
    """The scheduler is never stepped, at the wrong cadence, or is fed a number that it takes the wrong way round.

    ## What it means
    A scheduler was given and `scheduler.step()` is never called: the learning rate stays what it was. Or it counts
    epochs and is stepped at every batch: a cosine that was to end with the run ends within some batches, rises again,
    and does so for ever. A one-cycle that counts batches and is stepped once an epoch stays in its warm-up. And
    `ReduceLROnPlateau` with `mode="max"` takes every loss that falls for a step back, and cuts the rate. Stepped with
    the loss of each batch, it takes their noise for a plateau, and the rate is gone within an epoch. A warm-up that was
    planned for a run many times as long ends this one before it has begun; one that nothing ends raises the rate until
    it tears down what was learnt; one that counts the batches of an epoch begins anew with each.

    ## How it is told apart
    A scheduler that counts epochs rests for a whole epoch: only after several validations without one step, or
    thousands of steps, is it called forgotten. Restarts (`CosineAnnealingWarmRestarts`, `CyclicLR`, one-cycle)
    are meant to come back; `CosineAnnealingLR` past its `T_max` is not. One-cycle by epochs is fine where its total is
    a number of epochs; a total that is so many whole epochs of batches is not. What `ReduceLROnPlateau` was fed is
    known from the best that it remembers: the worst validation loss so far is no best. Long warm-ups are common: one is
    too long where the rate that the optimizer was built with is dozens of validations away, and too high only where the
    loss has stopped falling at several times that rate. So is one that had its level for long and then creeps up to
    several times of it. Restarts leap up and come down little by little, or warm up and
    stay for a while; a rate that only ever rises and is thrown back does neither. One for averaged weights (`SWALR`)
    begins late on purpose.

    ## What to do
    Call `scheduler.step()` where its numbers count: after each epoch for numbers of epochs, after each
    `optimizer.step()` for numbers of steps. `T_max` is the number of such calls in the whole run.

    ## How to see that it is cured
    Plot the learning rate: it has the planned shape once over the run.

    ## Example
    >>> chart = Chart.of(lr=[0.1] * 400)
    >>> chart.add({"type": "facts", "step": 300, "facts": {"schedule.rounds": 3, "schedule.total": 100}})
    >>> print(ScheduleAnomaly().check(chart))
    step 300: OP02 schedule-anomaly (warning): the cosine schedule was stepped 3 times through its T_max of 100
    """

    code = "OP02"
    name = "schedule-anomaly"
    reads = ("tensors/grad_norm", "facts/schedule.rounds", "val_loss")
    suggests = ("change-schedule",)
    references = ("https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",)
    closes_after = 2

    rounds: int = 3
    """Times through its length after which a cosine was stepped at the wrong cadence."""
    past: float = 3.0
    """Times the last milestone that a run goes on, where milestones were meant as epochs."""
    least: int = 100
    """Steps that must be done before milestones are judged."""
    validations: int = 5
    """Validations without one step of the scheduler after which it is forgotten."""
    interval: int = 5
    """Optimizer's steps between two of the scheduler's from which it is stepped by epochs."""
    patience: int = 40
    """Steps for each cut of the rate under which a plateau schedule judges by the noise of batches."""
    away: int = 40
    """Times that the run would have to be validated before its warm-up ends."""
    far: int = 20_000
    """Steps of a warm-up that are unusual, where nothing is known of the run's length."""
    above: float = 5.0
    """Times the rate that the optimizer was built with, from which a rise without end is judged,"""
    leaps: float = 0.01
    """and the share of themselves by which weights move a step there."""
    steps: int = 5000
    """Steps without one of the scheduler after which it is forgotten, where there is no validation."""

    def check(self, chart: Chart) -> Symptom | None:
        """Past its end, or never begun."""
        if chart.fact("schedule.rounds", 0) >= self.rounds:
            total, rounds = chart.fact("schedule.total"), chart.fact("schedule.rounds")
            message = f"the cosine schedule was stepped {rounds} times through its T_max of {total}"
            since = chart.facts["schedule.rounds"].step
            return self.symptom(chart, "warning", message, value=rounds, limit=1.0, since=since)
        milestones = chart.fact("schedule.milestones") or ()
        if chart.fact("schedule.per_batch") and milestones and chart.step > self.past * max(milestones):
            rates = chart["lr"]
            top = max((bucket[3] for bucket in rates.outline.buckets()), default=0.0)
            if chart.step >= self.least and rates.latest < 0.02 * top:
                message = f"milestones up to {max(milestones)} were passed batch by batch: since then the rate is "
                message += f"{number_text(rates.latest)}, and {chart.step + 1} steps are done"
                return self.symptom(chart, "warning", message, since=max(milestones), confidence=0.8)
        if (anew := self._begins_anew(chart)) is not None:
            return anew
        wrong = self._by_epochs(chart) or self._wrong_way(chart) or self._hasty(chart)
        if wrong:
            return self.symptom(chart, "warning", wrong, since=chart.facts["schedule.class"].step, confidence=0.9)
        if (rising := self._rising(chart) or self._creeping(chart)) is not None:
            return rising
        if chart.fact("schedule.stepped") is not False or chart.fact("schedule.class") == "SWALR":  # which begins late
            return None
        waited = chart.step - chart.facts["schedule.stepped"].step
        if chart["val_loss"].count >= self.validations or waited >= self.steps:
            kind = chart.fact("schedule.class", "scheduler")
            message = f"{kind} was not stepped once in {waited} steps and {chart['val_loss'].count} validations"
            return self.symptom(chart, "warning", message, since=chart.facts["schedule.stepped"].step, confidence=0.8)
        return None

    def _rising(self, chart: Chart) -> Symptom | None:
        """A rate that has risen evenly since the first step, and is nowhere near its end, or far past it."""
        rates, losses = chart["lr"], chart["loss"]
        built = _built_rate(chart)
        if chart.step + 1 < self.least or not built > 0 or not _rises_evenly(chart):
            return None
        now, start = rates.latest, Progress.of(losses).start if losses else 0.0
        if now > self.above * built and chart.fact("schedule.class") not in RISING:
            levels = outline_levels(losses)
            gain, doubt = trend_gain(levels[levels.size // 2 :])
            if gain > doubt or not median_ratio(chart) > self.leaps:
                return None
            message = f"the learning rate has risen at every step, to {number_text(now)}: {now / built:.0f} times what "
            message += "the optimizer was built with, and the loss falls no more"
            return self.symptom(chart, "warning", message, value=now, limit=built, since=0, confidence=0.8)
        end = chart.step * (built - rates.first) / max(now - rates.first, 1e-30)
        validated = chart["val_loss"].steps
        pause = float(np.diff(validated).mean()) if validated.size >= 2 else 0.0
        if now > 0.1 * built or end < 20 * chart.step or not losses.baseline(128).recent > 0.5 * start > 0:
            return None
        if end < (self.away * pause or self.far):
            return None
        message = f"the warm-up would end at step {end:.0f}: after {chart.step + 1} steps the rate is "
        message += f"{number_text(now)} of {number_text(built)}"
        message += f", and there is a validation every {pause:.0f}" if pause else ""
        severity: Severity = "warning" if pause and goes_straight(chart, 3) else "info"
        return self.symptom(chart, severity, message, value=now, limit=built, since=0, confidence=0.8)

    def _creeping(self, chart: Chart) -> Symptom | None:
        """A rate that had its level, and has risen at every step since, far above all that the run has known."""
        rates, losses = chart["lr"], chart["loss"]
        if not rates.latest > self.above * rates.first or chart.fact("schedule.class") in RISING:
            return None
        values = rates.values
        place = int(np.append(np.flatnonzero(np.diff(values) <= 0), -1).max()) + 1
        known = values[: place + 1]
        settled = known.size >= self.least and float(known.max()) < 1.5 * float(np.median(known[known.size // 2 :]))
        if not settled or values.size - place <= RISEN or not rates.latest > self.above * float(known.max()):
            return None
        since = int(rates.steps[place])
        gain, doubt = trend_gain(losses.values[losses.steps >= since])
        if gain > doubt or not math.isfinite(doubt):  # it is for the better, or nothing is known
            return None
        message = f"the learning rate has risen at every step since step {since}, from {number_text(float(known[-1]))} "
        message += f"to {number_text(rates.latest)}, far above all that the run has known, and the loss does not fall"
        limit = self.above * float(known.max())
        return self.symptom(chart, "warning", message, value=rates.latest, limit=limit, since=since, confidence=0.8)

    def _begins_anew(self, chart: Chart) -> Symptom | None:
        """A warm-up that is cut off and begins again, time after time: it counts the batches of an epoch."""
        rates = chart["lr"]
        values, steps = rates.values, rates.steps
        if chart.fact("schedule.class") in RISING or values.size < self.least:
            return None
        ways = np.diff(values)
        falls = np.flatnonzero(ways < 0)
        # Where a warm-up ends, the rate stays or falls little by little: here it does nothing but rise.
        if falls.size < self.rounds or np.count_nonzero(ways > 0) + falls.size < ways.size:
            return None
        tops, bottoms = values[falls], values[falls + 1]
        # of the first, a part may be gone from what is kept
        if not tops.min() > 0.9 * tops.max() or not bottoms.max() < 0.2 * tops.min() or rates.latest > 1.1 * tops.max():
            return None
        pause = float(np.diff(steps[falls]).mean())
        top, bottom = number_text(float(tops[-1])), number_text(float(bottoms[-1]))
        message = (
            f"the warm-up begins anew every {pause:.0f} steps: at {top}, and still rising, the rate falls to {bottom}"
        )
        since = int(steps[falls[0] + 1])
        return self.symptom(chart, "warning", message, value=float(tops[-1]), since=since, confidence=0.9)

    def _by_epochs(self, chart: Chart) -> str:
        """A one-cycle of so many whole epochs of batches that is stepped once an epoch."""
        total, interval = chart.fact("schedule.total"), _interval(chart)
        if chart.fact("schedule.class") != "OneCycleLR" or not total or interval < self.interval:
            return ""
        epochs = round(total / interval)
        # where no rates tell it, the interval is known to a sample or so, and better the longer the run
        if epochs < 2 or abs(total - epochs * interval) > 0.02 * total:
            return ""
        message = f"OneCycleLR plans {total} steps of its own and takes one every {interval} of the optimizer's: "
        return message + f"it would need {total * interval} batches"

    def _hasty(self, chart: Chart) -> str:
        """A plateau schedule that is asked after each batch, and takes the noise between batches for a plateau."""
        rates = chart["lr"]
        if chart.fact("schedule.class") != "ReduceLROnPlateau" or not chart.fact("schedule.per_batch"):
            return ""
        top = rates.outline.highest
        cuts = int((np.diff(rates.values) < 0).sum())
        # a gap of an epoch is patience; some dozens of batches are not
        if not 0 < rates.latest <= 0.1 * top or cuts < 2 or chart.step / cuts > self.patience:
            return ""
        message = f"ReduceLROnPlateau is stepped at every batch and has cut the rate {cuts} times in {chart.step + 1} "
        return message + f"steps, from {number_text(top)} to {number_text(rates.latest)}"

    def _wrong_way(self, chart: Chart) -> str:
        """A plateau schedule whose best is the worst of what was validated, twice or more beaten since."""
        mode, best = chart.fact("schedule.mode"), chart.fact("schedule.best")
        if mode is None or best is None:
            return ""
        for vital in (item for item in chart.vitals if item.startswith("val_")):
            values = chart[vital].values
            falls = vital == "val_loss"  # of a metric it is not known which way is better
            if values.size < 3 or (mode == "max") != falls or not _same(best, values.max() if falls else values.min()):
                continue
            if falls and float((values < best).mean()) > 0.5 and values[-1] < 0.95 * best:
                return f'mode="max" and fed with the validation loss: {number_text(best)} is its best, not its worst'
            if "acc" in vital and float((values > best).mean()) > 0.5:
                return f'mode="min" and fed with {vital}: {number_text(best)} is its best, not its worst'
        if mode == "max" and self._is_early_loss(chart, best):
            return f'mode="max" and fed with the training loss: {number_text(best)} is its best, not its worst'
        return ""

    def _is_early_loss(self, chart: Chart, best: float) -> bool:
        """Whether a number is the mean of just the first losses, and the rate was cut though they have fallen since."""
        losses, rates = chart["loss"], chart["lr"]
        first = outline_levels(losses)[: 2 * max(int(chart.fact("schedule.interval") or 0), 1)]
        if losses.outline.start > 0 or not losses.baseline(32).recent < 0.9 * best:
            return False
        means = np.cumsum(first) / np.arange(1, first.size + 1)
        return bool((np.abs(means - best) <= 1e-5 * abs(best)).any()) and rates.latest < 0.99 * rates.outline.highest


def _interval(chart: Chart) -> int:
    """The optimizer's steps between two of the scheduler's: between two changes of the rate, or up to the first.

    The gauge knows it from its looks alone, and therefore as somewhat more.

    >>> _interval(Chart.of(lr=[0.004] * 94 + [0.0041] * 6))
    94
    """
    rates, about = chart["lr"], int(chart.fact("schedule.interval", 0))
    changes = rates.steps[1:][np.diff(rates.values) != 0]
    if not changes.size or (changes.size == 1 and rates.steps[0] > 0):
        return about
    exact = int(changes[-1] - (changes[-2] if changes.size > 1 else 0))
    return exact if not about or 0.7 * about < exact <= about else about


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-5 * abs(one)


def _built_rate(chart: Chart) -> float:
    """The rate that the optimizer was built with, where it can be meant as one; NaN where it is not known."""
    group = chart.groups[0] if chart.groups else {}
    known = [item for item in chart.context.get("optimizer") or () if isinstance(item, dict)]
    rate = group.get("initial_lr", known[0].get("lr") if known else None)
    if not isinstance(rate, int | float):
        return math.nan
    return float(rate) if 0 < rate <= TOP.get(str(group.get("optimizer")), ADAPTIVE) else math.nan


def _rises_evenly(chart: Chart) -> bool:
    """Whether the rate has gone up in a straight line from the first step on.

    >>> _rises_evenly(Chart.of(lr=[1e-5 * step for step in range(100)])), _rises_evenly(Chart.of(lr=[1e-3] * 100))
    (True, False)
    """
    rates = chart["lr"]
    levels = rates.outline.means()
    if levels.size < 32 or not rates.latest > rates.first or rates.outline.start > 0:
        return False
    way = (levels[levels.size // 8 :: max(1, levels.size // 8)] - rates.first) / (rates.latest - rates.first)
    line = np.linspace(0, 1, levels.size)[levels.size // 8 :: max(1, levels.size // 8)]
    return bool((np.abs(way - line) < 0.05).all())
