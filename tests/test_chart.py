import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdoctor.chart import Chart
from torchdoctor.outline import Outline
from torchdoctor.series import CAPACITY, EMPTY, Series


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=120))
def test_statistics_see_finite_values_only(values):
    series = Series()
    for step, value in enumerate(values):
        series.add(step, value)
    finite = [value for value in values if math.isfinite(value)]
    assert series.values.tolist() == finite
    assert series.nonfinite == len(values) - len(finite)
    assert series.lowest == min(finite, default=math.inf)
    for log in (False, True):
        base = series.baseline(50, log=log)
        assert all(math.isfinite(number) for number in (base.centre, base.spread, base.recent, base.noise, base.jitter))


def test_memory_is_bounded_and_windows_are_exact():
    series = Series()
    for step in range(5 * CAPACITY + 7):
        series.add(step, float(step))
    assert len(series) == CAPACITY
    assert series.steps.tolist() == list(range(4 * CAPACITY + 7, 5 * CAPACITY + 7))
    assert series.last(3).tolist() == series.since(5 * CAPACITY + 4).tolist() == series.values[-3:].tolist()
    assert series.first == 0.0
    assert len(series.outline.buckets()) <= 1001


def test_a_baseline_does_not_depend_on_when_it_is_asked_for():
    values = np.random.default_rng(0).standard_normal(300)
    often, once = Series(), Series()
    for step, value in enumerate(values):
        often.add(step, value)
        once.add(step, value)
        often.baseline(50)
    assert often.baseline(50) == once.baseline(50)


def test_a_baseline_knows_nothing_of_the_latest_value():
    chart = Chart.of(loss=[1.0] * 64 + [1e9])
    base = chart["loss"].baseline(64)
    assert (base.centre, base.recent, base.spread, base.noise, base.jitter) == (1.0, 1.0, 0.0, 0.0, 0.0)


def test_a_drift_is_taken_out_of_the_noise():
    rng = np.random.default_rng(1)
    line = np.linspace(10, 0, 129) + 0.1 * rng.standard_normal(129)
    base = Chart.of(loss=line)["loss"].baseline(128)
    assert base.spread > 2
    assert base.noise == pytest.approx(0.1, rel=0.5)
    assert base.jitter == pytest.approx(0.1, rel=0.5)
    assert base.recent == pytest.approx(1.25, abs=0.3)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(2, 40))
def test_an_outline_loses_no_extreme(count, capacity):
    outline = Outline(capacity)
    for step in range(count):
        outline.add(step, -5.0 if step == count // 2 else float(step % 7))
    buckets = outline.buckets()
    assert min(bucket[1] for bucket in buckets) == -5.0
    assert [bucket[0] for bucket in buckets] == sorted({bucket[0] for bucket in buckets})
    assert buckets[0][0] == 0
    assert len(buckets) <= capacity + 2


def test_records_enter_the_chart():
    chart = Chart()
    chart.add({"type": "header", "step": 0, "tensors": ["a", "b"], "context": {"batch_size": 8}})
    chart.add({"type": "context", "step": 1, "context": {"precision": ["float32"]}})
    chart.add({"type": "groups", "step": 1, "groups": [{"weight_decay": 0.1}]})
    chart.add({"type": "tensors", "step": 2, "vitals": {"grad_norm": [1.0, None]}})
    chart.add({"type": "vitals", "step": 2, "vitals": {"loss": 3.0}})
    chart.add({"type": "validation", "step": 2, "vitals": {"val_loss": 3.5}})
    chart.add({"type": "origin", "step": 2, "module": "head", "kind": "output"})
    chart.add({"type": "note", "step": 2, "text": "said"})
    chart.add({"type": "symptom", "step": 2, "event": "opened"})
    chart.add({"type": "end", "step": 2})
    assert chart.names == ("a", "b")
    assert chart.context == {"batch_size": 8, "precision": ["float32"]}
    assert chart.groups == [{"weight_decay": 0.1}]
    assert math.isnan(chart.tensors("grad_norm").latest[1])
    assert (chart["loss"].latest, chart["val_loss"].latest, chart.step, chart.ended) == (3.0, 3.5, 2, True)
    assert chart.origins[0]["module"] == "head"
    assert chart.notes == [(2, "said")]
    assert "loss" in chart
    assert "accuracy" not in chart


def test_an_unknown_vital_is_empty():
    chart = Chart()
    assert chart["anything"] is EMPTY
    assert not chart["anything"]
    assert not chart.tensors("anything")
    assert chart.tensors("anything").matrix().shape == (0, 0)


def test_rows_of_another_width_are_left_out_of_the_matrix():
    chart = Chart()
    for step, row in enumerate([[1.0], [1.0, 2.0], [3.0, 4.0]]):
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": row}})
    assert chart.tensors("grad_norm").matrix().tolist() == [[1.0, 2.0], [3.0, 4.0]]
