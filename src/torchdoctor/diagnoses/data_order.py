"""data-order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly, within_and_between

LEAPS = ("loss-spike", "loss-divergence", "loss-oscillation", "gradient-explosion")
"""What a border between two stretches of the data looks like."""


class DataOrder(Cause):
    """The data come sorted, or are not shuffled.

    ## What it is
    A file sorted by class or by time, read in order: each stretch of batches pulls the model its own way, and undoes
    what the one before had taught. The loss swings with the order of the data.

    ## How to confirm it
    Print the labels of ten batches in a row: each should look like the whole. The loss has the period of an epoch.

    ## What to change
    ``DataLoader(dataset, batch_size, shuffle=True)``; for streams a shuffle buffer larger than the longest run of one
    class; with several processes ``sampler.set_epoch(epoch)``.

    ## How to see it cured
    Labels within a batch are as mixed as over the run, and the loss no longer swings with the epoch.
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
        """How alike the targets of a batch are, against those of the run."""
        swing = problem.get("loss-oscillation")
        found = re.search(r"every (\d+) steps", swing.message) if swing is not None else None
        if found is not None and int(found[1]) >= 25:
            yield Evidence(3.5, f"the loss swings with a period of {found[1]} steps, too long for a rate or a momentum")
        within, over = last_level(chart["target_collision"], 10), chart["pooled_collision"].latest
        if within > over + 0.3:
            pairs = f"two samples of a batch share a class in {100 * within:.0f} % of pairs"
            yield Evidence(
                CERTAIN if within > over + 0.5 else 7.5, f"{pairs}, two of the whole run in {100 * over:.0f} %"
            )
        elif within > over + 0.15 and problem.has(*LEAPS):
            share, whole = 100 * within, 100 * over
            yield Evidence(4.5, f"two of a batch share a class in {share:.0f} % of pairs, of the run in {whole:.0f} %")
        elif within < over + 0.15:
            yield Evidence(-4.0, "the labels of a batch are as mixed as those of the whole run")
        spread, between = within_and_between(chart)
        if spread < (BatchAnomaly.narrow if problem.get("batch-anomaly") is None else BatchAnomaly.forgotten) * between:
            text = (
                f"targets vary by {number_text(spread)} within a batch, by {number_text(between)} from batch to batch"
            )
            # Targets that a model makes for itself run away with it.
            yield Evidence(1.5 if problem.grave("loss-divergence", "weight-growth") else 6.0, text)
        elif spread < between and problem.has(*LEAPS):
            yield Evidence(4.5, "the means of batches differ by more than targets do within one")
        elif spread > between:
            yield Evidence(-4.0, "targets vary more within a batch than from batch to batch")
