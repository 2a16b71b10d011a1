"""The interview: which question comes next, what was answered, and the way back. It prints and reads nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.consulting.complaints import COMPLAINTS, seen
from torchdoctor.consulting.contradictions import contradictions
from torchdoctor.consulting.known import known_answers
from torchdoctor.consulting.question import Answers, ConsultError, Question, Value
from torchdoctor.consulting.questions import BY_NAME, QUESTIONS, SYMPTOMS
from torchdoctor.errors import did_you_mean
from torchdoctor.examination import Examination
from torchdoctor.offline import examine
from torchdoctor.records import INFORMATIVE, Symptom
from torchdoctor.reports.clock import clock_of, counted
from torchdoctor.settings import Settings
from torchdoctor.sources import Run

ANSWERS_LIMIT = 4 * 2**20
"""Bytes of a file of answers."""
PLAN = ("fix", "script", "patch", "overrides", "case_outcome")
"""What a file of answers may hold besides: what to do with the result."""


class Interview:
    """What is known and what was answered so far.

    >>> interview = Interview()
    >>> interview.next_question().name
    'symptoms'
    >>> interview.answer("symptoms", ["overfitting"])
    >>> interview.next_question().name
    'train_losses'
    >>> interview.back()
    >>> interview.next_question().name
    'symptoms'
    """

    def __init__(self, run: Run | None = None, settings: Settings | None = None) -> None:
        self.run = run
        self.settings = settings if settings is not None else Settings()
        self.measured = examine(run, self.settings) if run is not None else None
        """The examination of the run alone."""
        self.chart = self.measured.judged() if self.measured is not None else None
        """What it found, as `diagnose` would say it."""
        self.known: dict[str, Value] = known_answers(self.chart) if self.chart is not None else {}
        """What the run answers by itself."""
        self.given: dict[str, Value] = {}
        """What was answered, in order."""

    def examine(self) -> Examination:
        """An examination of the run to which answers can be added; the run is read once."""
        return Examination(self.settings) if self.measured is None else copy.deepcopy(self.measured)

    @property
    def shown(self) -> dict[str, Symptom]:
        """By complaint, what the run itself shows."""
        if self.chart is None:
            return {}
        found = (item for item in self.chart.episodes if item.name not in INFORMATIVE)
        return seen(replace(item, message=counted(item.message, self.clock)) for item in found)

    @property
    def clock(self) -> str:
        """What the run counts; steps where there is none."""
        return clock_of(self.chart.context) if self.chart is not None else "step"

    @property
    def preselected(self) -> list[str]:
        """The complaints that the run itself has; what is only a note is shown, and not taken for one."""
        return [name for name, symptom in self.shown.items() if symptom.severity != "info"]

    @property
    def answers(self) -> Answers:
        """Everything that is known, and what the run counts: what was said counts only where the run is silent."""
        believed = {name: value for name, value in self.given.items() if name not in self.contradicted}
        return {**believed, **self.known, "clock": self.clock}

    @property
    def contradicted(self) -> dict[str, str]:
        """By question, how the run speaks against the answer."""
        return contradictions(self.chart, self.given, self.known) if self.chart is not None else {}

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the person came with, in the order of the nine; without an answer, what the run shows."""
        chosen = self.given.get("symptoms")
        names = chosen if isinstance(chosen, list) else self.preselected
        return tuple(item.name for item in COMPLAINTS if item.name in names)

    @property
    def believed(self) -> tuple[str, ...]:
        """The complaints that the run does not speak against."""
        denied = "nan_step" in self.contradicted and "nan_step" not in self.known
        return tuple(name for name in self.complaints if name != "nan" or not denied)

    def next_question(self) -> Question | None:
        """The first question that concerns these complaints and has no answer; None where nothing is left to ask."""
        return next((item for item in QUESTIONS if item.name not in self.given and self._concerns(item)), None)

    def missing(self) -> list[Question]:
        """What must be answered, with null where it is not known, before anything can be said without a person."""
        if "symptoms" not in self.given and self.run is None:
            return [SYMPTOMS]
        return [
            item
            for item in QUESTIONS
            if item is not SYMPTOMS
            and item.name not in self.given
            and set(item.needed) & set(self.believed)
            and self._concerns(item)
        ]

    def _concerns(self, question: Question) -> bool:
        if question is SYMPTOMS:
            return True
        if question.name == "description" and "other" in self.preselected:  # the run tells what it is
            return False
        if question.name in self.known or (question.about and not set(question.about) & set(self.believed)):
            return False
        if not self.believed:
            return False
        answers = self.answers
        if question.unless and all(answers.get(name) is not None for name in question.unless):
            return False
        return question.only_if is None or str(answers.get(question.only_if[0])) in question.only_if[1]

    def answer(self, name: str, value: object) -> None:
        """Take an answer; raises where it cannot be one."""
        if name not in BY_NAME:
            raise ConsultError(f"there is no question {name!r}. {did_you_mean(name, BY_NAME)}")
        self.given[name] = BY_NAME[name].accept(value)

    def back(self) -> None:
        """Take the last answer back."""
        if self.given:
            self.given.popitem()

    def accept_all(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Take the answers of a file; what is not a question but says what to do is returned."""
        plan = {}
        for name, value in answers.items():
            if name in PLAN:
                plan[name] = value
            elif name not in BY_NAME:
                raise ConsultError(f"there is no question {name!r}. {did_you_mean(name, [*BY_NAME, *PLAN])}")
        for question in QUESTIONS:  # in the order in which they would have been asked
            if question.name in answers:
                self.answer(question.name, answers[question.name])
        return plan


def read_answers(path: Path) -> dict[str, Any]:
    """A file of answers: a JSON object, keys are the questions' names."""
    try:
        if path.stat().st_size > ANSWERS_LIMIT:
            raise ConsultError(f"{path} is larger than {ANSWERS_LIMIT // 2**20} MB: it is no file of answers.")
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConsultError(f"cannot read the answers in {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ConsultError(f"{path} is not JSON: {str(error)[:200]}. Give {{question: answer}}.") from error
    if not isinstance(found, dict):
        raise ConsultError(f"{path} must hold a JSON object {{question: answer}}, not a {type(found).__name__}.")
    return found


def questions_json(interview: Interview) -> list[dict[str, Any]]:
    """Every question of these complaints as plain data; all of them where there are no complaints yet."""
    chosen = interview.complaints
    return [
        item.to_dict() | ({"answered_by_run": interview.known[item.name]} if item.name in interview.known else {})
        for item in QUESTIONS
        if not chosen or not item.about or set(item.about) & set(chosen)
    ]
