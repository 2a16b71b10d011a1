"""What a question consists of, and how an answer is parsed, whether typed in a terminal or read from a file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchdoctor.errors import TorchDoctorError, did_you_mean
from torchdoctor.records import number_text
from torchdoctor.reports.wording import printable

Kind = Literal["number", "numbers", "choice", "choices", "text"]
Value = float | int | str | list[float] | list[str] | None
Answers = Mapping[str, Value]
"""Answers by question name; None if the question was asked and the answer is not known."""

MOST_NUMBERS = 100_000
MOST_TEXT = 2000
SHOWN_VALUES = 8
"""How many values of a list are shown: the last ones."""
SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12, "%": 0.01}
NUMBER = re.compile(r"([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([kmbt%]?)", re.IGNORECASE)
NOT_KNOWN = frozenset({"", "-", "?", "unknown", "none", "null"})
YES_NO = (("yes", "yes"), ("no", "no"))


class ConsultError(TorchDoctorError):
    """An answer, casebook or script cannot be used."""


@dataclass(frozen=True)
class Question:
    """One question."""

    name: str
    """Its key in a file of answers."""
    text: str
    explain: str
    """Shown for `?`: why it is asked, and how to find the answer."""
    kind: Kind = "number"
    about: tuple[str, ...] = ()
    """The complaints it belongs to; empty means all."""
    needed: tuple[str, ...] = ()
    """The complaints for which an answer or null is required if nobody can be asked."""
    choices: tuple[tuple[str, str], ...] = ()
    """Value and wording of each choice."""
    least: float = 0.0
    most: float = math.inf
    unless: tuple[str, ...] = ()
    """Not asked if all of these are answered."""

    def accept(self, value: object) -> Value:
        """The answer as it is stored, parsed from JSON or typed text; raises `ConsultError` if it is not valid.

        >>> LR = Question("lr", "Learning rate?", "", most=1e3)
        >>> LR.accept("3e-4"), LR.accept(0.1), LR.accept(None)
        (0.0003, 0.1, None)
        >>> LR.accept("fast")
        Traceback (most recent call last):
        ...
        torchdoctor.consulting.question.ConsultError: lr: 'fast' is not a number. Give one such as 0.001, or null.
        """
        if value is None or (isinstance(value, str) and value.strip().lower() in NOT_KNOWN and not self._near(value)):
            return None
        match self.kind:
            case "number":
                return self._number(value)
            case "numbers":
                return self._numbers(value)
            case "choice":
                return self._choice(value)
            case "choices":
                return self._choices(value)
            case "text":
                return printable(value)[:MOST_TEXT]

    def _number(self, value: object) -> float:
        number = _number(value)
        if number is None:
            raise ConsultError(f"{self.name}: {_shown(value)} is not a number. Give one such as 0.001, or null.")
        if not self.least <= number <= self.most:
            raise ConsultError(
                f"{self.name}: {_shown(value)} is out of range. Give a number from {self.least:g} to {self.most:g}."
            )
        return number

    def _numbers(self, value: object) -> list[float]:
        parts: Sequence[object]
        if isinstance(value, str):
            parts = [part for part in re.split(r"[\s,;]+", value.strip("[]() \t\n")) if part]
        elif isinstance(value, list):
            parts = value
        else:
            parts = [value]
        if len(parts) > MOST_NUMBERS:
            raise ConsultError(f"{self.name}: {len(parts):,} values are too many. Give the last {MOST_NUMBERS:,}.")
        found = []
        for part in parts:
            number = _number(part, finite=False)
            if number is None:
                raise ConsultError(f"{self.name}: {_shown(part)} is not a number. Give numbers, or null.")
            found.append(number)
        return found

    def _choice(self, value: object) -> str:
        known = [name for name, _ in self.choices]
        word = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        text = printable(word).strip().lower()
        if text in known:
            return text
        if text.isdecimal() and 1 <= int(text[:9]) <= len(known):
            return known[int(text[:9]) - 1]
        near = self._near(text)
        if len(near) == 1:
            return near[0]
        raise ConsultError(f"{self.name}: {_shown(value)} is not one of the choices. {did_you_mean(text, known)}")

    def _near(self, typed: str) -> list[str]:
        """The choices that a typed word may mean: "none" is one of them where it is offered, and not known elsewhere.

        >>> Question("layer", "", "", "choice", choices=(("relu", "ReLU"), ("no", "none: it is linear")))._near("None")
        ['no']
        """
        text = typed.strip().lower()
        begun = rf"{re.escape(text)}\b"
        near = (name for name, words in self.choices if name.startswith(text) or re.match(begun, words.lower()))
        return list(near) if text else []

    def _choices(self, value: object) -> list[str]:
        if isinstance(value, str):
            value = [part for part in re.split(r"[\s,;]+", value) if part]
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value]
        if not isinstance(value, list):
            raise ConsultError(f"{self.name}: {_shown(value)} is not a list. Give names or numbers of the choices.")
        return list(dict.fromkeys(self._choice(item) for item in value))

    def to_dict(self) -> dict[str, Any]:
        """The question as ``--questions`` prints it."""
        told: dict[str, Any] = {"name": self.name, "question": self.text, "kind": self.kind, "explain": self.explain}
        if self.choices:
            told["choices"] = dict(self.choices)
        told["symptoms"] = list(self.about) or "all"
        told["needed_for"] = list(self.needed)
        if self.unless:
            told["unless_answered"] = list(self.unless)
        return told


def answer_text(value: Value) -> str:
    """An answer in one line.

    >>> answer_text(0.0003), answer_text(None), answer_text([1.0, 2.5]), answer_text(124e6)
    ('0.0003', 'not known', '1, 2.5', '124,000,000')
    """
    if value is None:
        return "not known"
    if isinstance(value, list):
        texts = [answer_text(item) for item in value[-SHOWN_VALUES:]]
        return ("… " if len(value) > SHOWN_VALUES else "") + ", ".join(texts)
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 and value == int(value) else number_text(value)
    return str(value)


def _number(value: object, *, finite: bool = True) -> float | None:
    """A number as a person may write it.

    >>> _number("124M"), _number("10,000"), _number("30 %"), _number("about 3"), _number("nan", finite=False)
    (124000000.0, 10000.0, 0.3, None, nan)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) or not finite else None
    if not isinstance(value, str) or len(value) > 100:
        return None
    text = value.strip()
    if not finite and text.lower() in ("nan", "inf", "+inf", "-inf", "infinity", "-infinity"):
        return float(text)
    found = NUMBER.fullmatch(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
    if found is None:
        return None
    number = float(found[1].replace("_", "")) * SUFFIXES.get(found[2].lower(), 1.0)
    return number if math.isfinite(number) else None


def _shown(value: object) -> str:
    return repr(printable(value)[:60])
