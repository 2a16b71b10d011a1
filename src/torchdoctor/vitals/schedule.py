"""The schedule gauge: a scheduler's settings, and whether and how often it is stepped."""

from __future__ import annotations

import math
import sys
from typing import Any

from torch.optim import Optimizer

from torchdoctor.vitals.gauge import Gauge, Tell
from torchdoctor.vitals.patient import Setup, unwrap_optimizer
from torchdoctor.vitals.transfer import Slot

TOTALS = ("T_max", "total_steps", "total_iters", "T_0", "step_size")
"""Attributes of torch's schedulers that say after how many of their steps something ends."""
SURE = 2
"""Scheduler steps needed before the number of optimizer steps per scheduler step is trusted."""
APART = 8
"""Optimizer steps between two looks from which a cadence is trusted."""


class ScheduleGauge(Gauge):
    """Tells `schedule.*`."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        self._scheduler, self._tell = setup.scheduler, tell
        driven = getattr(self._scheduler, "optimizer", None)
        if isinstance(driven, Optimizer) and unwrap_optimizer(driven) not in setup.optimizers:
            self._scheduler = None  # another optimizer has taken over: this schedule is not that of the run any more
            tell(dict.fromkeys(("schedule.class", "schedule.total", "schedule.stepped", "schedule.milestones")))
        self._first: int | None = None
        self._before: tuple[int, int] | None = None
        self._interval = sys.maxsize

    def after_step(self, index: int, slot: Slot) -> None:
        """Compare the scheduler's count with the optimizer's."""
        count = getattr(self._scheduler, "last_epoch", None)
        if index or not isinstance(count, int):
            return
        if self._first is None:
            self._first = count
            self._tell(self._declared())
        self._tell({"schedule.stepped": count > self._first})
        self._tell(self._watched())
        passed = count - self._first
        if passed >= SURE:
            # exact right after a scheduler step and too large later: the smallest is the closest
            self._interval = min(self._interval, round((slot.number + 1) / passed))
            self._tell({"schedule.interval": self._interval})
        total = self._total()
        if total and type(self._scheduler).__name__ == "CosineAnnealingLR":
            # it does not stop at its end: the learning rate goes up and down for as long as it is stepped
            self._tell({"schedule.rounds": min(count // total, 5)})
        if self._before is None:
            self._before = count, slot.number
        elif slot.number - self._before[1] >= APART:
            passed, taken = count - self._before[0], slot.number - self._before[1]
            self._before = count, slot.number
            if passed:
                self._tell({"schedule.per_batch": passed >= 0.9 * taken})
            if passed >= 1.9 * taken:
                self._tell({"schedule.times": round(passed / taken)})

    def _watched(self) -> dict[str, Any]:
        """What a plateau scheduler counts as better, and the best value that it has seen."""
        mode, best = getattr(self._scheduler, "mode", None), getattr(self._scheduler, "best", None)
        if mode not in ("min", "max") or not isinstance(best, int | float) or not math.isfinite(best):
            return {}
        return {"schedule.mode": mode, "schedule.best": float(best)}

    def _declared(self) -> dict[str, Any]:
        milestones = getattr(self._scheduler, "milestones", None) or ()
        return {
            "schedule.class": type(self._scheduler).__name__,
            "schedule.total": self._total(),
            "schedule.milestones": [int(item) for item in milestones][:16],
        }

    def _total(self) -> int | None:
        for name in TOTALS:
            value = getattr(self._scheduler, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return None
