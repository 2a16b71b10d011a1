"""Losses that fall like stairs: at the ends of epochs only, when all samples come again.

>>> chart = Chart.of(loss=[1.3] * 40 + [0.95] * 40 + [0.6] * 40, context={"source": "CSV", "steps_per_epoch": 40})
>>> print(*stairs(chart))
step 40: GE01 overfitting (info): loss falls from epoch to epoch (1.3, 0.95, 0.6) but hardly within one: samples ...
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.hindsight.curve import Curve, shown
from torchdoctor.symptoms.overfitting import Overfitting, level_at
from torchdoctor.symptoms.progress import is_game

EPOCHS, RECORDS = 3, 16
"""Fewest epochs, and fewest records of each."""
STEP, NOISES = 0.1, 4
"""Least height of a stair, as a share of the level before it and as a multiple of its error."""
TREAD = 0.3
"""Largest change within a later epoch, as a share of the lowest stair."""
DECAYED = 0.8
"""If the learning rate falls below this share of its value when an epoch ends, that explains a stair."""


def stairs(chart: Chart) -> Iterator[Symptom]:
    """The loss falls at the end of each epoch, and hardly in between: the model remembers the samples it has seen."""
    length, curve = chart.context.get("steps_per_epoch"), Curve.of(chart["loss"], "loss")
    if not isinstance(length, int) or length < 2 or is_game(chart):
        return
    numbers = (curve.steps // length).astype(int)
    parts = [curve.values[numbers == number] for number in np.unique(numbers)]
    parts = [part for part in parts if part.size >= RECORDS]
    if len(parts) < EPOCHS:
        return
    quarters = [part.size // 4 for part in parts]
    begins = np.array([median(part[:size]) for part, size in zip(parts, quarters, strict=True)])
    ends = np.array([median(part[-size:]) for part, size in zip(parts, quarters, strict=True)])
    error = max(float(np.std(np.diff(part))) / size**0.5 for part, size in zip(parts, quarters, strict=True))
    heights = ends[:-1] - begins[1:]
    low = float(heights.min())
    if not low > max(STEP * float(np.abs(ends).max()), NOISES * error):
        return
    if float(np.abs(begins - ends)[1:].max()) > TREAD * low or _decays(chart, length, int(curve.steps[-1])):
        return
    levels = ", ".join(number_text(median(part)) for part in parts[:5])
    message = f"loss falls from epoch to epoch ({levels}) but hardly within one: samples that come again are remembered"
    if "lr" not in chart:
        message += ", unless the learning rate falls there"
    yield shown(Overfitting, curve, int(np.argmax(numbers > numbers[0])), "info", message, confidence=0.7)


def _decays(chart: Chart, length: int, last: int) -> bool:
    """Whether the learning rate falls when an epoch ends.

    >>> chart = Chart.of(loss=[1.3] * 40 + [0.95] * 40 + [0.6] * 40, lr=[0.1] * 40 + [0.01] * 80)
    >>> _decays(chart, 40, 119), _decays(chart, 60, 119)
    (True, False)
    """
    rates, reach = chart["lr"], max(1, length // 10)
    places = range(length, last, length)
    return bool(rates) and any(
        level_at(rates, place + reach) < DECAYED * level_at(rates, place - reach) for place in places
    )
