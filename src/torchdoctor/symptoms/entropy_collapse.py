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
    """The policy has stopped exploring, and its reward has not risen.

    ## What it means
    The entropy of the chosen actions is almost zero: the policy always takes the same action and learns nothing about
    the others. If that action is poor, the policy stays poor.

    ## How it is told apart
    A policy that has learned its task has low entropy too, but its reward has then risen by more than its noise, and
    nothing is reported. If no reward was logged, it is info. If the reward has fallen, a fall of the entropy to half is
    enough: the policy becomes surer of what pays less, so a sign is wrong or training diverged. If `policy_loss` stays
    proportional to a falling entropy, the entropy term has the wrong sign: a warning whatever the reward does.
    Entropies of continuous actions, which may be negative, are not judged.

    ## What to do
    Add an entropy bonus to the loss, lower the learning rate or the number of epochs per batch, normalize advantages.

    ## How to see that it is cured
    The entropy falls slowly over the run while the reward rises.

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
    """Share of its first level below which the entropy has collapsed."""
    surer: float = 0.5
    """The same if the reward has fallen."""
    steps: int = 50
    """Latest values of which nine of ten must be below."""

    def check(self, chart: Chart) -> Symptom | None:
        """Compare entropy and reward with their first levels."""
        series = next((chart[name] for name in ENTROPIES if chart[name]), None)
        if series is None or series.count < 2 * self.steps or series.lowest < 0:
            return None
        # The first value counts too, because the entropy may collapse at once.
        start = max(series.first, median([bucket[2] for bucket in series.outline.buckets()[:10]]))
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
            told += f", and policy_loss is {number_text(paid)} times the entropy: its entropy term has the wrong sign"
            return self.symptom(chart, "warning", told, since=since)
        if reward is not None:
            if has_risen(chart, reward):
                return None
            severity, told = "warning", f"{told} and {reward} {'fell' if worse else 'did not rise'}"
        return self.symptom(chart, severity, told, since=since)


def paid_for_certainty(chart: Chart, entropy: Series, apart: float = 0.15, fell: float = 10.0) -> float:
    """The factor between policy loss and entropy if they are proportional at every level of the entropy; else 0.

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
    """Whether the latest fifth of a reward is above its first fifth by more than their noise."""
    return rise(chart, reward) > 1


def rise(chart: Chart, reward: str) -> float:
    """How far the latest fifth of a reward is above its first fifth; above 1 it is more than their noise."""
    levels = np.array([bucket[2] for bucket in chart[reward].outline.buckets()])
    size = max(levels.size // 5, 1)
    first, last = levels[:size], levels[-size:]
    noise = float(np.hypot(first.std(), last.std())) / size**0.5
    usual = 3 * noise + 0.02 * abs(float(first.mean()))
    return float(last.mean() - first.mean()) / usual if usual > 0 else 0.0
