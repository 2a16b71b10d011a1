"""Whose doing a leap is: the update's, or the batch's, the task's and the loop's own.

A leap of the gradient that came with the loss, and one of the loss that no unusual step came before, are not the
update's; whether they do harm, the next losses say.
"""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import TINY, Array, Series, median, scatter
from torchdoctor.symptoms.progress import (
    JUMP,
    SETTLED,
    Progress,
    is_of_one_sample,
    lr_jump,
)
from torchdoctor.symptoms.tails import AHEAD, RISES

UNUSUAL = 3.0
"""Times the usual norm under which a step was like the others."""
RISEN = 2.0
"""Times the usual norm that a step has where there is something new to learn."""
HELD = np.array([0.45, 0.2, 0.08])
"""Shares of a leap that the next losses keep while what is new is learnt, however quickly."""
SOME = 0.25
"""Share of the gradient's leap that its batch may have made, where it is said not to be the batch's."""
BY_SIGN = ("Rprop", "Lion", "Sign")
"""Words in the names of optimizers that take signs only."""


def keeps_rhythm(series: Series) -> bool:
    """Whether as high a value came before, and a leap at the same distance before that: it is the loop's way.

    A penalty that is added at every sixteenth step, the longest sequences of each epoch.
    """
    latest, earlier = series.latest, series.values[:-1]
    places = np.flatnonzero(earlier > 0.5 * latest)
    gap = earlier.size - int(places[-1]) if places.size else 0
    if not 4 <= gap <= earlier.size // 2:
        return False
    # The first of them may have been lower: a penalty grows while what it is taken of gets sharper.
    return float(earlier[-2 * gap]) > max(0.25 * latest, float(earlier[-2 * gap + 1 : -gap].max()))


def of_fewer(chart: Chart) -> float:
    """How many times fewer samples this step has than others: it is the last of an epoch; 1 for all others.

    The mean of few samples is noisier, and what one of them says is not averaged away.

    >>> chart = Chart.of(loss=[1.0] * 40, context={"batch_size": 64, "epoch_batches": 40, "last_batch": 4})
    >>> of_fewer(chart), of_fewer(Chart.of(loss=[1.0] * 39, context=chart.context))
    (16.0, 1.0)
    """
    size, batches, last = (chart.context.get(name) for name in ("batch_size", "epoch_batches", "last_batch"))
    if not (size and batches and last) or chart.fact("loop.passes", 1) != 1:
        return 1.0
    return size / last if (chart.step + 1) % batches == 0 else 1.0


def is_held(chart: Chart) -> bool:
    """Whether clipping cuts this leap, or Adam, which knows the scale of earlier gradients, makes little of it."""
    if is_cut(chart):
        return True
    return bool(chart.groups) and all("Adam" in str(group.get("optimizer")) for group in chart.groups)


def is_untold(chart: Chart) -> bool:
    """Whether this step is of one sample, and its own loss is not logged: a rare wrong answer looks like a leap.

    >>> alone, many = (dict(loss=[0.1], target_top_share=[1, 1], target_collision=[0, share]) for share in (0, 1))
    >>> is_untold(Chart.of(**alone)), is_untold(Chart.of(**many)), is_untold(Chart.of(**alone | {"loss": [0.1, 0.2]}))
    (True, False, False)
    """
    return is_of_one_sample(chart) and chart["loss"].step != chart.step


def is_cut(chart: Chart) -> bool:
    """Whether the loop clips its gradients, before the step."""
    return chart["clip"].latest > 0 and not chart.fact("clip.after_step")


def is_known(chart: Chart, rise: float, small: float = 0.05, lost: float = 0.1) -> bool:
    """Whether a norm that rose from next to nothing is one that the run learnt with, and its gain is not touched.

    A quarter of the run went beyond it, and came through. Where every margin is kept, only decay is left of the
    gradient, and the next sample that is not far enough away makes it a hundred times as much.

    >>> norms, losses = [1.0] * 100 + [0.01] * 99, [5 * 0.97**step for step in range(200)]
    >>> [is_known(Chart.of(grad_norm=[*norms, leap], loss=losses), math.log(leap / 0.01)) for leap in (0.5, 5.0)]
    [True, False]
    """
    norm, losses = chart["grad_norm"].latest, chart["loss"]
    base = losses.baseline(128)
    if losses.step != chart.step or base.count < SETTLED:
        return False
    with np.errstate(all="ignore"):
        learnt_with = float(np.percentile(chart["grad_norm"].outline.means(), 75))
    fallen = norm < learnt_with and norm / math.exp(rise) < small * learnt_with
    return fallen and losses.latest - base.recent < lost * Progress.of(losses).descent


