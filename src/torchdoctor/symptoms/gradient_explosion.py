"""GR01 gradient-explosion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import TINY, Baseline, median
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, Detector, Outlook
from torchdoctor.symptoms.leaps import (
    is_cut,
    is_held,
    is_known,
    is_steep,
    is_unexplained,
    is_untold,
    of_fewer,
    share_of_loss,
    steps_by_sign,
)
from torchdoctor.symptoms.progress import (
    JUMP,
    SETTLED,
    SLACK,
    Progress,
    extreme,
    highest_of_last,
    is_hurt,
    is_restart,
    keeps_its_rate,
    log_spread,
    lr_jump,
    will_keep_its_rate,
)
from torchdoctor.symptoms.tails import is_habitual, is_unheard_of, tail
from torchdoctor.symptoms.tensor_leaps import is_local, is_newcomers, risen

NO_GRADIENT = 1e-20
"""A norm below this counts as no gradient at all: it gives no scale to compare with."""
NOTHING = math.log(NO_GRADIENT)
ALERT = 2.0
"""Deviations, and multiples of the recent median, that suffice right after the learning rate jumped."""
ALL = 0.7
"""If the loss accounts for more than this share of the gradient's jump (in log space), the loss is the problem."""
SOME = 0.25
"""The same share, if clipping or Adam limits the step."""
HURT = 3.0
"""Deviations that suffice while a finding about the loss is open."""
RECENT = 3
"""A jump is compared with the values before the last three, because an explosion may build up over a few steps."""


