"""What several causes ask the chart: the learning rate about an onset, updates, optimizer, whether a trouble healed."""

from __future__ import annotations

import bisect
import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.diagnoses.configuration import OPTIMIZERS, configured, configured_name
from torchdoctor.records import number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms import DETECTORS
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.progress import Progress, outline_levels, trend_gain

SHARP = ("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf", "skipped-steps")
"""Findings whose first step is known to the step."""


RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
LEAP = 10.0
"""Times its level by which a loss rises within one step that no ordinary update explains."""


def breaking_step(problem: Problem) -> int:
    """The step at which something broke; the onset of the problem where nothing did.

    >>> from torchdoctor.records import Symptom
    >>> found = [Symptom(name, "", "warning", 0.9, step, 200) for name, step in
    ...          [("weight-growth", 100), ("loss-spike", 150)]]
    >>> breaking_step(Problem(tuple(found)))
    150
    """
    return min((item.first_step for item in problem.symptoms if item.name in SHARP), default=problem.first_step)


def level_about(series: Series, first: int, last: int) -> float:
    """The median level of a vital between two steps, from the outline; NaN where it has no value there."""
    means = [bucket[2] for bucket in series.outline.buckets() if first <= bucket[0] <= last]
    return median(means) if means else math.nan


def last_level(series: Series, values: int = 20) -> float:
    """The median of a vital's last few values; NaN where it has none."""
    return median(series.last(values)) if series else math.nan


def highest(series: Series, first: int, last: int) -> float:
    """The highest value of a vital between two steps, from the outline; NaN where it has no value there."""
    buckets = series.outline.buckets()
    low, high = (bisect.bisect_left(buckets, (step,)) for step in (first, last + 1))
    return max([bucket[3] for bucket in buckets[low:high]], default=math.nan)


def lr_rise(chart: Chart, onset: int, within: int = 30) -> float:
    """How many times the learning rate just before an onset exceeds the highest before that; NaN where unknown."""
    now, before = highest(chart["lr"], onset - within, onset), highest(chart["lr"], 0, onset - within - 1)
    return now / before if before > 0 else math.nan


def lr_leap(chart: Chart, onset: int, within: int = 30) -> float:
    """How many times a rate that leapt from one step to the next, shortly before an onset, exceeds any before; else 1.

    A warm-up rises many times over within thirty steps, and little by little: it does not leap. Of several groups, the
    one that leapt furthest counts.

    >>> lr_leap(Chart.of(lr=[1e-3] * 60 + [3e-2] * 5), onset=61)
    30.0
    >>> lr_leap(Chart.of(lr=[1e-3 * step for step in range(40)]), onset=35)
    1.0
    """
    groups = [chart[f"lr/{number}"] for number in range(1, min(len(chart.groups), 8))]
    leaps = [_leap_of(rates, onset, within) for rates in (chart["lr"], *groups)]
    return max(leaps + [_leap_away(chart["lr"], rates, onset, within) for rates in groups])


def _leap_away(common: Series, rates: Series, onset: int, within: int) -> float:
    """The same for a group that had the rate of all until then: its own is kept only from where it differs."""
    if not rates or rates.count > rates.steps.size or not onset - within <= rates.steps[0] <= onset:
        return 1.0
    before = highest(common, 0, int(rates.steps[0]) - 1)
    times = float(rates.values[0]) / before if before > 0 and rates.steps[0] >= 5 else 1.0
    return round(times, 6) if times > 2 else 1.0


def _leap_of(rates: Series, onset: int, within: int) -> float:
    about = (rates.steps >= onset - within) & (rates.steps <= onset)
    values = rates.values
    for place in np.flatnonzero(about):
        if place < 5 or not float(values[place]) > 2 * float(values[place - 1]):
            continue
        before = highest(rates, 0, int(rates.steps[place]) - 1)
        if before > 0 and float(values[place]) > 2 * before:
            return round(float(values[place]) / before, 6)
    return 1.0


def is_over(chart: Chart, problem: Problem, after: int = 5) -> bool:
    """Whether nothing of the problem has been seen for a few steps."""
    return chart.step - problem.last_step >= after


