"""A vital over a whole run, as one curve: what is known of a log once its end is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom
from torchdoctor.series import Array, Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.overfitting import evaluation_noise, smoothed

FEW = 4
"""Points that a verdict needs at least."""
WHOLE = ("val_acc", "val_f1", "val_map", "val_iou", "val_miou", "val_dice")
HALVES = ("val_precision", "val_recall")
"""Metrics that tell the whole, beside which one half of it is no gain: precision rises where recall falls."""

PARTS = 10
"""Points from which on a part of the loss is known."""
PENALTIES = ("kl", "reg", "l1", "l2", "weight", "penalty", "aux", "entropy")
"""How the names of losses begin that are no part of the task: one that falls has learnt nothing."""


class Curve(NamedTuple):
    """A vital over the whole run, in at most about a thousand points."""

    name: str
    steps: Array
    values: Array
    thinned: float = 1.0
    """How many values of the log a point stands for."""

    @classmethod
    def of(cls, series: Series, name: str) -> Curve:
        """The outline of a series: exact where the run is short."""
        buckets = series.outline.buckets()
        steps, means = np.array([item[0] for item in buckets]), np.array([item[2] for item in buckets])
        return cls(name, steps, means, series.count / max(len(buckets), 1))

    @property
    def records(self) -> int:
        """How many values the log has of it."""
        return round(self.thinned * self.values.size)

    def __bool__(self) -> bool:
        return len(self.values) >= FEW

    @property
    def start(self) -> float:
        """The first value."""
        return float(self.values[0])

    @property
    def level(self) -> float:
        """Where it ended: the median of its last tenth, of three values at least."""
        return median(self.values[-max(3, self.values.size // 10) :])

    @property
    def best(self) -> int:
        """The place of its lowest level, one lucky value left out where there are enough."""
        place = int(np.argmin(smoothed(self.values) if self.values.size > 5 else self.values))
        return 0 if self.values[place] > self.values[0] else place

    @property
    def noise(self) -> float:
        """From one value to the next, trend and curvature taken out."""
        return evaluation_noise(self.values) if self.values.size > 5 else 0.0


def loss_of(chart: Chart) -> Curve:
    """The loss that the run is judged by: of training, or of validation where that alone was logged."""
    training = Curve.of(chart["loss"], "loss")
    return training if training else Curve.of(chart["val_loss"], "validation loss")


def climbs(values: Array) -> float:
    """How surely values rise: of all pairs, the share that do less the share that fall (Kendall).

    >>> climbs(np.array([1.0, 2.0, 3.0])), climbs(np.array([3.0, 2.0, 1.0]))
    (1.0, -1.0)
    """
    thinned = values[:: max(1, values.size // 100)]
    first, second = np.triu_indices(thinned.size, 1)
    return float(np.mean(np.sign(thinned[second] - thinned[first]))) if first.size else 0.0


def certainty(values: Array) -> float:
    """How many deviations of mere chance their climbing is above none (Mann and Kendall); below zero where they fall.

    >>> round(certainty(np.arange(12.0)), 1), round(certainty(np.tile([1.0, 2.0], 6)), 1)
    (4.5, 0.4)
    """
    count = values[:: max(1, values.size // 100)].size
    return climbs(values) * 3 * (count * (count - 1) / (2 * (2 * count + 5))) ** 0.5 if count > 1 else 0.0


def usual_change(values: Array) -> float:
    """What few values change by from one to the next, but for the largest change, which may be what is looked for.

    Those that rise steadily do not change by what they rise by.

    >>> round(usual_change(np.array([0.07, 0.12, 0.11, 0.09, 0.12])), 3)
    0.02
    >>> round(usual_change(np.array([0.30, 0.36, 0.43, 0.50])), 3)
    0.003
    """
    changes, bends = np.sort(np.abs(np.diff(values)))[:-1], np.abs(np.diff(values, 2))
    return min(median(changes), median(bends) / 3**0.5) if bends.size else 0.0


def has_no_trend(curve: Curve) -> bool:
    """Whether the last third of a curve is where its first third was, but for its noise or two per cent.

    >>> wave = np.tile([1.0, 1.2, 0.9], 10)
    >>> [has_no_trend(Curve("loss", np.arange(30), values)) for values in (wave, wave - np.linspace(0, 0.5, 30))]
    [True, False]
    """
    part = curve.values.size // 3
    if part < FEW:
        return False
    first, last = curve.values[:part], curve.values[-part:]
    gain, doubt = float(np.mean(first) - np.mean(last)), float(np.hypot(np.std(first), np.std(last))) / part**0.5
    return bool(abs(gain) <= max(0.02 * abs(float(np.mean(first))), 2 * doubt))


def of_epochs(chart: Chart) -> Curve:
    """The loss in means of whole epochs, where the log tells how many steps one has; nothing where it does not.

    >>> of_epochs(Chart.of(loss=[9.0, 1.0, 2.0] * 4, context={"steps_per_epoch": 3})).values.tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    length = int(chart.context.get("steps_per_epoch") or 0)
    steps, values = chart["loss"].steps, chart["loss"].values
    if length < 2 or values.size < 2 * FEW:
        return Curve("loss", values[:0], values[:0])
    _, starts, counts = np.unique(steps // length, return_index=True, return_counts=True)
    usual = max(2, int(median(counts.astype(float))))
    whole = counts == usual
    return Curve("loss", steps[starts][whole].astype(float), (np.add.reduceat(values, starts) / counts)[whole])


def part_that_fell(chart: Chart, share: float) -> Curve | None:
    """A loss that is logged beside the sum, and ended below a share of what it began with; None where none did.

    >>> fall = [0.04 * 0.8**step for step in range(20)]
    >>> part_that_fell(Chart.of(loss=[8.0] * 20, recon_loss=fall), 0.5).name
    'recon loss'
    >>> part_that_fell(Chart.of(loss=[8.0] * 20, kl_loss=fall), 0.5)
    """
    return next((part for part in _parts(chart) if 0 < part.level < share * median(part.values[:3])), None)


def is_mostly_one_part(chart: Chart) -> bool:
    """Whether one of the losses that are logged beside the sum makes up most of it: then it falls as that does.

    >>> is_mostly_one_part(Chart.of(loss=[8.0] * 20, data_loss=[7.9] * 20, pde_loss=[0.1] * 20))
    True
    """
    whole = Curve.of(chart["loss"], "loss")
    return bool(whole) and any(
        part.level > 0.5 * whole.level for part in _parts(chart) if "validation" not in part.name
    )


def _parts(chart: Chart) -> list[Curve]:
    names = [name for name in chart.vitals if name.endswith("_loss")]
    tasks = [name for name in names if not name.removeprefix("val_").startswith(PENALTIES)]
    curves = [Curve.of(chart[name], name.replace("val_", "validation ").replace("_", " ")) for name in tasks]
    return [curve for curve in curves if curve.values.size >= PARTS]


def improved(chart: Chart, since: int, share: float = 0.1) -> str:
    """A validation metric that got better after a step by a good part of what it lacked; empty where none did.

    >>> chart = Chart.of(val_accuracy=[0.90, 0.92, 0.94], context={"better": {"val_accuracy": "higher"}})
    >>> improved(chart, 0)
    'val_accuracy'
    """
    better = chart.context.get("better") or {}
    sure = any(name.startswith(WHOLE) and chart[name].count for name in better)
    for name, way in better.items():
        values = chart[name].values
        later = values[chart[name].steps >= since]
        if not name.startswith("val_") or later.size < 2 or (sure and name.startswith(HALVES)):
            continue
        then, now = float(later[0]), median(later[-3:])
        top = 1.0 if float(np.abs(values).max()) <= 1 else 100.0
        lacking = (top - then, top - now) if way == "higher" else (then, now)
        least = top - float(later.max()) if way == "higher" else float(later.min())
        kept = lacking[0] - lacking[1] >= 0.5 * (lacking[0] - least)  # what was given back is no gain
        if kept and lacking[1] < (1 - share) * lacking[0]:
            return str(name)
    return ""


def shown(
    detector: type[Detector],
    curve: Curve,
    since: int,
    severity: Severity,
    message: str,
    *,
    confidence: float = 0.8,
    value: float | None = None,
    limit: float | None = None,
) -> Symptom:
    """A finding that a curve shows from one of its points on, up to its end."""
    first, last = int(curve.steps[since]), int(curve.steps[-1])
    count = round(curve.thinned * (len(curve.values) - since))
    return Symptom(
        detector.name, detector.code, severity, confidence, first, last, count, (), None, value, limit, message
    )
