"""Whole logs read against chance: against their own noise, against a guess, and against what a gain would look like."""

import numpy as np
import pytest
from tests.symptoms.test_whole_logs import raised as said_of

from torchdoctor.chart import Chart
from torchdoctor.symptoms.hindsight.curve import certainty
from torchdoctor.symptoms.hindsight.guessing import classes_of
from torchdoctor.symptoms.hindsight.unstable import unstable

RANDOM = np.random.default_rng(5)


def raised(better=None, clock="epoch", **log):
    """What is said of a log with these series."""
    return said_of(better, context={"clock": clock}, **log)


TRAIN = [0.45 * 0.93**epoch + 0.02 for epoch in range(50)]


def test_validation_that_climbs_through_its_noise_is_overfitting():
    noisy = 1 + 0.13 * RANDOM.standard_normal(50)
    climbing = np.concatenate([np.linspace(0.083, 0.035, 16), np.linspace(0.035, 0.056, 34)])
    level = np.concatenate([np.linspace(0.083, 0.035, 16), [0.035] * 34])
    assert "overfitting" in raised(loss=TRAIN, val_loss=climbing * noisy)
    assert not raised(loss=TRAIN, val_loss=level * noisy)


@pytest.mark.parametrize(("up", "found"), [(5.00, {"overfitting"}), (4.85, set())])
def test_validation_that_came_to_rest_above_its_best_counts_in_perplexity(up, found):
    held_out = np.array([5.3, 4.99, 4.87, 4.84, 4.85, 4.84, *np.linspace(4.86, up, 4), *[up] * 18])
    train = np.linspace(6.8, 2.9, held_out.size)
    assert raised(loss=train, train_ppl=np.exp(train), val_loss=held_out, val_ppl=np.exp(held_out)) == found


def test_how_sure_a_climb_is_does_not_depend_on_its_size():
    climb = np.linspace(1, 2, 30)
    assert certainty(climb) == pytest.approx(certainty(np.exp(9 * climb)))
    assert abs(certainty(RANDOM.standard_normal(400))) < 3
    assert certainty(-climb) == -certainty(climb)


def test_a_loss_that_gained_three_per_cent_and_does_not_fall_is_no_learning():
    wave = 9.7 + 0.08 * RANDOM.standard_normal(48)
    assert raised(loss=[10.0, *wave], clock="step", every=10) == {"not-learning"}
    assert not raised(loss=wave - np.linspace(0, 1.0, 48), clock="step", every=10)
    assert not raised(loss=wave, hard_loss=np.linspace(0.9, 0.3, 48), clock="step", every=10)


def test_gradients_of_nothing_are_no_learning_unless_the_loss_falls():
    norms = [1e-5, 1e-18] + [0.0] * 28
    assert "not-learning" in raised(loss=9.7 + 0.3 * RANDOM.standard_normal(30), grad_norm=norms)
    assert not raised(loss=np.linspace(9.7, 3.0, 30), grad_norm=norms)


def test_a_perplexity_above_all_words_is_worse_than_guessing():
    losses = [18.2, 20.3, 20.9, 21.1, 20.4, 20.3, 21.4, 20.8, 20.8, 21.2, 20.9, 21.4]
    assert raised(loss=losses, train_ppl=np.exp(losses), clock="step", every=200) == {"loss-divergence"}
    fallen = [18.2, *np.linspace(9, 5, 20)]
    assert not raised(loss=fallen, train_ppl=np.exp(fallen), clock="step", every=200)


def test_a_guess_among_any_number_of_classes():
    assert classes_of(np.log(24), 1 / 24, 0.005, 0.08) == 24
    assert classes_of(np.log(200), 0.0052, 0.005, 0.08) == 200
    assert not classes_of(np.log(24), 0.12, 0.005, 0.08)  # three times as often as a guess
    assert not classes_of(np.log(24), 0.0, 0.005, 0.08)  # it counts something else
    better = {"train_accuracy": "higher", "val_accuracy": "higher"}
    rates = [0.043, 0.041, 0.044, 0.042] * 4
    still = 3.178 + 0.03 * RANDOM.standard_normal(16)
    still[0] = 4.0
    assert "not-learning" in raised(better, loss=still, train_accuracy=rates, val_loss=still, val_accuracy=rates)


def test_an_accuracy_that_was_lost_at_once_and_not_regained_is_said_to_be_lost():
    better = {"val_accuracy": "higher"}
    held = 0.85 + 0.008 * RANDOM.standard_normal(29)
    losses = np.linspace(0.7, 0.3, 45)
    lost = np.concatenate([held, np.linspace(0.67, 0.79, 16)])
    back = np.concatenate([held, np.linspace(0.67, 0.86, 16)])
    assert "validation-anomaly" in raised(better, loss=losses, val_accuracy=lost)  # training went on
    assert "loss-divergence" in raised(better, val_accuracy=lost)
    assert not raised(better, loss=losses, val_accuracy=back)


def test_validation_that_swings_wildly_is_unstable_though_its_accuracy_is_calm():
    wild = [2.8, 2.7, 2.2, 1.9, 1.8, 1.9] + [1.7, 9.9, 3.9, 1.6, 8.1, 2.5, 1.8, 7.8, 2.0, 10.5, 2.4, 4.7, 1.8, 18.9]
    for rates, count in ((np.linspace(0.3, 0.47, 20), 1), (np.linspace(0.9, 0.95, 20), 0)):
        chart = Chart.of(loss=np.linspace(2.8, 0.7, 20).tolist(), val_loss=wild, val_accuracy=rates.tolist())
        assert len(list(unstable(chart))) == count


def test_a_small_rise_is_let_pass_where_no_more_errors_are_made():
    held_out = np.concatenate([np.linspace(0.6, 0.111, 15), np.linspace(0.111, 0.126, 45)])
    scores = np.concatenate([np.linspace(0.0, 0.77, 15), [0.773] * 45])
    losses = 0.4 * 0.95 ** np.arange(60) + 0.04
    better = {"val_dice": "higher"}
    assert not raised(better, loss=losses, val_loss=held_out, val_dice=scores)
    fewer = scores - np.concatenate([np.zeros(15), np.linspace(0, 0.04, 45)])
    assert raised(better, loss=losses, val_loss=held_out, val_dice=fewer) == {"overfitting"}
