"""OP02 schedule-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.frozen_weights import planned_rate
from torchdoctor.symptoms.progress import Progress, goes_straight, median_ratio, outline_levels, trend_gain

RISING = ("OneCycleLR", "CyclicLR")
"""Schedules that begin far below their peak learning rate."""
ENDING = ("CosineAnnealingLR", "LinearLR", "OneCycleLR", "PolynomialLR")
"""Schedules with a length after which they are over."""
TOP = {"SGD": 1.0}
"""The highest learning rate that is plausible per optimizer; above it, it is a factor, as in Noam's schedule."""
ADAPTIVE = 0.05
"""The same for all other optimizers, which are adaptive."""
RISEN = 32
"""Steps in a row for which the learning rate must have risen after it had been level."""


@dataclass(frozen=True)
class ScheduleAnomaly(Detector):
    """The scheduler is never stepped, is stepped at the wrong interval, or gets a metric with the wrong `mode`.

    ## What it means
    The learning rate does not follow the plan. If `scheduler.step()` is never called, it stays constant. If a scheduler
    that counts epochs is stepped at every batch, it ends far too early, and a cosine rises and falls again and again.
    `ReduceLROnPlateau` with `mode="max"` treats a falling loss as no improvement and cuts the learning rate.

    ## How it is told apart
    One of these is reported as a warning:

    - The scheduler was not stepped in 5 validations, 5 epochs or 5000 steps, or in as many steps as its schedule has
      while the learning rate is still far below its peak. `SWALR` is exempt, because it begins late. If only the length
      of the schedule has passed, it is info: it may count epochs.
    - `CosineAnnealingLR` ran 3 times through its `T_max`, or is stepped several times per optimizer step and comes back
      up. Schedules that are meant to restart are exempt.
    - Milestones in epochs were passed batch by batch, or `OneCycleLR` counts batches but is stepped once an epoch.
    - The best value that `ReduceLROnPlateau` remembers is the worst that it was given: its `mode` is wrong.
    - `ReduceLROnPlateau` is stepped at every batch, so that noise between batches looks like a plateau.
    - The warm-up begins anew time after time while the learning rate is still rising: it counts the batches of one
      epoch. A cycle or restart either falls gradually or stays at its level for a while.
    - The learning rate keeps rising, to more than 5 times the optimizer's own (or its earlier level), and the loss no
      longer falls.
    - The scheduler still sets the learning rate of an optimizer that no longer steps, because another one took over.
    - The warm-up would take far longer than the run: 40 validations or more. Without validations it is info.

    ## What to do
    Call `scheduler.step()` after each epoch if its numbers count epochs, or after each `optimizer.step()` if they count
    steps. Set `T_max` to the number of such calls in the whole run.

    ## How to see that it is cured
    Plot the learning rate: it has the planned shape once over the run.

    ## Example
    >>> chart = Chart.of(lr=[0.1] * 400)
    >>> chart.add({"type": "facts", "step": 300, "facts": {"schedule.rounds": 3, "schedule.total": 100}})
    >>> print(ScheduleAnomaly().check(chart))
    step 300: OP02 schedule-anomaly (warning): the cosine schedule ran 3 times through its T_max of 100
    """

    code = "OP02"
    name = "schedule-anomaly"
    reads = ("tensors/grad_norm", "facts/schedule.rounds", "facts/schedule.elsewhere", "val_loss")
    suggests = ("change-schedule",)
    references = ("https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",)
    closes_after = 2

    rounds: int = 3
    """Times that a cosine ran through its length, from which it is stepped at the wrong interval."""
    past: float = 3.0
    """Multiple of the last milestone that the run must have passed before milestones in epochs are assumed."""
    least: int = 100
    """Steps needed before milestones and rising learning rates are judged."""
    validations: int = 5
    """Validations without a step of the scheduler, after which it counts as forgotten."""
    interval: int = 5
    """Optimizer steps between two scheduler steps, from which it counts as stepped by epochs."""
    patience: int = 40
    """Steps per cut of the learning rate, up to which a plateau schedule reacts to the noise of batches."""
    away: int = 40
    """Validations before the end of a warm-up, from which it is too long."""
    far: int = 20_000
    """Steps of a warm-up from which it is too long, if the run is not validated."""
    above: float = 5.0
    """Multiple of the optimizer's own learning rate (or of its earlier level), above which a steady rise is judged,"""
    leaps: float = 0.01
    """and update ratio (‖Δw‖/‖w‖) that is too large then."""
    steps: int = 5000
    """Steps without a step of the scheduler, after which it counts as forgotten."""
    epochs: int = 5
    """The same in epochs, if the size of the data is known."""
    planned: int = 50
    """Length of a schedule from which it counts steps, if its learning rate begins far below its peak."""

    def check(self, chart: Chart) -> Symptom | None:
        """Judge each mistake in turn, the most definite first."""
        if chart.fact("schedule.rounds", 0) >= self.rounds:
            total, rounds = chart.fact("schedule.total"), chart.fact("schedule.rounds")
            message = f"the cosine schedule ran {rounds} times through its T_max of {total}"
            since = chart.facts["schedule.rounds"].step
            return self.symptom(chart, "warning", message, value=rounds, limit=1.0, since=since)
        if elsewhere := chart.fact("schedule.elsewhere"):
            return self._elsewhere(chart, elsewhere)
        milestones = chart.fact("schedule.milestones") or ()
        if chart.fact("schedule.per_batch") and milestones and chart.step > self.past * max(milestones):
            rates = chart["lr"]
            top = max((bucket[3] for bucket in rates.outline.buckets()), default=0.0)
            if chart.step >= self.least and rates.latest < 0.02 * top:
                message = f"milestones up to {max(milestones)} were passed batch by batch: the learning rate fell to "
                message += f"{number_text(rates.latest)} in a run of {chart.step + 1} steps so far"
                return self.symptom(chart, "warning", message, since=max(milestones), confidence=0.8)
        if (anew := self._begins_anew(chart)) is not None:
            return anew
        wrong = self._by_epochs(chart) or self._wrong_way(chart) or self._hasty(chart) or self._repeated(chart)
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
        return self._overdue(chart, waited)

    def _elsewhere(self, chart: Chart, known: dict[str, Any]) -> Symptom:
        """A scheduler that was built for an optimizer that another one has replaced."""
        before, now = known["rates"]
        message = f"the learning rate of the {known['old']} that no longer steps is still being changed (from "
        message += (
            f"{number_text(before)} to {number_text(now)}), but that of the {known['new']} that took over stays at "
        )
        message += f"{number_text(chart['lr'].latest)}: the scheduler belongs to the old optimizer"
        return self.symptom(chart, "warning", message, since=chart.facts["schedule.elsewhere"].step, confidence=0.9)

    def _overdue(self, chart: Chart, waited: int) -> Symptom | None:
        """A schedule that has not begun although it would be over, if its numbers count steps.

        They may count epochs. That is ruled out if several epochs have passed, and unlikely for a learning rate that is
        still far below its peak: nobody plans a warm-up of so many epochs.
        """
        total, name = chart.fact("schedule.total") or 0, chart.fact("schedule.class", "scheduler")
        samples, size = chart.context.get("dataset_size"), chart.context.get("batch_size")
        epoch = samples / size if isinstance(samples, int) and isinstance(size, int) and size > 0 else 0.0
        since, over = chart.facts["schedule.stepped"].step, total >= self.planned and waited >= 0.9 * total
        message = f"{name} was not stepped once in {waited} steps"
        flat = chart["lr"].lowest == chart["lr"].outline.highest  # else the loop changes the learning rate itself
        if flat and name != "ReduceLROnPlateau" and epoch and waited >= max(self.least, self.epochs * epoch):
            message += f", which are {int(waited / epoch)} epochs of {samples} samples"
            return self.symptom(chart, "warning", message, since=since, confidence=0.8)
        goal = planned_rate(chart)
        if over and 0 < chart["lr"].latest < 0.1 * goal:
            message += f": the learning rate is still {number_text(chart['lr'].latest)}, but its schedule of length "
            message += f"{total} goes up to {number_text(goal)}"
            return self.symptom(chart, "warning", message, since=since, confidence=0.9)
        if over and total >= self.least and not epoch and name in ENDING:
            message += f": if its {total} count steps, most of it has passed"
            return self.symptom(chart, "info", message, since=since, confidence=0.5)
        return None

    def _repeated(self, chart: Chart) -> str:
        """A cosine that is stepped several times per optimizer step, and so comes back up before the run ends."""
        times, total, rates = chart.fact("schedule.times", 0), chart.fact("schedule.total") or 0, chart["lr"]
        if chart.fact("schedule.class") != "CosineAnnealingLR" or times < 2 or not total or not rates:
            return ""
        # a step of several losses may be planned so: then the schedule ends with the run, and does not come back
        if times * chart.step < 1.25 * total or not rates.lowest < 0.1 * rates.outline.highest < rates.latest:
            return ""
        message = f"CosineAnnealingLR is stepped {times} times per optimizer step: its T_max of {total} passed after "
        return message + f"{total // times} steps, and the learning rate rises again, to {number_text(rates.latest)}"

    def _rising(self, chart: Chart) -> Symptom | None:
        """A learning rate that has risen evenly since the first step and is far too high, or far from its end."""
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
            message += "the optimizer was built with, and the loss no longer falls"
            return self.symptom(chart, "warning", message, value=now, limit=built, since=0, confidence=0.8)
        end = chart.step * (built - rates.first) / max(now - rates.first, 1e-30)
        validated = chart["val_loss"].steps
        pause = float(np.diff(validated).mean()) if validated.size >= 2 else 0.0
        if now > 0.1 * built or end < 20 * chart.step or not losses.baseline(128).recent > 0.5 * start > 0:
            return None
        if end < (self.away * pause or self.far):
            return None
        message = f"the warm-up would end at step {end:.0f}: after {chart.step + 1} steps the learning rate is "
        message += f"{number_text(now)} of {number_text(built)}"
        message += f", with a validation every {pause:.0f} steps" if pause else ""
        severity: Severity = "warning" if pause and goes_straight(chart, 3) else "info"
        return self.symptom(chart, severity, message, value=now, limit=built, since=0, confidence=0.8)

    def _creeping(self, chart: Chart) -> Symptom | None:
        """A learning rate that was level and has risen at every step since, far above any before."""
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
        if gain > doubt or not math.isfinite(doubt):  # the loss improves, or too little is known
            return None
        message = f"the learning rate has risen at every step since step {since}, from {number_text(float(known[-1]))} "
        message += f"to {number_text(rates.latest)}, far above any before, and the loss does not fall"
        limit = self.above * float(known.max())
        return self.symptom(chart, "warning", message, value=rates.latest, limit=limit, since=since, confidence=0.8)

    def _begins_anew(self, chart: Chart) -> Symptom | None:
        """A warm-up that is cut off and begins again each time: it counts the batches of an epoch."""
        rates = chart["lr"]
        values, steps = rates.values, rates.steps
        if chart.fact("schedule.class") in RISING or values.size < self.least:
            return None
        ways = np.diff(values)
        falls = np.flatnonzero(ways < 0)
        # After a real warm-up the learning rate stays or falls gradually: here it only rises.
        if falls.size < self.rounds or np.count_nonzero(ways > 0) + falls.size < ways.size:
            return None
        tops, bottoms = values[falls], values[falls + 1]
        # the first one may be kept only in part
        if not tops.min() > 0.9 * tops.max() or not bottoms.max() < 0.2 * tops.min() or rates.latest > 1.1 * tops.max():
            return None
        pause = float(np.diff(steps[falls]).mean())
        top, bottom = number_text(float(tops[-1])), number_text(float(bottoms[-1]))
        message = (
            f"the warm-up begins anew every {pause:.0f} steps: the learning rate drops from {top} to {bottom} each time"
        )
        since = int(steps[falls[0] + 1])
        return self.symptom(chart, "warning", message, value=float(tops[-1]), since=since, confidence=0.9)

    def _by_epochs(self, chart: Chart) -> str:
        """A one-cycle that counts the batches of whole epochs but is stepped once an epoch."""
        total, interval = chart.fact("schedule.total"), _interval(chart)
        if chart.fact("schedule.class") != "OneCycleLR" or not total or interval < self.interval:
            return ""
        epochs = round(total / interval)
        # unless the learning rates show it, the interval is known only roughly, more exactly the longer the run
        if epochs < 2 or abs(total - epochs * interval) > 0.02 * total:
            return ""
        message = f"OneCycleLR plans {total} steps but takes one every {interval} optimizer steps: "
        return message + f"it would need {total * interval} batches"

    def _hasty(self, chart: Chart) -> str:
        """A plateau schedule that is stepped after each batch and takes the noise between batches for a plateau."""
        rates = chart["lr"]
        if chart.fact("schedule.class") != "ReduceLROnPlateau" or not chart.fact("schedule.per_batch"):
            return ""
        top = rates.outline.highest
        cuts = int((np.diff(rates.values) < 0).sum())
        # a gap of an epoch is patience; some dozens of batches are not
        if not 0 < rates.latest <= 0.1 * top or cuts < 2 or chart.step / cuts > self.patience:
            return ""
        message = (
            f"ReduceLROnPlateau is stepped at every batch: it cut the learning rate {cuts} times in {chart.step + 1} "
        )
        return message + f"steps, from {number_text(top)} to {number_text(rates.latest)}"

    def _wrong_way(self, chart: Chart) -> str:
        """A plateau schedule that remembers the worst validation as its best, with better ones since."""
        mode, best = chart.fact("schedule.mode"), chart.fact("schedule.best")
        if mode is None or best is None:
            return ""
        for vital in (item for item in chart.vitals if item.startswith("val_")):
            values = chart[vital].values
            falls = vital == "val_loss"  # for other metrics the better direction is unknown
            if values.size < 3 or (mode == "max") != falls or not _same(best, values.max() if falls else values.min()):
                continue
            if falls and float((values < best).mean()) > 0.5 and values[-1] < 0.95 * best:
                return _taken_for_the_best("max", "the validation loss", best)
            if "acc" in vital and float((values > best).mean()) > 0.5:
                return _taken_for_the_best("min", vital, best)
        if mode == "max" and self._is_early_loss(chart, best):
            return _taken_for_the_best("max", "the training loss", best)
        return ""

    def _is_early_loss(self, chart: Chart, best: float) -> bool:
        """Whether this is the mean of the first losses, and the learning rate was cut although the loss fell since."""
        losses, rates = chart["loss"], chart["lr"]
        first = outline_levels(losses)[: 2 * max(int(chart.fact("schedule.interval") or 0), 1)]
        if losses.outline.start > 0 or not losses.baseline(32).recent < 0.9 * best:
            return False
        means = np.cumsum(first) / np.arange(1, first.size + 1)
        return bool((np.abs(means - best) <= 1e-5 * abs(best)).any()) and rates.latest < 0.99 * rates.outline.highest


