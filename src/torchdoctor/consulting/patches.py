"""A fix as a patch to review: a diff against a training script, made only if the place is certain, never applied.

>>> script = Script.of("train.py", "lr = 1e-3\\nopt = torch.optim.SGD(net.parameters(), lr=lr)\\n")
>>> fix = Suggestion("scale-lr", "learning_rate *= 0.5", 0.9, parameters={"factor": 0.5})
>>> print(patch(script, fix).diff.splitlines()[4])
+lr = 0.0005
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.consulting.clipping import by_hand, uses_lightning
from torchdoctor.consulting.question import ConsultError
from torchdoctor.consulting.script import Place, Script
from torchdoctor.consulting.script_edits import AT_OPTIMIZER, MAKERS, STEPWISE, Edit, PlaceError
from torchdoctor.records import Suggestion, number_text
from torchdoctor.reports.wording import first_line, printable


@dataclass(frozen=True)
class Patch:
    """A diff, or the line to write and where to put it."""

    diff: str
    """Empty if the place is not certain."""
    where: str
    """Where to look, or a note on the diff."""
    code: str


SAME = 0.01
"""Relative difference up to which two learning rates count as the same."""


def patch(script: Script, suggestion: Suggestion, rate: object = None) -> Patch:
    """The fix as a diff against the script or, if the place is not certain, as a line to insert by hand.

    `rate` is the run's learning rate, if known: if the script has another one, the run got its own from elsewhere.
    """
    make = MAKERS.get(suggestion.action)
    try:
        if make is None:
            raise PlaceError("this change needs a person: no single place in a script makes it")
        edits = make(script, suggestion)
        if suggestion.action == "scale-lr" and isinstance(rate, float):
            _same_rate(edits[0].place, rate)
        option = next((edit.place.option for edit in edits if edit.place.option), "")
        note = f"This changes a default: if you pass {printable(option)} yourself, change it there." if option else ""
        return Patch(_diff(script, edits), note, by_hand(script, suggestion))
    except PlaceError as reason:
        hint = "Nothing to insert." if "already" in str(reason) else _hint(script, suggestion)
        return Patch("", f"{reason}. {hint}", by_hand(script, suggestion))


def _same_rate(place: Place, rate: float) -> None:
    if abs(place.value - rate) > SAME * abs(rate):
        written, used = number_text(float(place.value)), number_text(rate)
        raise PlaceError(
            f"line {place.line} has the learning rate {written}, but the run had {used}: change it where {used} was set"
        )


def _hint(script: Script, suggestion: Suggestion) -> str:
    """Where to make the change by hand."""
    steps, optimizers = script.steps(), script.optimizers
    if suggestion.action in STEPWISE:
        if suggestion.action == "set-clip-norm" and uses_lightning(script):
            return f"By hand: pass it to the Trainer that {script.name} creates or that runs it."
        if not steps:
            return f"By hand: {script.name} has no optimizer step after a backward(); the lines belong between the two."
        line = steps[0].node.lineno
        return f"By hand, before line {line} of {script.name}: {first_line(script.line(line)).strip()}"
    if suggestion.action not in AT_OPTIMIZER:
        return "Make it by hand."
    if optimizers:
        return f"By hand, around line {optimizers[0].call.lineno} of {script.name}, where the optimizer is created."
    return f"By hand: {script.name} creates no optimizer; make the change where the optimizer is created."


def _diff(script: Script, edits: Iterable[Edit]) -> str:
    lines = [line.encode() for line in script.lines]
    ordered = sorted(edits, key=lambda item: (item.place.line, item.place.column), reverse=True)
    for edit in ordered:
        place = edit.place
        if place.end_line != place.line:
            raise PlaceError("the value spans several lines")
        line = lines[place.line - 1]
        lines[place.line - 1] = line[: place.column] + edit.text.encode() + line[place.end_column :]
    made = "\n".join(line.decode() for line in lines) + ("\n" if script.text.endswith("\n") else "")
    if made == script.text:
        raise PlaceError("the script already has this value")
    try:
        Script.of(script.name, made)
    except ConsultError as error:
        raise PlaceError("the changed script could not be parsed") from error
    name = _relative(script.name)
    old, new = ([line + "\n" for line in text.split("\n")] for text in (script.text, made))
    for whole in (old, new):
        if whole[-1] == "\n":
            whole.pop()
        else:
            whole[-1] = whole[-1].removesuffix("\n") + "\n\\ No newline at end of file\n"
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def _relative(name: str) -> str:
    """The path in the diff: relative if the script is below the current folder, else its bare name."""
    path = Path(name)
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name
