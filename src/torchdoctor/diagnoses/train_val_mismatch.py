"""train-val-mismatch."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import has_not_fallen, last_level
from torchdoctor.diagnoses.label_noise_or_misalignment import fell_at_once
from torchdoctor.diagnoses.memorization import HEART, OFTEN, far_from_the_start
from torchdoctor.records import number_text
from torchdoctor.symptoms.early_gap import early_gap
from torchdoctor.symptoms.overfitting import adds_up
from torchdoctor.symptoms.progress import Progress
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly
from torchdoctor.symptoms.validation_curve import never_followed, step_up
from torchdoctor.symptoms.validation_inputs import (
    comes_unchanged,
    input_sizes,
    inputs_apart,
    rounded_in_training,
    scores_are_probabilities,
    targets_apart,
    times_seen,
    validates_in_training_mode,
)


class TrainValMismatch(Cause):
    """Validation is fed, preprocessed or measured differently from training.

    ## What it is
    Other normalization constants, another label order, another tokenizer or resolution, a model left in training mode,
    other weights (an average that was never updated), or a loss with another reduction.

    ## How to confirm it
    Run the validation code on *training* samples, in `eval()` mode: the loss must be about the training loss. If it is
    as bad as on validation data, the code differs; if it is fine, the data does.

    ## What to change
    One function for preprocessing, used by both; `model.eval()` around validation and `model.train()` after it; labels
    from one table.

    ## How to see it cured
    The first evaluation is near the training loss of that step.

    ## When to stop
    When training samples give the same loss through both paths: then the data itself differs, and the gap is real.
    """

    name = "train-val-mismatch"
    explains = ("validation-anomaly", "overfitting")
    prior = -1.2
    suggests = ("match-validation",)
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether validation was ever near training, how soon it left, and how it moves."""
        values, train = chart["val_loss"].values, chart["loss"]
        if not values.size or not train:
            return
        yield from _about_inputs(chart)
        if problem.has("nan-or-inf") and train.nonfinite:
            yield Evidence(-3.0, "the training loss itself is not finite")
        if validates_in_training_mode(chart):
            yield Evidence(4.0, "the model is in training mode whenever it is validated")
        if adds_up(chart):
            yield Evidence(5.0, "each evaluation adds about the training loss to the one before: a sum is not reset")
            return
        start, first, best = Progress.of(train).start, float(values[0]), float(values.min())
        if step_up(chart) is not None:
            yield Evidence(5.0, "validation got worse from one evaluation to the next, and training did not notice")
            return
        if problem.has("overfitting") and best < 0.8 * start:
            yield Evidence(-2.5, "validation followed training at first")
        norms = chart["grad_norm"].last(3)
        # Training too, or there is nothing to move by: then nothing can change.
        stands = bool((train.last(3) == train.latest).all()) or (norms.size > 0 and not norms.any())
        if values.size >= 3 and bool((values[-3:] == values[-1]).all()) and not stands:
            yield Evidence(4.0, f"validation is exactly {number_text(float(values[-1]))} again and again")
        yield from _about_training(chart, problem, start, best)
        if first > 1.5 * start > 0:
            yield Evidence(1.0, f"the first evaluation, {number_text(first)}, was far above where training began")
        elif best < 0.6 * start:
            yield Evidence(-1.5, f"validation did fall, to {number_text(best)}")


def _about_inputs(chart: Chart) -> Iterator[Evidence]:
    if rounded_in_training(chart):
        yield Evidence(CERTAIN, "training asks for whole numbers, and validation does not")
    elif targets_apart(chart) > ValidationAnomaly.asked:
        yield Evidence(4.0, "targets are of another mean or deviation in validation than in training")
    if scores_are_probabilities(chart):
        yield Evidence(CERTAIN, "the loss takes scores, and in validation it is given probabilities")
    size, usual = input_sizes(chart)
    if max(size / usual, usual / size) > 1.5:
        sizes = f"{number_text(size)} in validation and {number_text(usual)} in training"
        strength = CERTAIN if max(size / usual, usual / size) > 8 else 4.5 if comes_unchanged(chart) else 2.0
        yield Evidence(strength, f"inputs are of size {sizes}")
    elif inputs_apart(chart) > ValidationAnomaly.shifted:
        yield Evidence(3.0, "inputs are of another mean or deviation in validation than in training")


def _about_training(chart: Chart, problem: Problem, start: float, best: float) -> Iterator[Evidence]:
    """Validation that never gained anything speaks for it only where training did."""
    if early_gap(chart) is not None:
        yield Evidence(2.5, "the gap was there before training had seen any sample twice")
    never = best > 0.95 * start or never_followed(chart)
    if never:
        strength = 3.2 if best > start else 1.5
        if "source" in chart.context:  # a log begins when somebody first logs, which may be late
            strength = 1.0
        text = f"validation was never under {number_text(best)}, and training began at {number_text(start)}"
        yield Evidence(strength, text)
        if far_from_the_start(chart):
            yield Evidence(2.5, "no sample that training knows costs as much: it is counted or fed otherwise")
        elif 0 <= last_level(chart["loss"]) < HEART * start:
            yield Evidence(-1.5, "training has come to nearly nothing: a small set, learnt by heart")
        elif times_seen(chart) > OFTEN:
            yield Evidence(-2.5, f"training has gone through its samples {number_text(times_seen(chart))} times")
    if has_not_fallen(chart) or problem.has("not-learning"):
        yield Evidence(-4.0, "training itself has not got anywhere")
    elif never and fell_at_once(chart, start):
        yield Evidence(1.0, "training fell from the first steps on")