@dataclass(frozen=True)
class GradientExplosion(Detector):
    """The gradient norm jumps far above its own recent values.

    ## What it means
    This step is about to change the weights much more than any recent step. In published logs of large runs the norm
    jumps one to four steps before the loss does, so this is the earliest warning there is. A jump that the loss does
    not follow is harmless.

    ## How it is told apart
    Absolute size means nothing: summed losses and wide networks always have large norms. The norm is compared with its
    recent median in log space. It must exceed what the run's own spread and heavy tail make likely, and the jump must
    be sudden: warm-up, slow growth and newly unfrozen layers are not reported.

    It is a warning if the update is in danger, or if the loss gets into trouble just after it, and critical while the
    loss diverges. It is info if

    - the loss jumped with it or just before it: the cause is then the batch, the task or a change by the loop, and
      `loss-spike` says whether it did harm;
    - the loop changed something at that step (see `loss-spike`), and the loss comes down again;
    - the run has survived norms as high as this one;
    - the optimizer uses only the signs of gradients;
    - the run has nearly solved its task, so that one wrong sample has a large gradient, and clipping limits it;
    - clipping or Adam limits the step, and norms grew over several steps or in a few tensors only;
    - the batch is a single sample and its own loss is not logged.

    Nothing is reported if the loss is exactly 0 and the norm is below a millionth of the run's highest.

    If norms swing because some batches are harder than others, the loss of a batch tells which norm to expect. A norm
    far above that, in most tensors, is a warning even with clipping: something multiplied the gradients. A non-finite
    norm is `nan-or-inf`.

    ## What to do
    Clip the gradient norm. Halve the learning rate if the jump comes back or the loss follows. Look at the batch of
    that step: if clipping is on already, the weights are protected and the batch is the likely cause.

    ## How to see that it is cured
    No new episode for a few hundred steps, and the loss keeps falling.

    ## Example
    >>> norms = [1.0, 1.2, 0.9, 1.1] * 16
    >>> print(GradientExplosion().check(Chart.of(grad_norm=[*norms, 20.0])))
    step 64: GR01 gradient-explosion (warning): gradient norm jumped to 20, 19.1 times its recent median of 1.05
    >>> GradientExplosion().check(Chart.of(grad_norm=[*norms, 2.0]))
    """

    code = "GR01"
    name = "gradient-explosion"
    reads = ("grad_norm",)
    suggests = ("set-clip-norm", "scale-lr", "roll-back", "ask-for-help")
    references = ("https://arxiv.org/abs/1211.5063", "https://arxiv.org/abs/2504.02507")
    expects_changes = True

    window: int = 128
    """Recent values that the median and spread are taken from."""
    history: int = 16
    """Values needed before anything is reported."""
    ratio: float = 6.0
    """Multiple of the recent median that raises a warning."""
    notice: float = 4.0
    """Multiple of the recent median that is reported as info, or as a warning if the loss has got worse."""
    deviations: float = 5.0
    """Robust deviations in log space that both must exceed as well."""
    steep: float = 5.0
    """Multiple of the few norms before it that one of the last steps must reach for a warning if clipping or Adam
    limits the step: norms may grow tenfold in ten steps while the loss falls."""
    wild: float = 50.0
    """Multiple of the recent median that is harmless with clipping or Adam in the first steps, on a hard batch, or in a
    few tensors."""
    floor: float = 0.12
    """Lower bound for the spread in log space: a smaller one is treated as this."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the norm with its recent median: did it jump, or is it still high after a jump?"""
        return None if _is_nothing(chart) else self._jumped(chart) or self._stays_high(chart)

    def _jumped(self, chart: Chart) -> Symptom | None:
        """A new jump; ordinary steps return after the first tests."""
        series = chart["grad_norm"]
        norm = series.latest
        base = series.baseline(self.window, log=True)
        if base.count < self.history or not 0 < norm < math.inf or base.recent < NOTHING:
            return None
        rise = math.log(norm) - base.recent
        spread = max(log_spread(base, self.window), self.floor)
        if rise > ALERT * spread and rise > math.log(ALERT) and lr_jump(chart) > JUMP:
            return self._exploded(chart, "warning", base, math.log(ALERT))
        limit, before = math.log(self.notice), series.last(8 + RECENT + 1)[: -RECENT - 1]
        if rise > limit:
            if float(before.min()) < NO_GRADIENT:
                return None  # steps without any gradient are usual here, so a median over both kinds means nothing
            if rise < math.log(of_fewer(chart)):
                return None
            if self._is_multiplied(chart, rise):
                return self._exploded(chart, _as_grave_as("warning", chart), base, limit)
            limit = max(limit, self._reach(chart, base, spread))
            rise = min(rise, math.log(norm / median(before)))
        if not rise > limit:
            if not chart.open_episodes or not is_hurt(chart, RECENT):
                return None
            return self._did_harm(chart, base, max(math.log(self.notice), HURT * spread))
        sudden, hurt = norm > self.notice * float(before.max()), is_hurt(chart)
        if (not sudden and not hurt) or is_newcomers(chart, limit + base.recent):
            return None
        severity: Severity = "warning" if hurt or self._is_grave(chart, rise) else "info"
        return self._exploded(chart, _as_grave_as(severity, chart), base, limit)

    def _stays_high(self, chart: Chart) -> Symptom | None:
        """An open episode lasts while the norm stays that high: its neighbors are high too, so it no longer jumps."""
        episode, series = chart.open_episodes.get(self.name), chart["grad_norm"]
        if episode is None or int(series.steps[-1]) < chart.step:  # a norm that is not finite is another matter
            return None
        high = self.notice * math.exp(series.baseline(self.window, log=True).recent)
        lasts = high < series.last(2).min() < math.inf  # and so is a later jump of one step
        return replace(episode, last_step=chart.step) if lasts else None

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether even the highest of these norms would pass the first tests."""
        base = chart["grad_norm"].upcoming(self.window, log=True)
        if base.count < self.history or base.recent < NOTHING:
            return True
        if chart.open_episodes and is_hurt(chart, chart.step + 1):
            return False
        rise = math.log(max(*coming["grad_norm"], TINY)) - base.recent
        return rise <= math.log(ALERT) or (rise <= math.log(self.notice) and keeps_its_rate(chart, coming))

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same for each of these norms, or for the highest of the last few while the loss is in trouble."""
        series, norms = chart["grad_norm"], coming.columns["grad_norm"]
        base = series.upcoming(self.window, log=True)
        if base.count < self.history or base.recent < NOTHING:
            return np.full(len(coming), CALM, dtype=np.int8)
        least = math.log(self.notice if will_keep_its_rate(chart, coming) else ALERT)
        with np.errstate(all="ignore"):
            odd = np.log(norms) - base.recent > least - SLACK
            if _may_be_hurt(chart, coming):
                spread = max(log_spread(base, self.window), self.floor)
                harm = max(math.log(self.notice), HURT * spread)
                odd |= np.log(highest_of_last(series, norms, RECENT + 1)) - base.recent > harm - SLACK
        return np.where(odd & (norms > 0) & (norms < math.inf), LOOK, CALM).astype(np.int8)

    def _did_harm(self, chart: Chart, base: Baseline, limit: float) -> Symptom | None:
        """A jump within wide swings that the loss has just followed: this tells it from the harmless ones."""
        recent = chart["grad_norm"].last(RECENT + 1)
        back = recent.size - 1 - int(np.argmax(recent))
        if not math.log(float(recent.max()) + TINY) - base.recent > limit:
            return None
        return self._exploded(chart, "warning", base, limit, back)

    def _reach(self, chart: Chart, base: Baseline, spread: float) -> float:
        """How far above their usual level the run's norms reach: by their spread, or by their upper tail if lower.

        Norms swing down much further than up (the gradients of a batch may nearly cancel out), and a norm that falls
        quickly widens the spread about its trend. In both cases the upper tail is the better limit.
        """
        reach = extreme(self.deviations, base.count) * spread
        return reach if base.count < self.window // 2 else min(reach, self._tail(chart))

    def _tail(self, chart: Chart) -> float:
        return tail(chart["grad_norm"], 4 * self.window, RECENT + 1, log=TINY)

    def _is_multiplied(self, chart: Chart, rise: float) -> bool:
        """Whether gradients jumped (in most tensors, if known) although the loss of the batch does not explain it."""
        series = chart["grad_norm"]
        if not is_unexplained(chart, math.log(self.ratio)) or not is_steep(chart) or is_restart(chart):
            return False
        if steps_by_sign(chart) or is_known(chart, rise) or is_habitual(series, rise, chart["loss"]):
            return False
        known = chart.tensors("grad_norm").step == chart.step
        return risen(chart)[1] if known else series.count > SETTLED

    def _is_grave(self, chart: Chart, rise: float) -> bool:
        """Whether this step's update is likely to do harm, judged before the next losses are known."""
        series, held = chart["grad_norm"], is_held(chart)
        if share_of_loss(chart, rise, RECENT + 1) > ALL or is_untold(chart):
            return False
        if steps_by_sign(chart) or is_known(chart, rise):
            return False
        if not is_steep(chart, self.steep if held else 3.0):
            return False
        if series.count <= SETTLED:  # the first steps may swing widely
            return rise > math.log(self.wild if held else 2 * self.ratio)
        if not is_unheard_of(series) or is_habitual(series, rise):
            return False
        if held and rise < math.log(self.wild) and (share_of_loss(chart, rise) > SOME or is_local(chart)):
            return False
        base = series.baseline(self.window, log=True)
        if is_cut(chart) and _is_nearly_solved(chart):
            return False  # one sample that is still wrong, and clipping limits what it does
        if rise > math.log(3 * self.ratio):
            return True
        wide = extreme(self.deviations, base.count) * max(log_spread(base, self.window), self.floor)
        return rise > max(math.log(self.ratio), wide, self._tail(chart)) and not is_restart(chart)

    def _exploded(self, chart: Chart, severity: Severity, base: Baseline, limit: float, back: int = 0) -> Symptom:
        series = chart["grad_norm"]
        norm, since, typical = float(series.values[-1 - back]), int(series.steps[-1 - back]), math.exp(base.recent)
        where, widely = risen(chart)
        times = number_text(norm / typical)
        message = (
            f"gradient norm jumped to {number_text(norm)}, {times} times its recent median of {number_text(typical)}"
        )
        if widely:
            message += ", across most tensors"
        if _is_clipped(chart, typical):
            message += f" (clipped to {number_text(chart['clip'].latest)})"
        ceiling = typical * math.exp(min(limit, 300.0))
        return self.symptom(chart, severity, message, value=norm, limit=ceiling, where=where, since=since)


