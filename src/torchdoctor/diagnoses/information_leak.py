"""information-leak."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.early_gap import early_gap
from torchdoctor.symptoms.suspicious_loss import are_the_same
from torchdoctor.symptoms.targets_given import is_copied, is_given_away, looks_ahead
from torchdoctor.symptoms.uneven_position_loss import UnevenPositionLoss, given_away
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly
from torchdoctor.symptoms.validation_inputs import known_before


class InformationLeak(Cause):
    """The input holds the answer.

    ## What it is
    A causal mask that lets later tokens through, targets that are the inputs, a column that is made from the target,
    or validation samples that are in the training set. The loss is excellent and the model is useless.

    ## How to confirm it
    Change what the model must not see (token t + 1, the suspicious column) and compare the output at t: it must not
    change. For tables: train on each column alone; one that is enough by itself is suspicious.

    ## What to change
    The mask: ``is_causal=True``, or -inf above the diagonal in every layer. The targets: ``x[:, :-1]`` in, ``x[:, 1:]``
    out. The split: by group or by time, before any preprocessing.

    ## How to see it cured
    The training loss is higher, and what the model makes by itself is better.
    """

    name = "information-leak"
    explains = (
        "suspiciously-low-loss",
        "suspicious-loss",
        "uneven-position-loss",
        "target-anomaly",
        "validation-anomaly",
        "overfitting",
    )
    prior = -2.7
    suggests = ("fix-mask",)
    references = ("https://arxiv.org/abs/1706.03762", "https://doi.org/10.1145/2382577.2382579")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Where in a sequence the loss is low, whether targets are inputs, and how early the model was sure."""
        last, others = (last_level(chart[f"{place}_position_loss"], 3) for place in ("last", "other"))
        if last > 1.5 * others and last > others + 0.5:
            where = f"the loss is {number_text(last)} at the last position, whose answer is not in the input"
            yield Evidence(CERTAIN, f"{where}, and {number_text(others)} at all others")
        elif last < 1.2 * others and not problem.has("target-anomaly"):
            yield Evidence(-3.0, "the last position of a sequence is no harder than the others")
        end, before = given_away(chart)
        if end > UnevenPositionLoss.error * before:
            text = f"the squared error is {number_text(end)} at the last place, whose answer is not in the input"
            yield Evidence(CERTAIN, f"{text}, and {number_text(before)} before it")
        same = last_level(chart["target_is_input"], 3)
        if same > 0.999 and not chart["token_top_share"].latest > 0.9:
            weight = CERTAIN if problem.grave(*problem.names) else 3.0  # an autoencoder is asked for its inputs
            yield Evidence(weight, "the targets are equal to the inputs, position by position")
        elif last_level(chart["target_is_next"], 3) > 0.99 and looks_ahead(chart) > 0.01:
            yield Evidence(
                CERTAIN, "the labels are the next tokens, and attention reaches them: the mask does not hide them all"
            )
        elif is_given_away(chart):
            yield Evidence(CERTAIN, "one column of the inputs follows the label, and no other comes near")
        elif is_copied(chart):
            yield Evidence(CERTAIN, "one place of the input holds the number that is asked for, in each sample")
        elif last_level(chart["label_in_input"], 5) > 0.9999:
            yield Evidence(CERTAIN, "one column of the inputs follows the label without exception")
        elif problem.names == ("target-anomaly",):
            yield Evidence(-5.0, "the targets are not the inputs")
        yield from _about_the_views(chart, problem)
        yield from _about_the_split(chart, problem)


def _about_the_views(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if problem.has("suspicious-loss") and are_the_same(chart):
        yield Evidence(CERTAIN, "both views of each sample are the same, to the last digit")
    elif problem.names == ("suspicious-loss",):
        yield Evidence(-5.0, "what the loss compares is not the same")


def _about_the_split(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if problem.has("validation-anomaly") and known_before(chart) > ValidationAnomaly.known:
        yield Evidence(CERTAIN, "samples of the validation were seen in training, value by value")
    if problem.has("validation-anomaly") and early_gap(chart) is not None:
        yield Evidence(3.5, "training was far better on samples that it saw for the first time than validation is")
    probable = chart["target_probability"]
    if len(probable) > 4 and float(probable.values[probable.steps < 100].max(initial=0.0)) > 0.95:
        yield Evidence(1.5, "the right class had a probability above 0.95 within a hundred steps")
