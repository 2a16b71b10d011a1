"""Describes a foreign log: the context for a run's header, and remarks for the reader."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torchdoctor.records import UNKNOWN_LOSS, names_text
from torchdoctor.sources.count_names import counts
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
"""Fewest points for judging the logging interval."""
WIDE = 10
"""Multiple of the usual distance between two points from which it is a gap."""
MOST_GAPS = 3
"""Most gaps that are reported; with more, the log was simply written that way."""
EARLIEST, TOGETHER, FELL = 8, 0.9, 0.7
"""Points, rank correlation with the training loss, and largest share of its start, of an accuracy that is an error."""
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
        "better": _directions(understood, mended),
        "config": config,
    }
    return {key: value for key, value in context.items() if value not in (None, {}, "")}


def _directions(understood: Understood, mended: Mapping[str, Mended]) -> dict[str, str]:
    """Which direction is better, by metric: as the names say, except for errors that are called accuracy."""
    errors = {vital.partition("_")[2] for vital in _errors(understood, mended)}
    return {
        vital: "lower" if vital.partition("_")[2] in errors else way
        for vital, way in understood.better.items()
        if vital in mended
    }


def _errors(understood: Understood, mended: Mapping[str, Mended]) -> Iterator[str]:
    """Training metrics that are called better when higher, but fall together with the training loss.

    >>> falling = Mended(Points.of(range(20), [2.0 * 0.8**step for step in range(20)]))
    >>> chosen = Understood({"loss": ("loss",), "train_accuracy": ("acc",)}, better={"train_accuracy": "higher"})
    >>> list(_errors(chosen, {"loss": falling, "train_accuracy": falling}))
    ['train_accuracy']
    """
    loss = mended["loss"].points if "loss" in mended else Points.of([], [])
    for vital, way in understood.better.items():
        points = mended[vital].points if vital in mended else Points.of([], [])
        if way != "higher" or not vital.startswith("train_") or len(points) < EARLIEST or len(points) != len(loss):
            continue
        values = points.values
        with np.errstate(all="ignore"):
            together = float(np.corrcoef(np.argsort(np.argsort(values)), np.argsort(np.argsort(loss.values)))[0, 1])
        if together > TOGETHER and values[-1] < FELL * values[0] and loss.values[-1] < FELL * loss.values[0]:
            yield vital


def _called_accuracy(understood: Understood, mended: Mapping[str, Mended]) -> Iterator[str]:
    for vital in _errors(understood, mended):
        yield f"{_origin(vital, understood)} falls together with the loss: it is read as an error, lower is better"


def _gaps(mended: Mapping[str, Mended]) -> Iterator[str]:
    """Long gaps in a loss that was otherwise logged at regular intervals.

    >>> steps = [*range(0, 600), *range(1400, 2000)]
    >>> list(_gaps({"loss": Mended(Points.of(steps, [2.5] * len(steps)))}))
    ['no loss between steps 599 and 1400, elsewhere one every step: what happened there is not known']
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
        yield f"no loss between {between}, elsewhere one every {every}: what happened there is not known"


def _smoothed(mended: Mapping[str, Mended], understood: Understood) -> Iterator[str]:
    """That only a smoothed loss was logged, so findings about spikes and noise refer to it."""
    name = _origin("loss", understood) if "loss" in mended else ""
    if taken_apart(name, 0).has(AVERAGED):
        spikes = "spikes appear lower and later than they were; log the raw loss too"
        yield f"the logged loss is smoothed ({name}): {spikes}"


def _origin(vital: str, understood: Understood) -> str:
    return " + ".join(understood.columns[vital])


def _interval(points: Points) -> int | None:
    return max(1, round(float(np.median(np.diff(points.steps))))) if len(points) > 1 else None


def _steps_per_epoch(points: Mapping[str, Points]) -> int | None:
    """How many steps an epoch has, if the epoch was logged next to the steps; at least, if the first is not over."""
    epochs = next((series for name, series in points.items() if name.lower().split("/")[-1] == "epoch"), None)
    if epochs is None or len(epochs) < 2:
        return None
    finite = np.isfinite(epochs.values)
    steps, values = epochs.steps[finite], epochs.values[finite]
    if len(steps) >= EVEN and not values.any():  # the first epoch is not over
        return int(steps[-1]) + 1
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
    """Remarks on how the log was read."""
    for vital in mended:
        names = understood.columns[vital]
        if len(names) > 1:
            how = "the mean" if vital in understood.averaged else "the sum"
            yield f"{vital} is {how} of {names_text(names, 8)}"
    yield from _smoothed(mended, understood)
    yield from _gaps(mended)
    yield from _called_accuracy(understood, mended)
    if not any(vital.endswith("loss") for vital in mended):
        yield f"{UNKNOWN_LOSS}: name it with --map loss=COLUMN"
    for last, first in resumed[:3]:
        yield f"steps go back from {last} to {first}: the later part replaces the steps that it repeats"
    if len(resumed) > 3:
        yield f"steps go back {len(resumed)} times in total"
    if any(found.sorted for found in mended.values()):
        yield "the steps were not in order and have been sorted"
    repeated = {vital: found.repeated for vital, found in mended.items() if found.repeated}
    if repeated:
        vital, count = max(repeated.items(), key=lambda item: item[1])
        several = f"{count} values of {vital} are at steps that already have one"
        what = several if count > 1 else f"one step has two values of {vital}"
        yield f"{what}: their mean is used"
    outside = max((found.outside for found in mended.values()), default=0)
    yield from [f"{outside} points at steps below zero or above 10^12 are left out"] * bool(outside)
    hidden = any(found.hidden for found in mended.values())
    yield from ["a loss of 0 next to non-finite gradients is read as NaN: the trainer filtered it out"] * hidden
    absent = [vital for vital, found in mended.items() if found.absent]
    if absent:
        yield f"NaN in {names_text(absent)} depends on the row: read as empty cells"
    dropped = tuple(
        name for name in understood.left_out if not counts(name) and not is_machine(name) and len(points[name]) > 1
    )
    if dropped:
        yield f"not used: {names_text(dropped, 6)}"
