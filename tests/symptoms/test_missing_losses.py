"""A loss that has no value any more: NaN, where what each step had beside it goes on; and logs that never had one."""

import json
import math

import pytest

from torchdoctor import diagnose
from torchdoctor.chart import Chart
from torchdoctor.records import NO_LOSS, Symptom
from torchdoctor.reports.verdict import verdict
from torchdoctor.symptoms.hindsight.softening import softened


def rows(steps, **columns):
    """A record a step; a column gives its value at a step, or None."""
    return [{"step": step} | {name: value(step) for name, value in columns.items()} for step in range(steps)]


def judged(tmp_path, records, suffix=".jsonl"):
    place = tmp_path / f"log{suffix}"
    if suffix == ".csv":
        names = list(records[0])
        lines = [",".join("" if row[name] is None else str(row[name]) for name in names) for row in records]
        place.write_text("\n".join([",".join(names), *lines]))
    else:
        place.write_text("\n".join(json.dumps({k: v for k, v in row.items() if v != "absent"}) for row in records))
    return diagnose(place)


def fall(step):
    return round(0.5 + 1.8 * 0.99**step, 5)


def until(end):
    return lambda step: fall(step) if step < end else None


def rate(step):
    return 1e-3 + 1e-7 * step


SICK = {
    "null beside the rate": rows(300, loss=until(200), lr=rate),
    "for the last three records of ten": rows(10, loss=until(7), lr=rate),
    "beside a gradient norm that is null as well, and a rate that is not": rows(
        300, loss=until(200), lr=rate, grad_norm=lambda step: 1.0 if step < 200 else None
    ),
    "beside the norm, after a warm-up of which no loss was printed": rows(
        300, loss=lambda step: fall(step) if 20 <= step < 200 else None, grad_norm=lambda step: 1.0 + 0.01 * (step % 7)
    ),
    "in more records than are kept as they were": rows(5000, loss=until(3500), lr=rate),
}
HEALTHY = {
    "up to the end": rows(300, loss=fall, lr=rate),
    "logged every ten steps, the rate at each": rows(
        300, loss=lambda step: fall(step) if step % 10 == 0 else None, lr=rate
    ),
    "an evaluation at the end": [
        *rows(200, loss=fall, lr=rate),
        *({"step": 200 + step, "lr": 1e-4, "val_loss": 0.6 - 0.01 * step} for step in range(4)),
    ],
    "training and validation on alternate lines, each with the rate": [
        {"step": step, "lr": 1e-3} | ({"val_loss": fall(step) + 0.1} if step % 2 else {"loss": fall(step)})
        for step in range(100)
    ],
    "a last line without a loss": [*rows(200, loss=fall, lr=rate), {"step": 200, "lr": 1e-4}],
}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
@pytest.mark.parametrize("name", SICK)
def test_sick(tmp_path, name, suffix):
    (found,) = (item for item in judged(tmp_path, SICK[name], suffix).symptoms if item.name == "nan-or-inf")
    last = max(row["step"] for row in SICK[name] if row["loss"] is not None)
    assert found.severity == "critical" and f"after step {last}" in found.message
    assert last < found.first_step <= last + 8


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(tmp_path, name):
    assert not [item for item in judged(tmp_path, HEALTHY[name]).symptoms if item.name == "nan-or-inf"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_log_without_any_loss_or_metric_is_not_called_healthy(tmp_path, suffix):
    report = judged(tmp_path, rows(300, loss=lambda step: None, lr=rate), suffix)
    assert "ealthy" not in verdict(report) and NO_LOSS in verdict(report)


def test_one_with_a_metric_is_judged_by_it(tmp_path):
    report = judged(tmp_path, rows(300, lr=rate, val_accuracy=lambda step: 1 - 0.9 * 0.99**step))
    assert NO_LOSS not in verdict(report)


def test_a_gradient_that_leapt_right_before_nan_has_not_come_back():
    loss, norms = noisy_loss(200), [1.0 + 0.05 * (step % 5) for step in range(200)]
    norms[-1] = 1000.0
    chart = Chart.of(loss=[*loss, *[math.nan] * 50], grad_norm=norms, context={"source": "CSV"})
    leapt = Symptom("gradient-explosion", "GR01", "warning", 0.9, 199, 199, message="gradient norm 1000")
    assert softened(chart, leapt) == leapt
    sound = Chart.of(loss=[*loss, *loss[-50:]], grad_norm=norms, context={"source": "CSV"})
    assert "was not affected" in softened(sound, leapt).message


def noisy_loss(steps):
    return [fall(step) * (1 + 0.01 * (step % 3)) for step in range(steps)]


def test_what_was_not_looked_for_is_named(tmp_path):
    place = tmp_path / "log.csv"
    place.write_text("step,loss\n" + "\n".join(f"{step},{fall(step)}" for step in range(100)))
    assert (
        "not looked for, as requested: NU, overfitting"
        in diagnose(place, settings={"ignore": ["NU", "overfitting"]}).notes
    )
    assert not any(note.startswith("not looked for") for note in diagnose(place).notes)
