"""AC01 dead-units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom
from torchdoctor.series import Array
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import SETTLED, Progress, acts, gets_better, is_hurt, unrolled_modules

WEIGHTED = ("Linear", "Conv1d", "Conv2d", "Conv3d")
"""Layers whose inputs are checked for dead units."""


@dataclass(frozen=True)
class DeadUnits(Detector):
    """Hidden units output zero for every input.

    ## What it means
    A ReLU whose input is negative for all data outputs zero and gets no gradient, so it does not recover. The layer has
    lost that part of its width for good. If a whole layer is dead, the model's output is constant.

    ## How it is told apart
    Zeros are normal: a healthy ReLU layer outputs zero half of the time, and sparse features more often. A unit counts
    as dead only if it was zero for every sample of the last few batches checked, at least a hundred inputs. Up to half
    of a layer may be dead in a healthy run, especially if inputs are positive or have few dimensions. More than half is
    info. It is a warning if

    - more than 90 % of the layer is dead and the loss is not near zero (critical if outputs no longer vary);
    - most of the layer died during training and the loss is not near its best;
    - the loss does not fall.

    ## What to do
    If units died during training: lower the learning rate, add a warm-up, clip gradients. If they were dead from the
    start: He initialization, biases at zero, inputs with mean 0 and standard deviation 1. LeakyReLU, GELU or a
    normalization layer before the activation keeps units alive. Dead units can be reinitialized.

    ## How to see that it is cured
    `act_dead` of the layer stays below 0.2.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.names": ["fc1", "act"]}})
    >>> for step, share in [(50, 0.1), (100, 0.98)]:
    ...     chart.add({"type": "modules", "step": step, "vitals": {"act_dead": [None, share]}})
    >>> print(DeadUnits().check(chart))
    step 100: AC01 dead-units (warning): 98 % of the units of act are zero for every input, up from 10 % at step 50
    """

    code = "AC01"
    name = "dead-units"
    reads = ("modules/act_dead",)
    suggests = ("reinitialize-dead-units", "scale-lr", "use-relu-family", "initialize")
    references = ("https://arxiv.org/abs/1903.06733", "https://arxiv.org/abs/1502.01852")
    closes_after = 3

    notice: float = 0.5
    """Share of dead units in a layer above which it is reported as info, or as a warning if the loss does not fall."""
    most: float = 0.9
    """The same share above which it is a warning."""
    died: float = 0.6
    """Share of a layer's units that died since the first sample, above which it is a warning."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check the hidden layer with the largest share of dead units; the model's output may be zero."""
        names = chart.module_names
        rows = chart.modules("act_dead").matrix()
        if not rows.size or rows.shape[1] != len(names):
            return None
        hidden = np.array([name not in chart.fact("modules.outputs", ()) for name in names])
        if not is_stuck(chart):
            hidden &= ~enter_unrolled(chart)
        now = np.where(hidden & np.isfinite(rows[-1]), rows[-1], 0.0)
        first = first_known(rows)
        worst = int(np.argmax(now))
        share, before = float(now[worst]), float(first[worst])
        if not share > self.notice:
            return None
        order = [int(index) for index in np.argsort(-now, kind="stable") if now[index] > self.notice]
        where = tuple(names[index] for index in order[:4])
        step = chart.modules("act_dead").rows[0][0]
        kinds = chart.fact("modules.kinds", ())
        entering = worst < len(kinds) and kinds[worst] in WEIGHTED
        if entering and share == 1 and _gets_gradient(chart, f"{names[worst]}.weight"):
            return None
        called = chart.called(worst)
        units = f"features that enter {called} are zero for every sample"
        units = units if entering else f"units of {called} are zero for every input"
        message = f"{100 * share:.0f} % of the {units}"
        if share - before > 0.1:
            message += f", up from {100 * before:.0f} % at step {step}"
        severity = self._severity(chart, share, share - before)
        return self.symptom(chart, severity, message, value=share, limit=self.notice, where=where)

    def _severity(self, chart: Chart, share: float, rise: float) -> Severity:
        if share > self.most:
            spread = chart["output_spread"]
            if spread and spread.latest < 1e-6:
                return "critical"
            return "info" if _needs_no_more(chart) else "warning"
        starts = 0 < chart["loss"].count < SETTLED and not is_hurt(chart)  # with few losses, noise is not a setback
        lost = rise > self.died and not starts and not gets_better(chart)
        return "warning" if is_stuck(chart) or lost else "info"


def _needs_no_more(chart: Chart, share: float = 0.03) -> bool:
    """Whether the remaining units suffice, as in a pruned layer: the loss is near zero and near its best."""
    loss = chart["loss"]
    return gets_better(chart) and 0 < loss.baseline(128).recent < share * loss.first


def enter_unrolled(chart: Chart) -> NDArray[np.bool_]:
    """Which modules are weighted layers of a loop over time: their input is seen in its first pass only.

    A state that begins at zero, or a neuron that must charge before it fires, is zero there.
    """
    kinds, unrolled = chart.fact("modules.kinds", ()), unrolled_modules(chart)
    weighted = [place < len(kinds) and kinds[place] in WEIGHTED for place in range(len(chart.module_names))]
    return np.array([known and name in unrolled for known, name in zip(weighted, chart.module_names, strict=True)])


def _gets_gradient(chart: Chart, name: str) -> bool:
    """Whether a weight has a gradient: its input is then not always zero.

    A search for a fixed point starts from zero, so the input is zero at the first of many calls.
    """
    row = chart.tensors("grad_norm").latest
    return name in chart.names and row.size == len(chart.names) and float(row[chart.names.index(name)]) > 0


def first_known(rows: Array) -> Array:
    """The first finite value of each column; NaN if there is none."""
    known = np.isfinite(rows)
    first: Array = rows[np.argmax(known, axis=0), np.arange(rows.shape[1])]
    return first


def is_stuck(chart: Chart, least: int = 50) -> bool:
    """Whether the loss has not fallen after at least this many steps; False if it is not known."""
    loss = chart["loss"]
    if loss.count < least or acts(chart):
        return False
    progress = Progress.of(loss)
    return not progress.is_below(loss.baseline(128)) or loss.baseline(32).recent > progress.start
