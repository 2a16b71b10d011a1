"""GP04 suspicious-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, names_text, number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector

MEANING = {
    "softmax-before-cross-entropy": "cross-entropy gets probabilities (softmax is applied twice): pass logits",
    "sigmoid-before-cross-entropy": "cross-entropy gets the output of a sigmoid: pass logits",
    "sigmoid-before-bce-with-logits": "BCE-with-logits gets probabilities (sigmoid is applied twice): pass logits",
    "softmax-before-bce-with-logits": "BCE-with-logits gets the output of a softmax: pass logits",
    "relu-before-bce-with-logits": "BCE-with-logits gets the output of a ReLU: no probability below 0.5 is possible",
    "relu-before-cross-entropy": "cross-entropy gets the output of a ReLU, which cuts off all scores below 0",
    "cosines-without-scale": "cross-entropy gets cosines: between -1 and 1, no class can become likely; scale them",
    "nll-without-log-softmax": "NLL gets raw outputs, so its minimum is minus infinity: apply log_softmax first",
    "ctc-without-log-softmax": "CTC gets raw outputs, so its minimum is minus infinity: apply log_softmax first",
    "nll-of-probabilities": "NLL gets probabilities instead of their logarithms",
    "kl-of-probabilities": "KL divergence gets probabilities instead of their logarithms: apply log_softmax",
    "kl-against-logarithms": "KL divergence gets logarithms as its target: swap the arguments, or set log_target",
    "one-class": "cross-entropy has only one class: its answer is always right, and nothing is learned; use BCE",
    "softmax-over-the-batch": "the softmax runs over the samples of the batch (dim=0), not over the classes",
    "softmax-over-places": "the softmax runs over steps, positions or samples, not over the classes",
    "dropout-before-loss": "dropout is applied to the final outputs: the loss sees random zeros as answers",
    "sigmoid-twice": "a sigmoid is applied to the output of a sigmoid: only values from 0.5 to 0.73 are possible",
    "exp-twice": "the outputs are exponentiated twice: the loss already does it (log_input)",
    "softmax-twice": "a softmax is applied to the output of a softmax: no class can become likely",
    "softmax-of-one": "a softmax is taken over a single score, so it is always 1: use a sigmoid",
    "norm-of-one": "a normalization layer gets one value at a time: its output is its bias, whatever the input",
    "attention-over-queries": "attention takes its softmax over the queries: the weights of one query do not sum to 1",
    "negated": "the loss has a minus sign in front: training makes the model worse and worse",
    "squared-after-the-mean": "errors are averaged before they are squared: they cancel, and only the mean is learned",
    "scrambled": "a view of the outputs swaps dimensions without moving the values: use permute",
    "scrambled-inside": "a view inside the model swaps dimensions without moving the values: use permute",
    "shared-among-samples": "a softmax inside the model runs over the samples of the batch (dim=0), so they compete",
    "too-short-to-spell": "CTC gets sequences with fewer steps than labels: nothing is learned from those samples",
    "one-for-all": "one output per sample is broadcast against several targets: it can only learn their mean",
    "broadcast": "N outputs and N targets are broadcast to N × N differences: every output learns the mean target",
}
"""A sentence for each mistake in the graph of the loss."""
DROPPED = "dropout-before-loss"
"""The only one of them that is not a mistake in the loss itself."""
ONLY_LINEAR = "only-linear"
"""Linear layers without an activation between them, which act as a single layer: not a mistake by itself."""


@dataclass(frozen=True)
class SuspiciousLoss(Detector):
    """The loss is computed in a way that cannot be intended.

    ## What it means
    The autograd graph of the logged loss shows a mistake: probabilities instead of logits, shapes of outputs and
    targets that broadcast against each other, samples mixed up between outputs and targets, a loss that is cut off from
    the model, or the same loss logged again and again. Training runs without an error, but learns slowly, wrongly or
    not at all.

    ## How it is told apart
    The order of operations is read from the graph: softmax feeding log-softmax, sigmoid or ReLU feeding
    BCE-with-logits, cosines without a temperature, N × 1 against N, a recurrent layer that treats samples as steps.

    - A softmax inside attention or before an MSE, `log_softmax` with `nll_loss`, and pairwise differences made on
      purpose are not reported.
    - A class that the loss ignores, such as padding, is fine. If whole samples are ignored, it is info, or a warning
      if the validation loss is far above the training loss.
    - Two views of a sample that a loss compares may be similar, but not identical.
    - A loss logged as a number or detached is unknown, not suspicious, unless it is exactly the same for a hundred
      steps while gradients change: then an old value is logged.

    ## What to do
    `F.cross_entropy(logits, target)` and `F.binary_cross_entropy_with_logits(logits, target)` take raw outputs. Put
    `assert output.shape == target.shape` before MSE and L1. Set `batch_first=True` if the batch comes first. Compute
    the loss again in each step.

    ## How to see that it is cured
    At the first step the loss is near ln(classes), and one batch can be overfitted to a loss below 0.01.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.lint": ["broadcast"]}})
    >>> print(SuspiciousLoss().check(chart))  # doctest: +ELLIPSIS
    step 0: GP04 suspicious-loss (warning): N outputs and N targets are broadcast to N × N differences: ...
    """

    code = "GP04"
    name = "suspicious-loss"
    reads = (
        "tensors/grad_norm",
        "facts/loss.lint",
        "facts/loss.detached",
        "facts/loss.stale",
        "facts/modules.batch_as_time",
        "facts/loss.label_smoothing",
        "weight_of_common",
        "weight_by_count",
        "label_ignored",
        "views_same",
    )
    suggests = ("fix-loss",)
    references = (
        "https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
        "https://pytorch.org/docs/stable/notes/broadcasting.html",
    )
    closes_after = 2

    weight: float = 2.0
    """Weight of the most common class relative to the others above which class weights are inverted."""
    slope: float = 0.4
    """Exponent by which class weights grow with class counts above which they are inverted; it should be negative."""
    smoothing: float = 0.6
    """Share of each label taken by label smoothing above which it is reported: 0.1 is usual, 0.3 is strong."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test for a loss that is detached, stale or wrongly computed."""
        if chart.fact("loss.detached"):
            message = "the loss has no graph (requires_grad_() was called on it): backward reaches no parameter"
            return self._said(chart, "loss.detached", message, critical=True)
        if chart.fact("loss.stale") and not is_made_anew(chart):
            message = "the same loss is logged at different steps: it was computed only once"
            if chart.fact("loss.stale") == "outputs":
                message = "the loss uses the outputs of an earlier step: the model was run only once"
            return self._said(chart, "loss.stale", message, critical=True)
        if (count := logged_again(chart)) > 0:
            value = chart["loss"].latest
            message = (
                f"the logged loss has been exactly {number_text(value)} for {count} steps, while gradients change: "
            )
            message += "an old value is logged"
            since = int(chart["loss"].steps[-count])
            return self.symptom(chart, "warning", message, value=value, since=since, confidence=0.9)
        turned = chart.fact("modules.batch_as_time")
        if turned:
            message = f"{names_text(turned)} treats samples as time steps (batch_first=False): each output depends on "
            message += "all samples of its batch"
            return self._said(chart, "modules.batch_as_time", message)
        codes = mistakes(chart)
        if codes:
            return self._said(chart, "loss.lint", "; ".join(MEANING[code] for code in codes))
        weight = weight_of_common(chart)
        if weight > self.weight:
            message = f"the loss gives the most common class ({100 * chart['pooled_top_share'].latest:.0f} % of the "
            message += f"labels) {number_text(weight)} times the weight of the others: class weights are inverted"
            since = int(chart["weight_of_common"].steps[0])
            return self.symptom(chart, "warning", message, value=weight, limit=self.weight, since=since)
        slope = weight_by_count(chart)
        if slope > self.slope:
            message = "the loss gives common classes more weight than rare ones: class weights are inverted"
            since = int(chart["weight_by_count"].steps[0])
            return self.symptom(chart, "warning", message, value=slope, limit=self.slope, since=since)
        share = chart.fact("loss.label_smoothing", 0.0)
        if share > self.smoothing:
            message = f"label smoothing takes {share_text(share)} of each label and spreads it over all classes"
            return self._said(chart, "loss.label_smoothing", message)
        return self._of_the_batch(chart)

    def _of_the_batch(self, chart: Chart) -> Symptom | None:
        """Samples that the loss ignores, or compares with themselves."""
        share = left_out(chart)
        if share > 0:
            severity: Severity = "warning" if _validation_is_apart(chart) else "info"
            message = f"the loss ignores {share_text(share)} of the samples: ignore_index is the number of a class"
            since = int(chart["label_ignored"].steps[0])
            return self.symptom(chart, severity, message, value=share, limit=0.0, since=since)
        if are_the_same(chart):
            message = "the two views of each sample that the loss compares are identical: there is nothing to learn"
            return self.symptom(chart, "warning", message, value=1.0, since=int(chart["views_same"].steps[0]))
        return None

    def _said(self, chart: Chart, key: str, message: str, *, critical: bool = False) -> Symptom:
        severity: Severity = "critical" if critical else "warning"
        return self.symptom(chart, severity, message, since=chart.facts[key].step, confidence=0.97)


