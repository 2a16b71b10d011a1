"""How far the values of a run usually reach: in a heavy-tailed series, large values are expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from torchdoctor.series import TINY, Array, Series, median

AHEAD = 8
"""Number of values before a rise that it is measured from, so that slow swings cancel out."""
ODDS = 0.3
"""Number of rises beyond the tail expected by chance in as many steps as the tail was estimated from."""
START = 24
"""Number of first values of a run that are ignored: they may be higher than all later ones."""
APART = 16
"""Jumps closer together than this many values are one event."""


def rises_above(values: Array) -> Array:
    """How far each value is above the median of the eight values before it; 0 for the first eight.

    >>> rises_above(np.array([1.0] * 8 + [2.0, 0.0, 1.0]))[8:]
    array([ 1., -1.,  0.])
    """
    rises = np.zeros(values.size)
    if values.size > AHEAD:
        before = np.sort(np.lib.stride_tricks.sliding_window_view(values[:-1], AHEAD), axis=1)
        rises[AHEAD:] = values[AHEAD:] - (before[:, AHEAD // 2 - 1] + before[:, AHEAD // 2]) / 2
    return rises


def _log_rises(values: Array, least: float) -> Array:
    with np.errstate(all="ignore"):  # results for values that are not positive are not used
        return rises_above(np.log(np.abs(values) + least))


RISES: dict[float | None, Callable[[Array], Array]] = {
    None: rises_above,
    0.0: partial(_log_rises, least=0.0),
    TINY: partial(_log_rises, least=TINY),
}


HABIT = 1.4
"""Multiple of the third highest earlier rise up to which a rise is a habit of the run."""


def tail(series: Series, window: int, skip: int, *, log: float | None = None, habit: float = HABIT) -> float:
    """How high a rise is likely, given the earlier ones; 0 if there are fewer than three.

    The rises are taken from the last `window` values without the latest `skip`, or from their logarithms, after `log`
    is added to each. An exponential tail (in log space, a power law) is fitted to the highest eighth of the rises by
    their median, so that a few earlier jumps do not widen it. The limit is at least `habit` times the third highest
    rise, of these values and of the whole run: two earlier outliers may be chance, three are a habit.

    >>> from torchdoctor.chart import Chart
    >>> rng = np.random.default_rng(0)
    >>> calm, heavy = np.exp(0.2 * rng.normal(size=400)), np.exp(0.6 * rng.exponential(size=400))
    >>> tail(Chart.of(x=calm)["x"], 400, 1, log=TINY) < 2 < tail(Chart.of(x=heavy)["x"], 400, 1, log=TINY)
    True
    >>> losses = Chart.of(loss=[1.0] * 20 + [9.0, 1.0, 1.0, 7.0, 1.0, 1.0, 5.0, 1.0, 20.0])["loss"]
    >>> tail(losses, 29, 1, habit=1.0)
    4.0
    """
    window = min(window, len(series))
    rises = series.derived(RISES[log], AHEAD)[len(series) - window + AHEAD : len(series) - skip]
    if rises.size < 3:
        return 0.0
    most = max(AHEAD, rises.size // 8)
    if rises.size < 2 * most:
        return habit * float(np.partition(rises, -3)[-3])
    top = np.sort(np.partition(rises, -most)[-most:])
    scale = (median(top) - float(top[0])) / math.log(2)
    third = float(top[-3])
    if series.count > 2 * window:
        third = max(third, third_of_all(series, skip, log=log))
    return max(float(top[0]) + scale * math.log(most / ODDS), habit * third)


def is_habitual(series: Series, rise: float, cause: Series | None = None, skip: int = 4) -> bool:
    """Whether the run has had at least three jumps, in log space, nearly as high as this one.

    With a cause, such as the loss, only the part of those jumps that its own jumps do not explain counts.
    """
    third = third_of_all(series, skip, log=TINY)
    if cause is not None:
        third -= third_of_all(cause, skip, log=TINY)
    return rise < HABIT * third


def third_of_all(series: Series, skip: int, *, log: float | None = None) -> float:
    """The third highest rise since the first eighth of the run, from its outline; 0 if there are too few.

    A run may have a jump every thousand steps, far more often than chance, and none in the last few hundred.

    >>> from torchdoctor.chart import Chart
    >>> rare = [9.0 if step % 1000 == 500 else 1.0 for step in range(4900)]
    >>> third_of_all(Chart.of(x=rare)["x"], 1), third_of_all(Chart.of(x=rare[:2400])["x"], 1)
    (8.0, 0.0)
    """
    outline = series.outline
    _, _, means, highs = outline.columns()
    end = highs.size - 1 - skip // outline.stride
    begin = max(highs.size // 8, START // outline.stride, AHEAD)
    if end - begin < APART:
        return 0.0
    if log is not None:
        with np.errstate(all="ignore"):  # as for single values
            means, highs = np.log(np.abs(means) + log), np.log(np.abs(highs) + log)
    before = np.sort(np.lib.stride_tricks.sliding_window_view(means[begin - AHEAD : end - 1], AHEAD), axis=1)
    rises = highs[begin:end] - (before[:, AHEAD // 2 - 1] + before[:, AHEAD // 2]) / 2
    events = max(1, APART // outline.stride)
    tops = rises[: rises.size - rises.size % events].reshape(-1, events).max(axis=1)
    third = float(np.partition(tops, -3)[-3]) if tops.size >= 3 else 0.0
    return third if third > 0 else 0.0


def is_unheard_of(series: Series, skip: int = 4, most: int = 256, times: float = 1.7) -> bool:
    """Whether the latest value is far above the third highest of the last few hundred, without the run's first steps.

    With few values the third highest is not extreme yet, so the limit is higher.

    >>> from torchdoctor.chart import Chart
    >>> norms = [1.0, 1.2, 0.9, 1.1] * 32
    >>> [is_unheard_of(Chart.of(x=[*norms, last])["x"]) for last in (2.0, 5.0)]
    [False, True]
    """
    earlier = series.values[START if len(series) == series.count else 0 : -skip][-most:]
    return earlier.size < 3 or series.latest > times * (1 + 36 / earlier.size) * float(np.partition(earlier, -3)[-3])
