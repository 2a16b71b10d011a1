"""Sweeps of learning rate, batch size and model size, with known answers."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from tests.comparing.worlds import grid, run

from torchdoctor.comparing import compare_runs
from torchdoctor.reports.comparison import headline
from torchdoctor.reports.comparison_effects import batch_lines, effect_lines, rate_lines

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


def fifty():
    """Five rates and five batch sizes, twice each; the best rate is in proportion to the batch."""

    def score(lr, batch_size):
        return 1.1 + 0.15 * math.log(lr / (0.1 * batch_size / 64)) ** 2

    return compare_runs(
        grid(score, seeds=2, noise=0.005, lr=(0.025, 0.1, 0.4, 0.8, 3.2), batch_size=(32, 64, 128, 256, 512))
    ).found


def test_one_rate_is_called_best():
    """Where it depends on the batch size, ranks and medians favour different ones."""
    found = fifty()
    rate = next(item for item in found["effects"] if item["names"] == ("lr",))
    sweep = found["learning_rate"]
    assert found["batch_size"]["moves_rate"] and str(sweep["best"]) == rate["best"]
    assert sweep["low"] <= sweep["best"] <= sweep["high"]
    assert rate["tied"] and rate["best"] not in rate["tied"]
    [effect] = [text for text in effect_lines(found) if text.startswith("lr matters")]
    assert f"Best: {rate['best']}, but that depends on the batch size; not clearly worse: " in effect
    [told] = rate_lines(found)
    assert told.startswith("The best learning rate depends on the batch size") and f"{rate['best']} does best" in told


def test_a_rate_that_no_batch_size_moves_is_told_as_a_valley():
    runs = grid(lambda lr, batch_size: 1 + 0.3 * math.log10(lr / 0.1) ** 2, lr=RATES, batch_size=(32, 64), noise=0.005)
    found = compare_runs(runs).found
    assert not found["batch_size"]["moves_rate"] and rate_lines(found)[0].startswith("A valley: best at 0.1")


def test_without_repetitions_a_rate_that_follows_the_batch_is_no_valley_either():
    def score(lr, batch_size):
        return 1 + 0.06 * math.log2(lr / (0.02 * batch_size / 32)) ** 2

    rates, sizes = tuple(0.01 * 2**power for power in range(6)), (32, 64, 128, 256)
    found = compare_runs(grid(score, seeds=1, noise=0.003, lr=rates, batch_size=sizes)).found
    assert found["batch_size"]["moves_rate"] and math.isnan(found["batch_size"]["exponent_low"])
    assert [text[:22] for text in rate_lines(found)] == ["The best learning rate"]
    assert batch_lines(found)[-1].endswith("; too few runs were repeated to say how certain that is.")


def test_runs_that_were_repeated_are_never_said_not_to_be():
    """Where some seeds of a rate diverge, the bootstrap often finds no best rate, and there is no interval."""
    runs = []
    for lr, seed, batch_size in product((0.001, 0.01, 0.1), range(5), (32, 128)):
        score = math.nan if lr == 0.1 and seed < 2 else 1 + 0.3 * abs(math.log10(lr / 0.01)) + 0.01 * seed
        settings = {"lr": lr, "batch_size": batch_size, "seed": seed, "model": "MLP"}
        runs.append(run(f"{lr}_{batch_size}_{seed}", settings, score))
    found = compare_runs(runs).found
    assert math.isnan(found["batch_size"]["exponent_low"]) and math.isfinite(found["batch_size"]["exponent"])
    assert not any("no run was repeated" in text.lower() for text in batch_lines(found))


def test_a_rule_is_praised_for_what_it_does():
    """Under another rule the loss may be lower: what a rule is for is that it does not change."""
    found = fifty()
    lines = batch_lines(found)
    assert found["batch_size"]["rule"] == "linear" and not any("keeps the outcome best" in text for text in lines)
    assert any(text.startswith("The linear rule changes the outcome least") for text in lines)
    linear, constant = (next(text for text in lines if text.startswith(name)) for name in ("linear", "constant"))
    assert "best validation loss the same (1.00 times) at the larger batch; up or down, it moves by under 1 %" in linear
    assert "it moves by 29 %" in constant and " 1 times" not in linear


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


def test_where_all_diverge_none_is_the_best():
    found = compare_runs(grid(lambda lr: math.nan, lr=RATES, seeds=1)).found
    assert headline(found) == ["No run can be called the best: all of them diverged."]


@pytest.mark.parametrize(("exception", "cause"), [(False, "lr 1: all 3 diverged"), (True, "")])
def test_a_setting_with_which_all_diverge_is_the_cause(exception, cause):
    """What the log of each suggests is told where another run diverged too."""
    runs = grid(lambda lr: math.nan if lr == 1.0 else 1.0, lr=RATES)
    if exception:
        runs[0] = run(runs[0].run, runs[0].settings, math.nan)
    rows = compare_runs(runs).found["runs"]
    assert {row["cause"] for row in rows if row["lr"] == 1.0} == {cause}
    assert all(row["cause"] == "" for row in rows if row["lr"] != 1.0)
