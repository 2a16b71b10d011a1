import math

import numpy as np
import pytest

from torchdoctor import examination as module
from torchdoctor.chart import Chart
from torchdoctor.episodes import EPISODES_LIMIT, follow, merge
from torchdoctor.examination import Examination
from torchdoctor.phases import judge_phase
from torchdoctor.records import Symptom
from torchdoctor.settings import Settings
from torchdoctor.symptoms import Detector
from torchdoctor.symptoms.update_ratio_abnormal import UpdateRatioAbnormal
from torchdoctor.watch import Watch


def vitals(step, **values):
    return {"type": "vitals", "step": step, "vitals": values}


def sick_run(length=400):
    """A run with a scaled gradient, then a learning rate that leaps and a loss that leaves."""
    rng = np.random.default_rng(0)
    for step in range(length):
        late = max(0, step - 300)
        yield vitals(
            step,
            loss=float(1 + 3 * np.exp(-step / 60) + 0.05 * rng.standard_normal() + 2.0 * min(late, 20)),
            grad_norm=float(np.exp(0.2 * rng.standard_normal()) * (20 if step == 200 else 1 + late)),
            lr=1e-3 if step < 300 else 0.1,
        )


def test_one_episode_per_trouble_with_its_events_in_order():
    examination = Examination(Settings())
    events = [event for record in sick_run() for event in examination.take(record)]
    explosion = [event for event in events if event["type"] == "symptom" and event["name"] == "gradient-explosion"]
    assert [event["event"] for event in explosion][:2] == ["opened", "closed"]
    assert explosion[0]["step"] == explosion[0]["first_step"] == 200
    assert [event["step"] for event in explosion][1] == 250
    spike = next(event for event in events if event["type"] == "symptom" and event["name"] == "loss-spike")
    assert spike["first_step"] <= 303
    assert any(event["type"] == "diagnosis" and event["step"] == 200 for event in events)


def test_the_causes_of_both_problems():
    examination = Examination(Settings())
    for record in sick_run():
        examination.take(record)
    report = examination.report()
    assert report.health == "critical"
    first = {}
    for diagnosis in report.diagnoses:
        first.setdefault(diagnosis.problem, diagnosis)
    assert [item.cause for item in first.values()] == ["lr-too-high", "unknown"]
    assert report.diagnoses[0].problem == 1, "the worst problem comes first"
    assert report.suggestions[0].action in ("scale-lr", "set-clip-norm")
    assert {item.action for item in report.suggestions} >= {"scale-lr", "set-clip-norm", "roll-back"}


def test_replaying_the_records_gives_the_same_report_whenever_it_is_asked_for():
    live, replayed = Examination(Settings()), Examination(Settings())
    for record in sick_run():
        live.take(record)
        if record["step"] % 7 == 0:
            live.report()
    for record in sick_run():
        for derived in replayed.take(record):
            assert replayed.take(derived) == [] or derived["type"] == "note"
    assert live.report().to_dict() == replayed.report().to_dict()


def test_the_end_closes_what_is_open():
    examination = Examination(Settings())
    for step in range(60):
        examination.take(vitals(step, loss=2.0))
    examination.take(vitals(60, loss=math.nan))
    events = examination.take({"type": "end", "step": 61})
    assert [(event["event"], event["name"]) for event in events] == [("closed", "nan-or-inf")]
    assert examination.chart.open_episodes == {}


class Broken(Detector):
    """Fails always."""

    code, name, reads = "XX01", "broken", ("loss",)

    def check(self, chart):
        raise ZeroDivisionError("by zero")


def test_a_detector_that_fails_is_switched_off_with_one_note(monkeypatch):
    monkeypatch.setattr(module, "build", lambda settings: (Broken(),))
    examination = Examination(Settings())
    notes = [event for step in range(10) for event in examination.take(vitals(step, loss=1.0))]
    assert [note["text"] for note in notes] == [
        "broken was switched off: it failed 3 times (ZeroDivisionError: by zero)"
    ]
    assert examination.report().notes == (notes[0]["text"],)


def test_merging_keeps_the_first_step_and_the_worse_severity():
    first = Symptom("a", "", "info", 0.5, 10, 10, where=("x",), message="first")
    worse = Symptom("a", "", "warning", 0.9, 12, 12, where=("y",), message="worse")
    merged = merge(merge(first, worse), Symptom("a", "", "info", 0.1, 14, 14, message="last"))
    assert (merged.severity, merged.first_step, merged.last_step, merged.count) == ("warning", 10, 14, 3)
    assert (merged.message, merged.where, merged.confidence) == ("worse", ("y", "x"), 0.9)


