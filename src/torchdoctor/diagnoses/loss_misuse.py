"""loss-misuse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import SHARP, breaking_step
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level, optimizer_names
from torchdoctor.diagnoses.numeric_precision import is_underflow
from torchdoctor.diagnoses.stale_loss import SAME, gradients_differ
from torchdoctor.records import names_text, number_text, share_text
from torchdoctor.symptoms.no_gradient import is_flat
from torchdoctor.symptoms.not_learning import loss_scale
from torchdoctor.symptoms.suspicious_loss import (
    DROPPED,
    SuspiciousLoss,
    left_out,
    mistakes,
    weight_by_count,
    weight_of_common,
)
from torchdoctor.symptoms.target_values import (
    asks_for_class_numbers,
    averaged_nothing,
    counts_nothing,
    is_one_number,
    is_outside,
    is_summed,
    is_unsigned,
    sums_nothing,
)
from torchdoctor.symptoms.targets_given import counts_unmasked
from torchdoctor.symptoms.update_ratio_abnormal import UpdateRatioAbnormal

WILD = ("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf", "weight-growth")
"""Findings that gradients that are too large lead to."""
VARIED = 0.05
"""Share of the outputs' size that depends on the input, above which the model itself does not block gradients."""
AT_ONCE = 20
"""Steps within which SGD updates that are too large because of a summed loss show."""
OWN, OUTWEIGHED = 0.05, 0.5
"""Shares of the loss: other terms are absent if they make up less than `OWN`; another term outweighs the loss function
if the function's value is less than `OUTWEIGHED`."""


