"""Questions that several causes ask about the whole run: how the loss falls, steps, the optimizer, the model."""

from __future__ import annotations

import math
import re

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import highest
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.diagnoses.configuration import OPTIMIZERS, configured, configured_name
from torchdoctor.series import Series, median
from torchdoctor.symptoms import DETECTORS
from torchdoctor.symptoms.progress import Progress, outline_levels, trend_gain

RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")


def last_level(series: Series, values: int = 20) -> float:
    """The median of a vital's last few values; NaN if it has none."""
    return median(series.last(values)) if series else math.nan


def has_not_fallen(chart: Chart) -> bool:
    """Whether the training loss is still near its start, or above."""
    losses = chart["loss"]
    return losses.count >= 50 and losses.baseline(128).recent > 0.95 * Progress.of(losses).start > 0


def falls_steadily(chart: Chart) -> bool:
    """Whether the loss falls in the second half of the run at least half as fast as in the first: most runs slow down.

    >>> falls_steadily(Chart.of(loss=[4.0 - 0.001 * step for step in range(200)]))
    True
    >>> falls_steadily(Chart.of(loss=[0.95**step for step in range(200)]))
    False
    """
    levels = outline_levels(chart["loss"])
    middle = levels.size // 2
    (first, _), (second, doubt) = trend_gain(levels[:middle]), trend_gain(levels[middle:])
    return second > 3 * doubt and second > 0.5 * first > 0


def validation_leads(chart: Chart) -> float:
    """The share of evaluations with a lower loss than training around them; NaN if there are too few."""
    evaluated, train = chart["val_loss"], chart["loss"]
    better = []
    for step, value in zip(evaluated.steps.tolist(), evaluated.values.tolist(), strict=True):
        about = train.values[np.abs(train.steps - step) <= 12]
        if about.size >= 12:
            better.append(value < median(about))
    return float(np.mean(better)) if len(better) >= 5 else math.nan


def still_multiplied(chart: Chart, least: float = 64.0) -> float:
    """The factor that multiplied the loss before backward(), if the first gradient was still multiplied by it; else 0.

    At the start, the gradient norm of a mean loss is neither tiny nor huge in an ordinary model. `scaler.step()`
    divides gradients by the factor again, and then the norm is ordinary.

    >>> still_multiplied(Chart.of(loss_weight=[1024.0], grad_norm=[3886.0]))
    1024.0
    >>> still_multiplied(Chart.of(loss_weight=[1024.0], grad_norm=[3.8]))
    0.0
    """
    weight, norm = chart["loss_weight"].first, chart["grad_norm"].first
    return weight if weight >= least and 0.05 * weight < norm < 30 * weight else 0.0


def leading_rates(chart: Chart) -> Series:
    """The learning rates of the first parameter group, or of the first other one if it never steps.

    >>> leading_rates(Chart.of(**{"lr": [0.0] * 3, "lr/1": [1e-3] * 3})).latest
    0.001
    """
    known = (chart[name] for name in chart.vitals if name.startswith("lr/"))
    others = (rates for rates in known if rates.outline.highest > 0)
    return chart["lr"] if chart["lr"].outline.highest != 0 else next(others, chart["lr"])


def working_update(chart: Chart) -> float:
    """The median update ratio while the learning rate was at least 30 % of its highest; NaN if unknown.

    Updates during warm-up or at the end of a schedule do not show how the run learns, nor do steps that change nothing
    at all. Otherwise tensors that stay where they are count as well. If most do, no ratio is that of the weights: NaN.

    >>> chart = Chart()
    >>> chart.add({"type": "tensors", "step": 1, "vitals": {"update_ratio": [0.0, 1e-7, 0.01]}})
    >>> working_update(chart)
    1e-07
    >>> chart.add({"type": "tensors", "step": 2, "vitals": {"update_ratio": [0.0, 0.0, 0.01]}})
    >>> chart.add({"type": "tensors", "step": 3, "vitals": {"update_ratio": [0.0, 0.0, 0.01]}})
    >>> working_update(chart)
    nan
    """
    rates = leading_rates(chart)
    top = highest(rates, 0, chart.step)
    levels = []
    for step, row in chart.tensors("update_ratio").rows:
        known = row[np.isfinite(row)]
        rate = rates.values[rates.steps == step]
        if (known > 0).any() and not (rate.size and float(rate[0]) < 0.3 * top):
            levels.append(median(known))
    level = median(levels) if levels else math.nan
    return level if level > 0 else math.nan


