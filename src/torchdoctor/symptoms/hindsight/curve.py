"""A vital over a whole run, as one curve."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom
from torchdoctor.series import Array, Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.overfitting import LENIENT, evaluation_noise, smoothed

FEW = 4
"""Fewest points that a finding needs."""
WHOLE = ("val_acc", "val_f1", "val_map", "val_iou", "val_miou", "val_dice")
HALVES = ("val_precision", "val_recall")
"""If one of the first is logged, the second do not count as progress, since precision rises when recall falls. Nor do
those for which one of several guesses must be right."""

PARTS = 10
"""Fewest points of a loss term."""
PENALTIES = ("kl", "reg", "l1", "l2", "weight", "penalty", "aux", "entropy")
"""Beginnings of the names of loss terms that are not the task: if such a term falls, nothing was learned."""


class Curve(NamedTuple):
    """A vital over the whole run, in at most about a thousand points."""

    name: str
    steps: Array
    values: Array
    thinned: float = 1.0
    """Number of logged values per point."""

    @classmethod
    def of(cls, series: Series, name: str) -> Curve:
        """The outline of a series; exact if the run is short."""
        buckets = series.outline.buckets()
        steps, means = np.array([item[0] for item in buckets]), np.array([item[2] for item in buckets])
        return cls(name, steps, means, series.count / max(len(buckets), 1))

    @property
    def records(self) -> int:
        """Number of values in the log."""
        return round(self.thinned * self.values.size)

    def __bool__(self) -> bool:
        return len(self.values) >= FEW

    @property
    def start(self) -> float:
        """The first value."""
        return float(self.values[0])

    @property
    def level(self) -> float:
        """The level at the end: the median of the last tenth, at least three values."""
        return median(self.values[-max(3, self.values.size // 10) :])

    @property
    def best(self) -> int:
        """The index of the lowest level; with more than five values, a single low one does not count."""
        place = int(np.argmin(smoothed(self.values) if self.values.size > 5 else self.values))
        return 0 if self.values[place] > self.values[0] else place

    @property
    def noise(self) -> float:
        """Noise from one value to the next, without trend and curvature."""
        return evaluation_noise(self.values) if self.values.size > 5 else 0.0


def loss_of(chart: Chart) -> Curve:
    """The loss that the run is judged by: the training loss, or the validation loss if there is no other."""
    training = Curve.of(chart["loss"], "loss")
    return training if training else Curve.of(chart["val_loss"], "validation loss")


def climbs(values: Array) -> float:
    """How consistently values rise: the share of pairs that rise minus the share that fall (Kendall's tau).

    >>> climbs(np.array([1.0, 2.0, 3.0])), climbs(np.array([3.0, 2.0, 1.0]))
    (1.0, -1.0)
    """
    thinned = values[:: max(1, values.size // 100)]
    first, second = np.triu_indices(thinned.size, 1)
    return float(np.mean(np.sign(thinned[second] - thinned[first]))) if first.size else 0.0


def certainty(values: Array) -> float:
    """The z-score of the Mann-Kendall trend test: positive if values rise, negative if they fall.

    >>> round(certainty(np.arange(12.0)), 1), round(certainty(np.tile([1.0, 2.0], 6)), 1)
    (4.5, 0.4)
    """
    count = values[:: max(1, values.size // 100)].size
    return climbs(values) * 3 * (count * (count - 1) / (2 * (2 * count + 5))) ** 0.5 if count > 1 else 0.0


def usual_change(values: Array) -> float:
    """The typical change from one value to the next, without the largest, which may be the one in question.

    A steady rise does not count as change.

    >>> round(usual_change(np.array([0.07, 0.12, 0.11, 0.09, 0.12])), 3)
    0.02
    >>> round(usual_change(np.array([0.30, 0.36, 0.43, 0.50])), 3)
    0.003
    """
    changes, bends = np.sort(np.abs(np.diff(values)))[:-1], np.abs(np.diff(values, 2))
    return min(median(changes), median(bends) / 3**0.5) if bends.size else 0.0


def has_no_trend(curve: Curve) -> bool:
    """Whether the means of the first and last third differ by no more than noise or two percent.

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
    """The mean loss of each complete epoch; empty if the log does not say how many steps an epoch has.

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
    """A term of the loss that ended below a share of its start; None if there is none.

    >>> fall = [0.04 * 0.8**step for step in range(20)]
    >>> part_that_fell(Chart.of(loss=[8.0] * 20, recon_loss=fall), 0.5).name
    'recon loss'
    >>> part_that_fell(Chart.of(loss=[8.0] * 20, kl_loss=fall), 0.5)
    """
    return next((part for part in _parts(chart) if 0 < part.level < share * median(part.values[:3])), None)


def is_mostly_one_part(chart: Chart) -> bool:
    """Whether one logged term makes up most of the loss: the total then falls as that term does.

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
    """The name of a validation metric that closed a share of its gap to perfect since a step; "" if none did.

    >>> chart = Chart.of(val_accuracy=[0.90, 0.92, 0.94], context={"better": {"val_accuracy": "higher"}})
    >>> improved(chart, 0)
    'val_accuracy'
    """
    better = chart.context.get("better") or {}
    strict = [name for name in better if name.startswith(WHOLE) and LENIENT.isdisjoint(name.split("_"))]
    sure = any(chart[name].count for name in strict)
    for name, way in better.items():
        values = chart[name].values
        later = values[chart[name].steps >= since]
        half = sure and (name.startswith(HALVES) or not LENIENT.isdisjoint(name.split("_")))
        if not name.startswith("val_") or later.size < 2 or half:
            continue
        then, now = float(later[0]), median(later[-3:])
        top = 1.0 if float(np.abs(values).max()) <= 1 else 100.0
        lacking = (top - then, top - now) if way == "higher" else (then, now)
        least = top - float(later.max()) if way == "higher" else float(later.min())
        kept = lacking[0] - lacking[1] >= 0.5 * (lacking[0] - least)  # a gain that was mostly lost again does not count
        if kept and lacking[1] < (1 - share) * lacking[0]:
            return str(name)
    return ""


def metrics_of_validation(chart: Chart) -> dict[str, str]:
    """The validation metrics and which way is better, without precision and recall if there is any other.

    >>> better = {"val_map": "higher", "val_recall": "higher", "train_wer": "lower", "val_wer": "lower"}
    >>> metrics_of_validation(Chart.of(context={"better": better}))
    {'val_map': 'higher', 'val_wer': 'lower'}
    """
    found = {name: way for name, way in (chart.context.get("better") or {}).items() if name.startswith("val_")}
    whole = {name: way for name, way in found.items() if not name.startswith(HALVES)}
    return whole or (found if len(found) == 1 else {})  # precision rises when recall falls


def another_gained(chart: Chart, name: str, since: int, *, loss: bool = False) -> bool:
    """Whether another validation metric (or the validation loss) is better at the end than at a step.

    Then a single one, among the errors of all parts or classes, says little.

    >>> chart = Chart.of(val_map=[0.1, 0.5, 0.5, 0.6, 0.7], val_iou=[0.4, 0.5, 0.5, 0.3, 0.1],
    ...     context={"better": {"val_map": "higher", "val_iou": "higher"}})
    >>> another_gained(chart, "val_iou", 1), another_gained(chart, "val_map", 1)
    (True, False)
    """
    for other, way in (metrics_of_validation(chart) | ({"val_loss": "lower"} if loss else {})).items():
        values = chart[other].values
        then = values[chart[other].steps <= since][-3:]
        gain = median(values[-3:]) - median(then) if then.size and values.size >= FEW else 0.0
        if other != name and (-gain if way == "lower" else gain) > 0:
            return True
    return False


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
    """A finding that lasts from one point of a curve to its end."""
    first, last = int(curve.steps[since]), int(curve.steps[-1])
    count = round(curve.thinned * (len(curve.values) - since))
    return Symptom(
        detector.name, detector.code, severity, confidence, first, last, count, (), None, value, limit, message
    )
