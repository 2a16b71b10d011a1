"""Who was faster, and where runs part."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.comparing.worlds import run

from torchdoctor.comparing import compare_runs
from torchdoctor.comparing.outcome import choose, outcome
from torchdoctor.comparing.parting import part
from torchdoctor.comparing.summary import Curve, Finding, Summary, thinned


def summary(name, loss, every=1, **more):
    steps = np.arange(0, len(loss) * every, every)
    return Summary(name, name, int(steps[-1]) + 1, {}, {"loss": Curve(steps, np.asarray(loss, dtype=float))}, **more)


def decay(steps, rate, generator, noise=0.03, floor=0.5):
    return (floor + 2 * np.exp(-rate * np.arange(steps))) * np.exp(noise * generator.standard_normal(steps))


def test_equal_runs_rarely_part():
    generator = np.random.default_rng(1)
    parted = 0
    for _ in range(100):
        pair = [summary(name, decay(400, 0.02, generator)) for name in "ab"]
        parted += part(*pair).step is not None
    assert parted <= 5


@pytest.mark.parametrize("at", [100, 250, 350])
def test_the_step_of_a_jump_is_found(at):
    generator = np.random.default_rng(at)
    first, second = decay(500, 0.02, generator), decay(500, 0.02, generator)
    second[at:] *= 1.5
    found = part(summary("a", first), summary("b", second))
    assert found.reason == "difference" and at - 10 <= found.step <= at + 20
    assert found.levels[1] > 1.2 * found.levels[0]


def test_a_jump_that_heals_is_no_parting():
    generator = np.random.default_rng(0)
    first, second = decay(500, 0.02, generator), decay(500, 0.02, generator)
    second[200:260] *= 2
    assert part(summary("a", first), summary("b", second)).step is None


def test_a_run_that_breaks_parts_there():
    generator = np.random.default_rng(0)
    first, second = decay(300, 0.02, generator), decay(300, 0.02, generator)
    second[170:] = math.nan
    exploding = Finding("gradient-explosion", "critical", 168, 299, "")
    found = part(summary("a", first), summary("b", second, findings=(exploding,)))
    assert (found.step, found.reason) == (170, "non-finite")
    assert found.findings == ("b: gradient-explosion at step 168 (critical)",)


def test_identical_runs_are_said_to_be_identical_up_to_a_step():
    generator = np.random.default_rng(0)
    first = decay(300, 0.02, generator)
    second = first.copy()
    second[200:] *= 1.4
    found = part(summary("a", first), summary("b", second))
    assert found.identical_until == 199 and 195 <= found.step <= 210
    assert part(summary("a", first), summary("b", first.copy())).step is None


def test_runs_logged_at_other_steps_are_compared_where_both_were():
    generator = np.random.default_rng(2)
    slow = decay(100, 0.02, generator)
    fast = decay(1000, 0.002, generator) * np.where(np.arange(1000) < 500, 1, 0.6)
    found = part(summary("a", slow, every=10), summary("b", fast))
    assert 480 <= found.step <= 560


def test_the_faster_run_comes_first_to_the_common_level():
    generator = np.random.default_rng(0)
    runs = [summary("slow", decay(1000, 0.005, generator)), summary("fast", decay(1000, 0.02, generator))]
    seconds = Curve(np.arange(1000), np.full(1000, 0.5))
    runs[0] = Summary("slow", "slow", 1000, {}, {**runs[0].curves, "seconds": seconds})
    rows = {row["run"]: row for row in compare_runs(runs).found["runs"]}
    ratio = rows["slow"]["reached_at"] / rows["fast"]["reached_at"]
    assert 3 < ratio < 5 and rows["fast"]["area"] < rows["slow"]["area"]
    assert rows["slow"]["reached_after"] == pytest.approx(0.5 * (rows["slow"]["reached_at"] + 1))
    assert math.isnan(rows["fast"]["reached_after"])


def test_diverged_runs_come_last_and_it_is_said_why():
    generator = np.random.default_rng(0)
    broken, climbing = decay(300, 0.02, generator), decay(300, 0.02, generator)
    broken[250:] = math.nan
    climbing[150:] *= np.exp(0.05 * np.arange(150))
    runs = [summary("nan", broken), summary("climbs", climbing), summary("poor", decay(300, 0.02, generator, floor=2))]
    rows = compare_runs(runs).found["runs"]
    assert rows[0]["run"] == "poor" and not rows[0]["diverged"]
    told = {row["run"]: row["diverged"] for row in rows}
    assert told["nan"] == "the loss is NaN from step 250 on" and "above the" in told["climbs"]


def test_runs_of_unequal_length_are_compared_where_the_shortest_ends():
    generator = np.random.default_rng(0)
    runs = [summary("long", decay(2000, 0.003, generator)), summary("short", decay(300, 0.01, generator))]
    notes = compare_runs(runs).found["notes"]
    assert any("different lengths" in note and "short leads" in note for note in notes)


def test_a_metric_that_is_better_when_higher():
    accuracy = {name: Curve(np.arange(10), np.linspace(0, top, 10)) for name, top in (("a", 0.8), ("b", 0.9))}
    runs = [run(name, {}, 1.0, val_accuracy=curve) for name, curve in accuracy.items()]
    assert not choose(runs, "val_accuracy").lower
    assert [row["run"] for row in compare_runs(runs, metric="val_accuracy").found["runs"]] == ["b", "a"]


def test_thinning_keeps_what_is_not_finite():
    values = np.ones(1000)
    values[700] = math.nan
    curve = thinned(Curve(np.arange(1000), values), most=100)
    assert len(curve.steps) == 100 and np.isnan(curve.values).sum() == 1 and curve.steps[70] == 700


def test_a_run_without_a_loss_has_no_score():
    empty = Summary("a", "a", 0)
    assert choose([empty, empty]) is None and math.isnan(outcome(empty, None).score)
