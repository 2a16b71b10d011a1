"""The preset "paper": the paper's fixed thresholds and its adaptive rule τ⁺ = μ + kσ, τ⁻ = max(ε, μ − kσ), as written.

These rules depend on scale: a summed loss is always above 10, and the variance of a converged one always under 1e-4.
They exist to reproduce the paper's experiments and to compare its findings with the default's. The window is 50 (20 for
plateaus) and k = 3. By default both kinds of rule fire; the setting ``rule`` selects one. Rules that the paper gives in
one form only (instability, plateau, overfitting, non-finite values) always fire; the limit for a loss is a fixed rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Series
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_explosion import GradientExplosion
from torchdoctor.symptoms.gradient_instability import GradientInstability
from torchdoctor.symptoms.gradient_vanishing import GradientVanishing
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.loss_plateau import LossPlateau
from torchdoctor.symptoms.loss_spike import LossSpike
from torchdoctor.symptoms.multiple_pathologies import MultiplePathologies
from torchdoctor.symptoms.nan_or_inf import NanOrInf
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.tensor_leaps import risen


@dataclass(frozen=True)
class PaperDetector(Detector):
    """A rule of the paper: fixed, adaptive or both."""

    closes_after: ClassVar[int] = 50
    rule: str = "either"
    """Which kind of rule may fire: "either", "fixed" or "adaptive"."""

    @property
    def fixed(self) -> bool:
        """Whether the fixed rule may fire."""
        return self.rule != "adaptive"

    @property
    def adaptive(self) -> bool:
        """Whether the adaptive rule may fire."""
        return self.rule != "fixed"


def mean_and_deviation(series: Series, window: int) -> tuple[float, float]:
    """μ and σ of the full trailing window before the current value; NaN until it is full.

    >>> mean_and_deviation(Chart.of(loss=[1.0, 3.0, 9.0])["loss"], 2)
    (2.0, 1.0)
    """
    values = series.last(window + 1)[:-1]
    if values.size < window:
        return math.nan, math.nan
    return float(values.mean()), float(values.std())


@dataclass(frozen=True)
class PaperGradientExplosion(PaperDetector):
    """The gradient norm exceeds 10, or μ + 3σ of its last 50 values."""

    code = GradientExplosion.code
    name = GradientExplosion.name
    reads = GradientExplosion.reads
    suggests = GradientExplosion.suggests
    limit: float = 10.0
    k: float = 3.0
    window: int = 50

    def check(self, chart: Chart) -> Symptom | None:
        """Fixed first, then adaptive."""
        norm = chart["grad_norm"].latest
        mean, deviation = mean_and_deviation(chart["grad_norm"], self.window)
        for active, limit, formula in (
            (self.fixed, self.limit, ""),
            (self.adaptive, mean + self.k * deviation, f"μ + {self.k:g}σ = "),
        ):
            if active and limit < norm < math.inf:
                message = f"gradient norm {number_text(norm)} exceeds {formula}{number_text(limit)}"
                return self.symptom(chart, "warning", message, value=norm, limit=limit, where=risen(chart)[0])
        return None


@dataclass(frozen=True)
class PaperGradientVanishing(PaperDetector):
    """The gradient norm is below 1e-7, or below max(ε, μ − 3σ) of its last 50 values."""

    code = GradientVanishing.code
    name = GradientVanishing.name
    reads = ("grad_norm",)
    suggests = GradientVanishing.suggests
    limit: float = 1e-7
    k: float = 3.0
    window: int = 50

    def check(self, chart: Chart) -> Symptom | None:
        """Fixed first, then adaptive."""
        norm = chart["grad_norm"].latest
        if self.fixed and norm < self.limit:
            text = f"gradient norm {number_text(norm)} is below {number_text(self.limit)}"
            return self.symptom(chart, "warning", text, value=norm, limit=self.limit)
        mean, deviation = mean_and_deviation(chart["grad_norm"], self.window)
        floor = max(self.limit, mean - self.k * deviation)
        if self.adaptive and norm < floor:
            text = f"gradient norm {number_text(norm)} is below μ - {self.k:g}σ = {number_text(floor)}"
            return self.symptom(chart, "warning", text, value=norm, limit=floor)
        return None


@dataclass(frozen=True)
class PaperGradientInstability(PaperDetector):
    """The coefficient of variation of the last 50 gradient norms exceeds 2."""

    code = GradientInstability.code
    name = GradientInstability.name
    reads = GradientInstability.reads
    suggests = GradientInstability.suggests
    limit: float = 2.0
    window: int = 50

    def check(self, chart: Chart) -> Symptom | None:
        """σ/μ of a full window."""
        values = chart["grad_norm"].last(self.window)
        if values.size < self.window or not float(values.mean()) > 0:
            return None
        variation = float(values.std() / values.mean())
        if variation > self.limit:
            text = f"standard deviation of the last {self.window} gradient norms is {variation:.2f} times their mean"
            return self.symptom(chart, "warning", text, value=variation, limit=self.limit)
        return None


@dataclass(frozen=True)
class PaperLossSpike(PaperDetector):
    """The loss is more than twice the previous one, or above μ + 3σ of its last 50 values."""

    code = LossSpike.code
    name = LossSpike.name
    reads = LossSpike.reads
    suggests = LossSpike.suggests
    ratio: float = 2.0
    k: float = 3.0
    window: int = 50

    def check(self, chart: Chart) -> Symptom | None:
        """Fixed first, then adaptive."""
        series = chart["loss"]
        loss = series.latest
        if not math.isfinite(loss) or len(series) < 2:
            return None
        previous = float(series.last(2)[0])
        if self.fixed and previous > 0 and loss > self.ratio * previous:
            text = f"loss {number_text(loss)} is more than {self.ratio:g} times the {number_text(previous)} before it"
            return self.symptom(chart, "warning", text, value=loss, limit=self.ratio * previous)
        mean, deviation = mean_and_deviation(series, self.window)
        limit = mean + self.k * deviation
        if self.adaptive and loss > limit:
            text = f"loss {number_text(loss)} exceeds μ + {self.k:g}σ = {number_text(limit)}"
            return self.symptom(chart, "warning", text, value=loss, limit=limit)
        return None


@dataclass(frozen=True)
class PaperLossDivergence(PaperDetector):
    """The loss exceeds 10."""

    code = LossDivergence.code
    name = LossDivergence.name
    reads = LossDivergence.reads
    suggests = LossDivergence.suggests
    limit: float = 10.0

    def check(self, chart: Chart) -> Symptom | None:
        """Compare with an absolute limit: there is no adaptive form."""
        loss = chart["loss"].latest
        if self.fixed and self.limit < loss < math.inf:
            text = f"loss {number_text(loss)} exceeds {number_text(self.limit)}"
            return self.symptom(chart, "warning", text, value=loss, limit=self.limit)
        return None


@dataclass(frozen=True)
class PaperLossPlateau(PaperDetector):
    """The variance of the last 20 losses is below 1e-4."""

    code = LossPlateau.code
    name = LossPlateau.name
    reads = LossPlateau.reads
    suggests = LossPlateau.suggests
    limit: float = 1e-4
    window: int = 20

    def check(self, chart: Chart) -> Symptom | None:
        """The variance of a full window."""
        values = chart["loss"].last(self.window)
        if values.size < self.window:
            return None
        variance = float(np.var(values))
        if variance < self.limit:
            text = f"the variance of the last {self.window} losses is only {number_text(variance)}"
            return self.symptom(chart, "warning", text, value=variance, limit=self.limit)
        return None


@dataclass(frozen=True)
class PaperOverfitting(PaperDetector):
    """Validation loss minus training loss exceeds 0.2 (moderate) or 0.5 (severe)."""

    code = Overfitting.code
    name = Overfitting.name
    reads = Overfitting.reads
    suggests = Overfitting.suggests
    closes_after = 2
    moderate: float = 0.2
    severe: float = 0.5
    window: int = 50

    def check(self, chart: Chart) -> Symptom | None:
        """The gap to the mean training loss of the window."""
        train = chart["loss"].last(self.window)
        if not train.size:
            return None
        gap = chart["val_loss"].latest - float(train.mean())
        if self.moderate < gap < math.inf:
            severe = gap > self.severe
            text = f"validation loss is {number_text(gap)} above training: {'severe' if severe else 'moderate'}"
            limit = self.severe if severe else self.moderate
            return self.symptom(chart, "critical" if severe else "warning", text, value=gap, limit=limit)
        return None


PAPER_DETECTORS: tuple[type[Detector], ...] = (
    PaperGradientExplosion,
    PaperGradientVanishing,
    PaperGradientInstability,
    PaperLossSpike,
    PaperLossDivergence,
    PaperLossPlateau,
    NanOrInf,
    PaperOverfitting,
    MultiplePathologies,
)
