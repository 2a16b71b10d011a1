"""How fast steps come, how long ago the last one came, and when the run will end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from torchdoctor.chart import Chart
from torchdoctor.records import number_text

ARRIVALS = 64
"""Number of arrivals that are remembered."""
SPAN = 5.0
"""Seconds that arrivals must cover before their rate is used."""
PATIENCE = 120.0
"""Seconds without a step after which a run counts as silent, if its steps are quick."""
PATIENT_STEPS = 10
"""If steps are slow, a run counts as silent after this many missed steps."""
STEP_LIMIT = 10**12


class Pace:
    """The arrival times of a run's steps.

    >>> pace = Pace(now=0.0)
    >>> for second in range(11):
    ...     pace.hear(step=5 * second, now=float(second))
    >>> pace.rate(), pace.silence(now=14.0), pace.patience(None)
    (5.0, 4.0, 120.0)
    """

    def __init__(self, now: float) -> None:
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=ARRIVALS)
        self._heard = now

    def wrote(self, moment: float) -> None:
        """Set when the file was last written: data read now is that old."""
        self._heard = moment

    def hear(self, step: int, now: float) -> None:
        """Record a new step."""
        if self._arrivals and step < self._arrivals[-1][1]:
            self._arrivals.clear()
        self._arrivals.append((now, step))
        self._heard = now

    def rate(self) -> float | None:
        """Steps per second as they arrived; None if too few have."""
        if len(self._arrivals) < 2:
            return None
        (began, first), (ended, last) = self._arrivals[0], self._arrivals[-1]
        return (last - first) / (ended - began) if ended - began >= SPAN and last > first else None

    def silence(self, now: float) -> float:
        """Seconds since the latest step."""
        return max(now - self._heard, 0.0)

    def patience(self, rate: float | None) -> float:
        """Seconds of silence after which it is reported."""
        moments = [moment for moment, _ in self._arrivals]
        slowest = max((after - before for before, after in zip(moments, moments[1:], strict=False)), default=0.0)
        return max(PATIENCE, PATIENT_STEPS / rate if rate else 0.0, 3 * slowest)


def rate_in(chart: Chart) -> float | None:
    """Steps per second by the run's own clock, over its latest steps; None if it has none.

    >>> rate_in(Chart.of(seconds=[0.5] * 30))
    2.0
    """
    recent = chart["seconds"].last(50)
    return None if not recent.size or recent.mean() <= 0 else float(1 / recent.mean())


def total_in(chart: Chart) -> int | None:
    """How many steps the run will have, if its context or its schedule says so; else None.

    >>> total_in(Chart.of(context={"max_steps": 500}, loss=[1.0, 2.0]))
    500
    """
    for value in (*_told(chart.context), chart.fact("schedule.total")):
        if type(value) in (int, float) and max(chart.step, 0) < value < STEP_LIMIT:
            return int(value)
    return None


def _told(context: Mapping[str, Any]) -> list[Any]:
    names = ("max_steps", "total_steps", "num_training_steps", "steps")
    return [context.get(name) for name in names]


def duration(seconds: float) -> str:
    """A duration in readable form.

    >>> duration(0.2), duration(75), duration(3 * 3600 + 120), duration(200_000)
    ('0 s', '1 min', '3 h 2 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"


def pace_text(rate: float) -> str:
    """Steps per second, or seconds per step if they are slow.

    >>> pace_text(12.34), pace_text(0.25)
    ('12.3 steps/s', '4 s/step')
    """
    return f"{number_text(rate)} steps/s" if rate >= 1 else f"{number_text(1 / rate)} s/step"