def _is_nearly_solved(chart: Chart, share: float = 0.2) -> bool:
    """Whether the loss has lost nearly all of its start.

    >>> falling = [2.0 * 0.97**step for step in range(200)]
    >>> _is_nearly_solved(Chart.of(loss=falling)), _is_nearly_solved(Chart.of(loss=falling[:40]))
    (True, False)
    """
    losses = chart["loss"]
    return losses.count > 8 and 0 <= median(losses.last(4)) < share * Progress.of(losses).start


def _is_nothing(chart: Chart, share: float = 1e-6) -> bool:
    """Whether the loss has reached exactly 0 and the norm is nothing beside the run's highest: all is learned.

    >>> norms = [1.0, *[3e-11] * 40, 9e-10]
    >>> _is_nothing(Chart.of(loss=[2.0] + [0.0] * 41, grad_norm=norms)), _is_nothing(Chart.of(grad_norm=norms))
    (True, False)
    """
    norms = chart["grad_norm"]
    return bool(chart["loss"]) and chart["loss"].latest == 0 and norms.latest < share * norms.outline.highest


def _is_clipped(chart: Chart, typical: float, samples: int = 3) -> bool:
    """Whether the loop is known to clip: a constant norm may be due to a hidden clip, but a norm above it refutes that.

    If old gradients are never cleared, a constant norm only means that nothing is added any more.
    """
    clip = chart["clip"].latest
    kept = max(chart.fact("zeroing.kept") or (0,))
    return clip > 0 and abs(typical - clip) > 1e-3 * clip and kept < samples


def _as_grave_as(severity: Severity, chart: Chart) -> Severity:
    """Critical if the loss diverges as well."""
    divergence = chart.open_episodes.get("loss-divergence")
    return severity if divergence is None or divergence.severity == "info" else "critical"


def _may_be_hurt(chart: Chart, coming: Stretch) -> bool:
    """Whether `is_hurt` could be true now or at one of the coming steps."""
    losses = coming.columns.get("loss")
    finite = math.isfinite(chart["loss"].latest) if losses is None else bool(np.isfinite(losses).all())
    episodes = (chart.open_episodes.get(name) for name in ("loss-spike", "loss-divergence"))
    return not finite or any(episode is not None and episode.severity != "info" for episode in episodes)
