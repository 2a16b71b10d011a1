"""class-imbalance."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem

RARE = 0.97
"""Share of the common class above which the others are rare even where every sample has several labels."""
AT_ONCE = 10
"""Steps up to which a trouble is older than anything that labels could have done."""


class ClassImbalance(Cause):
    """One class makes up nearly all of the labels.

    ## What it is
    Always answering with the common class is right 97 times in 100 then, and its loss is hard to beat: rare classes
    hardly weigh in the gradient. With one class only there is nothing to tell apart.

    ## How to confirm it
    ``torch.bincount(labels)`` over the training set, and recall by class instead of accuracy.

    ## What to change
    Weights for the loss (`weight=total / counts`), a `WeightedRandomSampler`, or a focal loss; a last bias at the log
    of the class shares. If only one class is there: look for what was filtered or sorted away.

    ## How to see it cured
    Recall of the rare class rises, and predictions are spread as labels are.

    ## When to stop
    When balanced batches change nothing: the inputs do not tell the classes apart.
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
        """The share of the most common class among all labels seen, and among predictions."""
        share, classes = chart["pooled_top_share"].latest, chart["pooled_classes"].latest
        if not 0 < share <= 1 or not classes >= 1:
            if chart["target_std"]:
                yield Evidence(-3.0, "the targets are no labels")
            return
        if classes == 1:
            many = chart.fact("loss.classes", 2 if chart.fact("loss.kind") == "bce" else None)
            if problem.get("target-anomaly") is not None and isinstance(many, int):
                yield Evidence(7.0, f"all labels seen are of one class, of {many} that the model can tell")
            return
        predicted = float(chart["prediction_top_share"].last(4).mean()) if chart["prediction_top_share"] else 0.0
        if share > 0.85:
            rare = share > RARE or not (_is_dense(chart) or _has_several_labels(chart))
            yield Evidence(5.5 if rare else 2.0, f"{100 * share:.0f} % of the labels seen are of one class")
            if predicted > 0.99:
                yield Evidence(2.0 if rare else 0.5, f"{100 * predicted:.0f} % of the predictions are of one class")
            dead = problem.get("dead-units") or problem.get("no-gradient")
            if dead is not None and dead.severity != "info" and dead.first_step <= AT_ONCE:
                yield Evidence(-6.0, f"{dead.name} was there at step {dead.first_step}, before any label was learnt")
        elif share < 2 / classes:
            yield Evidence(-4.0, f"the most common of {classes:.0f} classes has only {100 * share:.0f} % of the labels")
        else:
            yield Evidence(-1.0, f"{100 * share:.0f} % of the labels seen are of the most common class")


def _is_dense(chart: Chart) -> bool:
    """Whether outputs are maps, with a label for every place: a class of a twentieth is seen at every step."""
    shape = chart.context.get("input_shape") or ()
    return len(shape) == 4 and chart["criterion"].count > 0 and chart.fact("loss.classes") is None


def _has_several_labels(chart: Chart) -> bool:
    """Whether each sample is asked several yes-or-no questions: there most answers are no by nature."""
    outputs, widths = chart.fact("modules.outputs", ()), chart.fact("modules.widths", ())
    named = dict(zip(chart.module_names, widths, strict=False))
    answers = max([named.get(name, 0) for name in outputs], default=0)
    return bool(chart.fact("loss.kind") == "bce" and max(answers, chart.fact("outputs.classes", 1)) > 1)
