"""GP04 suspicious-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, names_text, number_text
from torchdoctor.symptoms.detector import Detector

MEANING = {
    "softmax-before-cross-entropy": "cross-entropy is fed with probabilities (softmax is applied twice): pass logits",
    "sigmoid-before-cross-entropy": "cross-entropy is fed with the output of a sigmoid: pass logits",
    "sigmoid-before-bce-with-logits": "BCE-with-logits is fed with probabilities (sigmoid is applied twice)",
    "softmax-before-bce-with-logits": "BCE-with-logits is fed with the output of a softmax: pass logits",
    "relu-before-bce-with-logits": "BCE-with-logits is fed with the output of a ReLU: nothing can be called unlikely",
    "relu-before-cross-entropy": "cross-entropy is fed with the output of a ReLU, which cuts off scores below 0",
    "cosines-without-scale": "cross-entropy is fed with cosines: between -1 and 1 they stay near even odds; scale them",
    "nll-without-log-softmax": "NLL is fed with raw outputs: its minimum is minus infinity; apply log_softmax first",
    "nll-of-probabilities": "NLL is fed with probabilities instead of their logarithms",
    "kl-of-probabilities": "KL divergence is fed with probabilities instead of their logarithms: log_softmax",
    "kl-against-logarithms": "KL divergence is given logarithms as its target: arguments exchanged, or no log_target",
    "one-class": "cross-entropy is given one class: its only answer is always right, and nothing is learnt; use BCE",
    "softmax-over-the-batch": "the softmax runs over the samples of the batch (dim=0), not over the classes",
    "softmax-over-places": "the softmax runs over something else than the classes: steps, places or samples",
    "dropout-before-loss": "dropout is applied to the outputs themselves: the loss is told that answers are zero",
    "sigmoid-twice": "a sigmoid is applied to the output of a sigmoid: only values from 0.5 to 0.73 can come out",
    "exp-twice": "an exponential is taken of an exponential: the loss takes it itself (log_input)",
    "softmax-twice": "a softmax is applied to the output of a softmax: nothing can be called likely",
    "softmax-of-one": "a softmax is taken of one score: it is always 1, whatever the score; use a sigmoid",
    "norm-of-one": "a normalization layer is given one value at a time: its output is its bias, whatever comes in",
    "attention-over-queries": "attention takes its softmax over the queries: the weights of one query do not sum to 1",
    "negated": "the loss has a minus sign in front: training makes it worse without end",
    "squared-after-the-mean": "errors are averaged before they are squared: they cancel, and only their mean is learnt",
    "scrambled": "a view exchanges dimensions of the outputs and leaves values where they are: permute them",
    "scrambled-inside": "a view inside the model exchanges dimensions and leaves values where they are: permute them",
    "shared-among-samples": "a softmax inside the model runs over the samples of the batch (dim=0): each gets a share",
    "too-short-to-spell": "CTC is given sequences with fewer steps than letters to spell: those samples teach nothing",
    "one-for-all": "one output of each sample is broadcast against several targets: it can only learn their mean",
    "broadcast": "N outputs and N targets are broadcast to N × N differences: every output learns the mean target",
}
"""What each mistake in the loss's graph is, in a sentence."""
DROPPED = "dropout-before-loss"
"""The one of them that is no fault of the loss."""
ONLY_LINEAR = "only-linear"
"""What is no mistake by itself: layers without any activation between them, which together are one."""


