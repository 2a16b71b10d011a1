"""Verdicts on whole logs in the numbers that stand in them, and what only looks like a loss that stands still."""

import math

import numpy as np
import pytest

from torchdoctor import diagnose
from torchdoctor.examination import Examination
from torchdoctor.records import Symptom
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import verdict
from torchdoctor.settings import Settings
from torchdoctor.sources import read_all
from torchdoctor.sources.logged import Points
from torchdoctor.sources.repair import mend, unveil


def examined(*records, clock="step"):
    """The report on a log of (step, vitals), those of validation with their prefix."""
    examination = Examination(Settings())
    context = {"source": "CSV", "clock": clock, "better": {}}
    examination.take({"type": "header", "step": -1, "schema": 1, "context": context})
    for step, vitals in records:
        kind = "validation" if all(name.startswith("val_") for name in vitals) else "vitals"
        examination.take({"type": kind, "step": step, "vitals": vitals})
    return examination.report()


def raised(report):
    return {item.name for item in report.symptoms if item.severity != "info"}


def batches(losses, validation):
    """Losses of batches, and evaluations at equal distances among them."""
    every = len(losses) // len(validation)
    for step, loss in enumerate(losses):
        yield step, {"loss": float(loss)}
        if (step + 1) % every == 0 and step // every < len(validation):
            yield step, {"val_loss": float(validation[step // every])}


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([math.nan] * 30, "in all 30 records"),
        ([2.0 * 0.95**step for step in range(20)] + [math.nan] * 10, "up to the end, in 10 of 30 records"),
    ],
)
def test_how_much_of_a_log_is_not_finite_is_told(losses, told):
    report = examined(*((step, {"loss": loss}) for step, loss in enumerate(losses)))
    assert [item.message for item in report.symptoms if item.name == "nan-or-inf"] == [f"loss is NaN {told}"]


def test_one_loss_that_was_not_finite_is_not_the_end():
    losses = [2.0 * 0.95**step for step in range(30)]
    losses[12] = math.nan
    report = examined(*((step, {"loss": loss}) for step, loss in enumerate(losses)))
    assert "nan-or-inf" in {item.name for item in report.symptoms}
    assert not any("up to the end" in item.message or "in all" in item.message for item in report.symptoms)


def test_overfitting_is_told_in_numbers_that_stand_in_the_log():
    train = [2.1, 1.9, 1.7, 1.55, 1.49, 1.35, 1.16, 0.96, 0.79, 0.57, 0.46, 0.37, 0.28]
    val = [2.13, 2.1, 1.9, 1.64, 1.63, 1.64, 1.52, 1.61, 1.67, 1.75, 2.2, 2.3, 2.34]
    pairs = zip(train, val, strict=True)
    records = [
        item for epoch, (one, other) in enumerate(pairs) for item in ((epoch, one, "loss"), (epoch, other, "val_loss"))
    ]
    report = examined(*((epoch, {name: value}) for epoch, value, name in records), clock="epoch")
    assert "rose from 1.52 at epoch 6 to 2.32 while the training loss fell to 0.28" in " ".join(verdict(report).split())


def test_of_two_findings_at_one_step_that_which_lasted_leads():
    short = Symptom("validation-anomaly", "VA01", "warning", 0.9, 6, 20, message="exactly 0.7 at 3 evaluations")
    long = Symptom("not-learning", "LO04", "warning", 0.8, 6, 350, message="it is 0.7 at all 50 evaluations")
    assert verdict(Report(step=350, symptoms=(short, long))).startswith("Sick since step 6: not-learning")


GUESS = math.log(4)
NOISE = np.random.default_rng(3)


def test_noisy_batches_and_noisy_evaluations_without_any_trend_are_no_learning():
    losses = GUESS + 0.05 * NOISE.standard_normal(110)
    losses[8] = 12.2
    validation = [1.36, 1.41, 1.45, 1.33, 1.40, 1.44, 1.35, 1.42, 1.38, 1.46, 1.37, 1.43, 1.39, 1.41]
    assert "not-learning" in raised(examined(*batches(losses, validation)))


@pytest.mark.parametrize("case", ["validation falls", "converged at once", "training falls"])
def test_noise_about_a_trend_is_left_in_peace(case):
    losses = GUESS + 0.05 * NOISE.standard_normal(110)
    validation = 1.4 + 0.04 * NOISE.standard_normal(14)
    if case == "validation falls":
        validation = np.linspace(1.45, 1.25, 14) + 0.02 * NOISE.standard_normal(14)
        losses = losses - np.linspace(0, 0.15, 110)
    if case == "converged at once":
        losses[:4] += [2.0, 1.2, 0.6, 0.2]
    if case == "training falls":
        losses = losses - np.linspace(0, 0.4, 110)
    assert "not-learning" not in raised(examined(*batches(losses, validation)))


def floor_and(name, last):
    """A sum of which eight are a floor, beside one part of it that falls from 0.04."""
    part = np.geomspace(0.04, last, 400)
    return examined(*((step, {"loss": 8.0 + float(part[step]), name: float(part[step])}) for step in range(400)))


def test_a_sum_on_a_floor_learns_where_a_part_of_it_falls():
    assert not raised(floor_and("recon_loss", 0.004))
    assert "not-learning" in raised(floor_and("recon_loss", 0.035))
    assert "not-learning" in raised(floor_and("kl_loss", 0.004))


def test_a_small_part_that_falls_is_no_excuse_for_the_one_that_is_nearly_all():
    part = np.geomspace(0.04, 0.004, 400)
    parts = ({"data_loss": 8.0, "pde_loss": float(value)} for value in part)
    report = examined(*((step, {"loss": sum(found.values()), **found}) for step, found in enumerate(parts)))
    assert any(item.name == "not-learning" and "fell to" not in item.message for item in report.symptoms)


def judged(path, losses, validation):
    rows = zip(losses, validation, strict=True)
    path.write_text("epoch,loss,val_loss\n" + "".join(f"{epoch},{a},{b}\n" for epoch, (a, b) in enumerate(rows)))
    return diagnose(next(iter(read_all(path))))


FALL = [12.0 * 0.93**epoch + 3.0 for epoch in range(40)]


def test_validation_of_zero_was_not_measured(tmp_path):
    assert not raised(judged(tmp_path / "log.csv", FALL, [0.0] * 40))
    assert "validation-anomaly" in raised(judged(tmp_path / "other.csv", FALL, [9.3] * 40))


def test_zeros_between_evaluations_are_left_out(tmp_path):
    rising = [10.0, 8.0, 7.0, 7.5, 9.0, 10.0, 11.0, 12.0]
    blank = [rising[epoch // 5] if epoch % 5 == 4 else 0.0 for epoch in range(40)]
    assert "overfitting" in raised(judged(tmp_path / "log.csv", FALL, blank))


def test_losses_that_come_near_zero_may_well_be_zero():
    hinge = mend(Points.of(range(40), [0.0 if place % 2 else 3.0 * 0.8**place for place in range(40)]))
    assert len(unveil({"val_loss": hinge})["val_loss"].points) == 40
