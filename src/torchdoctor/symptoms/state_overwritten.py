"""OP04 state-overwritten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.progress import SETTLED, Progress
from torchdoctor.symptoms.resuming import begins_late, knows_already, resume

ENOUGH = 12
"""Losses needed after a step to see where the loss went."""
STILL = 1e-7
"""Update ratio below which weights stand still: the updates are rounded away."""
HABIT = 2
"""Number of times that weights may be overwritten; if there are more, the loop does it on purpose."""


@dataclass(frozen=True)
class StateOverwritten(Detector):
    """Weights or the optimizer state were replaced during the run, once or at every step.

    ## What it means
    - Something other than the optimizer wrote to the weights between two steps: a checkpoint was loaded, averaged
      weights were swapped in for a validation and never swapped back, or a layer was initialized again.
    - The optimizer state was reset: Adam counts its steps from zero again and takes large first steps on trained
      weights. If it is reset again and again, neither momentum nor Adam's scale ever builds up.
    - Each step is undone before the next, for example by a moving average that is copied into the weights.
    - The run was resumed from its weights alone.

    ## How it is told apart
    The loss must rise at that very step, far above its noise and by a good share of what was gained so far. These are
    reported without a rise:

    - the optimizer state is empty at several samples in a row;
    - weights move less in dozens of steps than a single one of these steps would move them;
    - one and the same state is loaded again and again, every few dozen steps;
    - a run is resumed (its step numbers continue) without its optimizer state or schedule. It is a warning if the loss
      rises, or if the state is empty and the learning rate starts again; otherwise it may be a second phase: info.

    These are not reported: averaged weights that are swapped in and out again, a matching checkpoint, a clamp at every
    step, loops that overwrite weights again and again (meta-learning, slow weights), weights and optimizer state that
    are reset together, as in a new generation, and writes in the first dozens of steps, when there is little to lose.

    ## What to do
    After a validation with other weights, copy the training weights back. Load model, optimizer and schedule together.

    ## How to see that it is cured
    The loss right after that step is the same as right before it.

    ## Example
    >>> chart = Chart.of(loss=[4.0 - 0.02 * step for step in range(100)] + [3.9] * 40)
    >>> chart.add({"type": "facts", "step": 124, "facts": {"state.written": [[100, 124]]}})
    >>> print(StateOverwritten().check(chart))
    step 100: OP04 state-overwritten (warning): weights were overwritten between steps: loss rose from 2.09 to 3.9
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
    """Share of what was gained so far that must be lost if weights were overwritten."""
    loaded: float = 0.2
    """The same if a state was loaded, because the exact step is known."""
    set_back: float = 0.15
    """The same on a log scale, if the loss is at least three times what it was."""
    forgot: float = 0.1
    """The same if the optimizer state was reset: the rest is lost little by little."""
    noise: float = 4.0
    """Multiple of the noise of the loss that the rise must exceed."""
    known: float = 2.0
    """The same for a known step with enough losses on both sides to compare their medians."""
    steps: int = 16
    """Losses on each side that are compared."""
    unlearnt: float = 0.4
    """Relative rise of the loss in the first steps from which a trained model counts as having lost its knowledge."""
    recent: int = 150
    """Steps after which an event is no longer judged."""
    samples: int = 3
    """Samples in a row at which the optimizer state must be empty, or steps must be undone."""
    often: int = 100
    """Most steps between two loads of the same state; if there are more, a run may start over on purpose."""
    kept: float = 0.3
    """Distance moved over dozens of steps, in lengths of one step, below which steps are undone."""
    away: float = 0.6
    """Distance moved, relative to a random walk, below which a run that does not learn stays at every sample."""
    near: float = 0.35
    """The same for the median of the samples: weights that swing around a plateau move farther."""
    back: float = 0.05
    """The same if something else writes to the weights at every step; one sample is enough."""
    written: float = 1.2
    """The limit for `kept` if weights were overwritten at every step since the start; a random walk goes farther."""

    def check(self, chart: Chart) -> Symptom | None:
        """Find the latest step at which something was replaced, and what the loss did there."""
        written: Sequence[Sequence[int]] = chart.fact("state.written") or ()
        loads: Sequence[int] = chart.fact("state.loaded") or ()
        meant = len(written) > HABIT or len(loads) > 2 * HABIT  # swapping weights in and out again takes two loads
        if chart.fact("state.forgotten", 0) >= self.samples and not meant:
            message = "the optimizer state is reset again and again: neither momentum nor gradient scale can build up"
            return self.symptom(chart, "warning", message, since=chart.facts["state.forgotten"].step, confidence=0.95)
        undone = self._undone(chart)
        if undone is not None:
            vital, far, since = undone
            unit = "times one step" if vital == "update_kept" else "of the way that random steps would"
            message = f"steps are undone: dozens of steps move the weights by only {number_text(far)} {unit}"
            limit = self.kept if vital == "update_kept" else self.near
            return self.symptom(chart, "warning", message, value=far, limit=limit, since=since)
        same = chart["state_same"].last(self.samples)
        often = len(loads) > HABIT and int(np.max(np.diff(loads))) <= self.often
        if often and same.size == self.samples and float(same.min()) == 1:
            message = (
                f"one and the same state is loaded again and again, last before step {loads[-1]}: what was learned "
            )
            message += "in between is lost"
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
        """An optimizer whose step count started again, and a loss that rose there."""
        restarted = chart.fact("state.restarted")
        if restarted is not None and 0 < restarted >= chart.step - self.recent:
            rise = _rise_at(chart, int(restarted), 2 * self.steps)
            if rise is not None and rise.height > self.noise * rise.noise / 4 and rise.share > self.forgot:
                message = "the optimizer state was reset and its step count starts again: loss rose from "
                return self._said(chart, message, rise)
        return None

    def _replaced(self, chart: Chart, written: Sequence[Sequence[int]], loads: Sequence[int]) -> Symptom | None:
        """Weights that were loaded or overwritten, and a loss that rose there."""
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
                return self._said(chart, f"{what} overwritten between steps: loss rose from ", rise)
        return None

    def _resumed(self, chart: Chart) -> Symptom | None:
        """What was not restored when the run was resumed; a warning if the loss rose or the recipe started again."""
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
        """The same if the earlier part is unknown: the first losses are those of the loaded weights."""
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
        message = f"the step count starts at {first}, but the optimizer state is empty"
        message += f": loss rose from {number_text(float(losses[0]))} to {number_text(median(after))}" if rose else ""
        return self.symptom(
            chart, "warning" if rose else "info", message, since=first, confidence=0.95 if rose else 0.7
        )

    def _taken_up(self, chart: Chart) -> Symptom | None:
        """The same if steps are counted from zero: trained weights that lose their knowledge in the first steps."""
        losses = chart["loss"]
        if not knows_already(chart) or losses.count != len(losses) or not ENOUGH < losses.count <= self.recent:
            return None
        first, after = losses.first, losses.values[4 : 4 * self.steps]
        if after.size < ENOUGH or not float(after.min()) > first or not median(after) > (1 + self.unlearnt) * first:
            return None
        message = f"the weights look trained, the optimizer state is empty, and loss rose from {number_text(first)} "
        message += f"to {number_text(median(after))} in the first steps"
        return self.symptom(chart, "warning", message, value=median(after), limit=first, since=0, confidence=0.8)

    def _undone(self, chart: Chart) -> tuple[str, float, int] | None:
        """By which vital weights have hardly moved recently, how far, and since which step; None if they have.

        If something else writes to the weights at every step, one sample is enough.
        """
        kept, away, writes = chart["update_kept"], chart["update_away"], chart.fact("state.written_always", 0)
        if writes and float(kept.latest) < self.kept / 3:
            return _of_last(chart, "update_kept", 1)
        if writes and float(away.latest) < self.back:
            return _of_last(chart, "update_away", 1)
        if writes >= self.samples and len(kept) >= self.samples and float(kept.values.max()) < self.written:
            return _of_last(
                chart, "update_kept", len(kept)
            )  # clamped weights move farther until they reach their bounds
        if _stands_still(chart):
            return None  # only a last bias moves, around its mean
        idle = "not-learning" in chart.open_episodes or "slow-learning" in chart.open_episodes
        idle = idle and "collapsed-output" not in chart.open_episodes  # there the last bias moves around its mean
        near = away.last(self.samples + 1)
        if idle and near.size > self.samples and float(near.max()) < self.away and median(near) < self.near:
            return _of_last(chart, "update_kept" if kept else "update_away", 1)
        few = kept.last(self.samples)
        return (
            _of_last(chart, "update_kept", few.size)
            if few.size == self.samples and float(few.max()) < self.kept
            else None
        )

    def _said(self, chart: Chart, message: str, rise: _Rise) -> Symptom:
        message += f"{number_text(rise.before)} to {number_text(rise.before + rise.height)}"
        return self.symptom(chart, "warning", message, value=rise.share, limit=self.lost, since=rise.step)


