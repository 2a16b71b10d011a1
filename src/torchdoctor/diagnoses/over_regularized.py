"""over-regularized."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import dropout, level_about, optimizer_names, validation_leads, weight_decay
from torchdoctor.diagnoses.lr_too_high import times_usual
from torchdoctor.diagnoses.optimizer_misconfigured import is_told_of_decay
from torchdoctor.records import number_text
from torchdoctor.symptoms.collapsed_output import SAYS_NOTHING
from torchdoctor.symptoms.gradient_vanishing import DECAY_ALONE
from torchdoctor.symptoms.input_anomaly import InputAnomaly, erased_share
from torchdoctor.symptoms.suspicious_loss import DROPPED, SuspiciousLoss
from torchdoctor.symptoms.underfitting import penalized, shrinkage, weights_left
from torchdoctor.symptoms.validation_inputs import comes_unchanged

USUAL_DECAY = 0.1
"""Weight decay up to which AdamW is often used."""
PAST = 100
"""Steps after which a problem is over, and before which the rate counts as that of its time."""
SMOOTH = 0.6
"""Share of each label that may be spread over all classes."""


class OverRegularized(Cause):
    """Regularization is so strong that the model may not learn.

    ## What it is
    Dropout that leaves one unit in ten, weight decay that shrinks weights faster than the gradient builds them,
    augmentation that destroys the label, or a penalty that outweighs the loss.

    ## How to confirm it
    The training loss measured in `eval()` mode is far below the one in training; weight norms shrink towards zero; the
    loss falls at once when dropout and decay are set to zero for a hundred steps.

    ## What to change
    Dropout 0.1 to 0.3 to begin with; weight decay 0.01 to 0.1 with AdamW, about 1e-4 with SGD, and none on biases
    and norms.

    ## How to see it cured
    The training loss falls below the old level, weight norms grow or stay.

    ## When to stop
    When the gap between training and validation opens: that is where regularization belongs.
    """

    name = "over-regularized"
    explains = (
        "underfitting",
        "not-learning",
        "slow-learning",
        "loss-plateau",
        "validation-anomaly",
        "collapsed-output",
        "update-ratio-abnormal",
        "gradient-instability",
        "gradient-explosion",
        "loss-spike",
        "loss-divergence",
        "optimizer-advice",
        "suspicious-loss",
        "input-anomaly",
    )
    prior = -1.5
    suggests = ("lower-dropout", "set-weight-decay", "lower-penalty")
    references = ("https://jmlr.org/papers/v15/srivastava14a.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Dropout, the pull of weight decay, what it has done to the weights, and validation against training."""
        advice = problem.get("optimizer-advice")
        if advice is not None and is_told_of_decay(chart, problem):
            yield Evidence(CERTAIN, f"{advice.message}, and weights have shrunk")
            return
        if problem.names == ("optimizer-advice",):
            return
        if problem.has("input-anomaly"):
            yield from _about_the_inputs(chart, problem)
        if DROPPED in (chart.fact("loss.lint") or ()):
            yield Evidence(CERTAIN, f"dropout of {number_text(dropout(chart))} is applied to what enters the loss")
        elif problem.has("suspicious-loss") and chart.fact("loss.label_smoothing", 0.0) > SuspiciousLoss.smoothing:
            yield Evidence(CERTAIN, f"label smoothing takes {chart.fact('loss.label_smoothing'):.0%} of each label")
            return
        elif problem.names == ("suspicious-loss",):
            yield Evidence(-5.0, "no dropout is applied to what enters the loss")
        collapsed = problem.get("collapsed-output")
        if collapsed is not None and collapsed.message.endswith(SAYS_NOTHING):
            dead = problem.get("dead-units")
            dead = dead if dead is not None and dead.severity != "info" else None  # whose code no longer says anything
            first = dead is not None and dead.first_step < collapsed.first_step
            yield Evidence(0.0 if first else 6.0, "the code is the prior: its penalty outweighs what it is needed for")
            return
        if chart.fact("loss.label_smoothing", 0.0) > SMOOTH:
            share = chart.fact("loss.label_smoothing")
            yield Evidence(6.0, f"label smoothing takes {share:.0%} of each label: hardly anything of it is left")
        yield from _about_its_strength(chart, problem)
        train, held_out = chart["loss"].baseline(128).recent, chart["val_loss"].latest
        if dropout(chart) > 0 and 0 < held_out < 0.7 * train:
            yield Evidence(1.0, f"training, with dropout, has {number_text(train)} against {number_text(held_out)}")


