"""OP04 state-overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress

ENOUGH = 12
"""Losses after a place that say where the loss went."""
HABIT = 2
"""Places at which weights were written to; with more of them, that is how this loop learns."""


@dataclass(frozen=True)
class StateOverwritten(Detector):
    """Weights or the optimizer's memory were replaced in the middle of the run, and the loss rose.

    ## What it means
    Something other than the optimizer wrote to the weights between two steps: a checkpoint was loaded, averaged weights
    were put in for a validation and the others never put back, a layer was initialized anew. Or the optimizer's memory
    was emptied: Adam counts its steps from zero again, and takes its first, large steps on trained weights.

    ## How it is told apart
    Averaged weights that are put in and taken out again leave the loss as it was: silence. So do a checkpoint that fits
    and a clamp at every step; a loop that does it again and again (the outer loop of meta-learning, slow weights) means
    it. Only a rise of the loss at that very place, far above its noise and a good share of all that was gained so far,
    is a finding.

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
    reads = ("tensors/grad_norm", "facts/state.written", "facts/state.restarted")
    suggests = ("restore-state", "roll-back")
    references = ("https://pytorch.org/tutorials/beginner/saving_loading_models.html",)
    closes_after = 2

    lost: float = 0.3
    """Share of what was gained so far that must be lost where weights were written to."""
    forgot: float = 0.1
    """The same where the optimizer lost its memory: the rest is lost little by little."""
    noise: float = 4.0
    """Times the noise of the loss about that place by which it must have risen."""
    steps: int = 16
    """Losses on either side that are compared."""
    recent: int = 150
    """Steps after which it is not looked at again."""

    def check(self, chart: Chart) -> Symptom | None:
        """The latest place at which something was replaced, and what the loss did there."""
        restarted = chart.fact("state.restarted")
        if restarted is not None and 0 < restarted >= chart.step - self.recent:
            rise = _rise_at(chart, int(restarted), 2 * self.steps)
            if rise is not None and rise.height > self.noise * rise.noise / 4 and rise.share > self.forgot:
                message = "the optimizer lost its memory and counts its steps anew: loss rose from "
                return self._said(chart, message, rise)
        written = chart.fact("state.written") or ()
        for first, last in reversed(written if len(written) <= HABIT else ()):
            if last < chart.step - self.recent:
                break
            place = _steepest(chart, int(first), int(last), self.steps // 2)
            rise = None if place is None else _rise_at(chart, place, self.steps // 2)
            if rise is not None and rise.height > self.noise * rise.noise and rise.share > self.lost:
                message = "weights were written to between steps: loss rose from "
                return self._said(chart, message, rise)
        return None

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


def _steepest(chart: Chart, first: int, last: int, span: int) -> int | None:
    """The step between two at which the mean of some losses exceeds that of as many before by most."""
    losses = chart["loss"]
    steps, sums = losses.steps, np.concatenate(([0.0], np.cumsum(losses.values)))
    places = np.flatnonzero((steps >= first) & (steps <= last))
    places = places[(places >= span) & (places + span <= steps.size)]
    if not places.size:
        return None
    return int(steps[places[np.argmax(sums[places + span] - 2 * sums[places] + sums[places - span])]])


def _rise_at(chart: Chart, step: int, span: int) -> _Rise | None:
    """How the loss of the steps from one on compares with that of the steps before; None where too little is known."""
    losses = chart["loss"]
    place = int(np.searchsorted(losses.steps, step))
    earlier, later = losses.values[max(0, place - span) : place], losses.values[place : place + span]
    if earlier.size < 5 or later.size < min(span, ENOUGH):
        return None
    before = median(earlier)
    height = median(later) - before
    gained = Progress.of(losses).start - before
    if not gained > 0:
        return None
    noise = 1.4826 * median(np.abs(earlier - before))
    return _Rise(step, before, height, noise, height / gained)
