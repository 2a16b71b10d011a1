"""adversarial-imbalance."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.lopsided_losses import players

FAR = 100.0
"""Multiple of their initial levels that both losses must exceed to count as unbounded."""


class AdversarialImbalance(Cause):
    """One player of an adversarial pair overpowers the other.

    ## What it is
    The discriminator (or, rarely, the generator) learns faster than its opponent. The discriminator is then always
    right, its loss goes to zero, and its gradients no longer tell the generator how to improve.

    ## How to confirm it
    The discriminator is right on more than 95 % of both real and generated samples for hundreds of steps. The gradient
    that reaches the generator vanishes or is noise.

    ## What to change
    Give the winner a lower learning rate or fewer steps, one-sided label smoothing (0.9), noise on its inputs, spectral
    normalization or a gradient penalty. Use the non-saturating generator loss.

    ## How to see it cured
    Both losses stay in a band for 1,000 steps. The discriminator is right on 60 to 80 % of the samples.

    ## When to stop
    If both players are balanced and samples do not improve over several thousand steps, change the architecture or the
    kind of model.
    """

    name = "adversarial-imbalance"
    explains = (
        "lopsided-losses",
        "collapsed-output",
        "gradient-vanishing",
        "not-learning",
        "loss-plateau",
        "loss-oscillation",
        "loss-divergence",
        "activation-explosion",
        "weight-growth",
        "gradient-explosion",
    )
    prior = -1.0
    suggests = ("balance-players", "spectral-norm", "scale-lr")
    references = ("https://arxiv.org/abs/1701.04862", "https://arxiv.org/abs/1802.05957")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether there are two players, and how their losses compare."""
        pair = players(chart)
        if pair is None:
            if not problem.has("lopsided-losses"):
                yield Evidence(-4.0, "no losses of a generator and a discriminator were logged")
            return
        first, second = (last_level(chart[name]) for name in pair)
        words = f"{pair[0]} is {number_text(first)}, {pair[1]} is {number_text(second)}"
        if problem.has("lopsided-losses"):
            yield Evidence(4.5, f"one player has won: {words}")
        elif (times := _unbounded(chart, pair)) > FAR:
            yield Evidence(
                6.0, f"both losses grew by a factor of {number_text(times)} or more: nothing bounds the critic"
            )
        elif min(first, second) > 0 and 0.1 < first / second < 10:
            yield Evidence(-1.5, f"both losses are of the same order: {words}")


def _unbounded(chart: Chart, pair: tuple[str, str]) -> float:
    """The smaller of the factors by which the two losses grew from their start; 0 if neither was ever negative."""
    if not min(chart[name].lowest for name in pair) < 0:
        return 0.0
    sizes = [[abs(bucket[2]) for bucket in chart[name].outline.buckets()] for name in pair]
    return min(max(size) / max(median(size[:10]), 1e-12) for size in sizes)
