"""CK11 uses-its-input."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks.calling import names_of
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.nested import leading
from torchdoctor.checks.practice import Practice
from torchdoctor.checks.probing import SAME, altered, answer, awaken, moved_by, seed, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text

ASIDE = re.compile(r"(^|_)(mask|type|segment|pos|len|idx|index|indices|weight|cache)|mask(s|$)|[a-z]_states?(_|$)")
"""Names of inputs that may have no effect on the output: attention_mask, token_type_ids, hidden_state."""


@dataclass(frozen=True)
class UsesItsInput(Check):
    """The output depends on the input.

    ## What it checks
    The batch is replaced by another of the same scale. If the outputs stay the same, the model ignores its input: it is
    overwritten, multiplied by zero, or cut off by dead or saturated units, and the best the model can learn is the mean
    target. If there are several inputs, each must matter when it is swapped between samples.

    ## How it is told apart
    A last layer, a gate or an adapter that starts at zero hides the input only until the first step, so such weights
    are first replaced by random ones. Otherwise the output must depend on the input after a short training. Any change
    above rounding counts. Masks, lengths, positions and the like may have no effect on a batch.

    ## What to do
    Follow the input through `forward`: is the variable that comes in the one that is used? Check the share of units
    that are zero for every sample.

    ## Example
    >>> class Deaf(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(torch.zeros_like(x))
    >>> batch = torch.randn(4, 3), torch.randn(4, 1)
    >>> print(UsesItsInput().run(Subject.of(Deaf(3, 1), torch.nn.MSELoss(), batch)).message)
    other inputs change the outputs by 0 of their size, and after 30 steps of training by 0
    """

    code = "CK11"
    name = "uses-its-input"
    quick = True
    suggests = ("initialize", "use-relu-family", "normalize-inputs")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    steps: int = 30
    """Steps of training after which outputs must depend on inputs, if they do not at first."""
    least: float = SAME
    """Smallest change of the outputs, as a share of their size, that counts."""

    def applies(self, subject: Subject) -> str | None:
        """One model with inputs, whose output is visible."""
        if (reason := whole_loss(subject)) is not None:
            return reason
        return None if leading(subject.inputs) is not None else "the batch holds no tensor"

    def run(self, subject: Subject) -> Outcome:
        """Compare the outputs for different inputs, before and after a short training."""
        others = altered(subject, torch.ones(subject.samples, dtype=torch.bool, device=subject.device))
        if not _differs(others, subject.inputs):
            raise CannotTell("no other input of the same kind could be made to compare with")
        with subject.fresh():
            awaken(subject)
            moved = _moved(subject, others)
        if not math.isfinite(moved):
            raise CannotTell("outputs are not finite: see numerical-stability")
        if moved > self.least:
            if unheard := self._unheard(subject):
                return self.failed(
                    f"one of the inputs changes nothing: {names_text(unheard)}",
                    "Follow it through `forward`: is it passed on, or is another variable used instead?",
                    where=tuple(unheard),
                    severity="warning",
                )
            return self.passed(f"other inputs change the outputs by {number_text(moved)} of their size", value=moved)
        Practice(subject).go_on(self.steps)
        later = _moved(subject, others)
        message = f"other inputs change the outputs by {number_text(moved)} of their size, and after {self.steps} "
        message += f"steps of training by {number_text(later)}"
        if later > self.least:
            return self.passed(message, value=later, limit=self.least)
        advice = "Follow the input through `forward`: is what comes in also used? Look for dead and saturated units."
        return self.failed(message, advice, value=later, limit=self.least)

    def _unheard(self, subject: Subject) -> list[str]:
        """Inputs that can be swapped between samples without any effect, even after a short training."""
        names = [name for name, _ in _several(subject)]
        if len(names) < 2:
            return []
        with subject.fresh():
            awaken(subject)
            silent = [name for name in names if not _heard(subject, name)]
        if not silent or subject.no_loss:
            return silent
        with subject.fresh():
            Practice(subject).go_on(self.steps)
            return [name for name in silent if not _heard(subject, name)]


def _several(subject: Subject) -> list[tuple[str, Tensor]]:
    """Inputs that are passed one by one and differ between samples, by name; masks aside."""
    inputs = subject.inputs
    names = names_of(subject.model, inputs)
    if not names or subject.samples < 2:
        return []
    pairs = [(name, inputs[name]) for name in names] if isinstance(inputs, Mapping) else zip(names, inputs, strict=True)
    return [
        (name, item)
        for name, item in pairs
        if isinstance(item, Tensor)
        and item.shape[:1] == (subject.samples,)
        and not ASIDE.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
        and torch.unique(item).numel() > 2
        and not torch.equal(item.roll(1, 0), item)
    ]


def _heard(subject: Subject, name: str) -> bool:
    """Whether swapping an input between samples changes output or loss, in either mode."""
    inputs, names = subject.inputs, names_of(subject.model, subject.inputs)
    if isinstance(inputs, Mapping):
        other: Any = {**inputs, name: inputs[name].roll(1, 0)}
    else:
        other = tuple(item.roll(1, 0) if key == name else item for key, item in zip(names, inputs, strict=True))
    try:
        for training in (False, True):
            before, after = (answer(subject, given, subject.targets, training=training) for given in (inputs, other))
            if not torch.equal(before, after):
                return True
        return not subject.no_loss and _loss(subject, inputs) != _loss(subject, other)
    except Exception:  # noqa: BLE001  inputs that cannot be swapped are in use
        return True


@torch.no_grad()
def _loss(subject: Subject, inputs: Any) -> float:
    seed()
    return float(subject.loss(inputs, subject.targets))


def _moved(subject: Subject, others: object) -> float:
    return moved_by(answer(subject), answer(subject, others, subject.targets))


def _differs(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return any(_differs(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return any(_differs(a, b) for a, b in zip(one, other, strict=True))
    return False