def is_brief(problem: Problem, steps: int = 5) -> bool:
    """Whether no episode of the problem lasted longer than a few steps."""
    return all(symptom.last_step - symptom.first_step < steps for symptom in problem.symptoms)


def loss_moved_at(chart: Chart, step: int) -> bool:
    """Whether the loss stood out at a step against the steps before it."""
    series = chart["loss"]
    at = series.values[series.steps == step]
    before = series.values[(series.steps < step) & (series.steps >= step - 24)]
    if not at.size or before.size < 8:
        return False
    centre = median(before)
    return float(at[0]) - centre > 6 * max(1.4826 * median(np.abs(before - centre)), 0.01 * abs(centre))


def loss_leap(chart: Chart, step: int) -> float:
    """By how many times its level before the loss rose at a step; NaN where unknown."""
    series = chart["loss"]
    at = series.values[series.steps == step]
    before = series.values[(series.steps < step) & (series.steps >= step - 24)]
    if not at.size or before.size < 8:
        return math.nan
    centre = median(before)
    usual = max(abs(centre), 3 * 1.4826 * median(np.abs(before - centre)))
    return (float(at[0]) - centre) / usual if usual > 0 else math.nan


LEAP_OF_A_WEIGHT, UNMOVED = 1e3, 1e3
"""Times its level that a loss rises by at least, and that the least of the gradients does at most."""


def uneven_leap(chart: Chart, step: int, times: float = 1e6) -> str:
    """How gradients leapt in some weights and not in others at a step, as a sentence; empty where they did not.

    What a batch has too much of goes through all layers and is in the gradient of each. One weight that has changed by
    itself is not: the layer that it is in, or those behind it, are given what they always are. Gradients that are not
    finite count where the loss leapt as well; else a derivative is undefined, and a mask keeps it from some weights.
    """
    rows = [(at, row) for at, row in chart.tensors("grad_norm").rows if row.size == len(chart.names)]
    columns = list(weight_columns(chart.names))
    before = [row[columns] for at, row in rows if at < step][-4:]
    here = [row[columns] for at, row in rows if at == step]
    if len(before) < 3 or not here or len(columns) < 2:
        return ""
    if np.isinf(here[0]).any() and not loss_leap(chart, step) > LEAP_OF_A_WEIGHT:
        return ""
    with np.errstate(all="ignore"):
        usual = np.median(np.array(before), axis=0)
        leaps = np.minimum(here[0], 1e38) / usual  # one that is not a number at all says nothing
    known = np.isfinite(leaps) & (usual > 0)
    if known.sum() < 2 or not leaps[known].max() > times * max(1.0, float(leaps[known].min())):
        return ""
    if float(leaps[known].min()) > UNMOVED:  # then all leapt, as they do in a run that runs away
        return ""
    low, high = (int(np.flatnonzero(known)[place]) for place in (leaps[known].argmin(), leaps[known].argmax()))
    names = [chart.names[columns[place]] for place in (high, low)]
    text = (
        f"the gradient of {names[0]} leapt {number_text(float(leaps[high]))} times at step {step}, that of {names[1]}"
    )
    return f"{text} {number_text(float(leaps[low]))}: a batch goes through both, a weight that was changed does not"


BEYOND = 10.0
"""Times what usual steps in one direction would come to that a bounded optimizer moves weights by at most."""


def beyond_its_steps(chart: Chart, onset: int) -> str:
    """How weights grew about an onset by more than Adam's steps can make them, as a sentence; empty where they did not.

    A step of Adam is about as long as its rate, whatever the batch and however large the gradient: that is what its
    second moments are for. Where most weights are elsewhere all at once, those moments were lost, or the weights were
    replaced. Plain steps are as long as the gradient, which any batch may make large, and of them nothing follows.
    """
    groups = [group for group in chart.groups if group.get("optimizer")]
    if not groups or not all("Adam" in str(group["optimizer"]) for group in groups):
        return ""
    rows = [(step, row) for step, row in chart.tensors("weight_norm").rows if row.size == len(chart.names)]
    before = [(step, row) for step, row in rows if step < onset]
    after = [(step, row) for step, row in rows if step > onset and np.isfinite(row).all()]
    usual = update_level(chart, onset)
    if not before or not after or not usual > 0:
        return ""
    (start, old), (end, new) = before[-1], after[0]
    columns = [index for index in weight_columns(chart.names) if old[index] > 0]
    rise = highest(chart["lr"], start, end) / max(highest(chart["lr"], 0, start), 1e-30)
    reach = usual * (end - start) * max(rise, 1.0)
    grown = median(new[columns] / old[columns]) - 1 if columns else 0.0
    if not grown > BEYOND * max(reach, 0.1):
        return ""
    words = f"weights grew {number_text(grown + 1)} times between steps {start} and {end}"
    return f"{words}, where Adam's steps come to {number_text(reach)} of them at most"


