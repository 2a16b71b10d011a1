"""stopped-too-early."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import number_text
from torchdoctor.symptoms.hindsight.unfinished import ENDED
from torchdoctor.symptoms.progress import outline_levels, trend_gain


class StoppedTooEarly(Cause):
    """The run ended, or its schedule did, while the loss was still falling.

    ## What it is
    Nothing is broken. The loss was falling as fast as before when the run stopped, so the run needs more steps.

    ## How to confirm it
    The loss fell about as much in the last quarter of the run as in the quarter before, on validation too.

    ## What to change
    Train two to five times as many steps, with the schedule stretched to the new length. Continue from the last
    checkpoint with optimizer and scheduler state.

    ## How to see it cured
    The loss falls only a little in the last quarter of the run.

    ## When to stop
    Stop when validation has not improved for a fifth of the run.
    """

    name = "stopped-too-early"
    explains = ("slow-learning", "underfitting")
    prior = -1.8
    suggests = ("train-longer", "change-schedule")
    references = ("https://arxiv.org/abs/2203.15556",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the run is over, and how far the loss fell in its last two quarters."""
        if problem.has("not-learning"):
            yield Evidence(-3.0, "the run has not learned at all: more steps would not help")
        seen = [item.message for item in problem.symptoms if item.message.startswith(ENDED)]
        if seen:
            yield Evidence(6.0, seen[0])
            return
        levels = outline_levels(chart["loss"])
        quarter = levels.size // 4
        if quarter < 16:
            return
        before, last = trend_gain(levels[-2 * quarter : -quarter])[0], trend_gain(levels[-quarter:])
        if last[0] > max(4 * last[1], 0.5 * before, 0.0):
            yield Evidence(1.8, f"the loss fell by {number_text(last[0])} in the last quarter of the run")
            if chart.ended:
                yield Evidence(1.0, f"the run ended at step {chart.step} nevertheless")
        else:
            yield Evidence(-2.5, "the loss was no longer falling")
        values = chart["val_loss"].values
        if values.size >= 3 and int(np.argmin(values)) == values.size - 1:
            yield Evidence(0.7, f"validation loss was best at the last evaluation: {number_text(float(values[-1]))}")
