"""The interview: the next question, the answers so far, and going back. It does no input or output."""

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
"""Maximum size of an answers file, in bytes."""
PLAN = ("fix", "script", "patch", "overrides", "case_outcome")
"""Further keys of an answers file: what to do with the result."""


class Interview:
    """What the run answers, and the answers so far.

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
        """Its findings, as `diagnose` would report them."""
        self.known: dict[str, Value] = known_answers(self.chart) if self.chart is not None else {}
        """Answers that the run itself gives."""
        self.given: dict[str, Value] = {}
        """The person's answers, in order."""

    def examine(self) -> Examination:
        """An examination of the run to which answers can be added; the run is read once."""
        return Examination(self.settings) if self.measured is None else copy.deepcopy(self.measured)

    @property
    def shown(self) -> dict[str, Symptom]:
        """By complaint, the finding of the run."""
        if self.chart is None:
            return {}
        found = (item for item in self.chart.episodes if item.name not in INFORMATIVE)
        return seen(replace(item, message=counted(item.message, self.clock)) for item in found)

    @property
    def clock(self) -> str:
        """The unit of the run; steps if there is no run."""
        return clock_of(self.chart.context) if self.chart is not None else "step"

    @property
    def preselected(self) -> list[str]:
        """The complaints that the run shows as warning or critical; info findings are shown, but not preselected."""
        return [name for name, symptom in self.shown.items() if symptom.severity != "info"]

    @property
    def answers(self) -> Answers:
        """Everything that is known, and the run's unit. An answer counts only if the run does not know better."""
        believed = {name: value for name, value in self.given.items() if name not in self.contradicted}
        return {**believed, **self.known, "clock": self.clock}

    @property
    def contradicted(self) -> dict[str, str]:
        """By question, a sentence on how the run contradicts the answer."""
        return contradictions(self.chart, self.given, self.known) if self.chart is not None else {}

    @property
    def complaints(self) -> tuple[str, ...]:
        """The chosen symptoms, in the order of the list; if nothing was chosen yet, those that the run shows."""
        chosen = self.given.get("symptoms")
        names = chosen if isinstance(chosen, list) else self.preselected
        return tuple(item.name for item in COMPLAINTS if item.name in names)

    @property
    def believed(self) -> tuple[str, ...]:
        """The complaints that the run does not contradict."""
        denied = "nan_step" in self.contradicted and "nan_step" not in self.known
        return tuple(name for name in self.complaints if name != "nan" or not denied)

    def next_question(self) -> Question | None:
        """The first unanswered question that concerns these complaints; None if nothing is left to ask."""
        return next((item for item in QUESTIONS if item.name not in self.given and self._concerns(item)), None)

    def missing(self) -> list[Question]:
        """The questions that must be answered (null if not known) if nobody can be asked."""
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
        if question.name == "description" and "other" in self.preselected:  # the run shows what it is
            return False
        if question.name in self.known or (question.about and not set(question.about) & set(self.believed)):
            return False
        if not self.believed:
            return False
        answers = self.answers
        return not question.unless or any(answers.get(name) is None for name in question.unless)

    def answer(self, name: str, value: object) -> None:
        """Store an answer; raises `ConsultError` if it is not valid."""
        if name not in BY_NAME:
            raise ConsultError(f"there is no question {name!r}. {did_you_mean(name, BY_NAME)}")
        self.given[name] = BY_NAME[name].accept(value)

    def back(self) -> None:
        """Undo the last answer."""
        if self.given:
            self.given.popitem()

    def accept_all(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """Store the answers of a file; returns the entries that say what to do with the result."""
        plan = {}
        for name, value in answers.items():
            if name in PLAN:
                plan[name] = value
            elif name not in BY_NAME:
                raise ConsultError(f"there is no question {name!r}. {did_you_mean(name, [*BY_NAME, *PLAN])}")
        for question in QUESTIONS:  # in the order they would be asked
            if question.name in answers:
                self.answer(question.name, answers[question.name])
        return plan


def read_answers(path: Path) -> dict[str, Any]:
    """Read an answers file: a JSON object whose keys are names of questions."""
    try:
        if path.stat().st_size > ANSWERS_LIMIT:
            raise ConsultError(f"{path} is larger than {ANSWERS_LIMIT // 2**20} MB: this is not an answers file.")
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConsultError(f"cannot read the answers in {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise ConsultError(f"{path} is not JSON: {str(error)[:200]}. Give {{question: answer}}.") from error
    if not isinstance(found, dict):
        raise ConsultError(f"{path} must hold a JSON object {{question: answer}}, not a {type(found).__name__}.")
    return found


def questions_json(interview: Interview) -> list[dict[str, Any]]:
    """Every question for these complaints as plain data; all questions if there are no complaints yet."""
    chosen = interview.complaints
    return [
        item.to_dict() | ({"answered_by_run": interview.known[item.name]} if item.name in interview.known else {})
        for item in QUESTIONS
        if not chosen or not item.about or set(item.about) & set(chosen)
    ]
