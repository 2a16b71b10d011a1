import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.not_learning import NotLearning, chance_level

RNG = np.random.default_rng(0)
N = 300
T = np.arange(N)
NOISE = RNG.standard_normal(N)
FLAT = 2.3 + 0.04 * NOISE
RATE = np.full(N, 1e-3)


def check(losses, lr=RATE, facts=None, context=None, sorted_by_class=False, **vitals):
    chart = Chart.of(loss=losses, lr=lr[: len(losses)], context=context, **vitals)
    if sorted_by_class:
        chart.open_episodes["batch-anomaly"] = Symptom("batch-anomaly", "DA03", "warning", 0.9, 8, 300)
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    return NotLearning().check(chart)


SICK = {
    "flat with noise": (FLAT, {}),
    "summed": (1000 * FLAT, {}),
    "tiny": (1e-7 * FLAT, {}),
    "jumped up and stayed there": (np.where(T < 5, 2.3, 11) + 0.05 * NOISE, {}),
    "at chance, after a drop to it": (2.3 + 2 * np.exp(-T / 5) + 0.1 * NOISE, {"facts": {"loss.chance": 2.303}}),
    "above chance and wild": (2.8 + 0.6 * np.abs(NOISE), {"facts": {"loss.chance": 2.303}}),
    "after a warm-up": (FLAT, {"lr": np.minimum(1e-3, 2e-5 * T)}),
    "a rate of zero": (FLAT, {"lr": 0 * RATE}),
    "the mean of the targets": (
        np.abs(4 + 0.6 * NOISE),
        {"facts": {"loss.function": "MSELoss", "loss.reduction": "mean"}, "pooled_std": [2.0] * 8},
    ),
}
HEALTHY = {
    "no readings": ([], {}),
    "short": (FLAT[:70], {}),
    "better than a guess on the same batches": (
        2.25 + 0.04 * NOISE,
        {"facts": {"loss.chance": 2.303}, "guess_loss": 2.4 + 0.04 * NOISE, "criterion": 2.25 + 0.04 * NOISE},
    ),
    "batches of one class each": (FLAT, {"facts": {"loss.chance": 2.303}, "sorted_by_class": True}),
    "a margin, far above a guess and on its way": (
        (5.5 + 6 * np.exp(-T / 25) - 0.01 * T + 0.1 * NOISE)[:81],
        {"facts": {"loss.chance": 2.303}},
    ),
    "falling": (2.3 - 0.002 * T + 0.04 * NOISE, {}),
    "falling little, without noise": (1000 + np.exp(-T / 100), {}),
    "fell first": (1.7 + 0.6 * np.exp(-T / 20) + 0.04 * NOISE, {}),
    "the rate is not known": (FLAT, {"lr": np.zeros(0)}),
    "in warm-up": (FLAT, {"lr": 1e-6 * T}),
    "noise hides any gain": (np.abs(2 + NOISE), {}),
    "wanders about zero": (0.02 * NOISE, {}),
    "a trained model, fine-tuned": (0.8 + 0.01 * NOISE, {"facts": {"loss.chance": 10.4}}),
    "embeddings alone, for three hundred steps": (FLAT[:300], {"facts": {"modules.kinds": ["Embedding"] * 2}}),
    "players": (FLAT, {"d_loss": FLAT, "context": {"optimizer": [{}, {}]}}),
}


@pytest.mark.parametrize(("losses", "more"), SICK.values(), ids=SICK)
def test_fires(losses, more):
    symptom = check(losses, **more)
    assert symptom.severity == "warning"
    assert symptom.first_step < 60


