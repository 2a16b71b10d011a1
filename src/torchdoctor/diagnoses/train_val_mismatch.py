"""train-val-mismatch."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import has_not_fallen, last_level
from torchdoctor.diagnoses.label_noise_or_misalignment import fell_at_once
from torchdoctor.diagnoses.memorization import HEART, OFTEN, behind_while_new, far_from_the_start
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
    only_training_changed,
    rounded_in_training,
    scores_are_probabilities,
    standardized_in_training_only,
    targets_apart,
    times_seen,
    validates_in_training_mode,
)


class TrainValMismatch(Cause):
    """Validation differs from training in its inputs, preprocessing or loss.

    ## What it is
    Different normalization constants, label order, tokenizer, resolution or loss reduction, a model left in training
    mode, or different weights (an average that was never updated).

    ## How to confirm it
    Run the validation code on *training* samples, in `eval()` mode: the loss must be about the training loss. If it is
    as high as on validation data, the code differs; if it is low, the data differ.

    ## What to change
    Use one preprocessing function and one label table for both. Call `model.eval()` before validation and
    `model.train()` after it.

    ## How to see it cured
    The first evaluation is near the training loss at that step.

    ## When to stop
    If training samples have the same loss in both code paths, the data differ, and the gap is real.
    """

    name = "train-val-mismatch"
    explains = ("validation-anomaly", "overfitting")
    prior = -1.2
    suggests = ("match-validation",)
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How validation inputs and targets differ, whether validation was ever near training, and how it moves."""
        values, train = chart["val_loss"].values, chart["loss"]
        if not values.size or not train:
            return
        yield from _about_inputs(chart)
        if problem.has("nan-or-inf") and train.nonfinite:
            yield Evidence(-3.0, "the training loss is not finite either")
        if validates_in_training_mode(chart):
            yield Evidence(4.0, "the model is in training mode whenever validation runs")
        if adds_up(chart):
            yield Evidence(
                5.0, "each evaluation adds about the training loss to the one before: the running sum is not reset"
            )
            return
        start, first, best = Progress.of(train).start, float(values[0]), float(values.min())
        if step_up(chart) is not None:
            yield Evidence(5.0, "validation jumped from one evaluation to the next, but training did not get worse")
            return
        if problem.has("overfitting") and best < 0.8 * start:
            yield Evidence(-2.5, "validation followed training at first")
        norms = chart["grad_norm"].last(3)
        # If training does not change either, or no gradient exists, a constant validation loss means nothing.
        stands = bool((train.last(3) == train.latest).all()) or (norms.size > 0 and not norms.any())
        if values.size >= 3 and bool((values[-3:] == values[-1]).all()) and not stands:
            yield Evidence(
                4.0, f"validation is exactly {number_text(float(values[-1]))} at each of the last 3 evaluations"
            )
        yield from _about_training(chart, problem, start, best)
        if first > 1.5 * start > 0:
            yield Evidence(
                1.0, f"the first evaluation, {number_text(first)}, was far above the training loss at the start"
            )
        elif best < 0.6 * start:
            yield Evidence(-1.5, f"the validation loss did fall, to {number_text(best)}")


def _about_inputs(chart: Chart) -> Iterator[Evidence]:
    if rounded_in_training(chart):
        yield Evidence(CERTAIN, "targets are whole numbers in training, but not in validation")
    elif targets_apart(chart) > ValidationAnomaly.asked:
        yield Evidence(4.0, "targets in validation have another mean or standard deviation than in training")
    if scores_are_probabilities(chart):
        yield Evidence(CERTAIN, "the loss expects scores, but in validation it gets probabilities")
    if only_training_changed(chart):
        return
    size, usual = input_sizes(chart)
    if max(size / usual, usual / size) > 1.5:
        sizes = f"{number_text(size)} in validation, but {number_text(usual)} in training"
        strength = CERTAIN if max(size / usual, usual / size) > 8 else 4.5 if comes_unchanged(chart) else 2.0
        if standardized_in_training_only(chart):
            yield Evidence(7.5, "training inputs have mean 0 and standard deviation 1, validation inputs do not")
        else:
            yield Evidence(strength, f"inputs have size {sizes}")
    elif inputs_apart(chart) > ValidationAnomaly.shifted:
        yield Evidence(3.0, "inputs in validation have another mean or standard deviation than in training")


def _about_training(chart: Chart, problem: Problem, start: float, best: float) -> Iterator[Evidence]:
    """The gap to training, and whether validation ever improved: that counts only if training itself did."""
    early = early_gap(chart) is not None or behind_while_new(chart)
    if early:
        yield Evidence(2.5, "the gap existed before training had seen any sample twice")
    never = best > 0.95 * start or never_followed(chart)
    if never:
        strength = 3.2 if best > start else 1.5
        if "source" in chart.context:  # the first logged value may come late in the run
            strength = 1.0
        text = f"validation loss was never below {number_text(best)}, and training began at {number_text(start)}"
        yield Evidence(strength, text)
        if far_from_the_start(chart):
            yield Evidence(2.5, "validation was always far above the first training loss: it is computed differently")
        elif not early and 0 <= last_level(chart["loss"]) < HEART * start:
            yield Evidence(-1.5, "the training loss is near zero: the model may have memorized a small data set")
        elif not early and times_seen(chart) > OFTEN:
            yield Evidence(-2.5, f"training has gone through its samples about {number_text(times_seen(chart))} times")
    if has_not_fallen(chart) or problem.has("not-learning"):
        yield Evidence(-4.0, "training itself has not learned")
    elif never and fell_at_once(chart, start):
        yield Evidence(1.0, "the training loss fell from the first steps on")
