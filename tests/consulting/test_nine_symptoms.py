"""The nine symptoms from answers alone: the ranking, its format, the ranges, and what is asked."""

from __future__ import annotations

import re
from typing import Any

import pytest

from torchdoctor.consulting import Interview, conclude
from torchdoctor.consulting.complaints import COMPLAINTS, told_by
from torchdoctor.consulting.document import as_text
from torchdoctor.consulting.question import ConsultError
from torchdoctor.consulting.questions import QUESTIONS
from torchdoctor.consulting.settings_file import overrides
from torchdoctor.consulting.telling import how_to_see, told, what
from torchdoctor.records import Suggestion
from torchdoctor.reports.problem import stands_out
from torchdoctor.treatments import ACTIONS

CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "plateau": (
        {"fell_before": "yes", "grad_norm": 0.8, "at_floor": "no", "lr": 1e-5, "optimizer": "adam"},
        "lr-too-low",
        "scale-lr",
        "times 2 to 10",
    ),
    "slow-loss": ({"grad_norm": 0.5, "lr": 1e-6, "optimizer": "adamw"}, "lr-too-low", "scale-lr", "times 2 to 10"),
    "unstable": ({"shape": "swings", "lr": 0.5, "optimizer": "sgd"}, "lr-too-high", "scale-lr", "times 0.5 first"),
    "nan": (
        {"nan_step": 12, "norms_before": "grew", "lr": 0.01, "optimizer": "adamw", "parameters": "124M"},
        "lr-too-high",
        "scale-lr",
        "times 0.06 first",  # to what models of this size are trained at
    ),
    "exploding": (
        {"grad_peak": 500, "grad_norm": 1.2, "clip": 0, "onset": 800},
        "clip-missing",
        "set-clip-norm",
        "1.0 first",
    ),
    "vanishing": (
        {
            "grad_norm": 1e-5,
            "grad_first_layer": 1e-8,
            "grad_last_layer": 0.01,
            "layers": 12,
            "activation": "saturating",
        },
        "saturating-nonlinearity",
        "use-relu-family",
        "",
    ),
    "overfitting": (
        {
            "train_losses": "2.3 1.5 1.0 0.7 0.4 0.2 0.1 0.05",
            "val_losses": [2.3, 1.6, 1.3, 1.2, 1.3, 1.5, 1.8, 2.1],
            "dropout": 0,
            "weight_decay": 0,
            "parameters": "1M",
            "dataset_size": "500k",
        },
        "under-regularized",
        "raise-dropout",
        "0.1 to 0.3",
    ),
    "slow-machine": (
        {"pace": "always", "waiting_share": "70%", "device_busy": "30 %"},
        "slow-data-loading",
        "speed-up-data",
        "",
    ),
    "other": ({"description": "the gradient of the first layers is None: no gradient"}, "detached-graph", "", ""),
}


@pytest.mark.parametrize("name", [item.name for item in COMPLAINTS])
def test_each_symptom_leads_to_its_cause_and_fix(name: str) -> None:
    answers, cause, action, worth = CASES[name]
    interview = Interview()
    interview.accept_all({"symptoms": [name], **answers})
    assert interview.missing() == []
    found = conclude(interview)
    ranked = [item for item in found.report.diagnoses if item.cause != "unknown"]
    assert cause in [item.cause for item in ranked][: 1 if action else 4]
    if action:
        assert found.proposals[0].suggestion.action == action
        assert found.proposals[0].range.startswith(worth)
    assert sum(item.probability for item in found.report.diagnoses) == pytest.approx(1.0)
    text = as_text(told(found))
    known = stands_out(ranked[0])
    assert ("Most likely cause (" in text and "% confidence): " in text) == known
    assert ("No cause stands out" in text) != known
    assert "Evidence: " in text or not action
    assert "Diagnosis\n=========" in text


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("slow-loss", ("lr-too-low",)),
        ("vanishing", ("saturating-nonlinearity", "missing-skip-connections", "bad-initialization", "loss-misuse")),
        ("unstable", ("lr-too-high",)),
        ("exploding", ("lr-too-high",)),
    ],
)
def test_who_says_nothing_more_gets_the_usual_cause_first(name: str, first: tuple[str, ...]) -> None:
    """Causes of NaN are common, and not where nobody speaks of NaN."""
    interview = Interview()
    interview.accept_all({"symptoms": [name]})
    ranked = [item.cause for item in conclude(interview).report.diagnoses if item.cause != "unknown"]
    assert ranked[0] in first and "numeric-precision" not in ranked[:4]


@pytest.mark.parametrize(
    "answers",
    [
        {"symptoms": ["vanishing"], "activation": "saturating"},
        {"symptoms": ["slow-machine"], "pace": "always", "waiting_share": 0.6},
    ],
)
def test_evidence_has_no_number_that_nobody_gave(answers: dict[str, Any]) -> None:
    """How many layers there are, and how long a step takes, was not said."""
    interview = Interview()
    interview.accept_all(answers)
    best = conclude(interview).report.diagnoses[0]
    told = " ".join(best.evidence)
    assert best.cause in ("saturating-nonlinearity", "slow-data-loading") and told
    assert set(re.findall(r"\d+(?: %)?", told)) <= {"60 %"}


def test_settings_are_those_of_the_code() -> None:
    fix = Suggestion("speed-up-data", next(item.code for item in ACTIONS if item.slug == "speed-up-data"), 0.8)
    for name, value in overrides(fix, {}).items():
        assert f"{name}={value}" in fix.code


