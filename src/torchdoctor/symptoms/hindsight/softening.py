"""Episodes that a good end makes notes of, and spikes that lasted too long for one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.hindsight.curve import Curve, is_mostly_one_part, loss_of, part_that_fell
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
"""Findings of which a good end takes the edge."""
STANDING = frozenset(("not-learning", "slow-learning", "loss-plateau"))
"""Findings of a loss that stands still."""
STARTING = frozenset(("not-learning", "slow-learning"))
YOUNG = 0.25
"""Share of a run in which a start may be slow."""
LEAPING = frozenset(("loss-spike", "loss-divergence", "gradient-explosion"))
LEAPING_FOR = 20
"""Steps after a new beginning in which a loss that leaps, or is far above what it was, is that of new weights."""
HALF = 0.5
"""Share of what it was that a part of it has become, where a loss stands on a floor."""
LASTING = 3
"""Records in a row that a spike lasts, from which on it was not one bad batch."""
FEW_REWARDS = 20
"""Rewards under which nobody knows whether they were kept."""
MOVED = 0.1
"""Share of itself by which validation must move for equal values among its own to be the work of rounding."""
OTHER = 1000
"""How many times as high as training validation is where it was measured in other units."""
COARSE, LONG = 10, 50
"""Steps between two records from which on a few of them are a long time; and how many are one in finer logs."""


def softened(chart: Chart, episode: Symptom) -> Symptom:
    """An episode that did no lasting harm is a note; a spike that lasted is more than that."""
    curve = loss_of(chart)
    if episode.name == ValidationAnomaly.name:
        return _recovered(chart, episode)
    if episode.name == StepTimeRegression.name and STEADILY not in episode.message:
        return replace(episode, severity="info")  # a log does not tell what else its machine had to do
    if episode.name == "loss-spike" and curve and not is_game(chart) and _lasted(chart, episode):
        return replace(episode, severity="warning") if episode.severity == "info" else episode
    if episode.severity == "info" or not curve:
        return episode
    excuse = _of_a_policy(chart, episode) or _fell_further(episode, curve) or _part_fell(chart, episode)
    if not excuse and _ended_well(curve):
        excuse = _excuse(chart, episode, curve)
    return replace(episode, severity="info", message=f"{episode.message}; {excuse}") if excuse else episode


def outlived(chart: Chart, episode: Symptom) -> bool:
    """Whether a slow start was over before a quarter of a run that ended well: nobody needs to be told.

    >>> chart = Chart.of(loss=[3.0] * 20 + [3.0 * 0.97**step for step in range(100)], context={"source": "CSV"})
    >>> start = Symptom("not-learning", "LO04", "info", 0.8, 0, 19)
    >>> outlived(chart, start), outlived(chart, replace(start, last_step=60))
    (True, False)
    """
    curve = loss_of(chart)
    if episode.severity != "info" or episode.name not in STARTING or not curve or not _ended_well(curve):
        return False
    first, last = float(curve.steps[0]), float(curve.steps[-1])
    return episode.last_step < first + YOUNG * (last - first)


def outgrown(chart: Chart, episode: Symptom) -> Symptom:
    """A start without any gain is a note once the run has learnt a good deal, for longer than it had stood still.

    Where it learnt some, that is said at least.
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
    """Parameters that had no gradient at first and have one now waited for their time, as step sizes of a quantizer."""
    absent = {*(chart.fact("graph.absent") or ()), *(chart.fact("graph.cut") or ())}
    if episode.name != "no-gradient" or episode.name in chart.open_episodes or not episode.where:
        return ""
    norms = chart.tensors("grad_norm").latest
    learning = {name for name, norm in zip(chart.names, norms.tolist(), strict=False) if norm > 0}
    if episode.severity != "warning" or absent & set(episode.where) or not learning.issuperset(episode.where):
        return ""
    return "later they got one" if len(episode.where) > 1 else "later it got one"


def _began_anew(chart: Chart, episode: Symptom) -> str:
    """What leapt where weights and the optimizer's memory began anew together, and is over, was meant to."""
    if episode.severity == "info" or episode.name not in LEAPING or episode.name in chart.open_episodes:
        return ""
    places = chart.fact("state.begun_anew") or ()
    meant = any(step <= episode.first_step <= step + LEAPING_FOR for step in places)
    return "weights and the optimizer's memory began anew there" if meant else ""