def is_made_anew(chart: Chart, samples: int = 4) -> bool:
    """Whether a loss with an unchanged graph has changing values, or too few values are known.

    A replayed CUDA graph writes each new loss to the same place, unseen by autograd.

    >>> chart = Chart.of(loss=[2.0, 1.9, 1.8, 1.7])
    >>> chart.add({"type": "facts", "step": 3, "facts": {"loss.stale": True}})
    >>> is_made_anew(chart)
    True
    """
    values = chart["loss"].last(2 * samples)
    if chart.fact("loss.stale") is not True:
        return False
    if not values.size:  # values from a device arrive after facts; if steps are known, the loss has another name
        return chart["grad_norm"].count < 4 * samples
    return values.size < samples or 2 * int(np.count_nonzero(np.diff(values))) > values.size


def logged_again(chart: Chart, least: int = 100, by: float = 0.03) -> int:
    """For how many steps a loss was exactly the same while gradients were not; 0 if that may be by right.

    Rounded values may agree: those of four digits after the point, or of bfloat16, whose lower half is empty.

    >>> norms = [1.0 + 0.2 * (step % 3) for step in range(150)]
    >>> logged_again(Chart.of(loss=[2.5331234] * 150, grad_norm=norms)), logged_again(Chart.of(loss=[2.5] * 150))
    (150, 0)
    """
    losses, norms = chart["loss"].values, chart["grad_norm"].last(least)
    if losses.size < least or norms.size < least or losses[-1] != losses[-least] or "source" in chart.context:
        return 0
    value, usual = float(losses[-1]), median(norms)
    other = np.flatnonzero(losses != value)
    count = int(losses.size - 1 - other[-1]) if other.size else losses.size
    rounded = abs(value - round(value, 4)) < 1e-9 or not np.float32(value).view(np.uint32) & 0xFFFF
    varies = float(np.median(np.abs(np.diff(norms)))) > by * usual > 0
    return count if count >= least and not rounded and varies else 0