def test_half_precision_is_still_thought_of() -> None:
    def share(**answers: object) -> float:
        interview = Interview()
        interview.accept_all({"symptoms": ["slow-loss"], **answers})
        found = conclude(interview).report.diagnoses
        return next((item.probability for item in found if item.cause == "numeric-precision"), 0.0)

    assert share(precision="float16") > 3 * share(precision="float32")


def test_several_symptoms_share_their_questions() -> None:
    interview = Interview()
    interview.answer("symptoms", "1 6")
    assert interview.complaints == ("plateau", "vanishing")
    names = []
    while (question := interview.next_question()) is not None:
        names.append(question.name)
        interview.answer(question.name, None)
    assert len(names) == len(set(names)) and {"grad_norm", "layers", "at_floor"} <= set(names)
    assert "val_losses" not in names and "nan_step" not in names
    assert conclude(interview).report.diagnoses  # nothing is known, and something is still said


def test_rough_answers_are_asked_for_where_numbers_are_not_known() -> None:
    interview = Interview()
    interview.accept_all({"symptoms": ["plateau"], "fell_before": "yes", "grad_norm": None})
    question = interview.next_question()
    assert question is not None and question.name == "grad_level"
    interview.answer("grad_level", "healthy")
    interview.answer("at_floor", "no")
    assert conclude(interview).walks[0].leaves[0].says.startswith("The learning rate is likely too low")


def test_an_answer_changes_the_ranking() -> None:
    def share(shuffled: str) -> float:
        interview = Interview()
        interview.accept_all({"symptoms": ["unstable"], "shape": "swings", "shuffled": shuffled})
        return next((d.probability for d in conclude(interview).report.diagnoses if d.cause == "data-order"), 0.0)

    assert share("no") > 0.5 > 0.1 > share("yes")


def test_the_loss_at_its_minimum_is_a_reason_to_stop() -> None:
    interview = Interview()
    interview.accept_all({"symptoms": ["plateau"], "fell_before": "yes", "grad_norm": 0.5, "at_floor": "yes"})
    found = conclude(interview)
    assert found.report.diagnoses[0].cause == "converged" and found.stop


def test_a_warm_up_that_is_there_is_not_missing() -> None:
    answers = {"symptoms": ["nan"], "nan_step": 150, "norms_before": "grew", "lr": 1e-3, "schedule": "warmup"}
    interview = Interview()
    interview.accept_all(answers)
    causes = {item.cause: item.probability for item in conclude(interview).report.diagnoses}
    assert causes.get("warmup-missing", 0.0) < 0.02


def test_what_fits_nothing_says_what_to_do() -> None:
    interview = Interview()
    interview.accept_all({"symptoms": ["other"], "description": "it is odd"})
    text = as_text(told(conclude(interview)))
    assert "matches no known finding" in text and "journal=" in text
    assert told_by("val loss is below train") == "validation-anomaly"


HOSTILE = ["", "x" * 200, "1e999", "nan", "--", "\x1b[2J", "<script>", "9" * 5000, "[]", "1;rm", "-5", "٣"]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda item: item.name)
def test_hostile_answers_are_refused_or_harmless(question: Any) -> None:
    values: list[Any] = [*HOSTILE, True, 10**400, float("inf"), {}, [[1]], [None], {"a": 1}, ["x"] * 3, -1]
    for value in values:
        try:
            found = question.accept(value)
        except ConsultError as error:
            assert str(error).startswith(question.name)
            assert "\x1b" not in str(error)
            continue
        assert found is None or isinstance(found, float | str | list)
        assert "\x1b" not in str(found)


def test_the_table_of_questions_is_sound() -> None:
    names = [item.name for item in QUESTIONS]
    assert len(names) == len(set(names))
    complaints = {item.name for item in COMPLAINTS}
    for item in QUESTIONS:
        assert item.text and item.explain and set(item.about) <= complaints and set(item.needed) <= complaints
        assert set(item.unless) <= set(names)
        assert bool(item.choices) == (item.kind in ("choice", "choices"))


@pytest.mark.parametrize(
    "given",
    [
        {"symptoms": ["exploding"], "grad_peak": 500},
        {"symptoms": ["nan"], "nan_step": None, "norms_before": None},
        {"symptoms": ["unstable"], "shape": "spike"},
        {"symptoms": ["overfitting"], "train_losses": None, "val_losses": None},
    ],
)
def test_no_step_is_made_up_where_nobody_knows_when_it_began(given) -> None:
    interview = Interview()
    interview.accept_all(given)
    found = conclude(interview)
    words = " ".join(block.text for block in told(found))
    assert "step 1000" not in words and "onset not known" in words


def test_what_an_empty_chart_would_say_is_no_evidence() -> None:
    interview = Interview()
    interview.accept_all({"symptoms": ["vanishing"], "grad_norm": 1e-7, "activation": "saturating", "layers": 20})
    found = conclude(interview)
    assert found.report.diagnoses[0].cause == "saturating-nonlinearity"
    words = " ".join(text for item in found.report.diagnoses for text in item.evidence)
    assert "at once, not layer by layer" not in words and "no clipping was seen" not in words


def test_the_change_of_a_rate_says_which_way() -> None:
    interview = Interview()
    interview.accept_all({"symptoms": ["slow-loss"], "lr": 1e-6, "optimizer": "sgd"})
    fix = conclude(interview).proposals[0].suggestion
    assert what(fix) == "Raise the learning rate, and nothing else."
    assert how_to_see(fix).startswith("The loss falls faster")
