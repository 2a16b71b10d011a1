"""Sweeps of learning rate, batch size and model size, with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.comparing.worlds import grid, run

from torchdoctor.comparing import compare_runs

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)


def sweep(best, diverges_at=math.inf, seeds=3):
    def score(lr):
        return math.nan if lr >= diverges_at else 1 + 0.3 * math.log10(lr / best) ** 2

    return compare_runs(grid(score, lr=RATES, seeds=seeds, noise=0.005)).found["learning_rate"]


@pytest.mark.parametrize(
    ("best", "shape", "advice"),
    [
        (0.1, "valley", ""),
        (0.001, "best at the lowest", "try lower: 0.0033"),
        (10.0, "best at the highest", "try higher: 3.3"),
    ],
)
def test_the_shape_of_a_sweep(best, shape, advice):
    found = sweep(best)
    assert (found["shape"], found["advice"]) == (shape, advice)


def test_the_bottom_of_a_valley():
    found = sweep(0.07)
    assert found["low"] in (0.03, 0.1) and found["optimum"] == pytest.approx(0.07, rel=0.15)


def test_the_best_rate_may_lie_below_divergence():
    found = sweep(1.0, diverges_at=0.3)
    assert found["shape"] == "best below divergence" and found["best"] == 0.1


def test_no_rate_is_best_where_all_are_alike():
    assert compare_runs(grid(lambda lr: 1.0, lr=RATES, seeds=4)).found["learning_rate"]["shape"] == "flat"


@pytest.mark.parametrize(("power", "rule"), [(1.0, "linear"), (0.5, "square root")])
def test_the_rule_that_keeps_the_loss_is_told(power, rule):
    rates = tuple(0.01 * 2.0 ** (half / 2) for half in range(13))

    def score(lr, batch_size):
        return 1 + 0.3 * math.log2(lr / (0.08 * (batch_size / 64) ** power)) ** 2

    runs = grid(score, lr=rates[:12], batch_size=(32, 64, 128), noise=0.005)
    found = compare_runs(runs).found["batch_size"]
    assert found["rule"] == rule and found["budget"] == "steps"
    assert found["exponent_low"] <= power <= found["exponent_high"] and found["exponent_high"] < power + 0.3
    assert {item["rule"] for item in found["kept"]} == {"linear", "square root", "constant"}


def test_double_descent_over_model_size():
    sizes = {10: 1.5, 30: 1.1, 100: 1.3, 300: 1.6, 1000: 1.2, 3000: 1.0}
    found = compare_runs(grid(lambda parameters: sizes[parameters], parameters=tuple(sizes))).found
    told = found["double_descent"]["sizes"]
    assert told["descends_twice"] and (told["bottom"], told["peak"], told["best"]) == (30, 300, 3000)


def test_ordinary_scaling_is_no_double_descent():
    generator = np.random.default_rng(4)
    falsely = 0
    for _ in range(50):
        runs = grid(lambda parameters: 1 + parameters**-0.3, parameters=(10, 30, 100, 300, 1000, 3000),
                    noise=0.01, generator=generator)  # fmt: skip
        falsely += compare_runs(runs).found["double_descent"]["sizes"]["descends_twice"]
    assert falsely <= 2


def test_a_single_run_of_each_is_said_to_be_one():
    runs = [run(str(lr), {"lr": lr, "model": "a", "depth": 2}, 1 + abs(math.log10(lr / 0.1))) for lr in RATES]
    found = compare_runs(runs).found["learning_rate"]
    assert found["best"] == 0.1 and not found["noise_known"]