def is_unexplained(chart: Chart, least: float, window: int = 256) -> bool:
    """Whether the gradient leapt by more than this, in log space, beyond what the loss of its batch makes of it.

    Where norms swing widely it is because batches are now easy and now hard, and the loss of a batch says which it was:
    of the rises of both above the values just before them, one is expected from the other, and what is left is narrow.
    Gradients that something has multiplied stand out there, and their loss is as ever.

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
        return False  # they may be of different steps
    hard, made = (series.derived(RISES[TINY], AHEAD)[-size:][AHEAD:] for series in (losses, norms))
    x, y = (np.clip(rises, *(4 * scatter(rises) * np.array([-1, 1]))) for rises in (hard[:-1], made[:-1]))
    slope = min(max(float(x @ y) / (float(x @ x) + TINY), 0.0), 2.0)
    rest, rise = made[:-1] - slope * hard[:-1], float(made[-1]) - slope * max(float(hard[-1]), 0.0)
    spread = max(scatter(rest), scatter(rest[-window // 4 :]))  # norms may be calm at first, and swing later
    limit = max(least, 1.5 * float(np.partition(rest, -3)[-3]), 5 * spread)
    return rise > limit and float(hard[-1]) < SOME * float(made[-1])


def steps_by_sign(chart: Chart) -> bool:
    """Whether the optimizer takes the signs of gradients only: their size does not matter to it."""
    names = [str(group.get("optimizer")) for group in chart.groups]
    return bool(names) and all(any(word in name for word in BY_SIGN) for name in names)


def share_of_loss(chart: Chart, rise: float, within: int = 1) -> float:
    """How large a part of the gradient's leap the loss has made in the last so many steps; 0 where it is calm.

    In log space where losses are positive; else of the run's descent. Samples that are hard, wrong or rare, a task that
    is new, weights that the loop has changed: whether any of them does harm, the next losses say.
    """
    series = chart["loss"]
    base = series.baseline(128)
    if series.step != chart.step or base.count < 8:
        return 0.0
    recent = series.last(within)
    risen, least = float(recent.max()) - base.recent, max(2 * base.noise, 0.02 * abs(base.recent))
    if series.lowest > 0:
        return math.log(1 + risen / base.recent) / rise if risen > least else 0.0
    # A likelihood of counts, or of a narrow density, may fall as far on an unusual batch.
    risen = max(risen, base.recent - float(recent.min()))
    return risen / (Progress.of(series).descent + TINY) if risen > least else 0.0


def is_relearnt(chart: Chart, height: float, most: int = 64) -> bool:
    """Whether the loss is above a height by its own leap, and is coming down from there.

    What is learnt again does not grow, as a loss does where updates do harm, and falls within some steps; what a sum of
    more samples is higher by, stays.
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
    """How far losses are above their former level since they leapt on no unusual step; None where they did not.

    The gradients before it were as ever, so no update is to blame: the data, the task or the loop's own hand is. No
    loss was above the height for some time before that (a start is not so long ago), and the next ones do not fall back
    at once, as they do after one bad batch.
    """
    losses, norms = chart["loss"].values[-most:], chart["grad_norm"]
    if norms.step != chart.step or norms.values.size < losses.size or lr_jump(chart) > JUMP:
        return None
    place = _leap(losses)
    if place < AHEAD or int((losses[:place][-4 * AHEAD :] > height).sum()) > 1:
        return None
    since, earlier = losses[place:] - median(losses[:place][-2 * AHEAD :]), norms.values[: place - losses.size][-most:]
    steps = norms.values[-losses.size :][place - 3 : place + 1] / (median(earlier) + TINY)
    risen = 1.0 if _may_be_of_more(chart, since.size) else RISEN  # of a sum, noise that averages out grows less
    if since.size < 2 or bool((steps[:-1] > UNUSUAL).any()) or not steps[-1] > risen:
        return None
    return since if bool((since[1:4] > float(since[0]) * HELD[: since.size - 1]).all()) else None


def _may_be_of_more(chart: Chart, since: int) -> bool:
    """Whether the loss is a sum, of perhaps more samples than it was so many losses ago: the next close look tells."""
    return chart.fact("loss.reduction") == "sum" and chart["input_size"].step < int(chart["loss"].steps[-since])


def _leap(losses: Array, within: int = 3) -> int:
    """Where a row of losses rises most above the few before it.

    >>> _leap(np.array([1.0, 1.2, 0.9, 1.1, 5.0, 4.0, 5.5]))
    4
    """
    if losses.size <= within:
        return 0
    before = np.lib.stride_tricks.sliding_window_view(losses[:-1], within).max(axis=1)
    return within + int(np.argmax(losses[within:] - before))


def is_steep(chart: Chart, times: float = 3.0, within: int = 3) -> bool:
    """Whether one of the last steps leapt above those right before it."""
    norms = chart["grad_norm"].last(2 * within + 1)
    before = [
        float(norms[max(0, place - within) : place].max()) for place in range(max(1, norms.size - within), norms.size)
    ]
    return bool((norms[-len(before) :] > times * np.array(before)).any())
