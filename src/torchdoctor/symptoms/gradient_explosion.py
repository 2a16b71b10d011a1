"""GR01 gradient-explosion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import TINY, Array, Baseline, Series, median
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, Detector, Outlook
from torchdoctor.symptoms.progress import (
    JUMP,
    SETTLED,
    SLACK,
    Progress,
    acts,
    extreme,
    highest_of_last,
    is_hurt,
    is_restart,
    keeps_its_rate,
    log_spread,
    lr_jump,
    outline_levels,
    third_highest_rise,
    will_keep_its_rate,
)

NOTHING = math.log(1e-20)
"""A norm below this is no gradient: there is no scale to compare with."""
ALERT = 2.0
"""Deviations, and times the recent median, that are enough right after a leap of the learning rate."""
HURT = 3.0
"""Deviations that are enough while the loss is in open trouble."""
HELD = 50.0
"""Times the recent median that clipping or Adam makes little of in a run's first steps; more is no usual start."""
RECENT = 3
"""A jump is measured against the values before the last three: an explosion may build up over a few steps."""
ARRIVED = 0.05
"""Share of the first loss under which a run has next to nothing left to learn."""
BY_SIGN = ("Rprop", "Lion", "Sign")
"""Words in the names of optimizers that take signs only."""
AHEAD = (8, 32)
"""Values before a rise that it is measured from, where swings are wide: slow swings, and noise."""


