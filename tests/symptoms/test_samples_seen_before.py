"""What follows from samples that come again: validation on known ones, other answers, training that is harder."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

AGAIN = [0.0, 0.0, 0.1, 0.2, 0.2, 0.3]


def validated(val=0.9, level=1.0, depends=False, facts=None, start=1.0, **vitals):
    """Two evaluations of a run at a level, with samples that come again."""
    given = {"input_again": AGAIN, "idle_known": [0.0] * 3, "criterion": [level] * 6} | vitals
    chart = Chart.of(loss=[start * level] * 10 + [level] * 190, lr=[0.1] * 200, **given)
    chart.add({"type": "facts", "step": 0, "facts": {"mode.depends": depends} | (facts or {})})
    for step in (99, 199):
        chart.put(step, "val_loss", val)
    return chart


SCALED = {"input_mean": [0.0] * 5, "input_std": [1.0] * 5, "idle_input_mean": [0.0] * 3, "idle_input_std": [0.5] * 3}
SICK = {
    "validated on training samples": (validated(idle_known=[0.4, 0.5]), "also occur in the training set"),
    "training is far worse": (validated(0.7, facts={"loss.kind": "cross-entropy"}), "may be wrong"),
    "half as large, and worse for it": (validated(1.2, **SCALED), "0.5 in validation"),
}
HEALTHY = {
    "another set": validated(idle_known=[0.0, 0.0]),
    "few are known": validated(idle_known=[0.02, 0.04]),
    "some passes are on training samples": validated(idle_known=[0.5, 0.0, 0.5]),
    "one batch for everything": validated(idle_known=[1.0, 1.0], input_again=[1.0] * 6),
    "asked what to do": validated(idle_known=[0.5, 0.5], facts={"loop.acts": True}),
    "a little better": validated(0.9),
    "better without dropout": validated(0.6, depends=True),
    "better without augmentation": validated(0.6, input_again=[0.0] * 6),
    "better without smoothing": validated(0.6, facts={"loss.label_smoothing": 0.1}),
    "better without a penalty": validated(0.6, criterion=[0.6] * 6),
    "better with an average of weights": validated(0.6, facts={"state.written_always": 5}),
    "larger in training by noise": validated(1.2, **SCALED, input_again=[0.0] * 6),
    "half as large, and no worse": validated(1.05, **SCALED),
}


@pytest.mark.parametrize(("chart", "words"), SICK.values(), ids=SICK)
def test_fires(chart, words):
    symptom = ValidationAnomaly().check(chart)
    assert symptom.severity == "warning"
    assert words in symptom.message


@pytest.mark.parametrize("chart", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(chart):
    assert ValidationAnomaly().check(chart) is None


@pytest.mark.parametrize(("kind", "start"), [("mse", 1.0), ("cross-entropy", 5.0)])
def test_easier_samples_are_a_note(kind, start):
    """Numbers of a calmer time, classes that are learnt."""
    assert ValidationAnomaly().check(validated(0.6, start=start, facts={"loss.kind": kind})).severity == "info"


def test_labels_that_are_wrong_in_part_are_a_note_where_validation_learns():
    assert ValidationAnomaly().check(validated(0.4, facts={"loss.kind": "cross-entropy"})).severity == "info"


def answered(changed, again=AGAIN, moved=(), **facts):
    chart = Chart.of(answer_changed=changed, input_again=again, answer_moved=moved)
    chart.add({"type": "facts", "step": 0, "facts": facts})
    return chart


def unlearnt(before, after, moved=(0.8, 1.0, 0.7, 0.9)):
    """Numbers that are all others, and errors of a guess, which costs something else in each batch."""
    guesses = [1.2, 0.5, 0.8, 1.1, 0.6, 0.4, 0.9, 1.3]
    chart = answered([1.0] * 4, moved=list(moved))
    for step, (share, guess) in enumerate(zip([*before, *after], guesses, strict=True)):
        chart.put(step, "criterion", share * guess)
        chart.put(step, "guess_loss", guess)
    return chart


CHANGED = {
    "numbers shuffled from the second epoch on": unlearnt([1.0, 0.7, 0.3, 0.2], [1.0, 1.1, 0.95, 1.05]),
    "labels shuffled anew in each epoch": answered([0.9, 0.8, 0.9, 1.0], **{"loss.classes": 10}),
    "a quarter of the numbers": answered([0.2, 0.3, 0.25, 0.3]),
    "and by far": answered([0.2, 0.3, 0.25, 0.3], moved=[0.15, 0.2, 0.2, 0.25]),
}
UNCHANGED = {
    "the same": answered([0.0] * 4, **{"loss.classes": 10}),
    "now and then": answered([0.0, 0.3, 0.0, 0.1], **{"loss.classes": 10}),
    "noise that is to be told": answered([1.0] * 4),
    "noise that is told": unlearnt([1.0, 0.9, 0.6, 0.4], [0.3, 0.2, 0.3, 0.2]),
    "noise that nobody can tell": unlearnt([1.1, 1.0, 1.0, 0.95], [1.0, 1.05, 1.0, 1.0]),
    "noise that one batch was lucky with": unlearnt([1.1, 0.4, 1.0, 0.95], [1.0, 1.05, 1.0, 1.0]),
    "learnt again": unlearnt([1.0, 0.7, 0.3, 0.2], [1.0, 0.8, 0.7, 0.5]),
    "no better, but by little": unlearnt([1.0, 0.7, 0.3, 0.2], [1.0, 1.1, 0.95, 1.05], moved=[0.0, 0.02, 0.0, 0.01]),
    "measured more than once": answered([0.6] * 4, moved=[0.0, 0.02, 0.0, 0.01]),
    "few inputs that differ": answered([0.3] * 4, again=[0.2] * 6, **{"loss.classes": 10}),
    "experience": answered([0.5] * 4, **{"loss.classes": 4, "loop.acts": True}),
}


@pytest.mark.parametrize("chart", CHANGED.values(), ids=CHANGED)
def test_answers_that_change(chart):
    assert "a different target" in TargetAnomaly().check(chart).message


@pytest.mark.parametrize("chart", UNCHANGED.values(), ids=UNCHANGED)
def test_answers_that_stay(chart):
    assert TargetAnomaly().check(chart) is None
