"""GE02 underfitting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.activation_explosion import WEIGHTED
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.not_learning import against_guess, chance_level
from torchdoctor.symptoms.overfitting import evaluation_noise
from torchdoctor.symptoms.progress import Progress, outline_levels, trend_gain, working_since

PLAIN = 4
"""Weight layers up to which a model is taken for one that goes straight through."""
RELAPSED = 0.5
"""Share of the level that the loss has once been under where it had learnt more."""
GONE = 1e-3
"""Share of its first norm at which nothing is left of a tensor."""


@dataclass(frozen=True)
class Underfitting(Detector):
    """Training and validation loss are both high, both flat, and close together.

    ## What it means
    The model cannot or may not fit what it is shown, not even the training data: too small, held back by
    regularization, or missing the information that it would need. More data does not help here.

    ## How it is told apart
    A run at the noise floor of its data looks the same from outside, so this is a note; it is a warning where the
    configuration shows what holds the model back (dropout of 0.7 and more, weight decay that outweighs the learning, a
    layer of two or three units that everything goes through). A gap between both losses is `overfitting`; a loss that
    never moved is `not-learning`; one near zero has arrived.

    ## What to do
    Overfit one batch with all regularization off. If that works, switch it on again piece by piece; if it does not,
    make the model wider, or look for what it is not given.

    ## How to see that it is cured
    The training loss falls below the old level; validation follows.

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
    """Evaluations that must be known."""
    steps: int = 150
    """Training steps that must be known."""
    high: float = 0.5
    """Share of the first loss (or of a guess, where that is known) above which a loss is high."""
    narrow: int = 3
    """Units through which everything goes, of more inputs, that explain it."""
    dropout: float = 0.7
    """Dropout that explains it."""
    extreme: float = 0.9
    """Dropout of which no run is made on purpose:"""
    soon: int = 95
    """steps that must be known there."""

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
        slack = 5.0 if narrow else 1.0  # a reason that is seen needs less of what would be seen without one
        drowned = self._is_drowned(chart, level / yardstick if yardstick > 0 else 0.0)
        gap = held_out - level
        noisy = self._dropout(chart) >= self.dropout
        if not level > self.high / slack * yardstick > 0 or (gap if noisy else abs(gap)) > (0.1 + 0.05 * slack) * abs(
            level
        ):
            return None  # dropout disturbs training alone: validation may be better
        slack = 5.0 if drowned else slack  # next to nothing learnt: then it may still creep on
        if float(np.min(levels)) < RELAPSED * level:
            return None  # it had learnt more, and lost it
        gain, doubt = trend_gain(half)
        if noisy and gain < doubt:  # nothing is gained, and the doubt is dropout's
            doubt = min(doubt, 0.01 * abs(level))
        if gain + 2 * doubt > 0.03 * slack * abs(level) or float(values[0] - values[-1]) > slack * _slack(
            values, level
        ):
            return None
        brake = f"; all of it goes through {width} units" if narrow else self._brake(chart)
        severity: Severity = "warning" if brake else "info"
        message = f"training and validation loss stay at {number_text(level)} and {number_text(held_out)}{brake}"
        since = train.outline.buckets()[levels.size // 2][0]
        return self.symptom(chart, severity, message, value=level, confidence=0.7, since=since)

    def _is_drowned(self, chart: Chart, level: float) -> bool:
        """Whether dropout is so high, and so little was learnt in so long, that it may creep on for ever."""
        known = self.soon if self._dropout(chart) >= self.extreme else 2 * self.steps
        if chart["loss"].count < known or self._dropout(chart) < self.dropout:
            return False
        learnt, _, pairs = against_guess(chart, chart.step // 2)
        return level > 0.9 or (pairs >= self.evaluations and learnt < 0.1)

    def _dropout(self, chart: Chart) -> float:
        return max((rate for rate in chart.context.get("dropout") or () if isinstance(rate, int | float)), default=0.0)

    def _brake(self, chart: Chart) -> str:
        """What in the configuration forbids learning, as the end of a sentence."""
        if self._dropout(chart) >= self.dropout:
            return f"; dropout is {number_text(self._dropout(chart))}"
        shrunk = shrinkage(chart)
        if shrunk < 0.5:
            return f"; weight decay has shrunk the weights to {number_text(shrunk)} of what they were"
        return ""


def narrowest(chart: Chart) -> int:
    """The units of the narrowest hidden layer, 0 where it is not known or the model gives back what it is given.

    An encoder's code is narrow on purpose, unless it is one number: what follows is as wide as what came before it.
    Adapters beside frozen layers, and branches of deep models, are narrow without everything going through them; so is
    a layer that no other one takes in as it is, such as the scores of an attention or one term of a sum.
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
    names_classes = chart.fact("loss.kind") == "cross-entropy"  # it gives back nothing, however many there are
    wide = not names_classes and max((width for width, last in layers if last), default=0) >= entering
    return min(hidden, default=0) if hidden and not wide and min(hidden) < entering else 0


def _is_one_number(chart: Chart) -> bool:
    """Whether a linear layer makes one number of many, and the next one takes that in: no code is that narrow."""
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
    """The width of the last hidden layer but one of a deep model, if the last takes just that in and widens it again.

    Branches and gates further inside are narrow without everything going through them.
    """
    kinds, widths, takers = (chart.fact(f"modules.{name}", ()) for name in ("kinds", "widths", "entering"))
    places = [place for place, kind in enumerate(kinds) if kind in WEIGHTED]
    if not len(kinds) == len(widths) == len(takers) or len(places) < 3:
        return 0
    narrow, taker, last = places[-3:]
    through = widths[narrow] == takers[taker] < min(takers[narrow], widths[taker]) and widths[taker] == takers[last]
    return int(widths[narrow]) if through and chart.module_names[last] in chart.fact("modules.outputs", ()) else 0


def shrinkage(chart: Chart) -> float:
    """The typical weight norm now as a share of the first one, where weight decay is on; NaN where unknown."""
    decays = [group.get("weight_decay") for group in chart.groups]
    decaying = any(isinstance(decay, int | float) and decay > 0 for decay in decays)
    return weights_left(chart) if decaying else math.nan


def weights_left(chart: Chart) -> float:
    """The typical weight norm now as a share of the first one, whatever took the rest; NaN where unknown.

    Biases may grow while a penalty takes everything else: tensors that are gone speak for themselves.
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
    """Whether weights are as good as gone though no optimizer decays them: a term of the loss must have asked for it.

    Outputs that are only compared with each other may shrink by themselves.
    """
    decays = any(group.get("weight_decay") for group in chart.groups)
    return weights_left(chart) < least and not decays and not chart.fact("loss.between_outputs")


def _slack(values: Array, level: float) -> float:
    noise = evaluation_noise(values) if values.size > 4 else 0.0
    return max(0.03 * abs(level), 3 * noise)