def _interval(chart: Chart) -> int:
    """Optimizer steps between two scheduler steps: between two changes of the learning rate, or up to the first one.

    The schedule gauge only sees sampled steps, so its interval is somewhat too long.

    >>> _interval(Chart.of(lr=[0.004] * 94 + [0.0041] * 6))
    94
    """
    rates, about = chart["lr"], int(chart.fact("schedule.interval", 0))
    changes = rates.steps[1:][np.diff(rates.values) != 0]
    if not changes.size or (changes.size == 1 and rates.steps[0] > 0):
        return about
    exact = int(changes[-1] - (changes[-2] if changes.size > 1 else 0))
    return exact if not about or 0.7 * about < exact <= about else about


def _taken_for_the_best(mode: str, measure: str, best: float) -> str:
    wrong = f'ReduceLROnPlateau has mode="{mode}" but gets {measure}'
    return f"{wrong}: it takes the worst, {number_text(best)}, for the best"


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-5 * abs(one)


def _built_rate(chart: Chart) -> float:
    """The learning rate that the optimizer was built with, if plausible; NaN if unknown."""
    group = chart.groups[0] if chart.groups else {}
    known = [item for item in chart.context.get("optimizer") or () if isinstance(item, dict)]
    rate = group.get("initial_lr", known[0].get("lr") if known else None)
    if not isinstance(rate, int | float):
        return math.nan
    return float(rate) if 0 < rate <= TOP.get(str(group.get("optimizer")), ADAPTIVE) else math.nan


def _rises_evenly(chart: Chart) -> bool:
    """Whether the learning rate has risen in a straight line since the first step.

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