def left_out(chart: Chart, samples: int = 4, least: float = 0.02) -> float:
    """The mean share of samples whose class the loss ignores, over the last few; 0 if it is negligible."""
    shares = chart["label_ignored"].last(samples)
    return float(shares.mean()) if shares.size == samples and float(shares.mean()) > least else 0.0


def are_the_same(chart: Chart, samples: int = 3) -> bool:
    """Whether the two separately computed views that the loss compares were equal in all of the last samples."""
    shares = chart["views_same"].last(samples)
    return shares.size == samples and float(shares.min()) == 1


def _validation_is_apart(chart: Chart, times: float = 2.0) -> bool:
    """Whether the validation loss, which may include what training ignores, is far above the training loss."""
    return chart["val_loss"].latest > times * chart["loss"].baseline(32).recent > 0


def mistakes(chart: Chart) -> list[str]:
    """The mistakes in the graph of the loss; a negated loss is fine if an adversarial attack maximizes it."""
    attacked = bool(chart.fact("data.differentiated"))
    return [code for code in chart.fact("loss.lint") or () if code in MEANING and not (attacked and code == "negated")]


def weight_of_common(chart: Chart, samples: int = 5) -> float:
    """The weight of the most common class relative to the others, if it is by far the most common; otherwise NaN."""
    weights, share = chart["weight_of_common"].last(samples), chart["pooled_top_share"].latest
    uneven = share > max(0.5, min(0.75, 3 / max(chart["pooled_classes"].latest, 1.0)))
    return float(weights.min()) if weights.size == samples and uneven else math.nan


def weight_by_count(chart: Chart, samples: int = 5) -> float:
    """The lowest recent slope of class weights against class counts, for three or more classes; NaN if unknown."""
    slopes = chart["weight_by_count"].last(samples)
    return float(slopes.min()) if slopes.size == samples else math.nan
