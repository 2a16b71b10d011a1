"""What caused a jump of the gradient or the loss: an update, or the batch, the task or the loop itself.

A gradient that jumps together with the loss was not caused by an update, and neither was a jump of the loss without an
unusual step before it. The next losses show whether they do harm.
"""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import TINY, Array, Series, median, scatter
from torchdoctor.symptoms.clipping_anomaly import clip_in_vain
from torchdoctor.symptoms.progress import (
    JUMP,
    SETTLED,
    Progress,
    is_of_one_sample,
    lr_jump,
)
from torchdoctor.symptoms.tails import AHEAD, RISES
from torchdoctor.symptoms.target_values import is_summed

UNUSUAL = 3.0
"""Multiple of the usual gradient norm up to which a step was ordinary."""
RISEN = 2.0
"""Multiple of the usual gradient norm above which there is something new to learn."""
HELD = np.array([0.45, 0.2, 0.08])
"""Shares of a jump that the next losses keep at least, even if what is new is learned quickly."""
MOST = 0.9
"""Share of its descent that a loss has behind it when the run has learned most."""
SOME = 0.25
"""Share of the gradient's jump below which the batch did not cause it."""
BY_SIGN = ("Rprop", "Lion", "Sign")
"""Words in the names of optimizers that use only the signs of gradients."""


def keeps_rhythm(series: Series) -> bool:
    """Whether a similar value came before, and a jump at the same distance before that: the jumps are periodic.

    Examples are a penalty that is added every 16 steps, or the longest sequences of each epoch.
    """
    latest, earlier = series.latest, series.values[:-1]
    places = np.flatnonzero(earlier > 0.5 * latest)
    gap = earlier.size - int(places[-1]) if places.size else 0
    if not 4 <= gap <= earlier.size // 2:
        return False
    # The first jump may be lower, because a penalty may grow over the run.
    return float(earlier[-2 * gap]) > max(0.25 * latest, float(earlier[-2 * gap + 1 : -gap].max()))


def of_fewer(chart: Chart) -> float:
    """How many times fewer samples this step has than others if it is the last of an epoch; otherwise 1.

    The mean over few samples is noisier.

    >>> chart = Chart.of(loss=[1.0] * 40, context={"batch_size": 64, "epoch_batches": 40, "last_batch": 4})
    >>> of_fewer(chart), of_fewer(Chart.of(loss=[1.0] * 39, context=chart.context))
    (16.0, 1.0)
    """
    size, batches, last = (chart.context.get(name) for name in ("batch_size", "epoch_batches", "last_batch"))
    if not (size and batches and last) or chart.fact("loop.passes", 1) != 1:
        return 1.0
    return size / last if (chart.step + 1) % batches == 0 else 1.0


def is_held(chart: Chart) -> bool:
    """Whether clipping limits this jump, or Adam, which divides by the scale of earlier gradients."""
    if is_cut(chart):
        return True
    return bool(chart.groups) and all("Adam" in str(group.get("optimizer")) for group in chart.groups)


def is_untold(chart: Chart) -> bool:
    """Whether this step has one sample and its own loss is not logged: a rare wrong answer looks like a jump.

    >>> alone, many = (dict(loss=[0.1], target_top_share=[1, 1], target_collision=[0, share]) for share in (0, 1))
    >>> is_untold(Chart.of(**alone)), is_untold(Chart.of(**many)), is_untold(Chart.of(**alone | {"loss": [0.1, 0.2]}))
    (True, False, False)
    """
    return is_of_one_sample(chart) and chart["loss"].step != chart.step


def is_cut(chart: Chart) -> bool:
    """Whether the loop clips its gradients before the step."""
    return chart["clip"].latest > 0 and not clip_in_vain(chart)


def is_known(chart: Chart, rise: float, small: float = 0.05, lost: float = 0.1) -> bool:
    """Whether a norm that rose from almost zero is one of the run's usual norms, and the loss keeps its progress.

    A tenth of the norms with which it learned most were higher, or a quarter of all if that took only a few steps. If a
    loss with a margin is satisfied, only weight decay is left in the gradient, and the next sample inside the margin
    makes it a hundred times as large; so does a sample that a nearly solved run still gets wrong.

    >>> norms, losses = [1.0] * 100 + [0.01] * 99, [5 * 0.97**step for step in range(200)]
    >>> [is_known(Chart.of(grad_norm=[*norms, leap], loss=losses), math.log(leap / 0.01)) for leap in (0.5, 5.0)]
    [True, False]
    """
    norm, losses = chart["grad_norm"].latest, chart["loss"]
    base = losses.baseline(128)
    if losses.step != chart.step or base.count < SETTLED:
        return False
    progress, norms = Progress.of(losses), chart["grad_norm"].outline.means()
    learning = round(float(np.mean(losses.outline.means() > progress.start - MOST * progress.descent)) * norms.size)
    with np.errstate(all="ignore"):  # the first few steps may be too violent to compare with
        learnt_with = float(np.percentile(norms[:learning], 90) if learning >= SETTLED else np.percentile(norms, 75))
    fallen = norm < learnt_with and norm / math.exp(rise) < small * learnt_with
    return fallen and losses.latest - base.recent < lost * progress.descent


