"""Two things that should be different and are the same, or should be the same and are not."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.gradients_not_cleared import GradientsNotCleared
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.lopsided_losses import LopsidedLosses
from torchdoctor.symptoms.no_gradient import NoGradient
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.state_overwritten import StateOverwritten
from torchdoctor.symptoms.suspicious_loss import SuspiciousLoss
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly
from torchdoctor.symptoms.weight_growth import WeightGrowth


def known(chart, *, step=9, **facts):
    chart.add({"type": "facts", "step": step, "facts": {key.replace("__", "."): value for key, value in facts.items()}})
    return chart


NOTHING = {
    "a teacher that is the student": ([0.0, 1e-9, -1e-9] * 30, [1e-8] * 90, True),
    "a loss of tiny units": ([3e-7, 2e-7, 1e-7] * 30, [1e-8] * 90, False),
    "nothing to learn, until there is": ([0.0] * 60 + [0.5] * 30, [0.0] * 60 + [1.0] * 30, False),
    "a policy's loss, about zero": ([0.0, 1e-7, -1e-7] * 30, [0.3] * 90, False),
}


@pytest.mark.parametrize(("losses", "norms", "fires"), NOTHING.values(), ids=NOTHING)
def test_a_loss_of_nothing_from_the_first_step(losses, norms, fires):
    found = NoGradient().check(Chart.of(loss=losses, grad_norm=norms))
    assert bool(found) == fires


BRANCHES = {
    "one in the place of three": ({"heads.2": 3}, "warning"),
    "a block that is shared on purpose": ({"block.0": 3}, "info"),
    "heads of tasks to come": ({}, "info"),
    "one that runs twice by itself": ({"heads.2": 2}, "info"),
}


@pytest.mark.parametrize(("repeated", "severity"), BRANCHES.values(), ids=BRANCHES)
def test_branches_that_another_one_is_called_for(repeated, severity):
    chart = Chart()
    chart.names = ("block.0.weight", "heads.0.weight", "heads.1.weight", "heads.2.weight")
    known(chart, graph__absent=["heads.0.weight", "heads.1.weight"], modules__repeated=repeated)
    assert NoGradient().check(chart).severity == severity


FALLS = 0.3 + 1.5 * np.exp(-np.arange(500) / 100)
EVALUATED = range(49, 500, 50)
SUMS = {
    "a sum": (np.cumsum([FALLS[step] * 1.1 for step in EVALUATED]), True),
    "a loss that follows": (np.array([FALLS[step] * 1.1 for step in EVALUATED]), False),
    "a loss that rises ever faster": (1.5 * 1.3 ** np.arange(10), False),
    "a loss that rises slowly": (1.5 + 0.05 * np.arange(10), False),
}


@pytest.mark.parametrize(("values", "fires"), SUMS.values(), ids=SUMS)
def test_a_sum_over_evaluations(values, fires):
    chart = Chart.of(loss=FALLS, lr=[0.1] * 500)
    for step, value in zip(EVALUATED, values, strict=True):
        chart.put(step, "val_loss", float(value))
    found = ValidationAnomaly().check(chart)
    assert bool(found and "not reset" in found.message) == fires
    if fires:
        assert Overfitting().check(chart) is None


SIZES = [0.5, 0.48, 0.51, 0.5, 0.49, 0.5]
LEAPS = {
    "divided a second time": ([*SIZES, 0.002, 0.002], 1.4, True),
    "multiplied": ([*SIZES, 20.0, 21.0], 1.4, True),
    "the loss does not mind": ([*SIZES, 0.002, 0.002], 0.4, False),
    "a curriculum of noise": ([*SIZES, 1.0, 2.0], 1.4, False),
    "one odd batch": ([*SIZES, 0.002, 0.5], 1.4, False),
    "of all sizes from the start": ([0.5, 5.0, 0.05, 0.5, 2.0, 0.1, 0.002, 0.002], 1.4, False),
}


@pytest.mark.parametrize(("sizes", "level", "fires"), LEAPS.values(), ids=LEAPS)
def test_inputs_of_another_scale_than_before(sizes, level, fires):
    chart = Chart.of(loss=[1.0 - 0.0045 * step for step in range(120)] + [level] * 60)
    for number, size in enumerate(sizes):
        chart.put(20 * number, "entry_rms", size)
    found = InputAnomaly().check(chart)
    assert bool(found and "went from a size" in found.message) == fires


FADES = np.maximum(np.exp(-np.arange(400) / 30), 0.002)


def test_two_players_who_both_win():
    chart = Chart.of(d_loss=1.4 * FADES, g_loss=0.7 * FADES)
    assert LopsidedLosses().check(chart) is None  # parts of one loss may both fall
    chart.context["optimizer"] = [{"class": "Adam"}, {"class": "Adam"}]
    assert "both cannot win" in LopsidedLosses().check(chart).message


def ledger(**more):
    kept = {"zeroing__kept": [0, 0], "zeroing__cleared": [5, 5], "zeroing__between_backwards": [0, 0]}
    return kept | {"zeroing__backwards": [1, 2]} | more


def test_gradients_of_another_players_loss():
    assert GradientsNotCleared().check(known(Chart(), **ledger(zeroing__mixed=[0, 0]))) is None
    assert "two losses" in GradientsNotCleared().check(known(Chart(), **ledger(zeroing__mixed=[0, 3]))).message


ALONE = {"zeroing__kept": [0], "zeroing__cleared": [5], "zeroing__between_backwards": [0], "zeroing__backwards": [2]}


def test_an_attack_may_climb_but_not_with_the_weights():
    attack = {"loss__lint": ["negated"], "data__differentiated": True}
    losses = Chart.of(loss=[1.0] * 40)
    assert "negated loss" in GradientsNotCleared().check(known(losses, **ALONE, **attack)).message
    assert SuspiciousLoss().check(losses) is None
    cleared = known(Chart.of(loss=[1.0] * 40), **ALONE | {"zeroing__between_backwards": [4]}, **attack)
    assert GradientsNotCleared().check(cleared) is None


DIVIDED = {
    "by a world that is not there": ("SGD", 1 / 64, True, True),
    "and Adam does not feel it": ("Adam", 1 / 64, True, False),
    "and it learns": ("SGD", 1 / 64, False, False),
    "a factor of a half": ("SGD", 0.5, True, False),
}


@pytest.mark.parametrize(("optimizer", "weight", "stuck", "fires"), DIVIDED.values(), ids=DIVIDED)
def test_one_loss_that_is_divided_as_if_it_were_many(optimizer, weight, stuck, fires):
    chart = Chart.of(loss_weight=[weight] * 5)
    chart.groups = [{"optimizer": optimizer}]
    if stuck:
        chart.open_episodes["not-learning"] = 0
    known(chart, **ALONE | {"zeroing__backwards": [1]})
    assert bool(GradientsNotCleared().check(chart)) == fires


AWAY = {
    "they come back again and again": ([0.2, 0.5, 0.1, 0.4], True, True),
    "it learns": ([0.2, 0.5, 0.1, 0.4], False, False),
    "they walk at random": ([0.9, 1.1, 1.0, 0.9], True, False),
    "too few looks": ([0.2, 0.5, 0.1], True, False),
    "they swing about a plateau": ([0.27, 0.53, 0.36, 0.45], True, False),
}


@pytest.mark.parametrize(("away", "stuck", "fires"), AWAY.values(), ids=AWAY)
def test_weights_that_get_nowhere(away, stuck, fires):
    chart = Chart.of(update_away=away, update_kept=[2.0] * len(away))
    if stuck:
        chart.open_episodes["not-learning"] = 0
    assert bool(StateOverwritten().check(chart)) == fires


@pytest.mark.parametrize(("away", "writes", "fires"), [(1e-4, 2, True), (1e-4, 0, False), (0.8, 2, False)])
def test_weights_that_are_put_back_from_some_step_on(away, writes, fires):
    chart = Chart.of(update_kept=[18.0] * 8)
    for step in range(8, 400):
        chart.put(step, "loss", 0.5)
    chart.put(400, "update_away", away)
    known(chart, state__written_always=writes)
    found = StateOverwritten().check(chart)
    assert bool(found) == fires
    if found:
        assert found.first_step == 400


LOADS = {
    "a target network that was copied the wrong way": ([1.0] * 3, [20, 40, 60, 80], True),
    "slow weights, others each time": ([0.0] * 3, [20, 40, 60, 80], False),
    "begun anew for each fold": ([1.0] * 3, [200, 400, 600, 800], False),
    "the last checkpoint, twice": ([1.0] * 3, [20, 40], False),
}


@pytest.mark.parametrize(("same", "loads", "fires"), LOADS.values(), ids=LOADS)
def test_a_state_that_is_loaded_again_and_again(same, loads, fires):
    chart = known(Chart.of(state_same=same), state__loaded=loads)
    assert bool(StateOverwritten().check(chart)) == fires


OUTSIDE = {
    "a decay with the wrong sign": (0.01, 1.0, 1.01, True),
    "a decay": (-0.01, -1.0, 0.99, False),
    "noise on the weights": (0.01, 0.1, 1.01, False),
    "put back on a sphere": (0.01, 1.0, 1.0, False),
    "next to nothing": (1e-4, 1.0, 1.0001, False),
}


@pytest.mark.parametrize(("scaled", "cosine", "grows", "fires"), OUTSIDE.values(), ids=OUTSIDE)
def test_weights_that_somebody_else_makes_larger(scaled, cosine, grows, fires):
    chart = Chart.of(outside_scaled=[scaled] * 2, outside_cosine=[cosine] * 2)
    chart.names = ("a.weight", "b.weight")
    for step in (0, 1, 2, 4, 8, 16):
        chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [grows**step, grows**step]}})
    assert bool(WeightGrowth().check(chart)) == fires
