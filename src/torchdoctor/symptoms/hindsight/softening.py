"""Findings that a good end turns into info, and spikes that lasted too long for that."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.hindsight.curve import Curve, improved, is_mostly_one_part, loss_of, part_that_fell
from torchdoctor.symptoms.hindsight.stairs import stairs
from torchdoctor.symptoms.nan_or_inf import NanOrInf
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import level_at
from torchdoctor.symptoms.progress import Progress, is_game
from torchdoctor.symptoms.step_time_regression import STEADILY, StepTimeRegression
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

HEALING = frozenset(
    (
        *("gradient-explosion", "gradient-vanishing", "gradient-instability"),
        *("loss-spike", "loss-divergence", "loss-plateau", "loss-oscillation", "not-learning", "slow-learning"),
    )
)
"""Findings that become info if the run ended well."""
STANDING = frozenset(("not-learning", "slow-learning", "loss-plateau"))
"""Findings about a loss that does not fall."""
STARTING = frozenset(("not-learning", "slow-learning"))
YOUNG = 0.25
"""Share of a run within which a slow start is not reported."""
LEAPING = frozenset(("loss-spike", "loss-divergence", "gradient-explosion"))
LEAPING_FOR = 20
"""Steps after a reset of weights within which a jump of loss or gradient is explained by it."""
HALF = 0.5
"""A loss is on a floor if one of its terms fell below this share of its start."""
LASTING = 3
"""Consecutive records from which a spike is more than one bad batch."""
FEW_REWARDS = 20
"""Fewest rewards that show whether the reward was kept."""
MOVED = 0.1
"""Relative range of validation from which equal values among its own are explained by rounding."""
MEMORIZED = 0.1
"""Training loss as a share of the validation loss below which the training data counts as memorized."""
RIGHT = 0.99
"""Validation accuracy from which the level of the validation loss says nothing."""
OTHER = 1000
"""Multiple of the training loss above which validation is assumed to be in different units."""
FELL = 0.05
"""Share of its level in the first third by which an oscillating loss must be lower in the last third."""
COARSE, LONG = 10, 50
"""Steps between records from which a log is coarse; and records that count as lasting in a finer log."""


def softened(chart: Chart, episode: Symptom) -> Symptom:
    """The episode as info if it did no lasting harm; a spike that lasted is raised to a warning."""
    curve = loss_of(chart)
    if episode.name == ValidationAnomaly.name:
        return _recovered(chart, episode)
    if episode.name == StepTimeRegression.name and STEADILY not in episode.message:
        return replace(episode, severity="info")  # other jobs on the machine may explain it
    if episode.name == "loss-spike" and curve and not is_game(chart) and _lasted(chart, episode):
        return replace(episode, severity="warning") if episode.severity == "info" else episode
    slow = episode.name == NotLearning.name and curve and _ended_well(curve)
    if episode.severity == "info" or not curve:
        excuse = _excuse(chart, episode, curve) if slow else ""
        return replace(episode, message=f"{episode.message}; {excuse}") if excuse else episode
    excuse = _of_a_policy(chart, episode) or _fell_further(episode, curve) or _part_fell(chart, episode)
    if not excuse and _ended_well(curve):
        excuse = _excuse(chart, episode, curve)
    return replace(episode, severity="info", message=f"{episode.message}; {excuse}") if excuse else episode


def outlived(chart: Chart, episode: Symptom) -> bool:
    """Whether a slow start was over within the first quarter of a run that ended well: it is not reported.

    >>> chart = Chart.of(loss=[3.0] * 20 + [3.0 * 0.97**step for step in range(100)], context={"source": "CSV"})
    >>> start = Symptom("not-learning", "LO04", "info", 0.8, 0, 19)
    >>> outlived(chart, start), outlived(chart, replace(start, last_step=60))
    (True, False)
    """
    curve = loss_of(chart)
    if episode.severity != "info" or episode.name not in STARTING or not curve or not _ended_well(curve):
        return False
    first, last = float(curve.steps[0]), float(curve.steps[-1])
    return episode.last_step < first + YOUNG * (last - first) or any(stairs(chart))  # the first of the stairs


def outgrown(chart: Chart, episode: Symptom) -> Symptom:
    """The episode of a live run, softened by what came later.

    A start without progress becomes info once the loss has fallen a good deal, for longer than it was constant. If the
    loss fell less, the message says so.
    """
    if excuse := _came_later(chart, episode) or _began_anew(chart, episode):
        return replace(episode, severity="info", message=f"{episode.message}; {excuse}")
    losses, over = chart["loss"], chart.step - episode.last_step
    if episode.name != NotLearning.name or episode.name in chart.open_episodes:
        return episode
    if not episode.value or over < max(LONG, episode.last_step - episode.first_step):
        return episode
    now = losses.baseline(128).recent
    if not 0 <= now < 0.95 * episode.value:
        return episode
    message = f"{episode.message}; later it fell to {number_text(now)}"
    return replace(episode, severity="info" if now < 0.7 * episode.value else episode.severity, message=message)


def _came_later(chart: Chart, episode: Symptom) -> str:
    """An excuse if parameters without gradients got them later, such as the step sizes of a quantizer."""
    absent = {*(chart.fact("graph.absent") or ()), *(chart.fact("graph.cut") or ())}
    if episode.name != "no-gradient" or episode.name in chart.open_episodes or not episode.where:
        return ""
    norms = chart.tensors("grad_norm").latest
    learning = {name for name, norm in zip(chart.names, norms.tolist(), strict=False) if norm > 0}
    if episode.severity != "warning" or absent & set(episode.where) or not learning.issuperset(episode.where):
        return ""
    return "they got a gradient later" if len(episode.where) > 1 else "it got a gradient later"


def _began_anew(chart: Chart, episode: Symptom) -> str:
    """An excuse if a jump that is over came right after weights and optimizer state were reset together."""
    if episode.severity == "info" or episode.name not in LEAPING or episode.name in chart.open_episodes:
        return ""
    places = chart.fact("state.begun_anew") or ()
    meant = any(step <= episode.first_step <= step + LEAPING_FOR for step in places)
    return "weights and optimizer state were reset there" if meant else ""


def _excuse(chart: Chart, episode: Symptom, curve: Curve) -> str:
    """Why an episode of a run that ended well is harmless, in words; empty if there is no reason."""
    name = episode.name
    after = curve.values[curve.steps > episode.last_step]
    if name == NanOrInf.name:
        return "training was not affected" if _was_overflow(chart, episode) else ""
    if name == "gradient-explosion":
        if any(step >= episode.first_step for step in chart["loss"].nonfinite_steps):
            return ""  # there is no finite loss to judge by
        harmed = [item for item in chart.episodes if item.name == "loss-spike" and _near(chart, item, episode)]
        if any(_lasted(chart, item) for item in harmed):
            return ""
        return "the loss recovered" if harmed else "the loss was not affected"
    if name == "loss-spike" and after.size >= LASTING:
        return "it recovered at once" if episode.count <= LASTING else "it recovered"
    if name == "loss-oscillation":  # a running mean that is reset at every epoch oscillates
        third = max(1, curve.values.size // 3)
        begun, late = float(np.mean(curve.values[:third])), float(np.mean(curve.values[-third:]))
        return "the loss fell nevertheless" if begun - late > FELL * abs(begun) else ""
    during = curve.values[(curve.steps >= episode.first_step) & (curve.steps <= episode.last_step)]
    if name not in HEALING or not after.size or not during.size:
        return ""
    now = median(after[-3:])
    return f"later it fell to {number_text(now)}" if now < 0.95 * median(during) else ""


def _of_a_policy(chart: Chart, episode: Symptom) -> str:
    """An excuse if this is a policy that kept its reward: the reward counts, not loss or gradient."""
    reward = chart["reward"].values if "reward" in chart else chart["val_reward"].values
    if episode.name not in HEALING or reward.size < FEW_REWARDS:
        return ""
    parts = [float(np.mean(part)) for part in np.array_split(reward, 10)]
    kept = parts[-1] >= parts[0] + 0.5 * (max(parts) - parts[0])
    return "this is a policy, and its reward was kept" if kept else ""


def _fell_further(episode: Symptom, curve: Curve) -> str:
    """An excuse if the loss later fell below all earlier values: it had not diverged."""
    before, after = curve.values[curve.steps <= episode.last_step], curve.values[curve.steps > episode.last_step]
    if episode.name != "loss-divergence" or before.size < LASTING or after.size < max(LASTING, before.size // 4):
        return ""
    return "" if not curve.level < float(before.min()) else f"later it fell to {number_text(curve.level)}"


def _part_fell(chart: Chart, episode: Symptom) -> str:
    """An excuse if a term of a constant loss fell: the rest of the loss is a floor that cannot be lowered."""
    if episode.name not in STANDING or is_mostly_one_part(chart):
        return ""
    part, sums = part_that_fell(chart, HALF), Curve.of(chart["loss"], "loss").values
    if part is None or sums.size < LASTING:
        return ""
    swing = float(np.median(np.abs(np.diff(sums))))  # a floor varies less than the term fell
    return f"{part.name} fell to {number_text(part.level)}" if swing < median(part.values[:3]) - part.level else ""


def _was_overflow(chart: Chart, episode: Symptom) -> bool:
    """Whether a few gradients were not finite but every loss was, and training continued: half precision."""
    norms, losses = chart["grad_norm"], chart["loss"]
    later = norms.count and int(np.count_nonzero(norms.steps > episode.last_step)) >= 5
    few = norms.nonfinite <= max(2, 0.05 * norms.count)
    return bool(later) and few and not losses.nonfinite and losses.lowest > 0


def _recovered(chart: Chart, episode: Symptom) -> Symptom:
    """A finding about validation as info if validation was good in the end, or its values mean nothing."""
    values, steps = chart["val_loss"].values, chart["val_loss"].steps
    during = values[(steps >= episode.first_step) & (steps <= episode.last_step)]
    now = median(values[-3:])
    train = chart["loss"].values
    apart = train.size > 0 and median(train[-3:]) < MEMORIZED * now and not improved(chart, 0)
    fell = now < 0.95 * float(values[0]) and not apart
    better = during.size > 0 and (now < 0.9 * float(during.min()) or fell)
    rounded = during.size > 2 and float(np.ptp(during)) == 0 and float(np.ptp(values)) > MOVED * abs(float(during[0]))
    empty = values.size > 0 and not np.any(values)
    right = _nearly_all_right(chart)
    if episode.severity == "info" or not (better or rounded or empty or right or _is_in_other_units(chart)):
        return episode
    said = "it seems to be in different units" if not empty else "it was not measured, or measured on no data"
    if right:
        said = right
    elif (better or rounded) and not empty:
        said = (
            f"later it fell to {number_text(now)}" if better else "it changed before or after; the values are rounded"
        )
    text = f"{episode.message}; {said}"
    return replace(episode, severity="info", message=text)


def _nearly_all_right(chart: Chart) -> str:
    """An excuse if nearly every held-out prediction became right: the loss is then measured in another way.

    Some trainers take the cross-entropy of probabilities in validation, which cannot fall below a high floor.

    >>> _nearly_all_right(Chart.of(val_accuracy=[0.95, 0.998, 0.9999, 0.9999, 1.0]))
    'validation accuracy is 1 nevertheless'
    >>> _nearly_all_right(Chart.of(val_accuracy=[0.95, 0.97, 0.96]))
    ''
    """
    for name in ("val_accuracy", "val_accuracy_top1"):
        values = chart[name].values
        highest = float(values.max()) if values.size >= LASTING else math.inf
        top = 1.0 if highest <= 1 else 100.0
        if highest <= top and float(np.ptp(values)) > 0 and median(values[-3:]) >= RIGHT * top:
            return f"validation accuracy is {number_text(median(values[-3:]))} nevertheless"
    return ""


def _is_in_other_units(chart: Chart) -> bool:
    """Whether validation is stable at a thousand times the training loss: prices against scaled prices.

    >>> _is_in_other_units(Chart.of(loss=[0.46, 0.19, 0.04], val_loss=[1.0e7, 1.1e7, 8.3e6]))
    True
    """
    values, train = chart["val_loss"].values, chart["loss"].values
    calm = values.size >= LASTING and float(values.max()) < 1.5 * float(values.min())
    return calm and train.size > 0 and float(values.min()) > OTHER * abs(float(train.max()))


def _ended_well(curve: Curve) -> bool:
    """Whether the run ended near its best, and its best is below its start."""
    lowest = float(curve.values[curve.best])
    return curve.level - lowest < 0.2 * max(curve.start - lowest, 0.0)


def _every(chart: Chart) -> int:
    return max(1, int(chart.context.get("logged_every") or 1))


def _lasted(chart: Chart, spike: Symptom) -> bool:
    """Whether the loss was high for several records, by a good part of the progress so far."""
    span = (spike.last_step - spike.first_step) / _every(chart)
    fine = chart.context.get("clock") != "epoch" and _every(chart) < COARSE
    together = spike.count >= (LONG if fine else LASTING) and span <= 2 * spike.count
    if not together or spike.value is None or spike.limit is None:
        return False
    progress = Progress.of(chart["loss"])
    recent = level_at(chart["loss"], spike.first_step - 1)
    return spike.value - recent > 0.1 * progress.descent and spike.value > 1.2 * recent


def _near(chart: Chart, one: Symptom, other: Symptom) -> bool:
    reach = 10 * _every(chart)
    return one.first_step - reach <= other.last_step and other.first_step <= one.last_step + reach
