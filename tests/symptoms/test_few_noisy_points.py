"""Logs of few or noisy points: what chance does is left in peace, and what is clear is found all the same."""

import numpy as np
import pytest

from torchdoctor.examination import Examination
from torchdoctor.settings import Settings

SEEDS = range(4)
NOISE = (0.03, 0.1, 0.3)


def raised(clock, every, **columns):
    """What is raised at warning or above, and how gravely, of a record an epoch or each `every` steps."""
    examination = Examination(Settings())
    examination.take({"type": "header", "step": -1, "schema": 1, "context": {"source": "CSV", "clock": clock}})
    for place, values in enumerate(zip(*columns.values(), strict=True)):
        for name, value in zip(columns, values, strict=True):
            kind = "validation" if name.startswith("val_") else "vitals"
            step = every * (place + 1) if clock == "step" else place + 1
            examination.take({"type": kind, "step": step, "vitals": {name: float(value)}})
    return {(item.name, item.severity) for item in examination.report().symptoms if item.severity != "info"}


def noisy(values, size, seed):
    scatter = np.random.default_rng(seed).standard_normal(len(values))
    return np.asarray(values) * np.exp(size * scatter - size**2 / 2)


def flat(number):
    return np.ones(number)


def tuned(number):
    return 1.05 + 0.15 * np.exp(-np.arange(number) / max(number / 5, 1))


def converged(number):
    return 1 + np.exp(-np.arange(number) / 2)


@pytest.mark.parametrize("every", [10, 500])
@pytest.mark.parametrize("curve", [flat, tuned, converged])
def test_noisy_losses_of_steps_are_left_in_peace(curve, every):
    logs = [(number, size, seed) for number in (5, 10, 20, 60) for size in NOISE for seed in SEEDS]
    found = [raised("step", every, loss=noisy(curve(number), size, seed)) for number, size, seed in logs]
    assert sum(map(bool, found)) <= 0.03 * len(logs)


def test_a_few_epochs_of_fine_tuning_are_left_in_peace():
    found = []
    for number, size, seed in [(number, size, seed) for number in (4, 5, 10, 15) for size in NOISE for seed in SEEDS]:
        epochs = np.arange(number)
        train, held_out = 0.25 + 0.2 * np.exp(-epochs / 3), 0.30 + 0.1 * np.exp(-epochs / 2)
        found.append(raised("epoch", 1, loss=noisy(train, 0.02, seed + 99), val_loss=noisy(held_out, size, seed)))
    assert sum(map(bool, found)) <= 0.05 * len(found)


def test_five_epochs_of_which_the_first_was_the_best_are_no_overfitting():
    assert not raised("epoch", 1, loss=[0.45, 0.39, 0.35, 0.33, 0.31], val_loss=[0.30, 0.36, 0.33, 0.37, 0.36])
    assert raised("epoch", 1, loss=[0.45, 0.3, 0.2, 0.1, 0.05], val_loss=[0.30, 0.36, 0.43, 0.52, 0.60])


def test_training_above_validation_is_at_most_a_warning():
    train = [0.6, 0.55, 0.52, 0.50, 0.48, 0.46, 0.45, 0.44, 0.43, 0.42, 0.41, 0.41]
    held_out = [0.40, 0.32, 0.30, 0.31, 0.33, 0.35, 0.37, 0.40, 0.43, 0.46, 0.49, 0.52]
    assert raised("epoch", 1, loss=train, val_loss=held_out) == {("overfitting", "warning")}
    lower = [value / 3 for value in train]
    assert raised("epoch", 1, loss=lower, val_loss=held_out) == {("overfitting", "critical")}


@pytest.mark.parametrize("number", [8, 15, 40])
@pytest.mark.parametrize("size", [0.03, 0.1])
def test_what_is_clear_is_found(number, size):
    for seed in SEEDS:
        epochs = np.arange(number)
        train = noisy(2 * np.exp(-3 * epochs / number), size / 3, seed + 99)
        doubles = np.where(epochs < number - 5, 1.0, 2 ** ((epochs - number + 6) / 5)) + np.exp(-epochs)
        assert "overfitting" in {
            name for name, _ in raised("epoch", 1, loss=train, val_loss=noisy(doubles, size, seed))
        }
        above = noisy(4 - 2 * np.exp(-6 * epochs / number), size, seed)
        above[0] = 2.0
        assert "loss-divergence" in {name for name, _ in raised("step", 100, loss=above)}


@pytest.mark.parametrize(("clock", "every"), [("epoch", 1), ("step", 500)])
def test_twenty_times_the_loss_of_a_guess_is_no_learning(clock, every):
    for seed in SEEDS:
        loss = noisy(np.full(20, np.log(10)), 0.004, seed)
        assert "not-learning" in {name for name, _ in raised(clock, every, loss=loss)}


def test_a_divergence_is_dated_to_where_it_left_what_it_held_not_to_one_lucky_record():
    loss = np.concatenate([2 * 0.97 ** np.arange(100), np.full(150, 0.1), np.linspace(0.2, 1.5, 40), np.full(110, 1.5)])
    loss[130] = 0.09
    examination = Examination(Settings())
    examination.take({"type": "header", "step": -1, "schema": 1, "context": {"source": "CSV", "clock": "step"}})
    for step, value in enumerate(noisy(loss, 0.02, 0)):
        examination.take({"type": "vitals", "step": step, "vitals": {"loss": float(value)}})
    (found,) = (item for item in examination.report().symptoms if item.name == "loss-divergence")
    assert found.first_step >= 245


def test_a_gradient_of_next_to_nothing_is_said_where_the_loss_stands_still():
    loss = noisy(np.full(300, 2.303), 0.004, 0)
    assert ("gradient-vanishing", "warning") in raised("step", 1, loss=loss, grad_norm=np.full(300, 1e-5))
    assert {name for name, _ in raised("step", 1, loss=loss, grad_norm=np.full(300, 0.1))} == {"not-learning"}
