"""What the script of a page gets: everything that matters of a run, in bounded size."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.reports.samples import HEALTHY, SICK, layers, outline

from torchdoctor.outline import Outline
from torchdoctor.pictures import RowMap
from torchdoctor.records import Symptom
from torchdoctor.reports.chart_data import EPISODES, chart_data
from torchdoctor.reports.curves import figure
from torchdoctor.reports.heat_map import FIRST, MISSING, ROWS, STRANGE, ZERO, coloured, grouped, palette, png
from torchdoctor.reports.page import as_data
from torchdoctor.reports.report import Report


def test_no_extreme_disappears_in_a_long_run():
    spiky = outline(range(0, 100_000), lambda step: {61_234: 80.0, 77_777: -5.0}.get(step, 1.0))
    ((curve,),) = [panel["curves"] for panel in chart_data(Report(99_999, curves={"loss": spiky}))["panels"]]
    steps, means, lows, highs = curve["coarse"]
    assert max(highs) == 80.0 and min(lows) == -5.0
    at = highs.index(80.0)
    assert steps[at] <= 61_234 < steps[at + 1]


def test_the_line_is_told_where_a_value_stands_out():
    noisy = outline(range(0, 100_000), lambda step: 8.0 if step == 50_000 else 2 + 0.1 * math.sin(7.3 * step))
    ((curve,),) = [panel["curves"] for panel in chart_data(Report(99_999, curves={"loss": noisy}))["panels"]]
    assert [curve["coarse"][3][place] for place in curve["peaks"]] == [8.0]
    exact = chart_data(Report(9, curves={"loss": outline(range(10), lambda step: 9.0 if step == 5 else 1.0)}))
    assert exact["panels"][0]["curves"][0]["peaks"] == []


def test_curves_come_in_panels_and_the_rest_can_be_chosen():
    data = chart_data(SICK)
    assert [[curve["name"] for curve in panel["curves"]] for panel in data["panels"]] == [
        ["loss", "val_loss"],
        ["grad_norm"],
        ["lr"],
    ]
    assert [curve["name"] for curve in data["others"]] == ["step_seconds"]
    (piece,) = data["panels"][1]["curves"][0]["fine"]
    assert piece["first"] == 500 and piece["every"] == 1 and len(piece["values"]) == 300
    assert data["spans"] == [("critical", 1730, 1999), ("warning", 600, 600)]


def test_uneven_steps_are_told_one_by_one():
    odd = (np.array([1, 2, 5]), np.array([1.0, 2.0, 3.0]))
    made = chart_data(replace(SICK, closeups={"grad_norm": (odd,)}))["panels"][1]["curves"][0]["fine"]
    assert made == [{"first": 1, "steps": [1, 2, 5], "values": [1.0, 2.0, 3.0]}]


def broken(first: int, last: int) -> Symptom:
    return Symptom("nan-or-inf", "NU01", "critical", 1.0, first, last)


@pytest.mark.parametrize(
    ("steps", "last", "bad", "gaps"),
    [
        (range(0, 100), 99, (40, 59), [(40, 59)]),
        (range(0, 100), 99, (80, 99), [(80, 99)]),  # up to the end of the run
        (range(0, 100), 99, (50, 50), [(50, 50)]),
        (range(0, 100), 99, (40, 44), [(40, 40), (42, 42), (44, 44)]),  # of an episode, only what is missing
        (range(0, 1000, 10), 999, (500, 509), [(500, 509)]),
        (range(0, 100_000), 99_999, (50_000, 69_999), [(50_000, 69_999)]),  # buckets hold a hundred steps
    ],
)
def test_a_curve_breaks_off_where_it_was_not_finite(steps, last, bad, gaps):
    lost = {step for first, end in gaps for step in range(first, end + 1)}
    made = Outline()
    for step in steps:
        if step not in lost:
            made.add(step, 1.0)
    other = outline(steps, lambda step: 1.0)
    report = Report(last, (broken(*bad),), curves={"loss": made.buckets(), "grad_norm": other})
    loss, norm = [panel["curves"][0] for panel in chart_data(report)["panels"]]
    assert (loss["gaps"], norm["gaps"]) == (gaps, [])
    still = [item for item in figure(report).iter() if item.get("class") == "line c1"]
    assert len(still) == 2 + sum(end < last for _, end in gaps)


def test_a_rate_over_more_than_two_orders_of_magnitude_is_first_on_a_logarithmic_scale():
    rates = {"lr": lambda step: 1e-3 * 0.9**step if step else 0.0, "lr/head": lambda step: 0.1 if step else 0.0}
    for name, log in (("lr", True), ("lr/head", False)):
        report = Report(99, curves={name: outline(range(100), rates[name])})
        (panel,) = chart_data(report)["panels"]
        assert panel["log"] is log
        assert any("(log scale)" in (item.text or "") for item in figure(report).iter()) is log


def test_a_run_without_anything_is_still_data():
    data = json.loads(as_data(chart_data(HEALTHY)))
    assert data["panels"] == data["others"] == data["maps"] == data["episodes"] == []
    assert data["last"] > data["first"]


def test_hundreds_of_curves_and_episodes_stay_small():
    wavy = outline(range(5000), lambda step: math.sin(step))
    many = Report(
        4999,
        tuple(Symptom("loss-spike", "LO01", "info", 0.9, step, step) for step in range(0, 5000, 5))
        + (Symptom("nan-or-inf", "NU01", "critical", 0.9, 4000, 4999),),
        curves={f"vital{number}": wavy for number in range(500)} | {"loss": wavy},
        maps={vital: layers([f"l{row}.w" for row in range(5000)]) for vital in ("grad_norm", "weight_norm")},
    )
    data = chart_data(many)
    assert len(data["episodes"]) == EPISODES and "NU01 nan-or-inf" in {item["label"] for item in data["episodes"]}
    assert len(as_data(data)) < 2_000_000


def test_cells_tell_missing_zero_and_not_finite_apart():
    made = coloured("grad_norm", layers([f"l{row}" for row in range(8)]))
    assert made.cells.shape == (8, 40)
    assert made.cells[0, 35] == STRANGE and made.cells[1, 3] == ZERO and made.cells[2, 5] == MISSING
    ordered = made.cells[3:, 0].astype(int)
    assert (np.diff(ordered) > 0).all() and ordered.min() >= FIRST


@pytest.mark.parametrize("values", [[[0.0]], [[np.nan]], [[np.inf]], [[5.0]], [[1e-45, 3e38]], [[-1.0, 2.0]]])
@pytest.mark.parametrize("vital", ["grad_norm", "act_dead"])
def test_any_values_have_colours(vital, values):
    table = np.array(values, dtype=np.float32)
    made = coloured(vital, RowMap(tuple("ab"[: table.shape[1]]), (0,), table))
    assert made.high > made.low and math.isfinite(made.low) and math.isfinite(made.high)
    json.dumps(made.to_dict(), allow_nan=False)


def test_rows_are_bounded_whatever_they_are_called():
    for names in ([f"h.{i}.{p}.w" for i in range(200) for p in "qkvo"], [f"t{i}" for i in range(3000)], ["."] * 600):
        made = grouped(RowMap(tuple(names), (0,), np.arange(len(names), dtype=np.float32)[None]))
        assert len(made.names) == made.values.shape[1] <= ROWS
        assert made.values.max() == len(names) - 1


def test_the_picture_is_a_png_of_the_cells():
    image = pytest.importorskip("PIL.Image", reason="needs Pillow to look at a picture")
    cells = np.array([[MISSING, ZERO, STRANGE], [FIRST, 130, 255]], dtype=np.uint8)
    seen = image.open(io.BytesIO(png(cells))).convert("RGBA")
    assert seen.size == (3, 2) and seen.getpixel((0, 0))[3] == 0
    assert [seen.getpixel((x, 1))[:3] for x in range(3)] == [palette()[code] for code in (FIRST, 130, 255)]
    assert len(palette()) == 256