RAN_AWAY = 30.0
"""Times its level that a loss or a gradient norm has reached within a few steps where steps make it grow."""
LATELY, LONG = 24, 240
"""Values that tell its level; and as many that do where it has grown for longer than those."""


def ran_away(chart: Chart, step: int, within: int = 3) -> bool:
    """Whether loss or gradient norm had outgrown their level in the steps before one, not at that one alone.

    What overflows by itself, or by its batch, does so at once. Steps that are too long take some to get there, and a
    run that is young has no level yet that a detector could compare with. Growth over fifty steps lifts a level of the
    last two dozen with it.

    >>> growing = [1.0] * 200 + [1.2**step for step in range(50)]
    >>> ran_away(Chart.of(loss=[1.0] * 250, grad_norm=growing), 250)
    True
    >>> ran_away(Chart.of(loss=[1.0, 2.0, 1.5, 40.0, 9e3, 8e9]), 6), ran_away(Chart.of(loss=[1.0] * 6 + [8e9]), 6)
    (True, False)
    """
    for series in (chart["loss"], chart["grad_norm"]):
        before = series.values[series.steps < step - within]
        lately = series.values[(series.steps >= step - within) & (series.steps < step)]
        if not before.size or not lately.size:
            continue
        level = min(median(np.abs(before[-count:])) for count in (LATELY, LONG))
        if float(lately.max()) > RAN_AWAY * level > 0:
            return True
    return False


def finite_beside(chart: Chart, step: int) -> tuple[str, ...]:
    """Weights whose gradient was a number, and not zero, at a step at which those of others were none."""
    rows = [row for at, row in chart.tensors("grad_norm").rows if at == step and row.size == len(chart.names)]
    if not rows or not np.isinf(rows[-1]).any():
        return ()
    return tuple(chart.names[index] for index in weight_columns(chart.names) if 0 < rows[-1][index] < math.inf)


def loss_was_finite(chart: Chart, step: int) -> bool | None:
    """Whether the loss of a step was a number; None where that is not known any more."""
    series = chart["loss"]
    if step in series.nonfinite_steps:
        return False
    forgotten = series.nonfinite > len(series.nonfinite_steps) and series.steps.size == series.count
    if forgotten and step <= series.step:  # all numbers are still known, and not all others
        return bool((series.steps == step).any())
    if series.steps.size and step >= int(series.steps[0]):
        return bool((series.steps == step).any())
    return None


def has_not_fallen(chart: Chart) -> bool:
    """Whether the training loss is where it began, or above."""
    losses = chart["loss"]
    return losses.count >= 50 and losses.baseline(128).recent > 0.95 * Progress.of(losses).start > 0


