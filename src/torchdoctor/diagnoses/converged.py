"""converged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import highest, level_about
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.schedule_error import lowered_while_falling
from torchdoctor.records import number_text
from torchdoctor.symptoms.not_learning import chance_level

BROKEN = ("loss-divergence", "loss-spike", "gradient-explosion", "nan-or-inf", "dead-units", "collapsed-output")


class Converged(Cause):
    """Nothing is wrong: the run has converged.

    ## What it is
    The loss is as low as model, data and loss function allow. A flat curve is then normal.

    ## How to confirm it
    Validation is flat too, gradients are small or pure noise, and a higher learning rate does not lower the loss.

    ## What to change
    Nothing. If the result is not good enough, use more data and a larger model.

    ## How to see it cured
    There is nothing to cure.
    """

    name = "converged"
    explains = ("loss-plateau", "underfitting", "learning-rate-vanished")
    prior = 0.0
    references = ("https://arxiv.org/abs/1206.5533",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How far the loss fell, how learning rate and gradient norm changed, and whether validation is flat."""
        start, now = chart["loss"].first, chart["loss"].baseline(128).recent
        if start > 0 and now > 0:
            if now < 0.3 * start:
                yield Evidence(1.0, f"the loss fell from {number_text(start)} to {number_text(now)}")
            elif now > 0.7 * start:
                yield Evidence(-1.5, f"the loss fell only from {number_text(start)} to {number_text(now)}")
        yield from _about_the_rate(chart, problem)
        if lowered_while_falling(chart) is not None:
            yield Evidence(-2.0, "the loss was still falling when the learning rate was lowered")
        if problem.grave("learning-rate-vanished", "underfitting", "input-anomaly"):
            yield Evidence(-2.0, "the loss was still falling, or something keeps it from falling")
        if problem.grave(*BROKEN):
            yield Evidence(-4.0, "the run broke, and a converged run does not break")
        chance = chance_level(chart)
        if now > 0.9 * chance:
            yield Evidence(-3.0, f"the loss is not clearly below the chance level of {number_text(chance)}")
        norms = chart["grad_norm"]
        before, after = level_about(norms, 0, problem.first_step), level_about(norms, problem.first_step, chart.step)
        if after < 0.3 * before:
            yield Evidence(0.5, f"the gradient norm fell from {number_text(before)} to {number_text(after)}")
        validation = chart["val_loss"].values[-5:]
        if validation.size == 5 and float(np.ptp(validation)) < 0.02 * abs(float(validation[-1])):
            yield Evidence(0.7, f"the validation loss is flat too, at {number_text(float(validation[-1]))}")


def _about_the_rate(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if chart["lr"]:
        rate, top = chart["lr"].latest, highest(chart["lr"], 0, chart.step)
        if rate < 1e-3 * top and problem.has("loss-plateau", "underfitting"):
            yield Evidence(-2.0, f"the learning rate is down to {number_text(rate)}: the weights hardly change")
