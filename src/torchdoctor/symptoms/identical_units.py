"""AC04 identical-units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class IdenticalUnits(Detector):
    """All units of a hidden layer have the same weights, and stay equal.

    ## What it means
    Units that start equal get equal gradients and stay equal: a layer of 512 units then does the work of one. It
    happens when weights are initialized to zero or another constant.

    ## How it is told apart
    Zeros are healthy if something else breaks the symmetry: the last layer of a residual branch, LoRA's B, the output
    layer, biases. Their rows differ after the first step. Here the rows of a hidden layer are exactly equal at several
    samples in a row although the layer is trained, or most hidden layers started this way.

    ## What to do
    Initialize the weights randomly: `torch.nn.init.kaiming_normal_(layer.weight)`. Only biases may start at zero.

    ## How to see that it is cured
    `(weight - weight[:1]).abs().max()` is above zero.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.names": ["fc1", "fc2"], "modules.outputs": ["fc2"]}})
    >>> for step in (0, 4, 16):
    ...     chart.add({"type": "modules", "step": step, "vitals": {"weight_same": [1.0, 0.0]}})
    >>> print(IdenticalUnits().check(chart))
    step 0: AC04 identical-units (critical): all units of fc1 have the same weights, and training keeps them equal
    """

    code = "AC04"
    name = "identical-units"
    reads = ("modules/weight_same",)
    suggests = ("initialize",)
    references = ("https://www.deeplearningbook.org/contents/optimization.html",)
    closes_after = 3

    samples: int = 3
    """Samples in a row that must show it."""
    steps: int = 8
    """Steps needed before anything is reported: layers that start at zero on purpose have changed by then."""
    most: float = 0.6
    """Share of the hidden layers that started with equal units, from which it is reported even if they differ now."""

    def check(self, chart: Chart) -> Symptom | None:
        """Look for hidden layers whose rows are equal at each of the last samples."""
        names, series = chart.module_names, chart.modules("weight_same")
        rows = series.matrix(self.samples)
        if len(rows) < self.samples or rows.shape[1] != len(names) or series.step < self.steps:
            return None
        if not (chart["lr"].latest > 0 or "lr" not in chart):
            return None
        outputs = chart.fact("modules.outputs", ())
        known = [index for index in range(len(names)) if np.isfinite(rows[-1, index]) and names[index] not in outputs]
        same = [index for index in known if (rows[:, index] == 1).all()]
        if not same:
            return self._began(chart, known)
        severity: Severity = "critical" if len(same) == len(known) else "warning"
        where = tuple(names[index] for index in same[:4])
        message = f"all units of {chart.called(where[0])} have the same weights, and training keeps them equal"
        if len(same) > 1:
            layers = f"each of {len(same)} layers ({chart.called(where[0])} first)"
            message = f"all units of {layers} have the same weights, and training keeps them equal"
        return self.symptom(chart, severity, message, value=float(len(same)), where=where, since=series.rows[0][0])

    def _began(self, chart: Chart, known: list[int]) -> Symptom | None:
        """Most hidden layers started with equal units: only the last layer can make them differ later.

        A branch that starts at zero on purpose has layers before it that do not.
        """
        first, row = chart.modules("weight_same").rows[0]
        same = [index for index in known if row.size > index and row[index] == 1]
        if first > 0 or len(same) < 2 or len(same) < self.most * len(known):
            return None
        where = tuple(chart.module_names[index] for index in same[:4])
        layers = f"each of {len(same)} of {len(known)} hidden layers ({chart.called(where[0])} first)"
        message = f"all units of {layers} started with equal weights"
        return self.symptom(chart, "warning", message, value=float(len(same)), where=where, since=first)
