"""class-imbalance."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem

RARE = 0.97
"""Share of the most common class above which the others are rare, even if each sample has several labels."""
AT_ONCE = 10
"""Findings up to this step come too early to be caused by the labels."""


class ClassImbalance(Cause):
    """One class makes up nearly all of the labels.

    ## What it is
    If 97 % of the labels are of one class, a model that always predicts it is right 97 % of the time, and its loss is
    hard to beat: rare classes hardly contribute to the gradient. With only one class, there is nothing to learn.

    ## How to confirm it
    Compute ``torch.bincount(labels)`` over the training set, and the recall of each class instead of accuracy.

    ## What to change
    Use class weights in the loss (`weight=total / counts`), a `WeightedRandomSampler`, or a focal loss. Initialize the
    last bias to the log of the class shares. If there is only one class, check how the data are filtered and sorted.

    ## How to see it cured
    The recall of the rare class rises, and predictions are distributed as the labels are.

    ## When to stop
    If balanced batches change nothing, the inputs do not distinguish the classes.
    """

    name = "class-imbalance"
    explains = (
        "collapsed-output",
        "target-anomaly",
        "not-learning",
        "loss-plateau",
        "underfitting",
        "slow-learning",
        "gradient-explosion",
        "gradient-instability",
        "loss-spike",
        "validation-anomaly",
        "overfitting",
        "suspiciously-low-loss",
    )
    prior = -3.0
    suggests = ("rebalance-classes", "check-labels", "more-data")
    references = ("https://arxiv.org/abs/1708.02002",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The share of the most common class among all labels seen, and among the predictions."""
        share, classes = chart["pooled_top_share"].latest, chart["pooled_classes"].latest
        if not 0 < share <= 1 or not classes >= 1:
            if chart["target_std"]:
                yield Evidence(-3.0, "the targets are not class labels")
            return
        if classes == 1:
            many = chart.fact("loss.classes", 2 if chart.fact("loss.kind") == "bce" else None)
            if problem.get("target-anomaly") is not None and isinstance(many, int):
                yield Evidence(7.0, f"all labels seen are of one class, although the model has {many} classes")
            return
        predicted = float(chart["prediction_top_share"].last(4).mean()) if chart["prediction_top_share"] else 0.0
        if share > 0.85:
            rare = share > RARE or not (_is_dense(chart) or _has_several_labels(chart))
            yield Evidence(5.5 if rare else 2.0, f"{100 * share:.0f} % of the labels seen are of one class")
            if predicted > 0.99:
                yield Evidence(2.0 if rare else 0.5, f"{100 * predicted:.0f} % of the predictions are of one class")
                if rare and problem.has("validation-anomaly"):
                    yield Evidence(3.0, "always giving that class costs little in training, but much in validation")
            dead = problem.get("dead-units") or problem.get("no-gradient")
            if dead is not None and dead.severity != "info" and dead.first_step <= AT_ONCE:
                yield Evidence(
                    -6.0, f"{dead.name} was there at step {dead.first_step}, too early for labels to cause it"
                )
        elif share < 2 / classes:
            yield Evidence(-4.0, f"the most common of {classes:.0f} classes has only {100 * share:.0f} % of the labels")
        else:
            yield Evidence(-1.0, f"the most common class has {100 * share:.0f} % of the labels seen")


def _is_dense(chart: Chart) -> bool:
    """Whether outputs are maps with a label for each position: then even a rare class is in every batch."""
    shape = chart.context.get("input_shape") or ()
    return len(shape) == 4 and chart["criterion"].count > 0 and chart.fact("loss.classes") is None


def _has_several_labels(chart: Chart) -> bool:
    """Whether each sample has several yes-or-no labels: then most are naturally "no"."""
    outputs, widths = chart.fact("modules.outputs", ()), chart.fact("modules.widths", ())
    named = dict(zip(chart.module_names, widths, strict=False))
    answers = max([named.get(name, 0) for name in outputs], default=0)
    return bool(chart.fact("loss.kind") == "bce" and max(answers, chart.fact("outputs.classes", 1)) > 1)
