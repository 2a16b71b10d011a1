"""DA02 target-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.symptoms.detector import Detector

RANGES = {
    "ReLU": (0.0, math.inf),
    "ReLU6": (0.0, 6.0),
    "Softplus": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
"""What activations can give."""


@dataclass(frozen=True)
class TargetAnomaly(Detector):
    """The targets are out of the model's reach, of one class, padding, equal to the inputs, or not finite.

    ## What it means
    A fresh model answers with values about 0 to 1. Targets in thousands are far away: the loss and its gradient are
    huge, or, with Adam, the outputs creep towards them for thousands of steps. Labels of one class, or targets that
    are the inputs themselves, can be had without learning anything.

    ## How it is told apart
    Large targets that the model reaches are healthy: it is a note at first, and a warning only if the outputs are
    still a fiftieth of the targets after a hundred steps, or a tenth after three hundred. Contrastive losses use one
    label for all on purpose; their classes outnumber the batch. A bounded last layer is right where targets are
    bounded too. An autoencoder's targets are its inputs, but they are not whole numbers. A column that predicts the
    label well is a good feature; one that follows it without any exception, in every batch, is the label. Padding that
    the loss leaves out (`ignore_index`) is not counted here either.

    ## What to do
    `y = (y - y.mean()) / y.std()` and scale predictions back; or begin with the bias of the last layer at `y.mean()`.
    For labels: count them, `torch.bincount(labels)`. For language models: `inputs, targets = x[:, :-1], x[:, 1:]`;
    for padded texts, `nn.CrossEntropyLoss(ignore_index=PAD)`.

    ## How to see that it is cured
    `target_std` is near 1, and `output_rms` reaches the targets' size within some hundred steps.

    ## Example
    >>> size = 2000.0
    >>> chart = Chart.of(step=100, target_mean=[size] * 3, target_std=[1.0] * 3, output_rms=[5.0, 6.0, 7.0])
    >>> TargetAnomaly().check(chart).message
    'targets are of size 2000, outputs still of size 7 at step 102'
    """

    code = "DA02"
    name = "target-anomaly"
    reads = ("target_std", "target_classes", "target_nonfinite", "target_is_input", "target_padding", "label_in_input")
    suggests = ("normalize-targets", "clean-data", "rebalance-classes", "fix-loss")
    references = ("https://karpathy.github.io/2019/04/25/recipe/", "https://arxiv.org/abs/1602.07714")
    closes_after = 3

    large: float = 100.0
    """Size of float targets that is worth a note."""
    steps: int = 95
    """Steps after which outputs should be on their way."""
    reached: float = 0.02
    """Share of the targets' size that the outputs have by then; five times as much after three times the steps."""
    padding: float = 0.5
    """Share of the labels that belong to a stretch of one label at the end of a sequence."""
    exact: float = 0.9999
    """Correlation of a column of the inputs with the labels above which it is the label."""
    labels: int = 256
    """Labels that must have been seen before they are called all of one class."""

    def check(self, chart: Chart) -> Symptom | None:
        """Not finite, then the inputs themselves, padding, one class, then the scale."""
        wrong = chart["target_nonfinite"]
        if wrong.step == chart.step and wrong.latest > 0:
            message = f"{number_text(wrong.latest)} values of the targets are not finite"
            return self.symptom(chart, "warning", message, value=wrong.latest, limit=0.0)
        same = chart["target_is_input"].last(3)
        if same.size == 3 and float(same.min()) > 0.999:
            message = "the targets are the inputs, at the same positions: the model only has to copy"
            return self.symptom(chart, "warning", message, value=1.0, since=int(chart["target_is_input"].steps[0]))
        return (
            self._is_a_column(chart)
            or self._padding(chart)
            or self._one_class(chart)
            or self._out_of_range(chart)
            or self._scale(chart)
        )

    def _is_a_column(self, chart: Chart) -> Symptom | None:
        """A table that still holds its outcome: one column follows the label exactly, in every batch looked at."""
        closest = chart["label_in_input"]
        if closest.count < 5 or not float(closest.last(5).min()) > self.exact:
            return None
        message = "one column of the inputs is the label itself, in other numbers: there is nothing to learn"
        first = int(closest.steps[0])
        return self.symptom(chart, "warning", message, value=closest.latest, limit=self.exact, since=first)

    def _padding(self, chart: Chart) -> Symptom | None:
        """More of what the loss counts is one label, repeated to the end of the sequences, than anything else."""
        shares = chart["target_padding"].last(3)
        if shares.size < 3 or not float(shares.min()) > self.padding:
            return None
        message = f"{100 * float(shares[-1]):.0f} % of the labels are one and the same to the end of each sequence: "
        message += "the loss counts padding (ignore_index)"
        since = int(chart["target_padding"].steps[0])
        return self.symptom(chart, "warning", message, value=float(shares[-1]), limit=self.padding, since=since)

    def _out_of_range(self, chart: Chart) -> Symptom | None:
        kind, low, high = output_range(chart)
        mean, deviation = chart["target_mean"].latest, chart["target_std"].latest
        margin = 0.1 * deviation
        below = mean - deviation < low - margin and chart["target_min"].latest < low - margin
        above = mean + deviation > high + margin and chart["target_max"].latest > high + margin
        if not kind or not (below or above) or chart["target_std"].count < 3:
            return None
        reach = f"nothing below {number_text(low)}" if below else f"nothing above {number_text(high)}"
        value = chart["target_min" if below else "target_max"].latest
        message = f"targets go to {number_text(value)}, but the last layer, {kind}, gives {reach}"
        first = int(chart["target_std"].steps[0])
        return self.symptom(chart, "warning", message, value=value, limit=low if below else high, since=first)

    def _one_class(self, chart: Chart) -> Symptom | None:
        classes, size = chart.fact("loss.classes"), chart.context.get("batch_size")
        pooled = chart["pooled_classes"]
        if not isinstance(classes, int) or not isinstance(size, int) or pooled.latest != 1 or classes >= size:
            return None
        if pooled.count * size < self.labels or pooled.count < 4:
            return None
        message = f"all labels seen so far are of one class, of {classes} that the model can tell"
        return self.symptom(chart, "warning", message, value=1.0, since=int(pooled.steps[0]))

    def _scale(self, chart: Chart) -> Symptom | None:
        mean, deviation, output = (chart[name] for name in ("target_mean", "target_std", "output_rms"))
        if deviation.count < 2 or not output:
            return None
        size, reached = math.hypot(mean.latest, deviation.latest), output.latest
        if not size > self.large / 3:
            return None
        shares = output.last(3) / size
        slow = chart.step >= self.steps and float(shares.max()) < self.reached
        if slow or (chart.step >= 3 * self.steps and float(shares.max()) < 5 * self.reached):
            message = f"targets are of size {number_text(size)}, outputs still of size {number_text(reached)}"
            message += f" at step {chart.step}"
            return self.symptom(chart, "warning", message, value=size, limit=self.large, since=int(deviation.steps[0]))
        if size > self.large and chart.step < self.steps:
            message = f"targets are of size {number_text(size)}; outputs begin at {number_text(output.first)}"
            return self.symptom(chart, "info", message, value=size, limit=self.large)
        return None


def output_range(chart: Chart) -> tuple[str, float, float]:
    """The activation that ends the model, and the least and the largest value it can give; empty where it is open."""
    outputs, kinds = chart.fact("modules.outputs", ()), chart.fact("modules.kinds", ())
    size, row = chart["output_rms"].latest, chart.modules("act_rms").latest
    if len(outputs) != 1 or outputs[0] not in chart.module_names or row.size != len(kinds):
        return "", 0.0, 0.0
    index = chart.module_names.index(outputs[0])
    if kinds[index] not in RANGES or not abs(row[index] - size) < 1e-2 * size:  # what enters the loss is something else
        return "", 0.0, 0.0
    return (kinds[index], *RANGES[kinds[index]])
