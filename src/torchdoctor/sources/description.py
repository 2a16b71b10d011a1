"""What is known of a foreign log, for a run's header, and what its reader should know, for the notes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torchdoctor.records import names_text
from torchdoctor.sources.clock import counts
from torchdoctor.sources.logged import NAME_LENGTH, Logged, Points
from torchdoctor.sources.naming import Understood
from torchdoctor.sources.repair import Mended
from torchdoctor.sources.single_names import is_machine
from torchdoctor.sources.words import AVERAGED, taken_apart

SECRET = re.compile(r"(?i)token(?!s|iz|_len|_count)|secret|passw|api_?key|auth|cookie|credential")
CONFIG_LIMIT = 300
TEXT_LIMIT = 200
BATCH_SIZES = ("batch_size", "train_batch_size", "per_device_train_batch_size", "micro_batch_size", "batch")
EVEN = 30
"""Points from which on a pace can be told."""
WIDE = 10
"""How many times the usual distance of two points is a gap."""
MOST_GAPS = 3
"""Beyond these it is the way in which the log was written."""
SEEDS = ("seed", "random_seed", "manual_seed")


def context_of(
    logged: Logged, understood: Understood, mended: Mapping[str, Mended], points: Mapping[str, Points]
) -> dict[str, Any]:
    """The context of a run's header: where it comes from, what its steps are, and which column is which."""
    leading = next((mended[vital] for vital in ("loss", "val_loss") if vital in mended), None)
    if leading is None:
        leading = max(mended.values(), key=lambda found: len(found.points), default=Mended(Points.of([], [])))
    config = _plain(logged.config)
    context: dict[str, Any] = {
        "source": logged.format,
        "run": logged.name,
        "clock": logged.clock,
        "logged_every": _interval(leading.points),
        "steps_per_epoch": _steps_per_epoch(points) if logged.clock != "epoch" else None,
        "batch_size": next((config[key] for key in BATCH_SIZES if isinstance(config.get(key), int)), None),
        "seed": next((config[key] for key in SEEDS if isinstance(config.get(key), int)), None),
        **logged.context,
        "columns": {vital: _origin(vital, understood) for vital in mended},
        "better": {vital: way for vital, way in understood.better.items() if vital in mended},
        "config": config,
    }
    return {key: value for key, value in context.items() if value not in (None, {}, "")}


def _gaps(mended: Mapping[str, Mended]) -> Iterator[str]:
    """Where a loss that was logged at an even pace was not logged for long: what went on there nobody knows.

    >>> steps = [*range(0, 600), *range(1400, 2000)]
    >>> list(_gaps({"loss": Mended(Points.of(steps, [2.5] * len(steps)))}))
    ['no loss between steps 599 and 1400, elsewhere one every step: what went on there is not known']
    """
    vital = next((vital for vital in ("loss", "val_loss") if vital in mended), None)
    points = mended[vital].points if vital is not None else Points.of([], [])
    if len(points) < EVEN:
        return
    apart = np.diff(points.steps)
    usual = float(np.median(apart))
    wide = np.flatnonzero(apart > WIDE * usual)
    if not 0 < len(wide) <= MOST_GAPS or (apart > 2 * usual).sum() > len(wide):
        return
    every = f"{usual:g} steps" if usual > 1 else "step"
    for place in wide:
        between = f"steps {points.steps[place]} and {points.steps[place + 1]}"
        yield f"no loss between {between}, elsewhere one every {every}: what went on there is not known"


def _smoothed(mended: Mapping[str, Mended], understood: Understood) -> Iterator[str]:
    """That nothing but a smoothed loss was logged: what is said of spikes and noise is said of that."""
    name = _origin("loss", understood) if "loss" in mended else ""
    if taken_apart(name, 0).has(AVERAGED):
        spikes = "spikes are lower and later than they were; log the plain one too"
        yield f"the loss was logged smoothed ({name}): {spikes}"


def _origin(vital: str, understood: Understood) -> str:
    return " + ".join(understood.columns[vital])


def _interval(points: Points) -> int | None:
    return max(1, round(float(np.median(np.diff(points.steps))))) if len(points) > 1 else None


def _steps_per_epoch(points: Mapping[str, Points]) -> int | None:
    """How many steps an epoch has, where the epoch was logged beside the steps."""
    epochs = next((series for name, series in points.items() if name.lower().split("/")[-1] == "epoch"), None)
    if epochs is None or len(epochs) < 2:
        return None
    finite = np.isfinite(epochs.values)
    steps, values = epochs.steps[finite], epochs.values[finite]
    if len(steps) < 2 or values[-1] - values[0] < 0.5 or steps[-1] <= steps[0]:
        return None
    if np.array_equal(values, np.floor(values)):  # whole epochs: from the first step of one to the first of another
        starts = np.flatnonzero(np.diff(values) > 0) + 1
        if len(starts) < 2:
            return None
        first, last = starts[0], starts[-1]
    else:
        first, last = 0, len(steps) - 1
    span = float(values[last] - values[first])
    return max(1, round(float(steps[last] - steps[first]) / span)) if span > 0 else None


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that are numbers, flags or short words; nothing that looks like a secret."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if len(found) >= CONFIG_LIMIT:
            break
        plain = isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= TEXT_LIMIT)
        if plain and isinstance(key, str) and len(key) <= NAME_LENGTH and not SECRET.search(key):
            found[key] = value
    return found


def remarks_on(
    understood: Understood,
    mended: Mapping[str, Mended],
    resumed: Sequence[tuple[int, int]],
    points: Mapping[str, Points],
) -> Iterator[str]:
    """What was made of a log that its reader should know."""
    for vital in mended:
        names = understood.columns[vital]
        if len(names) > 1:
            how = "the mean" if vital in understood.averaged else "the sum"
            yield f"{vital} is {how} of {names_text(names, 8)}"
    yield from _smoothed(mended, understood)
    yield from _gaps(mended)
    if not any(vital.endswith("loss") for vital in mended):
        yield "no column was recognised as the loss: name it with --map loss=COLUMN"
    for last, first in resumed[:3]:
        yield f"steps go back from {last} to {first}: the later part replaces what it repeats"
    if len(resumed) > 3:
        yield f"steps go back {len(resumed)} times in all"
    if any(found.sorted for found in mended.values()):
        yield "the steps were not in order and have been sorted"
    repeated = {vital: found.repeated for vital, found in mended.items() if found.repeated}
    if repeated:
        vital, count = max(repeated.items(), key=lambda item: item[1])
        what = f"{count} values of {vital} came at steps that had one" if count > 1 else f"one step has two of {vital}"
        yield f"{what}: their mean is used"
    outside = max((found.outside for found in mended.values()), default=0)
    yield from [f"{outside} points are at steps below zero or beyond 10^12: left out"] * bool(outside)
    hidden = any(found.hidden for found in mended.values())
    yield from ["a loss of 0 beside gradients that are not finite is the NaN that the trainer filtered out"] * hidden
    absent = [vital for vital, found in mended.items() if found.absent]
    if absent:
        yield f"NaN in {names_text(absent)} comes and goes with the rows: taken for cells without a value"
    dropped = tuple(
        name for name in understood.left_out if not counts(name) and not is_machine(name) and len(points[name]) > 1
    )
    if dropped:
        yield f"not used: {names_text(dropped, 6)}"
