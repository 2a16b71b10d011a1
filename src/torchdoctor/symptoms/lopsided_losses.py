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
"""Names under which the losses of two players are logged."""


def players(chart: Chart) -> tuple[str, str] | None:
    """The names of the two players' losses, discriminator first; None where no pair was logged."""
    return next((pair for pair in PAIRS if all(chart[name] for name in pair)), None)


@dataclass(frozen=True)
class LopsidedLosses(Detector):
    """One player's loss has fallen to nothing while the other's has climbed.

    ## What it means
    Two networks train against each other, and one has won: its loss has nothing left to teach the other, whose
    gradient fades or turns to noise. What is trained from here on is wasted.

    ## How it is told apart
    The losses of a healthy pair swing about levels of the same order for the whole run, and a lead that passes is
    normal. Here one loss is under a twentieth of where it began, the other well above its own beginning, for 45 steps
    and for a fifth of the run. A winner's loss that can be negative (a Wasserstein critic's) is not judged; where the
    other's can (the generator of a hinge loss), it must have climbed by more than both began at. Where both losses fall
    to nothing, the two do not play against each other: one of them has a sign or a label the wrong way round.

    ## What to do
    Slow down the winner: a lower learning rate, fewer steps, label smoothing or a gradient penalty. If the
    discriminator wins at once, check that real and made samples are prepared alike.

    ## How to see that it is cured
    Both losses stay in a band. With cross-entropy a discriminator that cannot tell has a loss of 2 ln 2 = 1.39.

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
    """Share of its first level under which the winner's loss must be."""
    high: float = 1.5
    """How many times its own first level the other's loss must be."""
    steps: int = 45
    """Steps that it must last, after as many others,"""
    values: int = 24
    """and values that must be known: a loss may be logged once in several steps."""
    share: float = 0.2
    """Share of the run that it must last."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare both losses with where they began."""
        pair = players(chart)
        if pair is None:
            return None
        for winner, loser in (pair, pair[::-1]):
            since = self._won(chart[winner], chart[loser])
            if since is not None:
                message = f"{winner} fell from {_levels(chart[winner])} while {loser} went from {_levels(chart[loser])}"
                return self.symptom(chart, "warning", message, since=since)
        return self._both_won(chart, pair)

    def _both_won(self, chart: Chart, pair: tuple[str, str]) -> Symptom | None:
        """Both losses are next to nothing: then these two want the same, and do not play against each other.

        Only where each is known to have an optimizer of its own: parts of one loss may both fall.
        """
        if len(chart.context.get("optimizer") or ()) < 2:
            return None
        since = [self._won(chart[name]) for name in pair]
        if since[0] is None or since[1] is None or not chart[pair[0]].step >= 3 * self.steps:
            return None
        message = f"{pair[0]} fell from {_levels(chart[pair[0]])} and {pair[1]} from {_levels(chart[pair[1]])}: "
        message += "where one must lose, both win, so one is asked for the wrong thing"
        return self.symptom(chart, "warning", message, since=max(since[0], since[1]))

    def _won(self, winner: Series, loser: Series | None = None) -> int | None:
        """Since when the winner's loss is next to nothing and the other's, if given, high; None where it is not so."""
        if winner.count < self.values or winner.step < 2 * self.steps - 1 or winner.lowest < 0:
            return None
        lasting = max(min(self.steps, winner.count // 2), int(self.share * winner.count))
        start, other = _start(winner), _start(winner if loser is None else loser)
        if loser is not None and start == winner.first:  # the game was over at once, for the other too
            other = loser.first
        if not start > 0:
            return None
        limit = self.high * other
        if loser is not None and (loser.lowest < 0 or not other > 0):
            limit = abs(other) + max(abs(other), start)
        if loser is not None and loser.outline.highest <= 0 > loser.first:
            limit = self.low * loser.first  # log(1 - D) of a generator that is seen through goes to zero
        recent = winner.last(min(lasting, len(winner)))
        high = loser is None or median(loser.last(min(lasting, 50))) > limit
        if float(np.quantile(recent, 0.9)) < self.low * start and high:
            over = np.flatnonzero(winner.values >= self.low * start)
            return int(winner.steps[min(over[-1] + 1, len(winner) - 1)] if over.size else winner.steps[0])
        return None


def _start(series: Series) -> float:
    """The level at which a loss began; its first value where the game was over at once."""
    if not series:
        return 0.0
    level = median([bucket[2] for bucket in series.outline.buckets()[:10]])
    return series.first if 0 <= level < 0.01 * series.first else level


def _levels(series: Series) -> str:
    return f"{number_text(_start(series))} to {number_text(median(series.last(50)))}"
