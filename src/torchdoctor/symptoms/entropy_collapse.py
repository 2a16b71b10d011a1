"""PL02 entropy-collapse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.detector import Detector

ENTROPIES = ("entropy", "policy_entropy")
REWARDS = ("reward", "return", "episode_reward", "episode_return", "mean_reward", "score")


@dataclass(frozen=True)
class EntropyCollapse(Detector):
    """A policy has stopped trying anything else, and is not paid better for it.

    ## What it means
    The entropy of the chosen actions is next to zero: the policy does one thing and learns nothing about the others.
    If that one thing is poor, it stays poor.

    ## How it is told apart
    A policy that has learnt its task is decided too. Then the reward has risen by more than its own noise since the
    start, and there is nothing to report. Where no reward was logged, this is a remark only. Entropies of continuous
    actions, which may be negative, are not judged. Where the reward has fallen, half of the entropy is enough: a policy
    that becomes surer of what pays less is taught the wrong way round, or has run away. A `policy_loss` that is the
    entropy times a number, at every level of it, has the entropy with the wrong sign, whatever the reward.

    ## What to do
    Pay for entropy in the loss, lower the learning rate or the number of epochs a batch, and normalize advantages.

    ## How to see that it is cured
    Entropy falls slowly over the run, and the reward rises while it falls.

    ## Example
    >>> flat = [0.1, -0.1] * 100
    >>> print(EntropyCollapse().check(Chart.of(entropy=[1.6] * 50 + [0.01] * 150, reward=flat)))
    step 50: PL02 entropy-collapse (warning): entropy fell from 1.6 to 0.01 and reward did not rise
    """

    code = "PL02"
    name = "entropy-collapse"
    reads = ENTROPIES
    suggests = ("raise-entropy", "scale-lr", "ask-for-help")
    references = ("https://arxiv.org/abs/1602.01783",)
    every = 10
    closes_after = 3

    low: float = 0.05
    """Share of its first level under which the entropy must be."""
    surer: float = 0.5
    """The same, where the reward has fallen."""
    steps: int = 50
    """Steps that it must last."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare the entropy with where it began, and the reward with what it was."""
        series = next((chart[name] for name in ENTROPIES if chart[name]), None)
        if series is None or series.count < 2 * self.steps or series.lowest < 0:
            return None
        start = max(series.first, median([bucket[2] for bucket in series.outline.buckets()[:10]]))  # it may go at once
        recent = series.last(self.steps)
        reward = next((name for name in REWARDS if chart[name].count >= 2 * self.steps), None)
        level = float(np.quantile(recent, 0.9))
        if not level < self.surer * start:
            return None
        worse = reward is not None and rise(chart, reward) < -1
        low = self.surer if worse else self.low
        if not level < low * start:
            return None
        over = np.flatnonzero(series.values >= low * start)
        since = int(series.steps[min(over[-1] + 1, len(series) - 1)]) if over.size else int(series.steps[0])
        told = f"entropy fell from {number_text(start)} to {number_text(median(recent))}"
        severity: Severity = "info"
        if (paid := paid_for_certainty(chart, series)) > 0:
            told += f", and the policy's loss is {number_text(paid)} times it: it is paid for being sure"
            return self.symptom(chart, "warning", told, since=since)
        if reward is not None:
            if has_risen(chart, reward):
                return None
            severity, told = "warning", f"{told} and {reward} {'fell' if worse else 'did not rise'}"
        return self.symptom(chart, severity, told, since=since)


def paid_for_certainty(chart: Chart, entropy: Series, apart: float = 0.15, fell: float = 10.0) -> float:
    """How often the entropy a policy's loss contains, where it is hardly anything else at any level of it; 0 if not.

    A loss without a baseline falls with the entropy as well, but not in proportion.
    """
    losses = np.array([bucket[2] for bucket in chart["policy_loss"].outline.buckets()])
    levels = np.array([bucket[2] for bucket in entropy.outline.buckets()])
    if losses.size != levels.size or not (levels > 0).all():
        return 0.0
    fallen = levels < 0.7 * levels.max()
    ratios, levels = losses[fallen] / levels[fallen], levels[fallen]
    if levels.size < 8 or not float(levels.max()) > fell * float(levels.min()):
        return 0.0
    low, middle, high = np.percentile(ratios, (10, 50, 90))
    return float(middle) if middle > 0 and high - low < apart * middle else 0.0


def has_risen(chart: Chart, reward: str) -> bool:
    """Whether the latest fifth of a reward is above its first fifth by more than the noise of both."""
    return rise(chart, reward) > 1


def rise(chart: Chart, reward: str) -> float:
    """By how much the latest fifth of a reward is above its first fifth; 1 is more than the noise of both."""
    levels = np.array([bucket[2] for bucket in chart[reward].outline.buckets()])
    size = max(levels.size // 5, 1)
    first, last = levels[:size], levels[-size:]
    noise = float(np.hypot(first.std(), last.std())) / size**0.5
    usual = 3 * noise + 0.02 * abs(float(first.mean()))
    return float(last.mean() - first.mean()) / usual if usual > 0 else 0.0