def falls_steadily(chart: Chart) -> bool:
    """Whether the loss falls in the second half of the run as it did in the first: a run that learns slows down.

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
    """The share of evaluations that were better than training about them; NaN where there are too few."""
    evaluated, train = chart["val_loss"], chart["loss"]
    better = []
    for step, value in zip(evaluated.steps.tolist(), evaluated.values.tolist(), strict=True):
        about = train.values[np.abs(train.steps - step) <= 12]
        if about.size >= 12:
            better.append(value < median(about))
    return float(np.mean(better)) if len(better) >= 5 else math.nan


def update_level(chart: Chart, before: int) -> float:
    """The typical update ratio over all tensors at the last sample before a step; NaN where unknown."""
    for step, row in reversed(chart.tensors("update_ratio").rows):
        known = row[np.isfinite(row) & (row > 0)]
        if step < before and known.size:
            return median(known)
    return math.nan


def still_multiplied(chart: Chart, least: float = 64.0) -> float:
    """By what the loss was multiplied before backward, where the first gradient still was when it was applied; else 0.

    The gradient of a mean at the start is neither a hundredth nor a hundred in an ordinary net. A scaler that has its
    own step divides by what it multiplied with: then the gradient is an ordinary one.

    >>> still_multiplied(Chart.of(loss_weight=[1024.0], grad_norm=[3886.0]))
    1024.0
    >>> still_multiplied(Chart.of(loss_weight=[1024.0], grad_norm=[3.8]))
    0.0
    """
    weight, norm = chart["loss_weight"].first, chart["grad_norm"].first
    return weight if weight >= least and 0.05 * weight < norm < 30 * weight else 0.0


def working_update(chart: Chart) -> float:
    """The typical update ratio while the learning rate was a good share of its highest; NaN where unknown.

    What weights do in a warm-up, or when a schedule has run out, says nothing of how the run learns.
    """
    rates, top = chart["lr"], highest(chart["lr"], 0, chart.step)
    levels = []
    for step, row in chart.tensors("update_ratio").rows:
        known = row[np.isfinite(row) & (row > 0)]
        rate = rates.values[rates.steps == step]
        if known.size and not (rate.size and float(rate[0]) < 0.3 * top):
            levels.append(median(known))
    return median(levels) if levels else math.nan


def thrown_at_first(chart: Chart, problem: Problem, long: float = 0.02, soon: int = 60) -> float:
    """By how much of themselves weights moved a step at first, where that cost the outputs their input; else NaN.

    Outputs that told inputs apart before the first step and did not a few dozen steps later, and steps that are a tenth
    as long since: nothing is left that pulls. Wrong labels leave gradients that are noise, and steps as long as ever.
    """
    lost = problem.get("collapsed-output")
    if lost is None or not 2 < lost.first_step <= soon or not chart["output_spread"].first > 0.05:
        return math.nan
    levels = [(step, median(row[np.isfinite(row)])) for step, row in chart.tensors("update_ratio").rows]
    first = max((level for step, level in levels if 1 <= step < lost.first_step), default=math.nan)
    later = min((level for step, level in levels if step > lost.first_step), default=math.nan)
    return first if first > long and later < 0.1 * first else math.nan


def optimizer_names(chart: Chart) -> str:
    """The optimizers' class names, or what a log's configuration says; empty where unknown."""
    items = chart.context.get("optimizer") or ()
    seen = ", ".join(str(item.get("class", "")) for item in items if isinstance(item, dict))
    return seen or configured_name(chart, OPTIMIZERS)


def has_attention(chart: Chart) -> bool:
    """Whether attention was seen at work: such models have shortcuts, and need small steps at first."""
    if chart["attention_logit"] or chart["attention_ahead"]:  # in layers of any name
        return True
    return any("Attention" in kind or "Transformer" in kind for kind in chart.fact("modules.kinds", ()))


def has_recurrence(chart: Chart) -> bool:
    """Whether a recurrent layer was seen at work: its gradients pass the same weights many times."""
    return any(kind in RECURRENT for kind in chart.fact("modules.kinds", ()))


def has_tiny_batches(chart: Chart) -> bool:
    """Whether a batch holds so few samples that gradients swing from step to step by themselves."""
    batch = chart.context.get("batch_size")
    return isinstance(batch, int) and batch <= 4


def weight_decay(chart: Chart) -> float:
    """The highest weight decay of any parameter group, or what a log's configuration says; NaN where unknown."""
    values = [group["weight_decay"] for group in chart.groups if isinstance(group.get("weight_decay"), int | float)]
    return float(max(values)) if values else configured(chart, "weight_decay")


def dropout(chart: Chart) -> float:
    """The highest dropout rate of the model, 0 where it has none, or what a log's configuration says; else NaN."""
    rates = chart.context.get("dropout")
    return float(max(rates, default=0.0)) if isinstance(rates, list | tuple) else configured(chart, "dropout")


def is_absent(chart: Chart, name: str, since: int, within: int) -> bool:
    """Whether a finding that should have come within some steps after an onset was looked for and never seen.

    Absence is evidence only where something was measured that could have shown it.

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
