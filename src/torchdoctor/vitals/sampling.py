"""When to look closely: often at the start, where most mistakes show, then as often as the overhead budget allows."""

from __future__ import annotations

import time
from collections.abc import Callable

EARLY = (1, 2, 4, 8, 16)
"""Steps of the run's first moments that are looked at closely."""
YOUNG = 500
"""Steps during which samples are twice as frequent."""
RAREST = 10_000
GRACE = 1.0
"""Seconds that close looks may take in any run: nobody notices one second, and a small run is worth as much."""


class Sampling:
    """Which steps are sampled, and what sampling has cost; `note` takes a key and a sentence.

    >>> sampling = Sampling(50, 0.01, print)
    >>> numbers = [sampling.next]
    >>> while numbers[-1] < 100:
    ...     numbers.append(sampling.after(numbers[-1]))
    >>> numbers
    [0, 1, 2, 4, 8, 16, 25, 50, 75, 100]
    >>> sampling.spent, sampling.watched = 5.0, 100.0
    >>> sampling.keep_budget()  # doctest: +ELLIPSIS
    budget 100 close looks are taken every 100 steps from here on: ...
    """

    def __init__(self, every: int, overhead: float, note: Callable[[str, str], None]) -> None:
        self.every = every
        self.next = 0
        """The step that is looked at next."""
        self.spent = self.watched = 0.0
        """Seconds of close looks, and of the run."""
        self._young = max(1, every // 2)
        self._overhead, self._note = overhead, note
        self._began = 0.0

    def after(self, number: int) -> int:
        """The first step after this one that is looked at closely."""
        stride = self._young if number < YOUNG else self.every
        regular = (number // stride + 1) * stride
        return min((early for early in EARLY if number < early < regular), default=regular)

    def __enter__(self) -> Sampling:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent += time.perf_counter() - self._began

    def keep_budget(self, elsewhere: float = 0.0) -> None:
        """Look more rarely while looking takes more of the run than it may; `elsewhere`: seconds inside hooks."""
        spent = self.spent + elsewhere
        if spent <= self._overhead * self.watched + GRACE * (self._overhead > 0) or self.every >= RAREST:
            return
        self.every = self._young = min(2 * self.every, RAREST)
        share = spent / max(self.watched, 1e-9)
        self._note(
            f"budget {self.every}",
            f"close looks are taken every {self.every} steps from here on: they took {share:.1%} of the time, "
            f"and settings.overhead allows {self._overhead:.1%}.",
        )
