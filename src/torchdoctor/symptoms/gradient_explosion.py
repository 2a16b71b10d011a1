"""GR01 gradient-explosion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import TINY, Baseline, median
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, Detector, Outlook
from torchdoctor.symptoms.leaps import (
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
    extreme,
    highest_of_last,
    is_hurt,
    is_restart,
    keeps_its_rate,
    log_spread,
    lr_jump,
    will_keep_its_rate,
)
from torchdoctor.symptoms.tails import is_unheard_of, tail
from torchdoctor.symptoms.tensor_leaps import is_newcomers, risen

NO_GRADIENT = 1e-20
"""A norm below this is no gradient: there is no scale to compare with."""
NOTHING = math.log(NO_GRADIENT)
ALERT = 2.0
"""Deviations, and times the recent median, that are enough right after a leap of the learning rate."""
ALL = 0.7
"""Share of a leap that the loss made with it, from which on the loss is the matter."""
SOME = 0.25
"""Share that is enough where the step is held."""
HURT = 3.0
"""Deviations that are enough while the loss is in open trouble."""
RECENT = 3
"""A jump is measured against the values before the last three: an explosion may build up over a few steps."""


@dataclass(frozen=True)
class GradientExplosion(Detector):
    """The gradient norm leaps far above its own recent scale.

    ## What it means
    One step is about to move the weights much further than any recent one. In published logs of large runs the
    norm leaps one to four steps before the loss does, so it is the earliest warning there is. A leap that heals and
    leaves the loss alone is over when you read this; one that the loss follows is not.

    ## How it is told apart
    Raw size means nothing: summed losses and wide nets have large norms all their lives. The norm is compared with
    its own recent median in log space. The limit is what the run's own spread and upper tail make likely, so the heavy
    tails of small batches stay silent; the rise must be sudden, so warm-up, curricula and slow growth do too, and so do
    tensors that had no gradient before, as when a frozen trunk is released.

    A warning is for an update in danger. A leap is a note where the loss leapt with it or just before it: then the
    batch, the task or the loop's own hand is the matter, and `loss-spike` says whether it did harm. So it is where as
    high norms were known before, where the optimizer takes signs only, where the batch is one sample whose own loss is
    not logged, where clipping or Adam holds the step and norms grew towards it, and where norms have fallen to a
    twentieth of those that the run learnt with, this is one of those, and the loss has lost little of what it had
    gained. Once the loss is in trouble, a leap just before that is a warning. Where norms swing widely because batches
    are now easy and now hard, the loss of a batch says what norm to expect: one far beyond that, in most tensors alike,
    was multiplied by something, and is a warning whatever holds the step. A norm that is not finite is `nan-or-inf`.

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
    steep: float = 5.0
    """Times the last few norms that one of these steps must reach where clipping or Adam holds it: norms may grow
    tenfold in ten steps while the loss falls."""
    wild: float = 50.0
    """Times the recent median that clipping or Adam makes little of in a run's first steps, or on a hard batch."""
    floor: float = 0.12
    """The least spread in log space that is believed."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the norm with its recent median; the quiet path ends at the first tests."""
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
                return None  # steps without any gradient are usual here: a median of both kinds is no scale
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
        least = math.log(self.notice if will_keep_its_rate(chart, coming) else ALERT)
        with np.errstate(all="ignore"):
            odd = np.log(norms) - base.recent > least - SLACK
            if _may_be_hurt(chart, coming):
                spread = max(log_spread(base, self.window), self.floor)
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

    def _reach(self, chart: Chart, base: Baseline, spread: float) -> float:
        """How far above their usual level the run's own norms reach: by their spread, or by their upper tail if less.

        Norms swing down much further than up (a batch may nearly cancel out), and a norm that falls quickly makes the
        spread about a line wide: then it is the upper tail that counts.
        """
        reach = extreme(self.deviations, base.count) * spread
        return reach if base.count < self.window // 2 else min(reach, self._tail(chart))

    def _tail(self, chart: Chart) -> float:
        return tail(chart["grad_norm"], 4 * self.window, RECENT + 1, log=TINY)

    def _is_multiplied(self, chart: Chart, rise: float) -> bool:
        """Whether gradients leapt, of most tensors if that is known, although their batch is none of the hard ones."""
        series = chart["grad_norm"]
        if not is_unexplained(chart, math.log(self.ratio)) or not is_steep(chart) or is_restart(chart):
            return False
        if steps_by_sign(chart) or is_known(chart, rise):
            return False
        known = chart.tensors("grad_norm").step == chart.step
        return risen(chart)[1] if known else series.count > SETTLED

    def _is_grave(self, chart: Chart, rise: float) -> bool:
        """Whether the update of this step is in danger, as far as can be known before the next losses tell."""
        series, held = chart["grad_norm"], is_held(chart)
        if share_of_loss(chart, rise, RECENT + 1) > ALL or is_untold(chart):
            return False
        if steps_by_sign(chart) or is_known(chart, rise):
            return False
        if not is_steep(chart, self.steep if held else 3.0):
            return False
        if series.count <= SETTLED:  # a start may be wild
            return rise > math.log(self.wild if held else 2 * self.ratio)
        if not is_unheard_of(series):
            return False
        if held and share_of_loss(chart, rise) > SOME and rise < math.log(self.wild):
            return False
        if rise > math.log(3 * self.ratio):
            return True
        base = series.baseline(self.window, log=True)
        wide = extreme(self.deviations, base.count) * max(log_spread(base, self.window), self.floor)
        return rise > max(math.log(self.ratio), wide, self._tail(chart)) and not is_restart(chart)

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
        ceiling = typical * math.exp(min(limit, 300.0))
        return self.symptom(chart, severity, message, value=norm, limit=ceiling, where=where, since=since)


def _as_grave_as(severity: Severity, chart: Chart) -> Severity:
    """Critical where the loss diverges as well."""
    divergence = chart.open_episodes.get("loss-divergence")
    return severity if divergence is None or divergence.severity == "info" else "critical"


def _may_be_hurt(chart: Chart, coming: Stretch) -> bool:
    """Whether the loss is, or comes, in the open trouble that `is_hurt` sees."""
    losses = coming.columns.get("loss")
    finite = math.isfinite(chart["loss"].latest) if losses is None else bool(np.isfinite(losses).all())
    episodes = (chart.open_episodes.get(name) for name in ("loss-spike", "loss-divergence"))
    return not finite or any(episode is not None and episode.severity != "info" for episode in episodes)