def thrown_at_first(chart: Chart, problem: Problem, long: float = 0.02, soon: int = 60) -> float:
    """The largest of the first update ratios, if those updates made the outputs equal for all inputs; else NaN.

    That is assumed if outputs depended on the input at first but not a few dozen steps later, and updates have become
    less than a tenth as large because gradients vanish. With wrong labels, gradients are noise and updates stay large.
    """
    lost = problem.get("collapsed-output")
    if lost is None or not 2 < lost.first_step <= soon or not chart["output_spread"].first > 0.05:
        return math.nan
    levels = [(step, median(row[np.isfinite(row)])) for step, row in chart.tensors("update_ratio").rows]
    first = max((level for step, level in levels if 1 <= step < lost.first_step), default=math.nan)
    later = min((level for step, level in levels if step > lost.first_step), default=math.nan)
    return first if first > long and later < 0.1 * first else math.nan


def summed_passes(chart: Chart) -> int:
    """How many backward passes a step of an optimizer sums: the most of any optimizer; 0 if unknown.

    Passes with a clear in between are not summed: what a generator's loss leaves in the discriminator is cleared.

    >>> chart = Chart()
    >>> facts = {"zeroing.backwards": [1, 2], "zeroing.between_backwards": [0, 5]}
    >>> chart.add({"type": "facts", "step": 9, "facts": facts})
    >>> summed_passes(chart)
    1
    """
    between = chart.fact("zeroing.between_backwards") or ()
    passes = enumerate(chart.fact("zeroing.backwards") or ())
    return max((count for place, count in passes if not any(between[place : place + 1])), default=0)


def optimizer_names(chart: Chart) -> str:
    """The optimizers' class names, or the name in a log's configuration; "" if unknown."""
    items = chart.context.get("optimizer") or ()
    seen = ", ".join(str(item.get("class", "")) for item in items if isinstance(item, dict))
    return seen or configured_name(chart, OPTIMIZERS)


def has_attention(chart: Chart) -> bool:
    """Whether the model uses attention: such models have residual connections and need small steps at first."""
    if chart["attention_logit"] or chart["attention_ahead"]:  # whatever the layers are called
        return True
    return any("Attention" in kind or "Transformer" in kind for kind in chart.fact("modules.kinds", ()))


def has_recurrence(chart: Chart) -> bool:
    """Whether the model uses a recurrent layer: its gradients pass the same weights many times."""
    return any(kind in RECURRENT for kind in chart.fact("modules.kinds", ()))


def has_tiny_batches(chart: Chart) -> bool:
    """Whether batches have at most four samples, so that gradients vary strongly from step to step anyway."""
    batch = chart.context.get("batch_size")
    return isinstance(batch, int) and batch <= 4


def weight_decay(chart: Chart) -> float:
    """The highest weight decay of any parameter group, or the one in a log's configuration; NaN if unknown."""
    values = [group["weight_decay"] for group in chart.groups if isinstance(group.get("weight_decay"), int | float)]
    return float(max(values)) if values else configured(chart, "weight_decay")


def dropout(chart: Chart) -> float:
    """The highest dropout rate of the model (0 if none), or the one in a log's configuration; NaN if unknown."""
    rates = chart.context.get("dropout")
    return float(max(rates, default=0.0)) if isinstance(rates, list | tuple) else configured(chart, "dropout")


def swing_period(chart: Chart, problem: Problem) -> tuple[int, int]:
    """The period of an oscillating loss in steps and in records of the log; zeros if the loss does not oscillate.

    >>> from torchdoctor.records import Symptom
    >>> swing = Symptom("loss-oscillation", "", "warning", 0.8, 0, 990, message="it swings, every 20 steps")
    >>> swing_period(Chart.of(context={"logged_every": 10}), Problem((swing,)))
    (20, 2)
    """
    swing = problem.get("loss-oscillation")
    found = re.search(r"every (\d+) steps", swing.message) if swing is not None else None
    steps = int(found[1]) if found is not None else 0
    return steps, round(steps / max(1, int(chart.context.get("logged_every") or 1)))


def is_absent(chart: Chart, name: str, since: int, within: int) -> bool:
    """Whether a finding was looked for, but not seen since an onset, although it should have come by now.

    Its absence is evidence only if something was measured that could have shown it.

    >>> from torchdoctor.records import Symptom
    >>> chart = Chart.of(grad_norm=[1.0] * 200)
    >>> is_absent(chart, "gradient-explosion", since=0, within=100), is_absent(chart, "loss-spike", since=0, within=100)
    (True, False)
    >>> chart.episodes.append(Symptom("gradient-explosion", "", "info", 0.9, 50, 50))
    >>> is_absent(chart, "gradient-explosion", since=0, within=100)
    False
    """
    if chart.step < since + within or any(item.name == name and item.last_step >= since for item in chart.episodes):
        return False
    reads = (key for detector in DETECTORS if detector.name == name for key in detector.reads)
    return any(_was_read(chart, key) for key in reads)


def _was_read(chart: Chart, key: str) -> bool:
    table, _, vital = key.partition("/")
    match table:
        case "tensors":
            return bool(chart.tensors(vital).rows)
        case "modules":
            return bool(chart.modules(vital).rows)
        case "facts":
            return vital in chart.facts
    return bool(chart[key])