class LossMisuse(Cause):
    """The loss function is given something other than what it expects.

    ## What it is
    For example: softmax before cross-entropy (which applies its own), sigmoid before BCE-with-logits, raw outputs into
    NLL, softmax over the batch, outputs of shape (N, 1) with targets of shape (N,), `view` instead of a transpose, or a
    wrong minus sign.

    ## How to confirm it
    Print `output.shape`, `target.shape`, `output.min()` and `output.sum(-1)` before the loss: some logits are negative,
    and they do not sum to 1. For C classes the first loss is near ln C.

    ## What to change
    `F.cross_entropy(logits, target)`, `F.binary_cross_entropy_with_logits(logits, target)`,
    `F.mse_loss(output.squeeze(-1), target)`.

    ## How to see it cured
    One batch can be overfitted to a loss under 0.01 within 1,000 steps.

    ## When to stop
    If shapes and ranges are right and one batch still cannot be overfitted, the loss is not the cause: look at the
    model.
    """

    name = "loss-misuse"
    explains = (
        "suspicious-loss",
        "suspiciously-low-loss",
        "not-learning",
        "slow-learning",
        "loss-plateau",
        "underfitting",
        "loss-spike",
        "loss-divergence",
        "weight-growth",
        "unexpected-initial-loss",
        "collapsed-output",
        "gradient-vanishing",
        "gradient-explosion",
        "no-gradient",
        "target-anomaly",
        "validation-anomaly",
        "nan-or-inf",
        "update-ratio-abnormal",
    )
    prior = -1.8
    suggests = ("fix-loss",)
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the loss equals what its function returns; otherwise what the graph, targets and weights show."""
        scale = loss_scale(chart)
        if problem.has("update-ratio-abnormal") and scale < UpdateRatioAbnormal.divided:
            yield Evidence(
                6.0, f"the loss is {number_text(scale)} times what its function returns: it is divided once too often"
            )
        elif problem.has(*SHARP) and (added := _added_term(chart, breaking_step(problem))):
            yield Evidence(6.0, added)
        elif _is_deaf_to_errors(chart, problem):
            yield Evidence(3.5, "the loss is exactly 0 although every input gets the same answer")
        else:
            yield from self._read(chart, problem)

    def _read(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        lint, kind = chart.fact("loss.lint"), chart.fact("loss.kind")
        lint = lint and [code for code in mistakes(chart) if code != DROPPED]
        if lint:
            yield Evidence(CERTAIN, f"the graph of the loss shows {', '.join(lint).replace('-', ' ')}")
        elif turned := chart.fact("modules.batch_as_time"):
            yield Evidence(
                CERTAIN, f"{names_text(turned)} treats the batch as a sequence: each output mixes several samples"
            )
        elif wrong := _wrong_targets(chart, problem):
            yield Evidence(CERTAIN, wrong)
        elif wrong := _ignores_a_batch(chart, problem) or _wrong_weights(chart, problem):
            yield Evidence(5.0, wrong)
        elif chart["loss"].latest < 0 and problem.has("suspiciously-low-loss"):
            name = chart.fact("loss.function") or kind or "loss of this kind"
            yield Evidence(6.0, f"the loss is {number_text(chart['loss'].latest)}: a {name} cannot be that low")
        elif problem.get("target-anomaly") is not None and last_level(chart["target_padding"], 3) > 0.5:
            yield Evidence(3.5, "most targets that the loss counts are padding: it has no ignore_index")
        elif deaf := _does_not_hear(chart, problem):
            yield Evidence(6.0, deaf)
        elif is_summed(chart) and problem.has(*WILD):
            soon = problem.first_step <= AT_ONCE and "Adam" not in optimizer_names(chart)
            yield Evidence(4.0 if soon else 2.0, "the loss is a sum over the batch: gradients grow with the batch size")
        elif lint is not None and kind and not chart.fact("loss.hidden"):
            yield Evidence(-1.5, f"the graph of the loss is that of a plain {kind}")


def _added_term(chart: Chart, step: int, least: int = 3) -> str:
    """That a term other than the loss function dominates the loss from this step on, as a sentence; "" if none does.

    >>> chart = Chart.of(loss=[2.0, 1.5, 1.0, 1.2, 50.0, 40.0], criterion=[2.0, 1.5, 1.0, 1.2, 1.1, 1.3])
    >>> _added_term(chart, 4)
    'since step 4 the loss is 50, but its function returns only 1.1: another term outweighs it'
    """
    losses, plain = chart["loss"], chart["criterion"]
    steps, mine, theirs = np.intersect1d(losses.steps, plain.steps, assume_unique=True, return_indices=True)
    since = int(np.searchsorted(steps, step))
    if since < least or since == steps.size:
        return ""
    whole, part = losses.values[mine], plain.values[theirs]
    with np.errstate(all="ignore"):
        rest = np.abs(1 - part / whole)
    if not float(rest[:since].max()) < OWN or not float(rest[since:].min()) > 1 - OUTWEIGHED:
        return ""
    words = f"since step {step} the loss is {number_text(float(whole[since]))}, but its function returns only"
    return f"{words} {number_text(float(part[since]))}: another term outweighs it"


def _does_not_hear(chart: Chart, problem: Problem) -> str:
    """That the loss does not depend on the outputs, as a sentence; "" if it may depend on them."""
    if problem.has("not-learning", "loss-plateau") and _cancels_out(chart):
        return (
            f"the loss is {number_text(chart['loss'].latest)} to the last digit at every step, although batches or "
            "gradients differ: its terms cancel out, as when a model is compared with itself"
        )
    flat = (is_flat(chart) or _was_never_heard(chart)) and not is_underflow(chart)
    if problem.has("no-gradient") and flat and chart["output_spread"].latest > VARIED:
        return (
            "outputs differ from sample to sample, but the loss does not depend on them: look for labels of 0 in a "
            "margin loss, a clamp, rounding, or a model compared with itself"
        )
    return ""


def _was_never_heard(chart: Chart, samples: int = 5) -> bool:
    """Whether all gradients were exactly zero from the first step on, although the whole model is trainable and used.

    Its last layer would have a gradient if the loss depended on the outputs.
    """
    norms, whole = chart["grad_norm"], not (chart.fact("graph.absent") or chart.fact("graph.detached"))
    learns = chart.fact("graph.frozen_share") == 0 and not chart.fact("graph.not_in_optimizer")
    return whole and learns and norms.count >= samples and norms.outline.highest == 0


def _wrong_weights(chart: Chart, problem: Problem) -> str:
    """That the loss weights classes wrongly, as a sentence; "" if it does not."""
    if weight_of_common(chart) > 2 or weight_by_count(chart) > SuspiciousLoss.slope:
        return "class weights are largest for the most common classes, not for the rarest"
    if problem.grave("suspicious-loss") and left_out(chart) > 0:
        return f"{share_text(left_out(chart))} of the samples are of a class that the loss ignores"
    return ""


def _is_deaf_to_errors(chart: Chart, problem: Problem) -> bool:
    """Whether a log with accuracies, so with labels, shows a loss of exactly 0 and outputs that are all the same."""
    labeled = "source" in chart.context and "val_accuracy" in chart
    return labeled and chart["loss"].latest == 0 and {"suspiciously-low-loss", "collapsed-output"} <= set(problem.names)


def _wrong_targets(chart: Chart, problem: Problem) -> str:
    """Why these targets do not fit this loss, as a sentence; "" if they may fit."""
    if problem.has("target-anomaly", "nan-or-inf", "no-gradient") and counts_nothing(chart):
        return "the loss ignores all labels of a batch, so that its mean is 0 / 0"
    if problem.has("no-gradient") and sums_nothing(chart):
        return "the loss ignores all labels of the batches checked, so that it is a sum of nothing"
    if is_unsigned(chart):
        return f"{chart.fact('loss.function')} is given labels 0 and 1, but expects -1 and 1"
    if is_one_number(chart):
        return "all targets are the same number: they were rounded, or read as the wrong type"
    if is_outside(chart):
        outside = share_text(last_level(chart["binary_outside"], 3))
        return f"{outside} of the targets of a binary loss are not between 0 and 1"
    if problem.has("target-anomaly") and asks_for_class_numbers(chart):
        most = number_text(chart["target_max"].latest)
        return f"targets are whole numbers up to {most}, but outputs lie between 0 and 1: the targets are class numbers"
    if chart.fact("loss.kind") == "l1" and problem.has("collapsed-output") and _asks_yes_or_no(chart):
        return "targets are 0 or 1, and the absolute error is smallest if the model always predicts the more common one"
    if problem.has("target-anomaly") and counts_unmasked(chart):
        return "at unmasked positions the labels are the input tokens, and the loss counts them"
    return ""


def _ignores_a_batch(chart: Chart, problem: Problem) -> str:
    """That the loss of a batch was NaN without harm to any gradient, as a sentence; "" if it was not."""
    symptom = problem.get("nan-or-inf")
    if symptom is None or not averaged_nothing(chart, symptom.first_step):
        return ""
    text = f"the loss of step {symptom.first_step} is NaN, but every gradient is exactly zero, as when a cross-entropy"
    return f"{text} ignores all labels of a batch"


def _asks_yes_or_no(chart: Chart, samples: int = 3) -> bool:
    """Whether all targets are 0 or 1."""
    pairs, low, high = (chart[f"target_{name}"].last(samples) for name in ("two_valued", "min", "max"))
    known = pairs.size == low.size == high.size == samples
    return known and bool((pairs > 0).all()) and float(low.min()) == 0 and float(high.max()) == 1


def _cancels_out(chart: Chart) -> bool:
    """Whether the loss is constant although batches or gradients differ, so that it is not a stale value."""
    values = chart["loss"].last(SAME)
    if values.size < SAME or not float(np.ptp(values)) <= 1e-6 * abs(float(values[-1])):
        return False
    batches = np.unique(chart["input_checksum"].last(8)).size
    if batches == 1:
        return False  # with a single batch, a constant loss only means that the model does not change
    return gradients_differ(chart) or (batches > 1 and not chart["grad_norm"].last(SAME).any())
