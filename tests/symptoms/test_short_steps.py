"""Steps that are many times too short: a straight way, a setting, a warm-up for another run, a cut in the midst."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem
from torchdoctor.records import Symptom
from torchdoctor.symptoms.frozen_weights import FrozenWeights
from torchdoctor.symptoms.optimizer_advice import OptimizerAdvice
from torchdoctor.symptoms.schedule_anomaly import ScheduleAnomaly
from torchdoctor.symptoms.slow_learning import SlowLearning
from torchdoctor.symptoms.update_ratio_abnormal import UpdateRatioAbnormal

BY_NAME = {cause.name: cause for cause in CAUSES}
N = 250
T = np.arange(N)
SLOW = 2.3 - 1e-3 * T
STRAIGHT, BENT = [0.95] * 8, [0.9, 0.8, 0.6, 0.4, 0.3, 0.2, 0.2, 0.1]


def run(losses, ratios, rates=1e-3, facts=None, group=None, built=None, **vitals):
    """A run whose weights move by such shares of themselves at its samples."""
    context = {"optimizer": [{"class": "Adam", "lr": built}]} if built else {}
    lr = np.broadcast_to(np.asarray(rates, dtype=float), len(losses))
    chart = Chart.of(loss=losses, lr=lr, context=context, **vitals)
    chart.names, chart.groups = ("a.weight", "b.weight"), [group or {"optimizer": "Adam"}]
    for place, ratio in enumerate(ratios):
        step = place * (len(losses) - 1) // max(1, len(ratios) - 1)
        chart.add(
            {"type": "tensors", "step": step, "vitals": {"update_ratio": [ratio, ratio], "grad_norm": [1.0, 1.0]}}
        )
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    return chart


SHORT = {
    "straight, by little": (SLOW, 1e-4, STRAIGHT, 1.0, "warning"),
    "a little more, and twice as long": (SLOW, 4e-4, STRAIGHT, 1.0, "warning"),
    "a little more": (SLOW[:110], 4e-4, STRAIGHT, 1.0, "info"),
    "summed": (1e4 * SLOW, 1e-4, STRAIGHT, 1.0, "warning"),
    "weights turn": (SLOW, 1e-4, BENT, 1.0, None),
    "weights move": (SLOW, 1e-3, STRAIGHT, 1.0, None),
    "a model that goes on": (SLOW, 1e-4, STRAIGHT, 0.1, None),
    "not known whether it is new": (SLOW, 1e-4, STRAIGHT, np.nan, None),
    "has come far": (2.3 * 0.99**T, 1e-4, STRAIGHT, 1.0, None),
}


@pytest.mark.parametrize(("losses", "ratio", "course", "fresh", "severity"), SHORT.values(), ids=SHORT)
def test_new_weights_that_go_straight_on_by_little(losses, ratio, course, fresh, severity):
    found = SlowLearning().check(run(losses, [ratio] * 8, course=course, weights_fresh=[fresh]))
    assert (found and found.severity) == severity


@pytest.mark.parametrize("rates", [1e-3 * np.minimum(1, T / 400), 1e-3 * np.exp(-T / 40)], ids=["warm-up", "decay"])
def test_a_rate_that_is_meant_to_be_low_is_not_judged(rates):
    assert SlowLearning().check(run(SLOW, [1e-4] * 8, rates, course=STRAIGHT, weights_fresh=[1.0])) is None


SETTINGS = {
    "dampening": ({"optimizer": "SGD", "momentum": 0.9, "dampening": 0.99}, 0.1, "warning"),
    "an average of gradients": ({"optimizer": "SGD", "momentum": 0.9, "dampening": 0.9}, 0.1, None),
    "Adadelta at Adam's rate": ({"optimizer": "Adadelta", "rho": 0.9}, 1e-3, "warning"),
    "Adadelta": ({"optimizer": "Adadelta", "rho": 0.9}, 1.0, None),
    "Adagrad that begins full": ({"optimizer": "Adagrad", "initial_accumulator_value": 10}, 0.01, "warning"),
    "Adagrad that fades twice": ({"optimizer": "Adagrad", "lr_decay": 0.5}, 0.01, "warning"),
    "Adagrad": ({"optimizer": "Adagrad", "initial_accumulator_value": 0.1, "lr_decay": 0}, 0.01, None),
}


@pytest.mark.parametrize(("group", "rate", "severity"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_leave_little_of_a_step(group, rate, severity):
    found = OptimizerAdvice().check(run(SLOW, [1e-4] * 8, rate, group=group))
    assert (found and found.severity) == severity
    if found:
        assert OptimizerAdvice().check(run(SLOW, [1e-2] * 8, rate, group=group)).severity == "info"
        problem = Problem((Symptom("slow-learning", "", "warning", 0.9, 0, N - 1),))
        chart = run(SLOW, [1e-4] * 8, rate, group=group)
        assert sum(item.weight for item in BY_NAME["optimizer-misconfigured"]().weigh(chart, problem)) > 5


LONG = 1e-3 * (T + 1) / 40_000
RISING = {
    "of another run": (SLOW, LONG, 1e-3, 50, STRAIGHT, "warning"),
    "of another run, never validated": (SLOW, LONG, 1e-3, 0, STRAIGHT, "info"),
    "long, and rarely validated": (SLOW, LONG, 1e-3, 120, BENT, "info"),
    "of some validations": (SLOW, 1e-3 * (T + 1) / 1500, 1e-3, 50, STRAIGHT, None),
    "a factor, as in Noam's": (SLOW, LONG, 1.0, 50, STRAIGHT, None),
    "the rate it was built with is not known": (SLOW, LONG, None, 50, STRAIGHT, None),
    "has learnt all the same": (2.3 * 0.99**T, LONG, 1e-3, 50, STRAIGHT, None),
    "without end": (2.3 + 0.5 * np.abs(T / N - 0.3), 1e-4 * (T + 1), 1e-3, 50, BENT, "warning"),
    "without end, and it helps": (2.3 * 0.99**T, 1e-4 * (T + 1), 1e-3, 50, BENT, None),
    "that has ended": (2.3 + 0.001 * T, 1e-4 * np.minimum(T + 1, 100), 1e-3, 50, BENT, None),
}


@pytest.mark.parametrize(("losses", "rates", "built", "every", "course", "severity"), RISING.values(), ids=RISING)
def test_warm_ups(losses, rates, built, every, course, severity):
    chart = run(losses, [0.03] * 8, rates, built=built, course=course)
    for step in range(every, N, every) if every else ():
        chart.put(step, "val_loss", 2.3)
    found = ScheduleAnomaly().check(chart)
    assert (found and found.severity) == severity


def test_a_one_cycle_rises_on_purpose():
    chart = run(2.3 + 0.001 * T, [0.03] * 8, 1e-4 * (T + 1), {"schedule.class": "OneCycleLR"}, built=1e-3)
    assert ScheduleAnomaly().check(chart) is None


CUT = {
    "at once": ([1e-2] * 8 + [1e-4] * 5, STRAIGHT, 0.1, "warning"),
    "little by little": ([1e-2 * 0.6**place for place in range(13)], STRAIGHT, 0.1, None),
    "on a way that bends": ([1e-2] * 8 + [1e-4] * 5, BENT, 0.1, None),
    "with the rate": ([1e-2] * 8 + [1e-4] * 5, STRAIGHT, np.where(T < 150, 0.1, 1e-3), None),
    "for one sample": ([1e-2] * 8 + [1e-4] + [1e-2] * 4, STRAIGHT, 0.1, None),
}


@pytest.mark.parametrize(("ratios", "course", "rates", "severity"), CUT.values(), ids=CUT)
def test_steps_that_become_short(ratios, course, rates, severity):
    found = UpdateRatioAbnormal().check(run(SLOW, ratios, rates, course=course))
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("passes", "course", "fires"), [(1, STRAIGHT, True), (8, STRAIGHT, False), (1, BENT, False)])
def test_a_loss_divided_for_nothing(passes, course, fires):
    facts = {"zeroing.backwards": [passes]}
    chart = run(SLOW / 256, [5e-4] * 8, 0.05, facts, course=course, criterion=SLOW)
    assert (UpdateRatioAbnormal().check(chart) is not None) == fires


@pytest.mark.parametrize(("reduction", "fires"), [("mean", True), ("sum", False)])
def test_a_sum_that_is_divided_by_its_number_of_tokens_is_a_mean(reduction, fires):
    facts = {"zeroing.backwards": [1], "loss.reduction": reduction}
    chart = run(SLOW, [1e-6] * 8, 0.05, facts, course=BENT, criterion=SLOW * 1024)
    found = UpdateRatioAbnormal().check(chart)
    assert ("of the loss function's value" in (found.message if found else "")) == fires


@pytest.mark.parametrize(("norms", "severity"), [([np.nan, 1.0], "warning"), ([1.0, 1.0], "info")])
def test_nothing_but_biases_learns_of_a_model_that_is_new(norms, severity):
    chart = Chart.of(loss=SLOW[:60], frozen_fresh=[1.0])
    chart.names = ("a.weight", "a.bias")
    chart.add({"type": "tensors", "step": 59, "vitals": {"grad_norm": norms}})
    chart.add({"type": "facts", "step": 0, "facts": {"graph.frozen_share": 0.9}})
    assert FrozenWeights().check(chart).severity == severity


@pytest.mark.parametrize(("cause", "sign"), [("lr-too-low", 1), ("label-noise-or-misalignment", -1)])
def test_a_straight_way_is_short_steps_and_not_noise(cause, sign):
    problem = Problem((Symptom("not-learning", "", "warning", 0.9, 0, N - 1),))
    straight, bent = (
        sum(item.weight for item in BY_NAME[cause]().weigh(run(SLOW, [1e-4] * 8, course=course), problem))
        for course in (STRAIGHT, BENT)
    )
    assert sign * (straight - bent) > 2.4