@dataclass(frozen=True)
class GradientExplosion(Detector):
    """The gradient norm leaps far above its own recent scale.

    ## What it means
    One step is about to move the weights much further than any recent one. In published logs of large runs the
    norm leaps one to four steps before the loss does, so it is the earliest warning there is. A leap that heals and
    leaves the loss alone is over when you read this; one that the loss follows is not.

    ## How it is told apart
    Raw size means nothing: summed losses and wide nets have large norms all their lives. The norm is compared with
    its own recent median in log space; the limit widens with the run's own spread, so the heavy tails of small batches
    stay silent, and the rise must be sudden, so warm-up, curricula and slow growth do too; so do tensors that had no
    gradient before, as when a frozen trunk is released. Where norms swing widely
    from batch to batch, what the loss of the same batch accounts for is taken out first. Where the loss rises as many
    times, and still to next to nothing, the leap is a note; so it is where as high a norm came twice before at the
    same distance (a penalty at every sixteenth step), at the last, smaller batch of an epoch, where such steps are used
    to larger norms, on a batch of higher loss where the run knew such norms before, where clipping or Adam holds it and
    the loss has just begun to fall after a long wait, where the optimizer takes signs only, where a loop that acts has
    known higher ones, and where a loss that has fallen below zero, as that of a density does, takes no notice and not
    all tensors rose alike. A norm that is not finite is `nan-or-inf`.

    ## What to do
    Clip the gradient norm; halve the learning rate if it comes back or the loss follows. Look at the batch of that
    step. If clipping is on already, the weights are protected and the batch is the question.

    ## How to see that it is cured
    No new episode for a few hundred steps, and a loss that goes on falling.

    ## Example
    >>> norms = [1.0, 1.2, 0.9, 1.1] * 16
    >>> print(GradientExplosion().check(Chart.of(grad_norm=[*norms, 20.0])))
    step 64: GR01 gradient-explosion (warning): gradient norm 20 is 19.1 times its recent 1.05
    >>> GradientExplosion().check(Chart.of(grad_norm=[*norms, 2.0]))
    """

    code = "GR01"
    name = "gradient-explosion"
    reads = ("grad_norm",)
    suggests = ("set-clip-norm", "scale-lr", "roll-back", "ask-for-help")
    references = ("https://arxiv.org/abs/1211.5063", "https://arxiv.org/abs/2504.02507")

    window: int = 128
    """Values that the recent scale is taken from."""
    history: int = 16
    """Values that must be known before anything is said."""
    ratio: float = 6.0
    """Times the recent median: a warning."""
    notice: float = 4.0
    """Times the recent median: worth a note, a warning if the loss is hurt."""
    deviations: float = 5.0
    """Robust deviations in log space that both must exceed as well."""
    floor: float = 0.12
    """The least spread in log space that is believed."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the norm with its recent median; the quiet path ends at the first test."""
        series = chart["grad_norm"]
        norm = series.latest
        base = series.baseline(self.window, log=True)
        if base.count < self.history or not 0 < norm < math.inf or base.recent < NOTHING:
            return None
        rise = math.log(norm) - base.recent
        spread = max(log_spread(base, self.window), self.floor)
        limit = max(math.log(self.notice), extreme(self.deviations, base.count) * spread)
        if rise > ALERT * spread and rise > math.log(ALERT) and lr_jump(chart) > JUMP:
            return self._exploded(chart, "warning", base, math.log(ALERT))
        if chart.open_episodes and limit >= rise and is_hurt(chart, RECENT):
            return self._did_harm(chart, base, max(math.log(self.notice), HURT * spread))
        if not rise > limit and not self._unheard_of(chart, rise, base):
            if not (rise > math.log(self.ratio) and self._beyond_its_loss(chart)):
                return None
            return self._exploded(chart, "warning", base, math.log(self.ratio))
        before = series.last(8 + RECENT + 1)[: -RECENT - 1]
        sudden = norm > self.notice * float(before.max(initial=0.0))
        if float(before.min(initial=math.inf)) < 1e-20:
            return None  # steps without any gradient are usual here: a median of both kinds is no scale
        hurt = is_hurt(chart)
        if (not sudden and not hurt) or _is_newcomers(chart, limit + base.recent):
            return None
        severity: Severity = "warning" if hurt or self._grave(chart, rise) else "info"
        divergence = chart.open_episodes.get("loss-divergence")
        if divergence is not None and divergence.severity != "info":
            severity = "critical"
        return self._exploded(chart, severity, base, limit)

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether the highest of these norms would end at the first tests."""
        base = chart["grad_norm"].upcoming(self.window, log=True)
        if base.count < self.history or base.recent < NOTHING:
            return True
        if chart.open_episodes and is_hurt(chart, chart.step + 1):
            return False
        rise = math.log(max(*coming["grad_norm"], TINY)) - base.recent
        return rise <= math.log(ALERT) or (rise <= math.log(self.notice) and keeps_its_rate(chart, coming))

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same for each of these norms; while the loss is in trouble, for the highest of the last few."""
        series, norms = chart["grad_norm"], coming.columns["grad_norm"]
        base = series.upcoming(self.window, log=True)
        if base.count < self.history or base.recent < NOTHING:
            return np.full(len(coming), CALM, dtype=np.int8)
        spread = max(log_spread(base, self.window), self.floor)
        least = max(math.log(self.notice), extreme(self.deviations, base.count) * spread)
        least = min(least, math.log(self.ratio) if will_keep_its_rate(chart, coming) else math.log(ALERT))
        with np.errstate(all="ignore"):
            odd = np.log(norms) - base.recent > least - SLACK
            if _may_be_hurt(chart, coming):
                harm = max(math.log(self.notice), HURT * spread)
                odd |= np.log(highest_of_last(series, norms, RECENT + 1)) - base.recent > harm - SLACK
        return np.where(odd & (norms > 0) & (norms < math.inf), LOOK, CALM).astype(np.int8)

    def _did_harm(self, chart: Chart, base: Baseline, limit: float) -> Symptom | None:
        """Among wide swings it is the loss that says which leap was none of them: it has just risen after this one."""
        recent = chart["grad_norm"].last(RECENT + 1)
        back = recent.size - 1 - int(np.argmax(recent))
        if not math.log(float(recent.max()) + TINY) - base.recent > limit:
            return None
        return self._exploded(chart, "warning", base, limit, back)

    def _unheard_of(self, chart: Chart, rise: float, base: Baseline) -> bool:
        """Within the spread of the window, but twice as high as any rise that the run is used to.

        Norms swing down much further than up (a batch may nearly cancel out), and a norm that falls quickly makes the
        spread about a line wide. How high they rise above the values just before is what counts.
        """
        if base.count < self.window // 2 or not rise > math.log(self.ratio):
            return False
        series = chart["grad_norm"]
        logs = np.log(np.abs(series.last(max(AHEAD) + RECENT + 1)) + TINY)
        before = logs[: -RECENT - 1]
        for ahead in AHEAD:
            here = min(rise, float(logs[-1]) - median(before[-ahead:]))
            if not here > math.log(self.ratio):
                continue
            usual = third_highest_rise(series, 4 * self.window, RECENT + 1, log=TINY, ahead=ahead)
            known = min(4 * self.window, len(series)) - RECENT - 1 - ahead
            # Of few values the third highest is no extreme yet.
            if here > (2 + 64 / known) * usual:
                return not is_restart(chart)
        return False

    def _beyond_its_loss(self, chart: Chart) -> bool:
        """Whether the norm is far above what the loss of the same batch accounts for.

        Hard batches have large losses and large gradients together. What is left of the norm when the loss is
        accounted for swings much less, so that a leap which is no batch's fault stands out among wide swings.
        """
        norms, losses = paired(chart, 4 * self.window)
        if norms.size < self.window + 1 or not losses.min() > 0:
            return False
        left = left_over(np.log(norms + TINY), np.log(losses), self.window)
        recent, earlier = left[-self.window - 1 : -1], np.sort(left[: -RECENT - 1])
        centre = median(recent)
        spread = max(1.4826 * median(np.abs(recent - centre)), self.floor)
        rise = float(left[-1]) - median(recent[-32:])
        limit = max(extreme(self.deviations, norms.size) * spread, 1.3 * (float(earlier[-3]) - centre))
        return rise > max(math.log(self.ratio), limit) and not is_restart(chart)

    def _grave(self, chart: Chart, rise: float) -> bool:
        """Far above the recent median; less far, above all precedents, and not lifted by a warm restart."""
        if _is_explained(chart, rise):
            return False
        if chart["grad_norm"].count <= SETTLED:  # a start may be wild: a leap that is none of the loss's doing is not
            held = rise < math.log(HELD) and _is_held(chart)
            return rise > math.log(2 * self.ratio) and is_calm(chart) and not held and _is_steep(chart)
        if rise > math.log(3 * self.ratio):
            return True
        usual = third_highest_rise(chart["grad_norm"], 4 * self.window, 8 + RECENT, log=TINY)
        return rise > max(math.log(self.ratio), 1.4 * usual) and not is_restart(chart)

    def _exploded(self, chart: Chart, severity: Severity, base: Baseline, limit: float, back: int = 0) -> Symptom:
        series = chart["grad_norm"]
        norm, since, typical = float(series.values[-1 - back]), int(series.steps[-1 - back]), math.exp(base.recent)
        where, widely = risen(chart)
        times = number_text(norm / typical)
        message = f"gradient norm {number_text(norm)} is {times} times its recent {number_text(typical)}"
        if widely:
            message += ", in most tensors alike"
        if "clip" in chart and chart["clip"].latest > 0:
            message += f" (clipped at {number_text(chart['clip'].latest)})"
        if severity == "warning" and not is_hurt(chart) and not lr_jump(chart) > JUMP:
            narrow = bool(where) and not widely and _is_density(chart)
            spent = norm < 3 * self.ratio * typical and (_is_spent(chart) or narrow)
            usual = _keeps_rhythm(chart, norm) or _is_short_batch(chart, norm, self.ratio)
            usual = usual or _is_experience(chart, norm) or _is_hard_sample(chart, norm) or _is_hard_batch(chart, norm)
            if _is_held(chart):
                usual = usual or (norm < HELD * typical and _leaves_plateau(chart))
                # a step that is held does no harm by itself: whether this one did, the next losses tell
                usual = usual or (norm < 3 * self.ratio * typical and (_is_lone(chart) or _grows_along(chart)))
            severity = "info" if spent or usual or _steps_by_sign(chart) else "warning"
        ceiling = typical * math.exp(min(limit, 300.0))
        return self.symptom(chart, severity, message, value=norm, limit=ceiling, where=where, since=since)


