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
from torchdoctor.symptoms.uneven_position_loss import UnevenPositionLoss, given_away, is_at_chance
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly
from torchdoctor.symptoms.validation_inputs import known_before


class InformationLeak(Cause):
    """The input contains the answer, or the training set contains validation samples.

    ## What it is
    A causal mask that lets later tokens through, targets that equal the inputs, a column derived from the target, or
    validation samples in the training set. The loss is excellent, but the model is useless.

    ## How to confirm it
    Change what the model must not see (token t + 1, the suspicious column): the output at t must not change. For
    tables, train on each column alone: a column that is sufficient by itself is suspicious.

    ## What to change
    - Mask: use ``is_causal=True``, or -inf above the diagonal in every layer.
    - Targets: use ``x[:, :-1]`` as inputs and ``x[:, 1:]`` as targets.
    - Split: split by group or by time, before any preprocessing.

    ## How to see it cured
    The training loss is higher, and the model generates better outputs.
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
        """Whether inputs contain the targets, where the loss is low, and how early the model was confident."""
        last, others = (last_level(chart[f"{place}_position_loss"], 3) for place in ("last", "other"))
        if last > 1.5 * others and last > others + 0.5 and not is_at_chance(chart, others):
            where = f"the loss is {number_text(last)} at the last position, whose answer is not in the input"
            yield Evidence(CERTAIN, f"{where}, but only {number_text(others)} at the others")
        elif last < 1.2 * others and not problem.has("target-anomaly"):
            yield Evidence(-3.0, "the loss at the last position of a sequence is hardly higher than at the others")
        end, before = given_away(chart)
        if end > UnevenPositionLoss.error * before:
            text = f"the squared error is {number_text(end)} at the last position, whose answer is not in the input"
            yield Evidence(CERTAIN, f"{text}, but only {number_text(before)} before it")
        same = last_level(chart["target_is_input"], 3)
        if same > 0.999 and not chart["token_top_share"].latest > 0.9:
            weight = CERTAIN if problem.grave(*problem.names) else 3.0  # an autoencoder predicts its inputs
            yield Evidence(weight, "the targets are equal to the inputs, position by position")
        elif last_level(chart["target_is_next"], 3) > 0.99 and looks_ahead(chart) > 0.01:
            yield Evidence(
                CERTAIN,
                "the labels are the next tokens, but attention can see them: the mask does not hide all of them",
            )
        elif is_given_away(chart):
            yield Evidence(CERTAIN, "one column of the inputs follows the label, and no other column comes close")
        elif is_copied(chart):
            yield Evidence(CERTAIN, "one position of the input holds the target value in each sample")
        elif last_level(chart["label_in_input"], 5) > 0.9999:
            yield Evidence(CERTAIN, "one column of the inputs follows the label without exception")
        elif problem.names == ("target-anomaly",):
            yield Evidence(-5.0, "the targets are not the inputs")
        yield from _about_the_views(chart, problem)
        yield from _about_the_split(chart, problem)


def _about_the_views(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if problem.has("suspicious-loss") and are_the_same(chart):
        yield Evidence(CERTAIN, "both views of each sample are identical")
    elif problem.names == ("suspicious-loss",):
        yield Evidence(-5.0, "the two views that the loss compares are not identical")


def _about_the_split(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if problem.has("validation-anomaly") and known_before(chart) > ValidationAnomaly.known:
        yield Evidence(CERTAIN, "validation samples were seen in training, with exactly the same values")
    if problem.has("validation-anomaly") and early_gap(chart) is not None:
        yield Evidence(
            3.5, "the training loss was far below the validation loss even on samples seen for the first time"
        )
    probable = chart["target_probability"]
    if len(probable) > 4 and float(probable.values[probable.steps < 100].max(initial=0.0)) > 0.95:
        yield Evidence(1.5, "within 100 steps, the right class had a probability above 0.95")
