"""The shape of an action: what can be changed, as data; nothing here imports torch or is ever run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchdoctor.records import Safety

Kind = Literal["gradient control", "regularization", "optimizer", "data", "architecture", "process"]

PRIORITY: dict[Kind, int] = {
    "gradient control": 1,
    "regularization": 2,
    "optimizer": 3,
    "data": 3,
    "architecture": 4,
    "process": 5,
}
"""Which kind of change comes first when several troubles meet: what protects the run before what reshapes it."""


@dataclass(frozen=True)
class Action:
    """One thing that can be changed."""

    slug: str
    kind: Kind
    safety: Safety
    """"apply": may be done in the loop unasked; "ask": after a question; "show": by hand only."""
    prior: float
    """Confidence where no cause or finding has a better-founded one."""
    summary: str
    when: str
    """When it helps, and when it does not."""
    code: str
    """What to paste; ``{name}`` stands for a parameter."""
    check: str
    """How to see that it helped."""
    blind: str = ""
    """What to paste where the present value, and with it a parameter, is not known."""
    parameters: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The valid range of each parameter."""
    references: tuple[str, ...] = ()

    @property
    def priority(self) -> int:
        """Its place in the queue, 1 first."""
        return PRIORITY[self.kind]