def _may_be_hurt(chart: Chart, coming: Stretch) -> bool:
    """Whether the loss is, or comes, in the open trouble that `is_hurt` sees."""
    losses = coming.columns.get("loss")
    finite = math.isfinite(chart["loss"].latest) if losses is None else bool(np.isfinite(losses).all())
    episodes = (chart.open_episodes.get(name) for name in ("loss-spike", "loss-divergence"))
    return not finite or any(episode is not None and episode.severity != "info" for episode in episodes)


def is_calm(chart: Chart) -> bool:
    """Whether the loss of this step is where it was; False where it is not known."""
    series = chart["loss"]
    base = series.baseline(32)
    if not series.steps.size or series.steps[-1] != chart.step or not base:
        return False
    return series.latest - base.recent <= 4 * max(base.noise, 0.02 * abs(base.recent))


def _is_steep(chart: Chart, times: float = 3.0) -> bool:
    """Whether the leap is above the very last norms too: they may grow tenfold in ten steps while the loss falls."""
    norms = chart["grad_norm"].last(RECENT + 1)
    return float(norms[-1]) > times * float(norms[:-1].max(initial=0.0))


def _is_held(chart: Chart) -> bool:
    """Whether clipping cuts this leap, or Adam, which knows the scale of earlier gradients, makes little of it.

    While embeddings are small, the norm layer behind them lifts the gradient of a few tokens now and then.
    """
    clip = chart["clip"].latest
    if clip > 0 and not chart.fact("clip.after_step"):
        return True
    return bool(chart.groups) and all("Adam" in str(group.get("optimizer")) for group in chart.groups)


