"""What a log left unjudged: said where something is missing, silent where nothing is."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.reports.unjudged import unjudged

FULL = {name: [1.0] * 30 for name in ("loss", "val_loss", "grad_norm", "lr")}


def chart_of(*without, count=30, **context):
    vitals = {name: values[:count] for name, values in FULL.items() if name not in without}
    return Chart.of(context={"source": "CSV", "clock": "step", "logged_every": 1} | context, **vitals)


@pytest.mark.parametrize(
    ("chart", "words"),
    [
        (chart_of("val_loss"), "overfitting (no validation loss)"),
        (chart_of("grad_norm"), "exploding and vanishing gradients (no gradient norm)"),
        (chart_of("lr"), "warm-up and schedule (no learning rate)"),
        (chart_of("loss"), "training itself (no training loss)"),
        (chart_of(count=5), "trends (only 5 losses)"),
        (chart_of(clock="epoch"), "spikes within an epoch (one loss per epoch)"),
        (chart_of(logged_every=500), "spikes shorter than 500 steps (the loss is logged less often)"),
    ],
)
def test_a_gap_is_named(chart, words):
    assert words in unjudged(chart)[0]


def test_what_to_log_next_time_is_said_once_and_for_the_trainer():
    notes = unjudged(chart_of("val_loss", logged_every=500, source="Hugging Face"))
    assert "to log next time" in notes[1]
    assert 'eval_strategy="steps"' in notes[1]
    assert "logging_steps=10" in notes[1]


def test_a_complete_log_and_a_live_run_get_no_note():
    assert unjudged(chart_of()) == ()
    assert unjudged(Chart.of(loss=[1.0])) == ()


def test_a_loss_that_was_never_finite_was_logged_all_the_same():
    chart = Chart.of(loss=[float("nan")] * 20, context={"source": "CSV"})
    told = " ".join(unjudged(chart))
    assert "the loss was never finite" in told and "no training loss" not in told
