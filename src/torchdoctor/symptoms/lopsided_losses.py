"""PL01 lopsided-losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.detector import Detector

PLAYERS = (("d", "g"), ("D", "G"), ("disc", "gen"), ("discriminator", "generator"), ("critic", "generator"))
PAIRS = tuple((form.format(one), form.format(other)) for form in ("{}_loss", "loss_{}", "{}") for one, other in PLAYERS)
"""Pairs of names of the two players' losses."""


def players(chart: Chart) -> tuple[str, str] | None:
    """The names of the two players' losses, discriminator first; None if no pair is logged."""
    return next((pair for pair in PAIRS if all(chart[name] for name in pair)), None)


@dataclass(frozen=True)
class LopsidedLosses(Detector):
    """One player's loss has fallen to almost zero while the other's has risen.

    ## What it means
    Two networks train against each other, and one has won: it no longer gives the other a useful gradient, and further
    training is wasted.

    ## How it is told apart
    The losses of a healthy pair stay within the same order of magnitude for the whole run, and a temporary lead is
    normal. Here one loss is below 5 % of its start and the other well above its own start, for 45 steps and a fifth of
    the run. With smoothed labels the winner's loss cannot come near zero: then it has lost half of its first value and
    stands still, while the other is at five times its own. A winner's loss that can be negative (a Wasserstein critic)
    is not judged. If the loser's loss can be negative (the generator of a hinge loss), it must have risen by more than
    both losses started at. If both losses fall to almost zero, the two do not play against each other: one of them has
    a wrong sign or label.

    ## What to do
    Slow down the winner: a lower learning rate, fewer steps, label smoothing or a gradient penalty. If the
    discriminator wins at once, check that real and generated samples are preprocessed the same way.

    ## How to see that it is cured
    Both losses stay in a band. With cross-entropy, the loss of a discriminator that has to guess is 2 ln 2 = 1.39.

    ## Example
    >>> print(LopsidedLosses().check(Chart.of(d_loss=[1.4] * 50 + [0.01] * 300, g_loss=[0.7] * 50 + [7.0] * 300)))
    step 50: PL01 lopsided-losses (warning): d_loss fell from 1.4 to 0.01 while g_loss went from 0.7 to 7
    """

    code = "PL01"
    name = "lopsided-losses"
    reads = tuple(name for pair in PAIRS for name in pair)
    suggests = ("balance-players", "spectral-norm", "ask-for-help")
    references = ("https://arxiv.org/abs/1406.2661", "https://arxiv.org/abs/1701.04862")
    every = 10
    closes_after = 3

    low: float = 0.05
    """Share of its first level below which a loss counts as won."""
    high: float = 1.5
    """Multiple of its own first level above which the other loss counts as lost."""
    steps: int = 45
    """Steps that it must last, after as many others,"""
    values: int = 24
    """and values that must be known, because a loss may be logged only every few steps."""
    share: float = 0.2
    """Share of the run that it must last."""
    still: float = 0.02
    """Share of what the winner's loss fell by within which it must then stay, if it is not almost zero,"""
    lost: float = 5.0
    """and multiple of its own first value above which the other loss must then be."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare both losses with their first levels."""
        pair = players(chart)
        if pair is None:
            return None
        for winner, loser in (pair, pair[::-1]):
            since = self._won(chart[winner], chart[loser])
            if since is not None:
                message = f"{winner} fell from {_levels(chart[winner])} while {loser} went from {_levels(chart[loser])}"
                return self.symptom(chart, "warning", message, since=since)
            since = self._stands(chart[winner], chart[loser])
            if since is not None:
                message = f"{winner} fell from {_ends(chart[winner])} and stays there, while {loser} went from "
                return self.symptom(chart, "warning", message + _ends(chart[loser]), since=since)
        return self._both_won(chart, pair)

    def _stands(self, winner: Series, loser: Series) -> int | None:
        """Since when the winner's loss stands still above zero, and the other's is far above its start.

        The losses of a pair that plays on keep moving.
        """
        first, other = winner.first, loser.first
        if winner.count < self.values or winner.step < 2 * self.steps - 1 or not min(winner.lowest, loser.lowest) > 0:
            return None
        lasting = max(min(self.steps, winner.count // 2), int(self.share * winner.count))
        low, level, high = np.quantile(winner.last(min(lasting, len(winner))), (0.1, 0.5, 0.9))
        if not level < 0.5 * first or not high - low < self.still * (first - level):
            return None
        if not float(np.quantile(loser.last(min(lasting, len(loser))), 0.1)) > self.lost * other:
            return None
        over = np.flatnonzero(winner.values > level + 3 * self.still * (first - level))
        return int(winner.steps[min(over[-1] + 1, len(winner) - 1)] if over.size else winner.steps[0])

    def _both_won(self, chart: Chart, pair: tuple[str, str]) -> Symptom | None:
        """Check whether both losses are almost zero: the two then do not play against each other.

        Only if there are several optimizers: two parts of one loss may both fall.
        """
        if len(chart.context.get("optimizer") or ()) < 2:
            return None
        since = [self._won(chart[name]) for name in pair]
        if since[0] is None or since[1] is None or not chart[pair[0]].step >= 3 * self.steps:
            return None
        message = f"{pair[0]} fell from {_levels(chart[pair[0]])} and {pair[1]} from {_levels(chart[pair[1]])}: "
        message += "both cannot win, so one has a wrong sign or label"
        return self.symptom(chart, "warning", message, since=max(since[0], since[1]))

    def _won(self, winner: Series, loser: Series | None = None) -> int | None:
        """Since when the winner's loss is almost zero and the other's, if given, is high; None if they are not."""
        if winner.count < self.values or winner.step < 2 * self.steps - 1 or winner.lowest < 0:
            return None
        lasting = max(min(self.steps, winner.count // 2), int(self.share * winner.count))
        start, other = _start(winner), _start(winner if loser is None else loser)
        if loser is not None and start == winner.first:  # the winner won at once, so the other lost at once
            other = loser.first
        if not start > 0:
            return None
        limit = self.high * other
        if loser is not None and (loser.lowest < 0 or not other > 0):
            limit = abs(other) + max(abs(other), start)
        if loser is not None and loser.outline.highest <= 0 > loser.first:
            limit = self.low * loser.first  # log(1 - D) of a losing generator rises to zero
        recent = winner.last(min(lasting, len(winner)))
        high = loser is None or median(loser.last(min(lasting, 50))) > limit
        if float(np.quantile(recent, 0.9)) < self.low * start and high:
            over = np.flatnonzero(winner.values >= self.low * start)
            return int(winner.steps[min(over[-1] + 1, len(winner) - 1)] if over.size else winner.steps[0])
        return None


def _start(series: Series) -> float:
    """The level at which a loss began; its first value if it fell to almost zero at once."""
    if not series:
        return 0.0
    level = median([bucket[2] for bucket in series.outline.buckets()[:10]])
    return series.first if 0 <= level < 0.01 * series.first else level


def _levels(series: Series) -> str:
    return f"{number_text(_start(series))} to {number_text(median(series.last(50)))}"


def _ends(series: Series) -> str:
    return f"{number_text(series.first)} to {number_text(median(series.last(50)))}"