def _is_explained(chart: Chart, rise: float) -> bool:
    """Whether the loss of this step rose as many times as the norm: then the loss is the matter, and `loss-spike`'s.

    So it is in a run that has arrived and is given new targets: a target network that is renewed, a new stage.
    """
    series = chart["loss"]
    recent = series.baseline(128).recent
    if not series.steps.size or series.steps[-1] != chart.step or not min(recent, series.latest) > 0:
        return False
    risen = math.log(series.latest / recent)
    # Where nearly all is fitted, one sample that is not makes most of a batch's loss, and more of its gradient.
    return risen > rise or (risen > 0.7 * rise and series.latest < ARRIVED * Progress.of(series).start)


def _is_spent(chart: Chart, share: float = 0.01) -> bool:
    """Whether next to nothing of a positive loss is left: what is small swings widely."""
    series = chart["loss"]
    if not series.count or not series.lowest > 0:
        return False
    return max(series.baseline(128).recent, series.latest) < share * _first_quarter(series)


def _first_quarter(series: Series) -> float:
    """The level of its first quarter: a violent start makes everything after it look small."""
    levels = outline_levels(series)
    return median(levels[: max(1, levels.size // 4)])


def _is_hard_sample(chart: Chart, norm: float) -> bool:
    """Whether nearly all is learnt, and the norm is about what the run began with.

    One sample that is not learnt yet makes most of the gradient then. Whether the update did harm, the next loss tells.
    """
    losses, norms = chart["loss"], chart["grad_norm"]
    if not losses.steps.size or losses.steps[-1] != chart.step or not losses.lowest > 0:
        return False
    first, early = (_first_quarter(series) for series in (losses, norms))
    return losses.latest < 2 * ARRIVED * first and norm < 4 * early


def _is_hard_batch(chart: Chart, norm: float) -> bool:
    """Whether the run had about as high a norm before, its start aside, and this batch has a higher loss than most."""
    losses, norms = chart["loss"], chart["grad_norm"]
    base = losses.baseline(32)
    if not losses.steps.size or losses.steps[-1] != chart.step or not losses.latest - base.recent > 2 * base.noise:
        return False
    known = float(losses.last(129)[:-1].max(initial=0.0))
    # What threatens a run brings it back to its start, or to losses that it had left behind.
    far = 0 < losses.latest < min(0.5 * Progress.of(losses).start, 1.5 * known)
    return far and norm < 2 * float(norms.values[SETTLED // 2 : -1].max(initial=0.0))


def _leaves_plateau(chart: Chart) -> bool:
    """Whether most of what the loss has gained was gained just now, after a long wait: gradients grow with it.

    Recurrent layers and attention may wait for a hundred steps until they find how to use the input.
    """
    levels = outline_levels(chart["loss"])
    if chart["loss"].count < SETTLED or levels.size < 12:
        return False
    part = max(2, round(levels.size * 32 / chart["loss"].count))
    start, before, now = median(levels[:5]), median(levels[-2 * part : -part]), median(levels[-max(2, part // 4) :])
    return start - now > 3 * max(start - before, 0.0) and start - now > 4 * chart["loss"].baseline(32).noise


def _is_lone(chart: Chart, times: float = 3.0) -> bool:
    """Whether the norms just before were as ever, and the loss of this batch is higher than most: its own samples."""
    before, base = chart["grad_norm"].last(RECENT + 1)[:-1], chart["grad_norm"].baseline(128, log=True)
    losses, level = chart["loss"], chart["loss"].baseline(32)
    if base.count < 2 * SETTLED or losses.step != chart.step or not losses.latest - level.recent > 2 * level.noise:
        return False
    return float(before.max(initial=0.0)) < times * math.exp(base.recent)


def _grows_along(chart: Chart) -> bool:
    """Whether norms grow from step to step while the loss is as low as it ever was: the run begins to learn."""
    losses = chart["loss"]
    if _is_steep(chart) or losses.step != chart.step or losses.count < 2 * RECENT:
        return False
    return float(losses.last(RECENT).min()) <= losses.lowest


def _is_density(chart: Chart) -> bool:
    """Whether the loss has fallen below zero, as that of a density does: a sample in a narrow place is steep there."""
    series = chart["loss"]
    return bool(series) and series.baseline(128).recent < 0 < Progress.of(series).start and is_calm(chart)


def _keeps_rhythm(chart: Chart, norm: float) -> bool:
    """Whether as high a norm came before, and a leap at the same distance before that: it is the loop's way.

    A penalty that is added at every sixteenth step, the longest sequences of each epoch.
    """
    earlier = chart["grad_norm"].values[:-1]
    places = np.flatnonzero(earlier > 0.5 * norm)
    gap = earlier.size - int(places[-1]) if places.size else 0
    if not 4 <= gap <= earlier.size // 2:
        return False
    # The first of them may have been lower: a penalty grows while what it is taken of gets sharper.
    return bool(earlier[-2 * gap] > min(0.5 * norm, 3 * median(earlier[-2 * gap + 1 : -gap])))


def _is_short_batch(chart: Chart, norm: float, times: float) -> bool:
    """Whether this is the last step of an epoch, whose batch is smaller, and no norm that such steps are not used to.

    Loops that validate after each epoch show where it ends; what is left over for its last batch may be a few samples.
    """
    steps, norms = chart["val_loss"].steps[-8:], chart["grad_norm"]
    gaps = np.diff(steps)
    if gaps.size < 2 or (gaps != gaps[0]).any() or norms.step != steps[-1] + gaps[0]:
        return False
    ends = norms.values[np.isin(norms.steps, steps)]
    usual = math.exp(norms.baseline(128, log=True).recent)
    return ends.size > 1 and median(ends) > 1.3 * usual and norm < times * median(ends)


def _is_experience(chart: Chart, norm: float) -> bool:
    """Whether a loop that acts has known higher norms: of a policy that is right nearly always, an error is rare."""
    return acts(chart) and norm < float(chart["grad_norm"].values[:-1].max(initial=0.0))


def _steps_by_sign(chart: Chart) -> bool:
    """Whether the optimizer takes the signs of gradients only: their size does not matter to it."""
    names = [str(group.get("optimizer")) for group in chart.groups]
    return bool(names) and all(any(word in name for word in BY_SIGN) for name in names)


def _is_newcomers(chart: Chart, limit: float) -> bool:
    """Whether the norm is that of tensors which had no gradient until now, as when a frozen trunk is released."""
    sampled = chart.tensors("grad_norm")
    rows = sampled.matrix()
    if sampled.step != chart.step or len(rows) < 4 or bool(np.isfinite(rows[:-1]).all()):
        return False
    known, here = np.isfinite(rows[:-1]).mean(axis=0) > 0.5, np.isfinite(rows[-1])
    row = rows[-1][known & here]
    with np.errstate(over="ignore"):
        return bool((here & ~known).any()) and 0.5 * math.log(float(row @ row) + TINY) < limit


def paired(chart: Chart, most: int) -> tuple[Array, Array]:
    """The latest norms and losses that were measured at the same steps."""
    norms, losses = chart["grad_norm"], chart["loss"]
    steps = norms.steps[-most:]
    if np.array_equal(steps, losses.steps[-most:]) and (steps[1:] > steps[:-1]).all():  # as they mostly are
        mine = theirs = np.arange(steps.size)
    else:
        steps, mine, theirs = np.intersect1d(steps, losses.steps[-most:], return_indices=True)
    if not steps.size or steps[-1] != chart.step:
        return np.zeros(0), np.zeros(0)
    return norms.values[-most:][mine], losses.values[-most:][theirs]


def left_over(norm: Array, loss: Array, window: int) -> Array:
    """What is left of a series when another is accounted for: slope through the medians of the lower and upper half."""
    order = np.argsort(loss[-window - 1 : -1])
    low, high = order[: window // 2], order[window // 2 :]
    x, y = loss[-window - 1 : -1], norm[-window - 1 : -1]
    width = float(median(x[high]) - median(x[low]))
    slope = float(median(y[high]) - median(y[low])) / width if width > 1e-6 else 0.0
    return np.asarray(norm - min(max(slope, 0.0), 1.5) * loss)


def risen(chart: Chart, most: int = 4) -> tuple[tuple[str, ...], bool]:
    """The tensors whose gradient norm rose most at this step against earlier samples, and whether most rose alike."""
    sampled = chart.tensors("grad_norm")
    rows = sampled.matrix(9)
    if sampled.step != chart.step or len(rows) < 2 or rows.shape[1] != len(chart.names):
        return (), False
    with np.errstate(all="ignore"):
        logs = np.log(np.where(np.isfinite(rows), rows, np.nan) + TINY)
        earlier = np.sort(logs[:-1], axis=0)  # NaN sorts last
        known = np.isfinite(earlier).sum(axis=0)
        middle = earlier[np.maximum(known - 1, 0) // 2, np.arange(rows.shape[1])]
        rise = np.nan_to_num(logs[-1] - middle, nan=0.0)
    top = float(rise.max(initial=0.0))
    if not top > math.log(2):
        return (), False
    order = [int(index) for index in np.argsort(-rise, kind="stable") if rise[index] > top / 2]
    return tuple(chart.names[index] for index in order[:most]), len(order) > rise.size // 2