def _excuse(chart: Chart, episode: Symptom, curve: Curve) -> str:
    """Why an episode of a run that ended well is no harm, in words; empty where there is no reason."""
    name = episode.name
    after = curve.values[curve.steps > episode.last_step]
    if name == NanOrInf.name:
        return "the run went on unharmed" if _was_overflow(chart, episode) else ""
    if name == "gradient-explosion":
        if any(step >= episode.first_step for step in chart["loss"].nonfinite_steps):
            return ""  # no finite loss tells how it went on
        harmed = [item for item in chart.episodes if item.name == "loss-spike" and _near(chart, item, episode)]
        if any(_lasted(chart, item) for item in harmed):
            return ""
        return "the loss came back" if harmed else "the loss did not suffer from it"
    if name == "loss-spike" and after.size >= LASTING:
        return "it came back at once" if episode.count <= LASTING else "it came back"
    if name == "loss-oscillation":  # a running mean that starts over in every epoch does it
        return "the run fell all the same"
    during = curve.values[(curve.steps >= episode.first_step) & (curve.steps <= episode.last_step)]
    if name not in HEALING or not after.size or not during.size:
        return ""
    now = median(after[-3:])
    return f"later it fell to {number_text(now)}" if now < 0.95 * median(during) else ""


def _of_a_policy(chart: Chart, episode: Symptom) -> str:
    """The loss and gradient of a policy follow its luck: what counts is the reward, where that was kept."""
    reward = chart["reward"].values if "reward" in chart else chart["val_reward"].values
    if episode.name not in HEALING or reward.size < FEW_REWARDS:
        return ""
    parts = [float(np.mean(part)) for part in np.array_split(reward, 10)]
    kept = parts[-1] >= parts[0] + 0.5 * (max(parts) - parts[0])
    return "it is of a policy, and the reward was kept" if kept else ""


def _fell_further(episode: Symptom, curve: Curve) -> str:
    """A loss that later went below all that came before had not diverged."""
    before, after = curve.values[curve.steps <= episode.last_step], curve.values[curve.steps > episode.last_step]
    if episode.name != "loss-divergence" or before.size < LASTING or after.size < max(LASTING, before.size // 4):
        return ""
    return "" if not curve.level < float(before.min()) else f"later it fell to {number_text(curve.level)}"


def _part_fell(chart: Chart, episode: Symptom) -> str:
    """A sum of losses that stands still beside a part of it that fell: the rest is a floor that nothing can lower."""
    if episode.name not in STANDING or is_mostly_one_part(chart):
        return ""
    part, sums = part_that_fell(chart, HALF), Curve.of(chart["loss"], "loss").values
    if part is None or sums.size < LASTING:
        return ""
    swing = float(np.median(np.abs(np.diff(sums))))  # a floor does not swing by more than the part that fell
    return f"{part.name} fell to {number_text(part.level)}" if swing < median(part.values[:3]) - part.level else ""


def _was_overflow(chart: Chart, episode: Symptom) -> bool:
    """Whether only a few gradients were not finite, no loss was, and the run went on for long: half precision."""
    norms, losses = chart["grad_norm"], chart["loss"]
    later = norms.count and int(np.count_nonzero(norms.steps > episode.last_step)) >= 5
    few = norms.nonfinite <= max(2, 0.05 * norms.count)
    return bool(later) and few and not losses.nonfinite and losses.lowest > 0


def _recovered(chart: Chart, episode: Symptom) -> Symptom:
    """A validation that went well in the end is no warning."""
    values, steps = chart["val_loss"].values, chart["val_loss"].steps
    during = values[(steps >= episode.first_step) & (steps <= episode.last_step)]
    now = median(values[-3:])
    better = during.size > 0 and (now < 0.9 * float(during.min()) or now < 0.95 * float(values[0]))
    rounded = during.size > 2 and float(np.ptp(during)) == 0 and float(np.ptp(values)) > MOVED * abs(float(during[0]))
    empty = values.size > 0 and not np.any(values)
    if episode.severity == "info" or not (better or rounded or empty or _is_in_other_units(chart)):
        return episode
    said = "it seems to be in other units" if not empty else "it was not measured, or on no data at all"
    if (better or rounded) and not empty:
        said = f"later it fell to {number_text(now)}" if better else "it moved before or after, and has few digits"
    text = f"{episode.message}; {said}"
    return replace(episode, severity="info", message=text)


def _is_in_other_units(chart: Chart) -> bool:
    """Whether validation is a thousand times of what training ever was, and calm: prices beside scaled ones.

    >>> _is_in_other_units(Chart.of(loss=[0.46, 0.19, 0.04], val_loss=[1.0e7, 1.1e7, 8.3e6]))
    True
    """
    values, train = chart["val_loss"].values, chart["loss"].values
    calm = values.size >= LASTING and float(values.max()) < 1.5 * float(values.min())
    return calm and train.size > 0 and float(values.min()) > OTHER * abs(float(train.max()))


def _ended_well(curve: Curve) -> bool:
    """Whether the run ended near its best, well below its start."""
    lowest = float(curve.values[curve.best])
    return curve.level - lowest < 0.2 * max(curve.start - lowest, 0.0)


def _every(chart: Chart) -> int:
    return max(1, int(chart.context.get("logged_every") or 1))


def _lasted(chart: Chart, spike: Symptom) -> bool:
    """Whether the loss was up for several records in a row, by a good part of what the run had gained."""
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
