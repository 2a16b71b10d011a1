"""The definition of an action: something to change, as data. Nothing here imports torch or is executed."""

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
"""The order of kinds if there are several problems: what protects the run comes before what changes the model."""


@dataclass(frozen=True)
class Action:
    """One thing that can be changed."""

    slug: str
    kind: Kind
    safety: Safety
    """"apply": may be done in the loop automatically; "ask": after confirmation; "show": by hand only."""
    prior: float
    """Confidence if `PRIORS` has none for the cause or finding."""
    summary: str
    when: str
    """When it helps and when it does not."""
    code: str
    """Code to paste; ``{name}`` stands for a parameter."""
    check: str
    """How to see that it helped."""
    blind: str = ""
    """Code to paste if a parameter is unknown because the present value is."""
    parameters: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The valid range of each parameter."""
    references: tuple[str, ...] = ()

    @property
    def priority(self) -> int:
        """Place in the queue; 1 comes first."""
        return PRIORITY[self.kind]