def _about_the_inputs(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    share = erased_share(chart)
    if share > InputAnomaly.erased:
        yield Evidence(CERTAIN, f"{share:.0%} of each training input is erased, and nothing of validation's")
    elif problem.names == ("input-anomaly",):
        yield Evidence(-5.0, "inputs are not erased")


def _about_its_strength(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    rate = dropout(chart)
    if rate >= 0.7:
        yield Evidence(4.0, f"dropout is {number_text(rate)}: it leaves {1 - rate:.0%} of the units")
    past = problem.last_step + PAST < chart.step  # what weights have become since says nothing of it
    vanishing = problem.get("gradient-vanishing")
    bare = vanishing is not None and vanishing.message.endswith(DECAY_ALONE)  # weights shrink where nothing holds them
    pull, shrunk = _pull(chart, problem), math.nan if past or bare else shrinkage(chart)
    if pull > 1e-3:
        # A usual decay takes as much where the rate is far too high: then that is the matter.
        strength = 0.5 if weight_decay(chart) <= USUAL_DECAY and times_usual(chart, problem) > 1 else 2.0
        yield Evidence(strength, f"weight decay takes {number_text(pull)} of every weight a step")
    elif rate < 0.3 and not shrunk < 0.5:
        yield Evidence(-0.5, f"dropout is {number_text(rate)}")
    taken = -float(chart["outside_scaled"].values[:2].max()) if len(chart["outside_scaled"]) >= 2 else 0.0
    if taken > 0.005 and float(chart["outside_cosine"].values[:2].max()) < -0.9:
        yield Evidence(CERTAIN - 1, f"something else than the optimizer takes {taken:.1%} of the weights at each step")
    if shrunk < 0.5:
        strength = CERTAIN - 2 if shrunk < 0.1 else 2.5
        yield Evidence(strength, f"weight norms have shrunk to {number_text(shrunk)} of what they were")
    elif not past and penalized(chart):
        left = number_text(weights_left(chart))
        yield Evidence(CERTAIN - 2, f"weight norms have shrunk to {left} of what they were: a penalty in the loss")
    elif chart.fact("state.written_always", 0) >= 3:
        yield Evidence(3.5, "weights are written to after every step: clamped or projected, they cannot grow")
    elif rate == 0 and not problem.has("loss-oscillation") and _leads_by_noise(chart):
        yield Evidence(1.5, "validation is nearly always better than training: noise disturbs training alone")
    elif rate < 0.7 and not pull > 1e-3:
        yield Evidence(-2.0, "neither dropout nor weight decay is strong")


def _leads_by_noise(chart: Chart) -> bool:
    """Whether validation is better than training, and training samples are not seen to come as they are."""
    return validation_leads(chart) > 0.8 and not comes_unchanged(chart)


def _pull(chart: Chart, problem: Problem) -> float:
    """The share of a weight that decay took at each step: decoupled, or through the gradient of plain SGD."""
    decay = weight_decay(chart)
    names = optimizer_names(chart)
    if "Adam" in names and "AdamW" not in names:
        return math.nan  # decay goes through the adaptive step: its pull is not rate times decay
    rate = level_about(chart["lr"], problem.first_step - PAST, problem.last_step)
    return decay * (chart["lr"].latest if math.isnan(rate) else rate)