class _Rise(NamedTuple):
    step: int
    before: float
    height: float
    noise: float
    share: float
    """The rise as a share of what the run had gained."""
    parted: bool
    """Whether a dozen losses after the step are all above those before."""
    way: float
    """The share on a log scale, if the loss is more than three times what it was; else 0."""

    @property
    def doubles(self) -> bool:
        """Whether the loss has more than doubled."""
        return self.height > self.before > 0


def _of_last(chart: Chart, vital: str, count: int) -> tuple[str, float, int]:
    """The vital, the highest of its last values, and the step of the first of them."""
    series = chart[vital]
    return vital, float(series.last(count).max()), int(series.steps[-count])


def _was_cut(chart: Chart, step: int) -> bool:
    """Whether the learning rate was lowered at a step, as when a loop goes back to its best state on purpose."""
    rates = chart["lr"]
    before, after = rates.values[rates.steps < step], rates.values[rates.steps >= step]
    return bool(before.size and after.size) and float(after[:4].min()) < 0.8 * float(before[-1])


def _stands_still(chart: Chart) -> bool:
    """Whether the median weight matrix does not change at all, so that no step could be undone."""
    columns, row = list(weight_columns(chart.names)), chart.tensors("update_ratio").latest
    if not columns or row.size != len(chart.names):
        return False
    known = row[columns][np.isfinite(row[columns])]
    return known.size > 0 and median(known) < STILL


def _steepest(chart: Chart, first: int, last: int, span: int) -> int | None:
    """The step between `first` and `last` at which the mean loss over `span` losses rises the most."""
    losses = chart["loss"]
    steps, sums = losses.steps, np.concatenate(([0.0], np.cumsum(losses.values)))
    places = np.flatnonzero((steps >= first) & (steps <= last))
    places = places[(places >= span) & (places + span <= steps.size)]
    if not places.size:
        return None
    return int(steps[places[np.argmax(sums[places + span] - 2 * sums[places] + sums[places - span])]])


def _rise_at(chart: Chart, step: int, span: int, sudden: int = 0) -> _Rise | None:
    """How the losses from a step on compare with those before it; None if too little is known.

    As few as `sudden` losses are enough if all of them are above all earlier ones.
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
