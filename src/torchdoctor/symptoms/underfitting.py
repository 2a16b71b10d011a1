"""GE02 underfitting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, median, scatter
from torchdoctor.symptoms.activation_explosion import WEIGHTED
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.not_learning import against_guess, chance_level
from torchdoctor.symptoms.overfitting import evaluation_noise
from torchdoctor.symptoms.progress import Progress, outline_levels, trend_gain, working_since

PLAIN = 4
"""Number of weight layers up to which a model is assumed to be one plain chain of layers."""
RELAPSED = 0.5
"""If the loss was once below this share of its present level, the model had learned more and lost it."""
GONE = 1e-3
"""Share of its first norm below which a tensor counts as vanished."""


@dataclass(frozen=True)
class Underfitting(Detector):
    """Training and validation loss are both high, both flat, and close together.

    ## What it means
    The model cannot fit even the training data. It is too small, regularization holds it back, or its inputs lack the
    information that it needs. More data does not help.

    ## How it is told apart
    A run at the noise floor of its data looks the same, so this is usually info. It is a warning if the configuration
    shows what holds the model back: dropout of 0.7 or more, weight decay that has halved the weights, or a layer of at
    most three units that everything passes through. A gap between both losses is `overfitting`, and a loss that never
    moved is `not-learning`. A loss near zero is not reported.

    ## What to do
    Overfit one batch with all regularization off. If that works, turn regularization on again piece by piece. If it
    does not, make the model wider, or look for information that is missing from its inputs.

    ## How to see that it is cured
    The training loss falls below the old level, and the validation loss follows.

    ## Example
    >>> chart = Chart.of(loss=[1.9 + 0.4 * 0.98**step for step in range(600)], lr=[1e-3] * 600,
    ...                  context={"dropout": [0.9]})
    >>> for step in range(99, 600, 100):
    ...     chart.put(step, "val_loss", 1.92)
    >>> print(Underfitting().check(chart))
    step 300: GE02 underfitting (warning): training and validation loss stay at 1.9 and 1.92; dropout is 0.9
    """

    code = "GE02"
    name = "underfitting"
    reads = ("val_loss",)
    suggests = ("lower-dropout", "set-weight-decay", "resize-model")
    references = ("https://www.deeplearningbook.org/contents/ml.html",)
    closes_after = 3

    evaluations: int = 3
    """Evaluations needed."""
    steps: int = 150
    """Training steps needed."""
    high: float = 0.5
    """Share of chance level (or of the first loss, if that is unknown) above which a loss is high."""
    narrow: int = 3
    """Units of the narrowest layer, up to which it explains the underfitting."""
    dropout: float = 0.7
    """Dropout rate from which it explains the underfitting."""
    extreme: float = 0.9
    """Dropout rate that nobody chooses on purpose:"""
    soon: int = 95
    """steps needed in that case."""

    def check(self, chart: Chart) -> Symptom | None:
        """Both levels, both trends, and the gap between them."""
        train, validation = chart["loss"], chart["val_loss"]
        values = validation.last(max(self.evaluations, len(validation) // 2))
        known = self.soon if self._dropout(chart) >= self.extreme else self.steps
        if values.size < self.evaluations or train.count < known or working_since(chart) is None:
            return None
        levels = outline_levels(train)
        half = levels[levels.size // 2 :]
        level, held_out = median(half), median(values)
        chance = chance_level(chart)
        yardstick = chance if chance > 0 else Progress.of(train).start
        width = narrowest(chart)
        narrow = 0 < width <= self.narrow
        slack = 5.0 if narrow else 1.0  # with a known reason, less evidence is enough
        drowned = self._is_drowned(chart, level / yardstick if yardstick > 0 else 0.0)
        gap = held_out - level
        noisy = self._dropout(chart) >= self.dropout
        if not level > self.high / slack * yardstick > 0 or (gap if noisy else abs(gap)) > (0.1 + 0.05 * slack) * abs(
            level
        ):
            return None  # dropout raises only the training loss: validation may be better
        slack = 5.0 if drowned else slack  # almost nothing learned: then it may still fall a little
        if float(np.min(levels)) < RELAPSED * level:
            return None  # it had learned more, and lost it
        if _has_risen(half, level):
            return None  # a jump: the loss does not stay where it is
        gain, doubt = trend_gain(half)
        if noisy and gain < doubt:  # no gain, and the uncertainty comes from dropout
            doubt = min(doubt, 0.01 * abs(level))
        if gain + 2 * doubt > 0.03 * slack * abs(level) or float(values[0] - values[-1]) > slack * _slack(
            values, level
        ):
            return None
        brake = f"; everything goes through {width} units" if narrow else self._brake(chart)
        severity: Severity = "warning" if brake else "info"
        message = f"training and validation loss stay at {number_text(level)} and {number_text(held_out)}{brake}"
        since = train.outline.buckets()[levels.size // 2][0]
        return self.symptom(chart, severity, message, value=level, confidence=0.7, since=since)

    def _is_drowned(self, chart: Chart, level: float) -> bool:
        """Whether dropout is so high, and so little was learned for so long, that a slow fall does not matter."""
        known = self.soon if self._dropout(chart) >= self.extreme else 2 * self.steps
        if chart["loss"].count < known or self._dropout(chart) < self.dropout:
            return False
        learnt, _, pairs = against_guess(chart, chart.step // 2)
        return level > 0.9 or (pairs >= self.evaluations and learnt < 0.1)

    def _dropout(self, chart: Chart) -> float:
        return max((rate for rate in chart.context.get("dropout") or () if isinstance(rate, int | float)), default=0.0)

    def _brake(self, chart: Chart) -> str:
        """What in the configuration prevents learning, as the end of a sentence."""
        if self._dropout(chart) >= self.dropout:
            return f"; dropout is {number_text(self._dropout(chart))}"
        shrunk = shrinkage(chart)
        if shrunk < 0.5:
            return f"; weight decay has shrunk the weights to {number_text(shrunk)} of their initial norm"
        return ""


def _has_risen(levels: Array, level: float, parts: int = 8, share: float = 0.05) -> bool:
    """Whether an eighth of the stretch is above an earlier one, by 5 % of the level and by more than noise explains.

    >>> noise = np.resize([0.02, -0.02, 0.01], 80)
    >>> _has_risen(2.7 + noise, 2.7), _has_risen(np.repeat([2.6, 3.1], 40) + noise, 2.7)
    (False, True)
    """
    medians = np.array([median(part) for part in np.array_split(levels, parts) if part.size])
    rise = float((medians - np.minimum.accumulate(medians)).max(initial=0.0))
    noise = scatter(np.diff(levels)) / math.sqrt(2 * max(levels.size / parts, 1))  # of a median, about
    return rise > max(share * abs(level), 5 * noise)


def narrowest(chart: Chart) -> int:
    """The units of the narrowest hidden layer; 0 if it is unknown or narrow on purpose.

    An autoencoder's code is narrow on purpose, unless it is one number. Not everything passes through adapters beside
    frozen layers, branches of deep models, or a layer whose output no other layer takes directly, such as attention
    scores or one term of a sum.
    """
    kinds, widths = chart.fact("modules.kinds", ()), chart.fact("modules.widths", ())
    outputs, names = chart.fact("modules.outputs", ()), chart.module_names
    if not len(kinds) == len(widths) == len(names) or chart.fact("graph.frozen_share", 0.0) > 0:
        return 0
    layers = [
        (width, name in outputs) for kind, width, name in zip(kinds, widths, names, strict=True) if kind in WEIGHTED
    ]
    takers = chart.fact("modules.entering", ())
    hidden = [
        width
        for place, (kind, width, name) in enumerate(zip(kinds, widths, names, strict=True))
        if kind in WEIGHTED and name not in outputs and (not takers or width in takers[place + 1 :])
    ]
    if _is_one_number(chart):
        return 1
    if len(layers) > PLAIN:
        return _narrow_end(chart)
    entering = (chart.context.get("input_shape") or [0])[-1]
    names_classes = chart.fact("loss.kind") == "cross-entropy"  # it reconstructs nothing, however many there are
    wide = not names_classes and max((width for width, last in layers if last), default=0) >= entering
    return min(hidden, default=0) if hidden and not wide and min(hidden) < entering else 0


def _is_one_number(chart: Chart) -> bool:
    """Whether a linear layer reduces many numbers to one and the next layer takes that: no code is so narrow."""
    kinds, widths, takers = (chart.fact(f"modules.{name}", ()) for name in ("kinds", "widths", "entering"))
    places = [place for place, kind in enumerate(kinds) if kind in WEIGHTED]
    if not len(kinds) == len(widths) == len(takers) == len(chart.module_names):
        return False
    ends = chart.fact("modules.outputs", ())
    return any(
        kinds[place] == kinds[after] == "Linear"
        and widths[place] == takers[after] == 1 < min(takers[place], widths[after])
        for place, after in zip(places, places[1:], strict=False)
        if chart.module_names[place] not in ends
    )


def _narrow_end(chart: Chart) -> int:
    """The width of the second last hidden layer of a deep model, if the last one takes just that and widens it again.

    Narrow layers further inside may be branches or gates.
    """
    kinds, widths, takers = (chart.fact(f"modules.{name}", ()) for name in ("kinds", "widths", "entering"))
    places = [place for place, kind in enumerate(kinds) if kind in WEIGHTED]
    if not len(kinds) == len(widths) == len(takers) or len(places) < 3:
        return 0
    narrow, taker, last = places[-3:]
    through = widths[narrow] == takers[taker] < min(takers[narrow], widths[taker]) and widths[taker] == takers[last]
    return int(widths[narrow]) if through and chart.module_names[last] in chart.fact("modules.outputs", ()) else 0


def shrinkage(chart: Chart) -> float:
    """The median weight norm as a share of the first one, if weight decay is on; NaN if unknown."""
    decays = [group.get("weight_decay") for group in chart.groups]
    decaying = any(isinstance(decay, int | float) and decay > 0 for decay in decays)
    return weights_left(chart) if decaying else math.nan


def weights_left(chart: Chart) -> float:
    """The median weight norm as a share of the first one, whatever the reason; NaN if unknown.

    If 25 % of the tensors have vanished, only those count: biases may grow while a penalty shrinks the weights.
    """
    rows = chart.tensors("weight_norm").rows
    if len(rows) < 2:
        return math.nan
    first, last = rows[0][1], rows[-1][1]
    if first.size != last.size:
        return math.nan
    known = np.isfinite(first) & np.isfinite(last) & (first > 0)
    if not known.any():
        return math.nan
    shares = last[known] / first[known]
    gone = shares < GONE
    return median(shares[gone] if gone.mean() >= 0.25 else shares)


def penalized(chart: Chart, least: float = 0.1) -> bool:
    """Whether weights nearly vanished without weight decay: a penalty term in the loss must have shrunk them.

    Not if the loss only compares outputs with each other, because these may shrink anyway.
    """
    decays = any(group.get("weight_decay") for group in chart.groups)
    return weights_left(chart) < least and not decays and not chart.fact("loss.between_outputs")


def _slack(values: Array, level: float) -> float:
    noise = evaluation_noise(values) if values.size > 4 else 0.0
    return max(0.03 * abs(level), 3 * noise)
