"""What reports draw is bounded, and loses neither a spike nor what is not finite."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import CHECKS, Chart
from torchdoctor.examination import Examination
from torchdoctor.pictures import CELLS, COLUMNS, LOOKS, Closeups, RowOutline, main_vitals
from torchdoctor.records import CheckResult, Symptom
from torchdoctor.series import Series
from torchdoctor.settings import Settings


def test_a_map_is_bounded_and_keeps_the_largest():
    outline = RowOutline()
    for step in range(0, 500_000, 50):
        outline.add(step, [1.0, 40.0 if step == 123_450 else 2.0, 3.0])
    made = outline.map(["a", "b", "c"])
    assert COLUMNS // 2 <= len(made.steps) <= COLUMNS and made.values.shape == (len(made.steps), 3)
    column = int(np.argmax(made.values[:, 1]))
    assert made.values[column, 1] == 40.0
    assert made.steps[column] <= 123_450 < [*made.steps, 500_000][column + 1]
    assert list(made.steps) == sorted(made.steps)


def test_nothing_measured_is_not_the_same_as_not_finite_nor_as_huge():
    outline = RowOutline()
    outline.add(0, [None, math.nan, -math.inf, 1e300, 0.0])
    (row,) = outline.map("abcde").values
    assert np.isnan(row[0]) and row[1] == row[2] == np.inf and 1e38 < row[3] < np.inf and row[4] == 0


def test_very_many_tensors_get_fewer_columns():
    outline = RowOutline()
    for step in range(300):
        outline.add(step, [1.0] * 20_000)
    assert outline.map(["x"] * 20_000).values.size <= CELLS


def test_other_tensors_begin_a_map_anew_and_wrong_names_give_none():
    outline = RowOutline()
    outline.add(0, [1.0, 2.0])
    outline.add(50, [1.0, 2.0, 3.0])
    assert outline.map(["a", "b"]) is None
    assert outline.map(["a", "b", "c"]).steps == (50,)
    assert RowOutline().map([]) is None


def test_the_chart_maps_tensors_and_modules_by_their_names():
    chart = Chart()
    chart.add({"type": "header", "step": -1, "tensors": ["w"], "modules": ["m", "n"]})
    for step in (0, 50):
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": [1.0], "other": [1.0]}})
        chart.add({"type": "modules", "step": step, "vitals": {"act_rms": [1.0, 2.0]}})
    assert {vital: made.names for vital, made in chart.maps.items()} == {"grad_norm": ("w",), "act_rms": ("m", "n")}


def examined(steps: int, spike: int) -> Examination:
    examination = Examination(Settings())
    for step in range(steps):
        loss = 9.0 if step == spike else 2.0 + 0.05 * math.sin(step * 1.7)
        norm = 90.0 if step == spike else 1.0 + 0.1 * math.sin(step)
        examination.take({"type": "vitals", "step": step, "vitals": {"loss": loss, "grad_norm": norm, "other": 1.0}})
    return examination


def test_a_report_of_a_long_run_has_the_steps_around_an_episode_as_they_were():
    report = examined(9000, spike=3000).report()
    assert len(report.curves["loss"]) < 1100 and "other" not in report.closeups
    pieces = report.closeups["loss"]
    around = next(piece for piece in pieces if piece[0][0] <= 3000 <= piece[0][-1])
    steps, values = around
    assert steps.tolist() == list(range(int(steps[0]), int(steps[-1]) + 1)) and steps[0] <= 2910 and steps[-1] >= 3010
    assert values[3000 - int(steps[0])] == 9.0
    assert pieces[-1][0][-1] == 8999
    assert all(before[0][-1] < after[0][0] for before, after in zip(pieces, pieces[1:], strict=False))


def test_closer_looks_are_bounded_and_the_severe_ones_find_room():
    series = Series()
    looks = Closeups()
    for step in range(60_000):
        series.add(step, 1.0)
        if step % 100 == 99:
            looks.take(Symptom("loss-spike", "LO01", "info", 0.9, step, step), {"loss": series})
    looks.take(Symptom("nan-or-inf", "NU01", "critical", 0.9, 59_990, 59_999), {"loss": series})
    pieces = looks.pieces({})["loss"]
    assert sum(steps.size for steps, _ in pieces) <= (LOOKS + 1) * 400
    assert pieces[-1][0][-1] == 59_999


def test_an_episode_that_goes_on_keeps_its_beginning():
    series, looks = Series(), Closeups()
    lasting = Symptom("loss-plateau", "LO03", "info", 0.9, 500, 500)
    for step in range(5000):
        series.add(step, float(step))
        if step in (510, 900, 4999):
            looks.take(lasting, {"loss": series})
    ((steps, _),) = looks.pieces({})["loss"]
    assert (steps[0], steps[-1]) == (400, 799)


def test_the_loss_that_is_trained_on_comes_first():
    main = main_vitals(["guess_loss", "d_loss", "loss", "val_loss", "lr/0", "lr/1"])
    assert main["loss"] == ["loss", "d_loss", "val_loss"] and main["lr"] == ["lr/0", "lr/1"]
    assert main_vitals(["accuracy"])["others"] == ["accuracy"]


def test_results_of_a_check_up_are_kept_and_others_refused():
    chart = Chart()
    good = CheckResult("initial-loss", "CK11", "failed", "loss 9.2", ("head",), "Scale it.", "warning")
    chart.add({"type": "check", "step": 0, **good.to_dict()})
    for broken in ({"name": 3}, {"name": "x", "status": "maybe"}, {"name": "x", "status": "passed", "where": "head"}):
        chart.add({"type": "check", "step": 0, **broken})
    assert list(chart.checks.values()) == [good]
    for number in range(2 * CHECKS):
        chart.add({"type": "check", "step": 0, "name": f"n{number}", "status": "passed"})
    assert len(chart.checks) == CHECKS
