"""over-regularized."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import level_about
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import dropout, optimizer_names, validation_leads, weight_decay
from torchdoctor.diagnoses.lr_too_high import times_usual
from torchdoctor.diagnoses.optimizer_misconfigured import is_told_of_decay
from torchdoctor.records import number_text, share_text
from torchdoctor.symptoms.collapsed_output import SAYS_NOTHING
from torchdoctor.symptoms.gradient_vanishing import DECAY_ALONE
from torchdoctor.symptoms.input_anomaly import InputAnomaly, erased_share
from torchdoctor.symptoms.suspicious_loss import DROPPED, SuspiciousLoss
from torchdoctor.symptoms.underfitting import penalized, shrinkage, weights_left
from torchdoctor.symptoms.validation_inputs import comes_unchanged

USUAL_DECAY = 0.1
"""Weight decay up to which values are common with AdamW."""
PAST = 100
"""Steps after its last occurrence at which a problem counts as over, and before its onset from which learning rates
count."""
SMOOTH = 0.6
"""Label smoothing above which hardly anything of the label is left."""


class OverRegularized(Cause):
    """Regularization is so strong that it keeps the model from learning.

    ## What it is
    Dropout that keeps one unit in ten, weight decay that shrinks weights faster than gradients grow them,
    augmentation that destroys the label, or a penalty that outweighs the loss.

    ## How to confirm it
    - The training loss in `eval()` mode is far below the one in training mode.
    - Weight norms shrink towards zero.
    - The loss falls at once when dropout and weight decay are set to zero for 100 steps.

    ## What to change
    Start with dropout of 0.1 to 0.3 and weight decay of 0.01 to 0.1 with AdamW, about 1e-4 with SGD. Apply no decay to
    biases and normalization layers.

    ## How to see it cured
    The training loss falls below its old level, and weight norms grow or stay constant.

    ## When to stop
    If a gap between training and validation opens, the run needs some regularization again.
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
        """Dropout, the strength of weight decay, how far weights shrank, and validation compared with training."""
        advice = problem.get("optimizer-advice")
        if advice is not None and is_told_of_decay(chart, problem):
            yield Evidence(CERTAIN, f"{advice.message}, and weights have shrunk")
            return
        if problem.names == ("optimizer-advice",):
            return
        if problem.has("input-anomaly"):
            yield from _about_the_inputs(chart, problem)
        if DROPPED in (chart.fact("loss.lint") or ()):
            yield Evidence(CERTAIN, f"dropout of {number_text(dropout(chart))} is applied to the input of the loss")
        elif problem.has("suspicious-loss") and chart.fact("loss.label_smoothing", 0.0) > SuspiciousLoss.smoothing:
            yield Evidence(
                CERTAIN, f"label smoothing removes {share_text(chart.fact('loss.label_smoothing'))} of each label"
            )
            return
        elif problem.names == ("suspicious-loss",):
            yield Evidence(-5.0, "no dropout is applied to the input of the loss")
        collapsed = problem.get("collapsed-output")
        if collapsed is not None and collapsed.message.endswith(SAYS_NOTHING):
            dead = problem.get("dead-units")
            dead = dead if dead is not None and dead.severity != "info" else None  # dead units explain the collapse
            first = dead is not None and dead.first_step < collapsed.first_step
            yield Evidence(0.0 if first else 6.0, "the code equals the prior: its penalty outweighs its use")
            return
        if chart.fact("loss.label_smoothing", 0.0) > SMOOTH:
            share = chart.fact("loss.label_smoothing")
            yield Evidence(
                6.0, f"label smoothing removes {share_text(share)} of each label: hardly anything is left of it"
            )
        yield from _about_its_strength(chart, problem)
        train, held_out = chart["loss"].baseline(128).recent, chart["val_loss"].latest
        if dropout(chart) > 0 and 0 < held_out < 0.7 * train:
            yield Evidence(
                1.0, f"training loss, with dropout, is {number_text(train)}, validation {number_text(held_out)}"
            )


def _about_the_inputs(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    share = erased_share(chart)
    if share > InputAnomaly.erased:
        yield Evidence(CERTAIN, f"{share_text(share)} of each training input is erased, but not in validation")
    elif problem.names == ("input-anomaly",):
        yield Evidence(-5.0, "inputs are not erased in training")


def _about_its_strength(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    rate = dropout(chart)
    if rate >= 0.7:
        yield Evidence(4.0, f"dropout is {number_text(rate)}: it keeps {share_text(1 - rate)} of the units")
    past = problem.last_step + PAST < chart.step  # later weights do not matter
    vanishing = problem.get("gradient-vanishing")
    # With tiny gradients, even usual decay shrinks the weights.
    bare = vanishing is not None and vanishing.message.endswith(DECAY_ALONE)
    pull, shrunk = _pull(chart, problem), math.nan if past or bare else shrinkage(chart)
    if pull > 1e-3:
        # Usual weight decay removes as much if the learning rate is far too high: then that is the cause.
        strength = 0.5 if weight_decay(chart) <= USUAL_DECAY and times_usual(chart, problem) > 1 else 2.0
        yield Evidence(strength, f"weight decay removes {number_text(pull)} of every weight per step")
    elif rate < 0.3 and not shrunk < 0.5:
        yield Evidence(-0.5, f"dropout is {number_text(rate)}")
    taken = -float(chart["outside_scaled"].values[:2].max()) if len(chart["outside_scaled"]) >= 2 else 0.0
    if taken > 0.005 and float(chart["outside_cosine"].values[:2].max()) < -0.9:
        yield Evidence(
            CERTAIN - 1, f"code outside the optimizer removes {share_text(taken, 1)} of the weights at each step"
        )
    if shrunk < 0.5:
        strength = CERTAIN - 2 if shrunk < 0.1 else 2.5
        yield Evidence(strength, f"weight norms have shrunk to {number_text(shrunk)} of their first value")
    elif not past and penalized(chart):
        left = number_text(weights_left(chart))
        yield Evidence(CERTAIN - 2, f"weight norms have shrunk to {left} of their first value: a penalty in the loss")
    elif chart.fact("state.written_always", 0) >= 3:
        yield Evidence(3.5, "weights are overwritten after every step, as by clamping, and cannot grow")
    elif rate == 0 and not problem.has("loss-oscillation") and _leads_by_noise(chart):
        yield Evidence(1.5, "validation is nearly always better than training: noise disturbs training only")
    elif rate < 0.7 and not pull > 1e-3:
        yield Evidence(-2.0, "neither dropout nor weight decay is strong")


def _leads_by_noise(chart: Chart) -> bool:
    """Whether validation is better than training, and training samples are not known to come unchanged."""
    return validation_leads(chart) > 0.8 and not comes_unchanged(chart)


def _pull(chart: Chart, problem: Problem) -> float:
    """The share of a weight that decay removed per step, decoupled or through the gradient of SGD; NaN with Adam."""
    decay = weight_decay(chart)
    names = optimizer_names(chart)
    if "Adam" in names and "AdamW" not in names:
        return math.nan  # Adam rescales decay: it is not learning rate times decay
    rate = level_about(chart["lr"], problem.first_step - PAST, problem.last_step)
    return decay * (chart["lr"].latest if math.isnan(rate) else rate)
