"""When to look closely: often at the start, where most mistakes show, then as often as the overhead budget allows."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from torchdoctor.settings import Settings

EARLY = (1, 2, 4, 8, 16)
"""The first steps of a run that are looked at closely."""
AHEAD = 2
"""A sample comes this many steps before a round number: just after one, loops validate and epochs begin."""
YOUNG = 300
"""First steps in which samples are twice as frequent and not counted against the budget."""
RAREST = 10_000
SHARE = 0.3
"""Share of the allowed overhead for close looks; the rest is for what is done at every step."""
CUDA_SHARE = 0.1
"""The same for a CUDA device, whose steps are short: more than a look every second or two is of no use."""
GRACE = 1.0
"""Seconds of close looks that are free in any run on the host: nobody notices one, and short runs are common there."""


class Sampling:
    """Which steps are sampled, and what sampling has cost; `note` takes a key and a sentence.

    >>> sampling = Sampling(50, 0.01, print)
    >>> numbers = [sampling.next]
    >>> while numbers[-1] < 100:
    ...     numbers.append(sampling.after(numbers[-1]))
    >>> numbers
    [0, 1, 2, 4, 8, 16, 23, 48, 73, 98, 123]
    >>> sampling.looks, sampling.spent, sampling.watched = 10, 2.0, 100.0
    >>> sampling.keep_budget(1000)  # doctest: +ELLIPSIS
    budget 667 layers, batches and outputs are now looked at only every 667 steps ...
    """

    def __init__(
        self,
        every: int,
        overhead: float,
        note: Callable[[str, str], None],
        grace: float = GRACE,
        share: float = SHARE,
    ) -> None:
        self.every = self._wanted = every
        self.next = 0
        """The next step that is looked at."""
        self.looks = 0
        self.spent = self.watched = 0.0
        """Seconds of close looks, and of the run."""
        self.waited = 0.0
        """Seconds of close looks in which the loop would have waited anyway."""
        self._young = max(1, every // 2)
        self._allowed, self._note = share * overhead, note
        self._began = 0.0
        self._youth = (0.0, 0, 0.0, 0)
        """After the first steps, which include compilation: seconds of looks, looks, seconds of the run, steps."""
        self._free = grace if overhead > 0 else 0.0
        """Seconds that are not counted against the budget."""
        self._said = every
        self._before = 0.0
        """Seconds that looks had taken when the latest one began."""
        self._prices: deque[float] = deque(maxlen=8)
        """Seconds of the latest looks, including the processing of their numbers."""

    @classmethod
    def on(cls, settings: Settings, note: Callable[[str, str], None], *, cuda: bool) -> Sampling:
        """As configured in the settings, for a CUDA device or the host."""
        every, overhead = settings.sample_every, settings.overhead
        return cls(every, overhead, note, 0.0, CUDA_SHARE) if cuda else cls(every, overhead, note)

    def after(self, number: int) -> int:
        """The first step after this one that is looked at closely."""
        stride = self._young if number < YOUNG else self.every
        ahead = AHEAD if stride >= 5 * AHEAD else 0
        regular = ((number + ahead) // stride + 1) * stride - ahead
        return min((early for early in EARLY if number < early < regular), default=regular)

    def begin(self, elsewhere: float = 0.0) -> None:
        """A look begins; the time spent since the previous one began is that one's cost."""
        spent = self.spent + elsewhere - self.waited
        if self.looks:
            self._prices.append(spent - self._before)
        self._before = spent
        self.looks += 1

    def _price(self, mean: float) -> float:
        """The cost of a look: the mean of the latest few without the highest, which may include compilation."""
        prices = sorted(self._prices)[:-1]
        return sum(prices) / len(prices) if len(prices) > 2 else mean

    def __enter__(self) -> Sampling:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent += time.perf_counter() - self._began

    def keep_budget(self, number: int, elsewhere: float = 0.0) -> None:
        """Look less often if looks take more of the run than allowed; `elsewhere`: seconds inside hooks."""
        spent = self.spent + elsewhere - self.waited
        then_spent, then_looks, then_watched, then = self._youth
        look = self._price((spent - then_spent) / max(1, self.looks - then_looks))
        step = (self.watched - then_watched) / max(1, number - then)
        if number <= YOUNG and self._allowed:
            if spent > self._free and then and self.looks > then_looks:  # cost of the latest ones, without compilation
                self._look_every(self._affordable(look, step), look)
            self._youth = spent, self.looks, self.watched, number
        elif spent > max(self._free, then_spent) + self._allowed * (self.watched - then_watched):
            self._young = max(self.every, self._affordable(look, step))
            self._look_every(self._young, look)

    def _affordable(self, look: float, step: float) -> int:
        """Minimum steps between looks of this many seconds, with steps of this many seconds."""
        return min(RAREST, max(self._wanted, math.ceil(look / max(self._allowed * step, 1e-12))))

    def _look_every(self, every: int, look: float) -> None:
        self.every = every
        if every >= 2 * self._said:
            self._said = every
            self._note(
                f"budget {every}",
                f"layers, batches and outputs are now looked at only every {every} steps (losses and gradients "
                f"still at every step): a close look takes {1e3 * look:.1f} ms, and looks may take {self._allowed:.2%} "
                "of the run's time (settings.overhead).",
            )