@dataclass(frozen=True)
class SuspiciousLoss(Detector):
    """The loss is put together in a way that cannot be meant.

    ## What it means
    The graph behind the logged loss shows it: probabilities where logits belong, outputs and targets of shapes that
    broadcast against each other, outputs of other samples than the targets', a loss that was cut off from the model, or
    the same loss logged again and again. Training runs without an error, and learns slowly, wrongly or nothing.

    ## How it is told apart
    The order of operations is read, not guessed: softmax feeding log-softmax, sigmoid or ReLU feeding BCE-with-logits,
    cosines that no temperature divides, N × 1 against N, as many outputs as a layer takes for its steps. A softmax
    inside attention, one before an MSE, `log_softmax` with `nll_loss`, and pairwise differences made on purpose are all
    fine. So is a class that the loss ignores, such as padding; where it is that of whole samples it is a note, and a
    warning if validation is far above training. Views that a loss compares may be alike, but not to the last digit.
    A loss logged as a number or detached is unknown, not suspicious.

    ## What to do
    `F.cross_entropy(logits, target)` and `F.binary_cross_entropy_with_logits(logits, target)` take raw outputs.
    `assert output.shape == target.shape` before MSE and L1. `batch_first=True` where the batch comes first. Compute the
    loss anew in each step.

    ## How to see that it is cured
    At the first step the loss is near ln(classes), and one batch can be overfitted to a loss under 0.01.

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
    """Times the weight of other classes that the most common one may have."""
    slope: float = 0.4
    """Power of a class's count that its weight may be: those that even classes out have a negative one."""
    smoothing: float = 0.6
    """Share of each label that smoothing may take: a tenth is usual, a third is strong."""

    def check(self, chart: Chart) -> Symptom | None:
        """Cut off, old, or wrongly composed."""
        if chart.fact("loss.detached"):
            message = "the loss has no graph (requires_grad_() was put on it): backward reaches no parameter"
            return self._said(chart, "loss.detached", message, critical=True)
        if chart.fact("loss.stale") and not is_made_anew(chart):
            message = "the same loss is logged at different steps: it was computed once and not again"
            if chart.fact("loss.stale") == "outputs":
                message = "the loss is made of outputs of an earlier step: the model was run once and not again"
            return self._said(chart, "loss.stale", message, critical=True)
        turned = chart.fact("modules.batch_as_time")
        if turned:
            message = f"{names_text(turned)} takes samples for steps (batch_first=False): each output that the loss "
            message += "compares is made of all samples of its batch"
            return self._said(chart, "modules.batch_as_time", message)
        codes = mistakes(chart)
        if codes:
            return self._said(chart, "loss.lint", "; ".join(MEANING[code] for code in codes))
        weight = weight_of_common(chart)
        if weight > self.weight:
            message = f"the loss gives the most common class, of {100 * chart['pooled_top_share'].latest:.0f} % of the "
            message += f"labels, {number_text(weight)} times the weight of the others: class weights are upside down"
            since = int(chart["weight_of_common"].steps[0])
            return self.symptom(chart, "warning", message, value=weight, limit=self.weight, since=since)
        slope = weight_by_count(chart)
        if slope > self.slope:
            message = "the loss gives classes the more weight the more common they are: class weights are upside down"
            since = int(chart["weight_by_count"].steps[0])
            return self.symptom(chart, "warning", message, value=slope, limit=self.slope, since=since)
        share = chart.fact("loss.label_smoothing", 0.0)
        if share > self.smoothing:
            message = f"label smoothing takes {share:.0%} of each label and spreads it over all classes"
            return self._said(chart, "loss.label_smoothing", message)
        return self._of_the_batch(chart)

    def _of_the_batch(self, chart: Chart) -> Symptom | None:
        """Samples that the loss leaves out, or compares with themselves."""
        share = left_out(chart)
        if share > 0:
            severity: Severity = "warning" if _validation_is_apart(chart) else "info"
            message = f"the loss leaves {share:.0%} of the samples out: ignore_index is the number of a class"
            since = int(chart["label_ignored"].steps[0])
            return self.symptom(chart, severity, message, value=share, limit=0.0, since=since)
        if are_the_same(chart):
            message = "the two views of each sample that the loss compares are the same: to match them is no task"
            return self.symptom(chart, "warning", message, value=1.0, since=int(chart["views_same"].steps[0]))
        return None

    def _said(self, chart: Chart, key: str, message: str, *, critical: bool = False) -> Symptom:
        severity: Severity = "critical" if critical else "warning"
        return self.symptom(chart, severity, message, since=chart.facts[key].step, confidence=0.97)


def is_made_anew(chart: Chart, samples: int = 4) -> bool:
    """Whether a loss whose graph stays the same has other values all the time, or too few are known to tell.

    So it is where a CUDA graph is replayed: the loss is made anew in the same place, and autograd knows nothing of it.

    >>> chart = Chart.of(loss=[2.0, 1.9, 1.8, 1.7])
    >>> chart.add({"type": "facts", "step": 3, "facts": {"loss.stale": True}})
    >>> is_made_anew(chart)
    True
    """
    values = chart["loss"].last(2 * samples)
    if chart.fact("loss.stale") is not True:
        return False
    if not values.size:  # a device's numbers come later than facts; where steps are known, the loss has another name
        return chart["grad_norm"].count < 4 * samples
    return values.size < samples or 2 * int(np.count_nonzero(np.diff(values))) > values.size


def left_out(chart: Chart, samples: int = 4, least: float = 0.02) -> float:
    """The share of samples whose class is the one that the loss ignores, where each batch has some; else 0."""
    shares = chart["label_ignored"].last(samples)
    return float(shares.mean()) if shares.size == samples and float(shares.mean()) > least else 0.0


def are_the_same(chart: Chart, samples: int = 3) -> bool:
    """Whether both sides of what the loss compares, made apart, were equal in all of the last samples."""
    shares = chart["views_same"].last(samples)
    return shares.size == samples and float(shares.min()) == 1


def _validation_is_apart(chart: Chart, times: float = 2.0) -> bool:
    """Whether validation, which may count what training leaves out, is far above training."""
    return chart["val_loss"].latest > times * chart["loss"].baseline(32).recent > 0


def mistakes(chart: Chart) -> list[str]:
    """What the graph of the loss says; what is turned round may be what an attack on the inputs climbs."""
    attacked = bool(chart.fact("data.differentiated"))
    return [code for code in chart.fact("loss.lint") or () if code in MEANING and not (attacked and code == "negated")]


def weight_of_common(chart: Chart, samples: int = 5) -> float:
    """The class weight of the most common class over that of the others, where it is far the most common; or NaN."""
    weights, share = chart["weight_of_common"].last(samples), chart["pooled_top_share"].latest
    uneven = share > max(0.5, min(0.75, 3 / max(chart["pooled_classes"].latest, 1.0)))
    return float(weights.min()) if weights.size == samples and uneven else math.nan


def weight_by_count(chart: Chart, samples: int = 5) -> float:
    """How the weights of three classes or more grow with how common they are, at the least; NaN where unknown."""
    slopes = chart["weight_by_count"].last(samples)
    return float(slopes.min()) if slopes.size == samples else math.nan
