"""The base class of checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torchdoctor.records import Severity

if TYPE_CHECKING:
    from torchdoctor.checks.subject import Subject


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    passed: bool
    message: str
    """What was measured, in numbers: one sentence without a full stop, as in a symptom."""
    where: tuple[str, ...] = ()
    """Parameters, modules or columns, by name."""
    advice: str = ""
    """What to do if it failed."""
    value: float | None = None
    limit: float | None = None
    severity: Severity = "critical"
    """Of a failure: "critical" if training cannot go well, "warning" if it only costs something, "info" otherwise."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain data for ``--format json``: a table, a breakdown."""


class CannotTell(Exception):  # noqa: N818  not an error: the check is skipped
    """Raised inside `Check.run` if the check turns out not to apply; its text is the reason, in one sentence."""


@dataclass(frozen=True)
class Check(ABC):
    """One question about a model before it is trained: metadata, thresholds, `applies`, `run`.

    Class attributes are its metadata and annotated fields its thresholds, as in a detector. `run` may change the model
    and its optimizer freely: everything is restored afterwards, and random states are seeded before. An exception in
    `run` makes the check "skipped", with the reason.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    quick: ClassVar[bool] = False
    """Whether it is part of a quick check-up: a pass or two, no training."""
    static: ClassVar[bool] = False
    """Whether it only reads tensors and never runs the model: it then runs even if the time is used up."""
    needs_loss: ClassVar[bool] = True
    """Whether it needs a loss on the batch, not only a model. CK02 alone reports a model that does not run."""
    suggests: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()

    def applies(self, subject: Subject) -> str | None:
        """None if it applies; else why it is skipped, in one sentence."""
        return None

    @abstractmethod
    def run(self, subject: Subject) -> Outcome:
        """Run the check on this model, loss and batch."""

    def passed(
        self, message: str, *, value: float | None = None, limit: float | None = None, **details: Any
    ) -> Outcome:
        """No problem: say what was measured, in numbers."""
        return Outcome(True, message, value=value, limit=limit, details=details)

    def failed(
        self,
        message: str,
        advice: str,
        *,
        where: tuple[str, ...] = (),
        value: float | None = None,
        limit: float | None = None,
        severity: Severity = "critical",
        **details: Any,
    ) -> Outcome:
        """A problem: say what is wrong, in numbers, and what to do."""
        return Outcome(False, message, where, advice, value, limit, severity, details)