@pytest.mark.parametrize(("preset", "phases"), [("paper", 2), ("default", 0)])
def test_the_paper_reports_at_every_third_validation(preset, phases):
    examination = Examination(Settings(preset=preset))
    for step in range(180):
        examination.take(vitals(step, loss=3 - 0.01 * step, grad_norm=1.0 + 0.1 * (step % 5)))
        if step % 25 == 24:
            examination.take({"type": "validation", "step": step, "vitals": {"val_loss": 3.1 - 0.01 * step}})
    assert [(phase["first_step"], phase["trend"]) for phase in examination.report().phases] == [
        (0, "decreasing"), (75, "decreasing"),
    ][:phases]  # fmt: skip


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("losses", "trend"),
    [
        ([], "unknown"),
        ([1.0] * 5, "unknown"),
        ([1.0] * 50, "flat"),
        (1 + 0.1 * RNG.standard_normal(300), "flat"),
        (np.linspace(3, 1, 300), "decreasing"),
        (np.linspace(3, 1, 5000), "decreasing"),
        (np.linspace(1, 3, 300) + 0.1 * RNG.standard_normal(300), "increasing"),
        ([-loss for loss in range(100)], "decreasing"),
    ],
)
def test_the_trend_of_a_phase(losses, trend):
    assert judge_phase(Chart.of(loss=losses), 0)["trend"] == trend


def test_a_phase_with_trouble_is_not_stable():
    chart = Chart.of(loss=[1.0] * 100)
    chart.episodes.append(Symptom("loss-spike", "LO01", "warning", 0.9, 40, 45))
    assert judge_phase(chart, 0)["stable"] is False
    assert "not stable (loss-spike)" in judge_phase(chart, 30)["message"]
    assert judge_phase(chart, 46)["stable"] is True


def test_what_comes_again_and_again_is_one_trouble_in_the_end():
    examination = Examination(Settings())
    rng = np.random.default_rng(0)
    for step in range(12_000):
        leap = 30.0 if step % 150 == 149 else 1.0
        examination.take(vitals(step, grad_norm=float(np.exp(0.1 * rng.standard_normal()) * leap)))
    found = [item for item in examination.report().symptoms if item.name == "gradient-explosion"]
    assert len(found) == EPISODES_LIMIT
    assert found[-1].last_step == 11_999 and found[-1].count > 40


def test_a_log_that_is_read_is_diagnosed_once_at_its_end():
    live, read = Examination(Settings()), Examination(Settings(), live=False)
    records = [vitals(step, grad_norm=300.0 if step == 90 else 1.0 + step % 3 / 10) for step in range(120)]
    told, said = ({item["type"] for record in records for item in it.take(record)} for it in (live, read))
    assert told - said == {"diagnosis"} and "symptom" in said
    assert repr(read.report()) == repr(live.report())


def test_an_end_in_the_middle_of_a_descent_is_said_there():
    examination = Examination(Settings())
    for step in range(200):
        assert not examination.take(
            {"type": "vitals", "step": step, "vitals": {"loss": 4.0 - 0.01 * step, "lr": 1e-3, "grad_norm": 1.0}}
        )
    told = examination.take({"type": "end", "step": 199})
    assert [(item["event"], item["name"]) for item in told if item["type"] == "symptom"] == [
        ("opened", "slow-learning"),
        ("closed", "slow-learning"),
    ]
    causes = [item["cause"] for item in told if item["type"] == "diagnosis"]
    assert causes[0] == "stopped-too-early"
    assert [item.name for item in examination.report().symptoms] == ["slow-learning"]


def test_a_finding_on_facts_is_of_their_step_although_vitals_are_behind():
    examination = Examination(Settings())
    for step in range(10):
        examination.take({"type": "vitals", "step": step, "vitals": {"loss": 2.0, "grad_norm": 1.0}})
    told = examination.take({"type": "facts", "step": 30, "facts": {"graph.not_in_optimizer": ["head.weight"]}})
    assert {item["step"] for item in told} == {30}
    later = examination.take({"type": "vitals", "step": 10, "vitals": {"loss": float("nan"), "grad_norm": 1.0}})
    assert {item["step"] for item in later if item["type"] == "symptom"} == {10}


def test_what_is_said_to_have_begun_within_an_episode_is_that_episode():
    """A finding that pauses and comes back with its old beginning was not over."""
    chart = Chart.of(loss=[1.0] * 100)
    watch = Watch(UpdateRatioAbnormal())
    seen = [Symptom("update-ratio-abnormal", "OP01", "warning", 0.9, first, last) for first, last in ((0, 8), (0, 48))]
    events = [event for item in (seen[0], None, None, seen[1]) for event, _ in follow(chart, watch, item)]
    assert events == ["opened", "closed"] and [(item.first_step, item.last_step) for item in chart.episodes] == [
        (0, 48)
    ]
    later = Symptom("update-ratio-abnormal", "OP01", "warning", 0.9, 60, 62)
    assert [event for item in (None, None, later) for event, _ in follow(chart, watch, item)] == ["closed", "opened"]