@pytest.mark.parametrize(("losses", "more"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, more):
    assert check(losses, **more) is None


def test_a_hundred_steps_are_a_note_unless_nothing_can_be_gained():
    assert check(FLAT[:120]).severity == "info"
    assert check(FLAT[:120], grad_norm=[0.0] * 120).severity == "warning"
    assert check(np.full(120, 10.3735)).severity == "warning"


@pytest.mark.parametrize(
    ("slope", "steps", "severity"),
    [
        (0.0012, 180, None),  # a table of categories begins far above a guess, and is on its way through much noise
        (0.0, 180, "info"),
        (0.0, 280, "warning"),  # and stays there
    ],
)
def test_far_above_a_guess_is_not_at_it(slope, steps, severity):
    losses = (1.0 - slope * T + 0.1 * NOISE)[:steps]
    told = {"loss.kind": "bce", "loss.reduction": "mean", "loss.chance": 0.69}
    found = check(losses, facts=told, guess_loss=[0.65] * steps, criterion=losses)
    assert (found and found.severity) == severity


def test_what_a_guess_costs_on_the_same_batches_decides_early():
    wild = 2.3 + 0.2 * NOISE[:98]
    told = {"loss.kind": "cross-entropy", "loss.reduction": "mean", "outputs.classes": 10}
    guess = wild + 0.005 * NOISE[98:196]
    paired = check(wild, facts=told, guess_loss=guess)
    assert paired is not None
    assert paired.severity == "warning"
    young = check(wild[:85], facts=told, guess_loss=guess[:85])  # recurrent layers may need as long to begin
    assert young is not None
    assert young.severity == "info"
    alone = check(wild, facts=told)
    assert alone is None or alone.severity == "info"


def test_evaluations_that_all_get_better_are_a_reason_to_wait():
    told = {"loss.chance": 0.693}
    losses = 0.72 + 0.03 * NOISE
    assert check(losses, facts=told).severity == "warning"
    assert check(losses, facts=told, val_loss=[0.74, 0.73, 0.72, 0.71]).severity == "info"
    assert check(losses, facts=told, val_loss=[0.74, 0.75, 0.74, 0.75]).severity == "warning"


@pytest.mark.parametrize(("fallen", "severity"), [(1.0, "info"), (0.0, "warning")])
def test_a_twentieth_below_a_guess_is_learnt_where_the_loss_came_down_to_it(fallen, severity):
    losses = 2.7 + fallen * (np.exp(-T / 60) - 0.05) + 0.15 * NOISE
    assert check(losses, facts={"loss.chance": 2.88}).severity == severity


def test_a_run_that_goes_on_from_a_checkpoint_is_not_at_its_start():
    chart = Chart.of(step=50_000, loss=FLAT, lr=RATE)
    assert NotLearning().check(chart) is None


def test_the_level_of_a_guess_is_quoted():
    for level, words in (
        (2.3, ", no better than the 2.3 of a constant guess that ignores the input"),
        (2.25, ", hardly below the 2.3 of a constant guess that ignores the input"),
        (2.6, "; a constant guess that ignores the input gives 2.3"),
    ):
        assert words in check(level + 0.01 * NOISE, facts={"loss.chance": 2.303}).message


@pytest.mark.parametrize(
    ("facts", "classes", "level"),
    [
        ({}, [], math.nan),
        ({"loss.between_outputs": True}, [], math.nan),
        ({}, [10.0], math.log(32)),
    ],
)
def test_the_width_of_embeddings_is_not_a_number_of_classes(facts, classes, level):
    chart = Chart.of(loss=[4.16, 4.14], target_classes=classes, context={"batch_size": 64})
    facts = {"loss.kind": "cross-entropy", "loss.reduction": "mean", "outputs.classes": 32, **facts}
    chart.add({"type": "facts", "step": 0, "facts": facts})
    assert chance_level(chart) == pytest.approx(level, nan_ok=True)


@pytest.mark.parametrize(
    ("samples", "entropy", "expected"), [(50, 1.8, 1.8), (2, 1.8, 2.303), (50, 0.4, 2.303), (50, 2.5, 2.303)]
)
def test_labels_that_are_not_even_lower_the_level_of_a_guess(samples, entropy, expected):
    chart = Chart.of(pooled_entropy=[entropy] * samples, context={"batch_size": 32})
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 2.303}})
    assert chance_level(chart) == expected


@pytest.mark.parametrize(("first", "expected"), [(2.4, math.log(10)), (2.1, math.log(10)), (5.0, math.nan)])
def test_a_loss_function_that_is_not_shown_is_known_by_its_graph_and_its_first_value(first, expected):
    chart = Chart.of(loss=[first])
    told = {"loss.kind": "cross-entropy", "loss.reduction": "mean", "outputs.classes": 10}
    chart.add({"type": "facts", "step": 0, "facts": told})
    assert chance_level(chart) == pytest.approx(expected, nan_ok=True)


def test_the_one_batch_there_is_has_a_level_of_a_guess():
    told = {"loss.chance": 2.303}
    assert check(FLAT, facts=told, sorted_by_class=True) is None
    assert check(FLAT, facts=told, sorted_by_class=True, input_checksum=[7.0] * 5).severity == "warning"


@pytest.mark.parametrize(("divided", "expected"), [(True, math.log(10)), (False, math.nan)])
def test_a_sum_that_a_trainer_divides_has_the_level_of_a_mean(divided, expected):
    chart = Chart.of(loss=[2.4])
    told = {"loss.kind": "cross-entropy", "loss.reduction": "sum", "outputs.classes": 10, "loss.divided": divided}
    chart.add({"type": "facts", "step": 0, "facts": told})
    assert chance_level(chart) == pytest.approx(expected, nan_ok=True)