def is_unexplained(chart: Chart, least: float, window: int = 256) -> bool:
    """Whether the gradient jumped by more than `least`, in log space, beyond what the loss of its batch explains.

    Norms may swing widely because batches are easy or hard, and the loss of a batch tells which. The rise of the norm
    above the values just before it is predicted from that of the loss; the residuals are small. If something multiplied
    the gradients, the residual stands out while the loss is ordinary.

    >>> rng = np.random.default_rng(0)
    >>> losses = np.exp(0.8 * rng.standard_normal(200))
    >>> norms = losses * np.exp(0.1 * rng.standard_normal(200))
    >>> [is_unexplained(Chart.of(loss=losses, grad_norm=[*norms[:-1], times * norms[-1]]), 1.8) for times in (1, 20)]
    [False, True]
    """
    losses, norms = chart["loss"], chart["grad_norm"]
    size = min(len(losses), len(norms), window + 1)
    if not losses.lowest > 0 or losses.step != norms.step or size < 2 * AHEAD + 9:
        return False
    if losses.nonfinite or norms.nonfinite or losses.steps[-size] != norms.steps[-size]:
        return False  # their values may be from different steps
    hard, made = (series.derived(RISES[TINY], AHEAD)[-size:][AHEAD:] for series in (losses, norms))
    x, y = (np.clip(rises, *(4 * scatter(rises) * np.array([-1, 1]))) for rises in (hard[:-1], made[:-1]))
    slope = min(max(float(x @ y) / (float(x @ x) + TINY), 0.0), 2.0)
    rest, rise = made[:-1] - slope * hard[:-1], float(made[-1]) - slope * max(float(hard[-1]), 0.0)
    spread = max(scatter(rest), scatter(rest[-window // 4 :]))  # norms may be steady at first and swing later
    limit = max(least, 1.5 * float(np.partition(rest, -3)[-3]), 5 * spread)
    return rise > limit and float(hard[-1]) < SOME * float(made[-1])


def steps_by_sign(chart: Chart) -> bool:
    """Whether the optimizer uses only the signs of gradients, so that their size does not matter."""
    names = [str(group.get("optimizer")) for group in chart.groups]
    return bool(names) and all(any(word in name for word in BY_SIGN) for name in names)


def share_of_loss(chart: Chart, rise: float, within: int = 1) -> float:
    """The share of the gradient's jump that the loss explains by its rise in the last steps; 0 if it has not moved.

    It is taken in log space if losses are positive, else it is the rise as a share of the run's descent. Hard, wrong or
    rare samples, a new task, or changed weights may cause it; the next losses show whether it does harm.
    """
    series = chart["loss"]
    base = series.baseline(128)
    if series.step != chart.step or base.count < 8:
        return 0.0
    recent = series.last(within)
    risen, least = float(recent.max()) - base.recent, max(2 * base.noise, 0.02 * abs(base.recent))
    if series.lowest > 0:
        return math.log(1 + risen / base.recent) / rise if risen > least else 0.0
    # The likelihood of counts or of a narrow density may also fall on an unusual batch.
    risen = max(risen, base.recent - float(recent.min()))
    return risen / (Progress.of(series).descent + TINY) if risen > least else 0.0


def is_relearnt(chart: Chart, height: float, most: int = 64) -> bool:
    """Whether the loss jumped above a height without an unusual step, and is coming down from there.

    A loss that is learned again falls within some steps, while one that updates harm grows. A sum over more samples
    stays higher.
    """
    since = own_leap(chart, height, most)
    if since is None:
        return False
    first, now = median(since[:4]), median(since[-5:])
    share = 1.2 if since.size < 2 * AHEAD else 0.9
    if _may_be_of_more(chart, since.size):
        share = 1.5
    return now < share * first


def own_leap(chart: Chart, height: float, most: int = 64) -> Array | None:
    """How far losses are above their former level since they jumped without an unusual step; None if they did not.

    The gradients before the jump were ordinary, so the data, the task or the loop caused it, not an update. At most one
    loss was above the height for some time before (so it is not the start), and the next losses do not fall back at
    once, as they do after one bad batch.
    """
    losses, norms = chart["loss"].values[-most:], chart["grad_norm"]
    if norms.step != chart.step or norms.values.size < losses.size or lr_jump(chart) > JUMP:
        return None
    place = _leap(losses)
    if place < AHEAD or int((losses[:place][-4 * AHEAD :] > height).sum()) > 1:
        return None
    since, earlier = losses[place:] - median(losses[:place][-2 * AHEAD :]), norms.values[: place - losses.size][-most:]
    steps = norms.values[-losses.size :][place - 3 : place + 1] / (median(earlier) + TINY)
    risen = 1.0 if _may_be_of_more(chart, since.size) else RISEN  # in a sum, noise grows less than the sum
    if since.size < 2 or bool((steps[:-1] > UNUSUAL).any()) or not steps[-1] > risen:
        return None
    return since if bool((since[1:4] > float(since[0]) * HELD[: since.size - 1]).all()) else None


def _may_be_of_more(chart: Chart, since: int) -> bool:
    """Whether the loss is a sum that may have more samples since then: the next sampled step will tell."""
    return is_summed(chart) and chart["input_size"].step < int(chart["loss"].steps[-since])


def _leap(losses: Array, within: int = 3) -> int:
    """The index at which losses rise most above the few before it.

    >>> _leap(np.array([1.0, 1.2, 0.9, 1.1, 5.0, 4.0, 5.5]))
    4
    """
    if losses.size <= within:
        return 0
    before = np.lib.stride_tricks.sliding_window_view(losses[:-1], within).max(axis=1)
    return within + int(np.argmax(losses[within:] - before))


def is_steep(chart: Chart, times: float = 3.0, within: int = 3) -> bool:
    """Whether the norm of one of the last steps is more than `times` as high as those right before it."""
    norms = chart["grad_norm"].last(2 * within + 1)
    before = [
        float(norms[max(0, place - within) : place].max()) for place in range(max(1, norms.size - within), norms.size)
    ]
    return bool((norms[-len(before) :] > times * np.array(before)).any())
