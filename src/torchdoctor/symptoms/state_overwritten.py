"""OP04 state-overwritten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.progress import SETTLED, Progress
from torchdoctor.symptoms.resuming import begins_late, knows_already, resume

ENOUGH = 12
"""Losses after a place that say where the loss went."""
STILL = 1e-7
"""Share of themselves that weights move by in a step that rounding takes away."""
HABIT = 2
"""Places at which weights were written to; with more of them, that is how this loop learns."""


@dataclass(frozen=True)
class StateOverwritten(Detector):
    """Weights or the optimizer's memory were replaced in the middle of the run, or are at each step.

    ## What it means
    Something other than the optimizer wrote to the weights between two steps: a checkpoint was loaded, averaged weights
    were put in for a validation and the others never put back, a layer was initialized anew. Or the optimizer's memory
    was emptied: Adam counts its steps from zero again, and takes its first, large steps on trained weights. Or it is
    emptied again and again, so that neither momentum nor Adam's scale ever builds up; or each step is undone before the
    next, as by an average that is copied into the weights that it should only follow. Or the run was started again from
    its weights alone.

    ## How it is told apart
    Averaged weights that are put in and taken out again leave the loss as it was: silence. So do a checkpoint that
    fits and a clamp at every step; a loop that does it again and again (the outer loop of meta-learning, slow
    weights) means it, unless it is one and the same state that comes back, every few dozen steps. So does one in
    which all weights and the optimizer's memory begin anew together, as a next generation does. Writes among the
    first dozens of steps are passed over: little is there to be lost, and no habit known yet. Only a rise of the
    loss at that very place, far above its noise and a good share of all that was gained so far, is a finding; a
    memory that is empty at sample after sample, and weights that come less far in dozens of steps than one of these
    steps takes them, are findings by themselves. So is a run that goes on, with step numbers that follow its last
    ones, without the optimizer's memory and at the rate that it began with: the same recipe from its start. At
    another rate that may be a second phase, and is a note unless the loss rises.

    ## What to do
    After a validation with other weights, copy the training weights back. Load model, optimizer and schedule together.

    ## How to see that it is cured
    The loss of the step after is that of the step before.

    ## Example
    >>> chart = Chart.of(loss=[4.0 - 0.02 * step for step in range(100)] + [3.9] * 40)
    >>> chart.add({"type": "facts", "step": 124, "facts": {"state.written": [[100, 124]]}})
    >>> print(StateOverwritten().check(chart))
    step 100: OP04 state-overwritten (warning): weights were written to between steps: loss rose from 2.09 to 3.9
    """

    code = "OP04"
    name = "state-overwritten"
    reads = (
        "tensors/grad_norm",
        "tensors/update_ratio",
        "facts/state.written",
        "facts/state.written_in_part",
        "facts/state.restarted",
        "facts/state.loaded",
        "facts/state.forgotten",
        "facts/state.begun_anew",
        "facts/state.at_start",
        "state_same",
    )
    suggests = ("restore-state", "roll-back")
    references = ("https://pytorch.org/tutorials/beginner/saving_loading_models.html",)
    closes_after = 2

    lost: float = 0.3
    """Share of what was gained so far that must be lost where weights were written to."""
    loaded: float = 0.2
    """The same where a state was loaded: which step that was is known."""
    set_back: float = 0.15
    """The same in powers of ten, where the loss has come down by several: at least to thrice what it was."""
    forgot: float = 0.1
    """The same where the optimizer lost its memory: the rest is lost little by little."""
    noise: float = 4.0
    """Times the noise of the loss about that place by which it must have risen,"""
    known: float = 2.0
    """or that of a known step, where there are enough losses on either side for their medians to be told apart."""
    steps: int = 16
    """Losses on either side that are compared."""
    unlearnt: float = 0.4
    """Share of its first loss by which a model that knows its task must lose in the first steps."""
    recent: int = 150
    """Steps after which it is not looked at again."""
    samples: int = 3
    """Samples in a row at which the memory is empty, or steps are undone."""
    often: int = 100
    """Steps between two loads of one and the same state; with more, a run may begin anew on purpose."""
    kept: float = 0.3
    """Lengths of one step that weights come in dozens of them where each is undone."""
    away: float = 0.6
    """What a walk at random would come far that weights of a run that does not learn stay under, at each sample;"""
    near: float = 0.35
    """and what they stay under at most of them: weights that swing about a plateau come further."""
    back: float = 0.05
    """The same where somebody else writes to them at every step, and one sample is enough."""
    written: float = 1.2
    """The same where weights were written to at every step from the start on: at random they would come further."""

    def check(self, chart: Chart) -> Symptom | None:
        """The latest place at which something was replaced, and what the loss did there."""
        written: Sequence[Sequence[int]] = chart.fact("state.written") or ()
        loads: Sequence[int] = chart.fact("state.loaded") or ()
        meant = len(written) > HABIT or len(loads) > 2 * HABIT  # from task to task: put in and taken out again are two
        if chart.fact("state.forgotten", 0) >= self.samples and not meant:
            message = "the optimizer's memory is emptied again and again: no momentum, no scale ever builds up"
            return self.symptom(chart, "warning", message, since=chart.facts["state.forgotten"].step, confidence=0.95)
        undone = self._undone(chart)
        if undone is not None:
            far, since = undone
            message = f"steps are undone: in dozens of them weights come {number_text(far)} of one step far"
            return self.symptom(chart, "warning", message, value=far, limit=self.kept, since=since)
        same = chart["state_same"].last(self.samples)
        often = len(loads) > HABIT and int(np.max(np.diff(loads))) <= self.often
        if often and same.size == self.samples and float(same.min()) == 1:
            message = (
                f"one and the same state is loaded again and again, last before step {loads[-1]}: what was learnt "
            )
            message += "since the time before is lost"
            since = int(chart["state_same"].steps[-self.samples])
            return self.symptom(chart, "warning", message, since=since, confidence=0.95)
        resumed = self._resumed(chart)
        if resumed is not None and resumed.severity == "warning":
            return resumed
        anew = chart.fact("state.begun_anew") or ()
        written = [stretch for stretch in written if not any(stretch[0] <= step <= stretch[1] for step in anew)]
        meant = meant or chart.fact("state.restarted") in anew
        return (None if meant else self._restarted(chart)) or self._replaced(chart, written, loads) or resumed

    def _restarted(self, chart: Chart) -> Symptom | None:
        """An optimizer that counts its steps anew, and a loss that rose there."""
        restarted = chart.fact("state.restarted")
        if restarted is not None and 0 < restarted >= chart.step - self.recent:
            rise = _rise_at(chart, int(restarted), 2 * self.steps)
            if rise is not None and rise.height > self.noise * rise.noise / 4 and rise.share > self.forgot:
                message = "the optimizer lost its memory and counts its steps anew: loss rose from "
                return self._said(chart, message, rise)
        return None

    def _replaced(self, chart: Chart, written: Sequence[Sequence[int]], loads: Sequence[int]) -> Symptom | None:
        """Weights that were loaded, or written to, and a loss that rose there."""
        for step in reversed(loads if len(loads) <= 2 * HABIT else ()):
            rise = _rise_at(chart, int(step), self.steps, sudden=3) if step >= chart.step - self.recent else None
            clear = rise is not None and (rise.doubles or rise.parted)
            lost = rise is not None and rise.share > (self.forgot if clear else self.loaded)
            lost = lost or (rise is not None and rise.parted and rise.way > self.set_back and not _was_cut(chart, step))
            many = int(step) + self.steps <= chart["loss"].step
            if rise is not None and lost and rise.height > (self.known if many else self.noise) * rise.noise:
                return self._said(chart, "a state was loaded into the model: loss rose from ", rise)
        whole = [(first, last, "weights were") for first, last in written] if len(written) <= HABIT else []
        parts = [(first, last, f"{name} was") for first, last, name in chart.fact("state.written_in_part") or ()]
        for first, last, what in (*reversed(whole), *reversed(parts)):
            if last < chart.step - self.recent:
                continue
            place = _steepest(chart, max(int(first), SETTLED), int(last), self.steps // 2)
            rise = None if place is None else _rise_at(chart, place, self.steps // 2)
            if rise is not None and rise.height > self.noise * rise.noise and rise.share > self.lost:
                return self._said(chart, f"{what} written to between steps: loss rose from ", rise)
        return None

    def _resumed(self, chart: Chart) -> Symptom | None:
        """What did not come back with a run that goes on from where it was; a warning where it costs something."""
        found = resume(chart)
        if found is None:
            return self._begun_late(chart)
        if found.step < chart.step - self.recent:
            return None
        rise = _rise_at(chart, found.step, 2 * self.steps)
        rose = rise is not None and rise.height > self.noise * rise.noise / 4 and rise.share > self.forgot
        grave = rose or (found.lost and (found.leap is not None or found.same))
        severity: Severity = "warning" if grave else "info"
        return self.symptom(chart, severity, found.text, since=found.step, confidence=0.95)

    def _begun_late(self, chart: Chart) -> Symptom | None:
        """The same where the part before is not known: the first losses are those of the weights that were loaded."""
        first = begins_late(chart)
        if first is None:
            return self._taken_up(chart)
        if chart.step - first > self.recent:
            return None
        losses = chart["loss"].values
        after = losses[4 : 2 * self.steps]
        rose = after.size >= ENOUGH and median(after) - float(losses[:2].mean()) > max(
            self.noise * float(after.std()) / 2, 0.05 * abs(float(losses[0]))
        )
        message = f"steps are counted from {first} on, and the optimizer's memory is empty"
        message += f": loss rose from {number_text(float(losses[0]))} to {number_text(median(after))}" if rose else ""
        return self.symptom(
            chart, "warning" if rose else "info", message, since=first, confidence=0.95 if rose else 0.7
        )

    def _taken_up(self, chart: Chart) -> Symptom | None:
        """The same where steps are counted from zero: weights that know the task, and the first steps unlearn it."""
        losses = chart["loss"]
        if not knows_already(chart) or losses.count != len(losses) or not ENOUGH < losses.count <= self.recent:
            return None
        first, after = losses.first, losses.values[4 : 4 * self.steps]
        if after.size < ENOUGH or not float(after.min()) > first or not median(after) > (1 + self.unlearnt) * first:
            return None
        message = f"the weights are not new, the optimizer's memory is empty, and loss rose from {number_text(first)} "
        message += f"to {number_text(median(after))} in the first steps"
        return self.symptom(chart, "warning", message, value=median(after), limit=first, since=0, confidence=0.8)

    def _undone(self, chart: Chart) -> tuple[float, int] | None:
        """How far weights came of late, and since when, where that is next to nothing.

        Where somebody else writes to them at every step, one look will do.
        """
        kept, away, writes = chart["update_kept"], chart["update_away"], chart.fact("state.written_always", 0)
        if writes and float(kept.latest) < self.kept / 3:
            return _of_last(kept, 1)
        if writes and float(away.latest) < self.back:
            return _of_last(away, 1)
        if writes >= self.samples and len(kept) >= self.samples and float(kept.values.max()) < self.written:
            return _of_last(kept, len(kept))  # never came further; clamped weights do, until they reach their bounds
        if _stands_still(chart):
            return None  # a last bias alone moves, and is drawn to its mean again and again
        idle = "not-learning" in chart.open_episodes or "slow-learning" in chart.open_episodes
        idle = idle and "collapsed-output" not in chart.open_episodes  # there the last bias goes about its mean
        near = away.last(self.samples + 1)
        if idle and near.size > self.samples and float(near.max()) < self.away and median(near) < self.near:
            return _of_last(kept if kept else away, 1)
        few = kept.last(self.samples)
        return _of_last(kept, few.size) if few.size == self.samples and float(few.max()) < self.kept else None

    def _said(self, chart: Chart, message: str, rise: _Rise) -> Symptom:
        message += f"{number_text(rise.before)} to {number_text(rise.before + rise.height)}"
        return self.symptom(chart, "warning", message, value=rise.share, limit=self.lost, since=rise.step)


class _Rise(NamedTuple):
    step: int
    before: float
    height: float
    noise: float
    share: float
    """Of what the run had gained."""
    parted: bool
    """Whether a dozen losses there are above all of those before."""
    way: float
    """The share in powers of ten, where the loss is at more than thrice what it was; else 0."""

    @property
    def doubles(self) -> bool:
        """Whether the loss is at more than twice what it was."""
        return self.height > self.before > 0


def _of_last(series: Series, count: int) -> tuple[float, int]:
    """The highest of the last values, and the step of the first of them."""
    return float(series.last(count).max()), int(series.steps[-count])


def _was_cut(chart: Chart, step: int) -> bool:
    """Whether the learning rate was lowered at a step: who goes back to the best state on purpose does that."""
    rates = chart["lr"]
    before, after = rates.values[rates.steps < step], rates.values[rates.steps >= step]
    return bool(before.size and after.size) and float(after[:4].min()) < 0.8 * float(before[-1])


def _stands_still(chart: Chart) -> bool:
    """Whether steps leave most weight matrices where they were: then there is nothing that could be undone."""
    columns, row = list(weight_columns(chart.names)), chart.tensors("update_ratio").latest
    if not columns or row.size != len(chart.names):
        return False
    known = row[columns][np.isfinite(row[columns])]
    return known.size > 0 and median(known) < STILL


def _steepest(chart: Chart, first: int, last: int, span: int) -> int | None:
    """The step between two at which the mean of some losses exceeds that of as many before by most."""
    losses = chart["loss"]
    steps, sums = losses.steps, np.concatenate(([0.0], np.cumsum(losses.values)))
    places = np.flatnonzero((steps >= first) & (steps <= last))
    places = places[(places >= span) & (places + span <= steps.size)]
    if not places.size:
        return None
    return int(steps[places[np.argmax(sums[places + span] - 2 * sums[places] + sums[places - span])]])


def _rise_at(chart: Chart, step: int, span: int, sudden: int = 0) -> _Rise | None:
    """How the loss of the steps from one on compares with that of the steps before; None where too little is known.

    A few losses will do, `sudden` of them, where the step is known for sure and each is above all of those before it.
    """
    losses = chart["loss"]
    place = int(np.searchsorted(losses.steps, step))
    earlier, later = losses.values[max(0, place - span) : place], losses.values[place : place + span]
    leapt = 0 < sudden <= later.size and earlier.size >= ENOUGH and float(later.min()) > float(earlier.max())
    if earlier.size < 5 or (later.size < min(span, ENOUGH) and not leapt):
        return None
    before = median(earlier)
    height = median(later) - before
    gained = Progress.of(losses).start - before
    if not gained > 0:
        return None
    noise = 1.4826 * median(np.abs(earlier - before))
    parted = later.size >= ENOUGH and float(later.min()) > float(earlier.max())
    tripled = height > 2 * before > 0
    way = math.log1p(height / before) / math.log1p(gained / before) if tripled else 0.0
    return _Rise(step, before, height, noise, height / gained, parted, way)
