"""What is known is said: within a hundred steps, or two evaluations, and not before it is known."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.frozen_weights import FrozenWeights
from torchdoctor.symptoms.lopsided_losses import LopsidedLosses
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.schedule_anomaly import ScheduleAnomaly
from torchdoctor.symptoms.underfitting import Underfitting
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

RNG = np.random.default_rng(0)
NOISE = RNG.standard_normal(400)
BY_HEART = 2.0 * np.exp(-np.arange(400) / 30)


def validated(train, values, every=50):
    chart = Chart.of(loss=train[: every * len(values)], lr=[1e-3] * (every * len(values)))
    for number, value in enumerate(values, start=1):
        chart.put(every * number - 1, "val_loss", value)
    return chart


RISES = {
    "two after the best, training is known by heart": (BY_HEART, [1.1, 0.9, 1.0, 1.1], True),
    "the same after a longer descent": (BY_HEART, [1.6, 1.3, 1.1, 1.0, 0.9, 1.0, 1.1], True),
    "by far, while training flies": (2.0 * np.exp(-np.arange(400) / 120), [1.1, 0.9, 1.3, 1.7], True),
    "one after the best": (BY_HEART, [1.3, 1.1, 0.9, 1.1], False),
    "by a little": (BY_HEART, [1.1, 0.9, 0.93, 0.95], False),
    "as it has before": (BY_HEART, [1.1, 0.95, 1.1, 0.9, 1.0, 1.1], False),
    "training has not gone on": (np.full(400, 0.5), [1.1, 0.9, 1.0, 1.1], False),
    "not by heart": (0.4 + BY_HEART, [1.1, 0.9, 1.0, 1.1], False),
}


@pytest.mark.parametrize(("train", "values", "fires"), RISES.values(), ids=RISES)
def test_two_evaluations_after_the_best(train, values, fires):
    assert (Overfitting().check(validated(train, values)) is not None) == fires


NEVER_BETTER = {
    "training has arrived": (BY_HEART, [2.05, 2.1], True),
    "the second is better": (BY_HEART, [2.1, 2.05], False),
    "better than untrained": (BY_HEART, [1.8, 1.9], False),
    "training is on its way": (0.5 + BY_HEART, [2.55, 2.6], False),
}


@pytest.mark.parametrize(("train", "values", "fires"), NEVER_BETTER.values(), ids=NEVER_BETTER)
def test_two_evaluations_that_training_does_not_explain(train, values, fires):
    assert (ValidationAnomaly().check(validated(train, values)) is not None) == fires


@pytest.mark.parametrize(("pair", "fires"), [((1.0, 1.003), True), ((1.0, 0.9), False), ((1.0, 1.3), False)])
def test_pairs_with_a_guess_outweigh_the_noise_of_batches(pair, fires):
    noisy = np.abs(1.0 + 0.35 * NOISE[:100])
    noisy[30:42] *= 0.5  # a stretch of easy batches
    chart = Chart.of(loss=noisy, lr=[1e-3] * 100)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.function": "MSELoss", "loss.reduction": "mean"}})
    for step in (16, 23, 48, 73, 98):
        for vital, value in (("guess_loss", pair[0]), ("criterion", pair[1]), ("pooled_std", 1.0)):
            chart.put(step, vital, value * noisy[step] if vital != "pooled_std" else value)
    found = NotLearning().check(chart)
    assert (found is not None and found.severity == "warning") == fires


@pytest.mark.parametrize(
    ("warmup", "spread", "severity"), [(5, 0.002, "warning"), (5, 0.04, "info"), (60, 0.002, "info")]
)
def test_flat_at_the_guess_that_the_first_loss_agrees_with(warmup, spread, severity):
    rates = np.minimum(1e-3, 1e-3 * np.arange(1, 101) / warmup)
    chart = Chart.of(loss=2.303 + spread * NOISE[:100], lr=rates)
    told = {"loss.kind": "cross-entropy", "loss.reduction": "mean", "outputs.classes": 10}
    chart.add({"type": "facts", "step": 0, "facts": told})
    found = NotLearning().check(chart)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("beside", "severity"), [("not-learning", "warning"), ("loss-plateau", "info")])
def test_a_new_trunk_that_is_frozen_and_nothing_is_learnt(beside, severity):
    chart = Chart.of(loss=[1.0] * 90, frozen_fresh=[1.0])
    chart.add({"type": "facts", "step": 0, "facts": {"graph.frozen_share": 0.9}})
    chart.open_episodes[beside] = Symptom(beside, "LO00", "info", 0.8, 0, 80)
    assert FrozenWeights().check(chart).severity == severity


@pytest.mark.parametrize(("steps", "fires"), [(90, True), (60, False)])
def test_players_whose_losses_are_logged_once_in_three_steps(steps, fires):
    chart = Chart()
    for step in range(2, steps + 3, 3):
        chart.put(step, "d_loss", 1.4 if step < 20 else 0.01)
        chart.put(step, "g_loss", 0.7 if step < 20 else 7.0)
    assert (LopsidedLosses().check(chart) is not None) == fires


FED = {
    "its first epoch's mean": ("max", 1.0, 0.1, True),
    "the rate was not cut": ("max", 1.0, 1.0, False),
    "the other way round": ("min", 1.0, 0.1, False),
    "something else": ("max", 1.01, 0.1, False),
}


@pytest.mark.parametrize(("mode", "times", "cut", "fires"), FED.values(), ids=FED)
def test_a_plateau_schedule_that_takes_the_training_loss_for_a_score(mode, times, cut, fires):
    losses = 2.0 * np.exp(-np.arange(100) / 60) + 0.05 * NOISE[:100]
    chart = Chart.of(loss=losses, lr=np.where(np.arange(100) < 60, 1e-3, 1e-3 * cut))
    best = times * float(losses[:20].mean())
    facts = {"schedule.class": "ReduceLROnPlateau", "schedule.mode": mode, "schedule.best": best}
    chart.add({"type": "facts", "step": 98, "facts": facts | {"schedule.interval": 21}})
    assert (ScheduleAnomaly().check(chart) is not None) == fires


@pytest.mark.parametrize(("dropout", "severity"), [(0.95, "warning"), (0.75, None)])
def test_dropout_that_nobody_means_is_known_after_a_hundred_steps(dropout, severity):
    chart = Chart.of(loss=1.42 + 0.03 * NOISE[:100], lr=[1e-3] * 100, context={"dropout": [dropout]})
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 1.386}})
    for step in range(24, 100, 25):
        chart.put(step, "val_loss", 1.38)
    found = Underfitting().check(chart)
    assert (found and found.severity) == severity
