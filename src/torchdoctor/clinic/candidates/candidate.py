"""The shape of a candidate: a model that comes for a check-up, sound or with one thing wrong.

What counts as right is declared with the candidate, before anything is run. One without a right answer is sound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchdoctor.clinic.kinds.kind import SPLITS, Split


class Visit(NamedTuple):
    """What a candidate brings along: the arguments of a check-up."""

    model: Any
    loss_fn: Any
    batch: Any
    optimizer: Any = None
    loader: Any = None
    validation: Any = None
    memory: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A model by name; `build` makes it, after the seed was set."""

    slug: str
    build: Callable[[], Visit]
    right: tuple[str, ...] = ()
    """Checks of which any one that fails counts as finding what is wrong."""
    secondary: tuple[str, ...] = ()
    """Checks that may fail as well."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.right

    @property
    def summary(self) -> str:
        """What it is, in a sentence."""
        return (self.build.__doc__ or "").strip().splitlines()[0]

    @property
    def split(self) -> Split:
        """Which half it belongs to: its name alone decides, so that one that is added later moves no other."""
        return SPLITS[hashlib.sha256(self.slug.encode()).digest()[8] % 2]
