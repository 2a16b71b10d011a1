"""The shape of a check."""

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
    """What a check found."""

    passed: bool
    message: str
    """What was seen, in numbers: one sentence without its full stop, as in a symptom."""
    where: tuple[str, ...] = ()
    """Parameters, modules or columns, by name."""
    advice: str = ""
    """What to do, where it failed."""
    value: float | None = None
    limit: float | None = None
    severity: Severity = "critical"
    """Of a failure: "critical" where training cannot go well, "warning" where it merely costs, "info" for a remark."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Plain data for ``--format json``: a table, a breakdown."""


class CannotTell(Exception):  # noqa: N818  it is no error: the check is skipped
    """Raised inside `Check.run` where it turns out that the check does not apply: the reason, in one sentence."""


@dataclass(frozen=True)
class Check(ABC):
    """One question about a model before it is trained: metadata, thresholds, `applies`, `run`.

    Class attributes are its metadata and annotated fields its thresholds, as in a detector. `run` may do to the model
    and its optimizer what it likes: everything is put back afterwards, and the random state is seeded before. What
    raises inside `run` makes the check "skipped", with the reason.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    quick: ClassVar[bool] = False
    """Whether it is part of a quick check-up: a pass or two, no training."""
    static: ClassVar[bool] = False
    """Whether it looks at tensors and never runs the model: it is done however little time there is."""
    needs_loss: ClassVar[bool] = True
    """Whether it needs a loss on the batch; else only a model. What does not run at all is said once, by CK02."""
    suggests: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()

    def applies(self, subject: Subject) -> str | None:
        """None where it applies; else why it is skipped, in one sentence."""
        return None

    @abstractmethod
    def run(self, subject: Subject) -> Outcome:
        """The answer for this model, loss and batch."""

    def passed(
        self, message: str, *, value: float | None = None, limit: float | None = None, **details: Any
    ) -> Outcome:
        """All is well: say what was seen, in numbers."""
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
        """Something is wrong: say what, in numbers, and what to do."""
        return Outcome(False, message, where, advice, value, limit, severity, details)
