"""Which setting explains the outcome: rarely wrong where none does, right where one does, honest where runs lack."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.comparing.worlds import grid, run

from torchdoctor.comparing import compare_runs
from torchdoctor.comparing.design import design
from torchdoctor.comparing.effects import effects, seed_spread
from torchdoctor.reports.comparison_effects import effect_lines, rate_lines

WORLDS = 200


def at_most(share, worlds):
    """What a true share of that size exceeds once in two thousand."""
    return share * worlds + 3.3 * math.sqrt(worlds * share * (1 - share))


def judged(runs):
    """By setting, the verdict on it."""
    found = compare_runs(runs).found
    return {item["names"][0]: item for item in found["effects"]}


def verdicts(plan, costs):
    return {item.names[0]: item.verdict for item in effects(plan, costs, np.exp(costs))}


def null_grid():
    return grid(lambda **_: 1.0, lr=(0.1, 0.2, 0.4), dropout=(0.0, 0.1), width=(1, 2))


def test_nothing_explains_what_is_chance_alone():
    generator = np.random.default_rng(11)
    plan = design(null_grid())
    alarms = sum(
        "matters" in verdicts(plan, 0.1 * generator.standard_normal(len(plan.groups))).values() for _ in range(WORLDS)
    )
    assert alarms <= at_most(0.05, WORLDS)


def test_seeds_are_no_further_evidence_in_a_random_search():
    """Ten configurations with five seeds each: the strong effect of one setting must not rub off on the others."""
    generator = np.random.default_rng(5)
    alarms = found = naive = 0
    for _ in range(WORLDS // 2):
        lrs, decays = generator.uniform(0.1, 1, 10).round(4), generator.permutation(["on", "off"] * 5)
        runs = [
            run(f"{place}-{seed}", {"lr": lr, "decay": decay, "clip": 1.0, "seed": seed}, 1.0)
            for place, (lr, decay) in enumerate(zip(lrs, decays, strict=True))
            for seed in range(5)
        ]
        costs = np.repeat(2 * lrs, 5) + 0.01 * generator.standard_normal(50)
        told = verdicts(design(runs), costs)
        alarms += told["decay"] == "matters"
        found += told["lr"] == "matters"
        on = np.repeat(decays == "on", 5)
        gap = abs(costs[on].mean() - costs[~on].mean()) / (costs.std() * math.sqrt(2 / 25))
        naive += gap > 1.96
    assert naive > 0.3 * WORLDS / 2  # what runs as independent evidence would claim
    assert alarms <= at_most(0.05, WORLDS // 2)
    assert found > 0.9 * WORLDS / 2


def test_a_real_effect_is_found_with_its_size():
    told = judged(grid(lambda lr, dropout: {0.1: 1.0, 0.4: 1.2}[lr], lr=(0.1, 0.4), dropout=(0.0, 0.1), seeds=4))
    assert told["lr"]["verdict"] == "matters" and told["lr"]["best"] == "0.1" and told["lr"]["tested"] == "runs"
    assert told["dropout"]["verdict"] == "nothing seen"
    contrast = told["lr"]["contrasts"][0]
    assert contrast["estimate"] == pytest.approx(math.log(1.2), abs=0.03) and contrast["low"] > math.log(1.1)


def test_intervals_hold_what_they_promise():
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(WORLDS):
        runs = grid(lambda lr, width: (1 + lr) * width, lr=(0.0, 0.5), width=(1, 4), noise=0.2, generator=generator)
        plan = design(runs)
        costs = np.array([math.log(summary.curves["loss"].values[-1]) for summary in runs])
        effect = next(item for item in effects(plan, costs, costs) if item.names == ("lr",))
        sign = 1 if effect.best == "0" else -1
        covered += effect.contrasts[0].shift.low <= sign * math.log(1.5) <= effect.contrasts[0].shift.high
    assert WORLDS - covered <= at_most(0.05, WORLDS)


def test_a_diverging_level_is_the_worst_of_all():
    runs = grid(lambda lr: 1.0 if lr < 1 else math.nan, lr=(0.1, 1.0), seeds=5)
    effect = judged(runs)["lr"]
    assert effect["verdict"] == "matters" and effect["best"] == "0.1"
    assert [level["diverged"] for level in effect["levels"]] == [0, 5]


@pytest.mark.parametrize(("seeds", "enough"), [(1, False), (2, False), (3, False), (4, True)])
def test_too_few_runs_are_said_to_be_too_few(seeds, enough):
    effect = judged(grid(lambda lr: 1 + lr, lr=(0.1, 0.9), seeds=seeds, noise=0.001))["lr"]
    assert effect["verdict"] == ("matters" if enough else "not enough runs")
    assert enough or effect["needed"] * seeds >= 4 > (effect["needed"] - 1) * seeds


def test_settings_that_change_together_are_one():
    runs = [run(str(n), {"lr": n % 2, "warmup": 100 * (n % 2), "seed": n, "depth": 3}, 1.0 + n % 2) for n in range(10)]
    found = compare_runs(runs).found
    assert [item["settings"] for item in found["differs"]] == [["lr", "warmup"]]
    assert found["effects"][0]["names"] == ("lr", "warmup") and found["effects"][0]["verdict"] == "matters"


def test_names_and_folders_explain_nothing():
    runs = [
        run(str(n), {"output_dir": f"/tmp/{n % 2}", "run_name": f"n{n}", "host": f"h{n % 2}", "seed": n}, 1.0 + n % 2)
        for n in range(8)
    ]
    found = compare_runs(runs).found
    assert found["effects"] == [] and set(found["names_only"]) == {"output_dir", "run_name", "host"}


def test_logs_that_tell_nothing_are_not_repetitions():
    found = compare_runs([run(str(n), {}, 1.0 + n) for n in range(4)]).found
    assert not found["settings_told"] and found["effects"] == [] and math.isnan(found["seed_spread"])


def test_the_spread_between_seeds():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(200), 3)
    assert seed_spread(groups + 0.1 * generator.standard_normal(600), groups) == pytest.approx(0.1, rel=0.1)


def test_the_best_configuration_and_what_cannot_be_told_from_it():
    levels = {0.1: 1.0, 0.2: 1.001, 0.4: 1.3}
    found = compare_runs(grid(lambda lr: levels[lr], lr=(0.1, 0.2, 0.4), seeds=4, noise=0.01)).found
    tied = {item["settings"]["lr"]: item["tied"] for item in found["configurations"]}
    assert tied == {"0.1": True, "0.2": True, "0.4": False}


def cells(*pairs):
    """Three seeds of each pair of batch size and learning rate, with the loss that it ends at."""
    named = [(f"b{size}_{rate}_{seed}", size, rate, seed, score) for size, rate, score in pairs for seed in range(3)]
    return [
        run(name, {"batch_size": size, "lr": rate, "seed": seed, "model": "MLP"}, score * (1 + 0.004 * seed))
        for name, size, rate, seed, score in named
    ]


FOLLOWED = [(32, 1e-3, 0.5), (64, 2e-3, 0.5), (128, 4e-3, 0.5), (256, 8e-3, 0.51)]


def test_levels_that_share_nothing_are_not_held_against_each_other():
    """A rate that was raised with the batch was never run beside the others: none of them is the best."""
    found = compare_runs(cells(*FOLLOWED, (64, 1e-3, 0.6), (128, 1e-3, 0.7), (256, 1e-3, 0.8))).found
    rate = next(item for item in found["effects"] if item["names"] == ("lr",))
    assert rate["verdict"] == "matters" and [one["other"] for one in rate["contrasts"]] == ["0.001"]
    assert set(rate["apart"]) == {"0.002", "0.004", "0.008"} - {rate["best"]}
    told = "\n".join(effect_lines(found))
    assert "nan" not in told and "Best of those that can be compared" in told
    assert found["learning_rate"] is None and not rate_lines(found), "which edge is the better one is not known"


def test_an_incomplete_grid_compares_what_it_has():
    scores = {1e-3: 0.8, 2e-3: 0.6, 4e-3: 0.5, 8e-3: 0.7}
    pairs = [(size, rate, score) for size in (32, 64) for rate, score in scores.items() if (size, rate) != (64, 1e-3)]
    found = compare_runs(cells(*pairs)).found
    rate = next(item for item in found["effects"] if item["names"] == ("lr",))
    assert rate["best"] == "0.004" and not rate["apart"] and len(rate["contrasts"]) == 2
    assert found["learning_rate"]["shape"] == "valley" and found["learning_rate"]["best"] == 4e-3


def test_how_many_runs_of_a_level_diverged_is_counted():
    runs = grid(lambda lr: 1.0 if lr < 1 else math.nan, lr=(0.1, 1.0), seeds=8)
    kept = [run(item.run, item.settings, 1.5) if item.run in ("lr1.0_s1", "lr1.0_s2") else item for item in runs]
    text = "\n".join(effect_lines(compare_runs(kept).found))
    assert "1 against 0.1: 6 of its 8 runs diverged" in text
