"""data-order."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level, swing_period
from torchdoctor.records import number_text
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly, within_and_between

LEAPS = ("loss-spike", "loss-divergence", "loss-oscillation", "gradient-explosion")
"""Findings that the transition between two stretches of sorted data may cause."""


class DataOrder(Cause):
    """The data are sorted, or not shuffled.

    ## What it is
    A file sorted by class or by time is read in order. Each stretch of batches pulls the model in its own direction and
    undoes what the one before taught it. The loss follows the order of the data.

    ## How to confirm it
    Print the labels of ten batches in a row: each batch should look like the whole data set. The loss oscillates with
    the period of an epoch.

    ## What to change
    Use ``DataLoader(dataset, batch_size, shuffle=True)``. For streams, use a shuffle buffer larger than the longest
    stretch of one class. With several processes, call ``sampler.set_epoch(epoch)``.

    ## How to see it cured
    Labels within a batch are as mixed as over the whole run, and the loss no longer oscillates with the epoch.
    """

    name = "data-order"
    explains = (
        "batch-anomaly",
        "target-anomaly",
        "gradient-explosion",
        "loss-divergence",
        "dead-units",
        "loss-oscillation",
        "loss-spike",
        "validation-anomaly",
        "not-learning",
        "overfitting",
        "gradient-instability",
        "collapsed-output",
        "slow-learning",
        "loss-plateau",
        "underfitting",
    )
    prior = -3.0
    suggests = ("shuffle-data",)
    references = ("https://arxiv.org/abs/1206.5533",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How similar the targets of a batch are, compared with those of the run."""
        steps, records = swing_period(chart, problem)
        if steps >= 25 and records > 2:  # a swing from record to record may be a faster one that is logged too seldom
            yield Evidence(
                3.5, f"the loss oscillates every {steps} steps: too slowly for learning rate or momentum to cause it"
            )
        within, over = last_level(chart["target_collision"], 10), chart["pooled_collision"].latest
        if within > over + 0.3:
            pairs = f"{100 * within:.0f} % of the sample pairs within a batch share a class"
            yield Evidence(
                CERTAIN if within > over + 0.5 else 7.5, f"{pairs}, but only {100 * over:.0f} % over the whole run"
            )
        elif within > over + 0.15 and problem.has(*LEAPS):
            share, whole = 100 * within, 100 * over
            yield Evidence(
                4.5,
                f"{share:.0f} % of the sample pairs within a batch share a class, but only {whole:.0f} % over the run",
            )
        elif within < over + 0.15:
            yield Evidence(-4.0, "labels within a batch are as mixed as over the whole run")
        spread, between = within_and_between(chart)
        if spread < (BatchAnomaly.narrow if problem.get("batch-anomaly") is None else BatchAnomaly.forgotten) * between:
            text = (
                f"targets vary by {number_text(spread)} within a batch, but by {number_text(between)} between batches"
            )
            # If a model makes its own targets, they diverge with it.
            yield Evidence(1.5 if problem.grave("loss-divergence", "weight-growth") else 6.0, text)
        elif spread < between and problem.has(*LEAPS):
            yield Evidence(4.5, "the mean target varies more between batches than targets vary within a batch")
        elif spread > between:
            yield Evidence(-4.0, "targets vary more within a batch than between batches")
