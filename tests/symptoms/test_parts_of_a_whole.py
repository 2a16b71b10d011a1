"""Batches that are each a part of the data: in order, clipped, or of no consequence to the loss."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.diagnoses.data_order import DataOrder
from torchdoctor.diagnoses.loss_misuse import LossMisuse
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.no_gradient import NoGradient
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly
from torchdoctor.symptoms.validation_inputs import evenly

SAMPLES = (0, 1, 2, 4, 8, 16, *range(25, 400, 25))


def series(held_out, validated=(0.0, 2.2), within=0.8, levels=(-3.0, 0.0, 3.0, 1.5, -1.5)):
    """A run over a series whose level changes every 50 steps, validated on numbers of some mean and deviation."""
    chart = Chart.of(loss=[0.1] * 400, lr=[1e-3] * 400)
    for step in SAMPLES:
        level = levels[step // 50 % len(levels)]
        for vital in ("input", "target"):
            chart.put(step, f"{vital}_mean", level)
            chart.put(step, f"{vital}_std", within)
    for step in (199, 399):
        chart.put(step, "val_loss", held_out)
        chart.put(step, "idle_input_mean", validated[0])
        chart.put(step, "idle_input_std", validated[1])
    return chart


def test_batches_in_order_are_not_taken_for_another_distribution():
    assert ValidationAnomaly().check(series(0.5)) is None
    found = ValidationAnomaly().check(series(0.5, validated=(9.0, 2.2)))  # beyond all of them
    assert "in validation" in found.message


ORDER = {
    "what other batches held is forgotten": (series(0.5), "warning"),
    "validation is fine": (series(0.12), "info"),
    "validation is of a later time": (series(0.5, validated=(9.0, 2.2)), "info"),
}


@pytest.mark.parametrize(("chart", "severity"), ORDER.values(), ids=ORDER)
def test_data_in_order_are_a_warning_where_it_costs_something(chart, severity):
    assert BatchAnomaly().check(chart).severity == severity


def test_a_wider_batch_needs_the_harm_to_be_seen():
    wider = {"within": 1.1, "validated": (0.0, 2.4)}
    found = BatchAnomaly().check(series(0.5, **wider))
    assert found.severity == "warning"
    assert BatchAnomaly().check(series(0.12, **wider)) is None
    weights = [item.weight for item in DataOrder().weigh(series(0.5, **wider), Problem((found,)))]
    assert sum(weights) > 5


def test_shuffled_batches_are_silent_whatever_validation_does():
    assert BatchAnomaly().check(series(0.5, levels=(0.1, -0.1, 0.05, 0.0, -0.05), validated=(0.0, 0.8))) is None


def test_the_first_steps_do_not_count_more_than_others():
    assert float(evenly(series(0.5)["input_mean"]).mean()) == pytest.approx(-0.1, abs=0.5)


CLIPPED = {
    "three quarters were clipped": ([1.0] * 3, [0.25] * 3, True),
    "nothing is missing": ([0.0] * 3, [1.0] * 3, False),
    "tokens dropped at random": ([0.4] * 3, [0.7] * 3, False),
    "labels of another kind": ([1.0] * 3, [0.01] * 3, False),
    "a rare token that this batch lacks": ([1.0] * 3, [0.98] * 3, False),
    "two looks": ([1.0] * 2, [0.25] * 2, False),
}


@pytest.mark.parametrize(("beyond", "following", "fires"), CLIPPED.values(), ids=CLIPPED)
def test_tokens_that_are_asked_for_and_never_given(beyond, following, fires):
    found = InputAnomaly().check(Chart.of(target_beyond=beyond, target_is_next=following))
    assert (found is not None and "clipped" in found.message) == fires


FLAT = {
    "half of the loss has no gradient": ([1.0] * 20 + [0.5] * 40, [3.0] * 20 + [0.0] * 40, True),
    "every margin is kept": ([1.0] * 20 + [0.0] * 40, [3.0] * 20 + [0.0] * 40, False),
    "next to nothing is left": ([1.0] * 20 + [0.02] * 40, [3.0] * 20 + [0.0] * 40, False),
    "now and then there is one": ([1.0] * 20 + [0.5] * 40, ([3.0] + [0.0] * 19) * 3, False),
    "for some steps": ([1.0] * 50 + [0.5] * 10, [3.0] * 50 + [0.0] * 10, False),
}


@pytest.mark.parametrize(("losses", "norms", "fires"), FLAT.values(), ids=FLAT)
def test_a_loss_that_depends_on_nothing_any_more(losses, norms, fires):
    chart = Chart.of(loss=losses, grad_norm=norms, output_spread=[0.3] * 60)
    found = NoGradient().check(chart)
    assert (found is not None) == fires
    if fires:
        assert (found.severity, found.first_step) == ("warning", 20)
        assert sum(item.weight for item in LossMisuse().weigh(chart, Problem((found,)))) > 4
