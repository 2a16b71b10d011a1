"""DA01 input-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.input_drift import (
    DRIFT,
    LEAP,
    costs_validation,
    hardly_learns,
    has_suffered,
    leap_of_scale,
    shift_of_mean,
    spares_validation,
    swinging_scale,
)
from torchdoctor.symptoms.not_learning import chance_level
from torchdoctor.symptoms.progress import SETTLED, Progress, is_unrolled

BROKEN = ("nan-or-inf", "loss-divergence", "unexpected-initial-loss", "activation-explosion")
"""Findings that inputs which are too large may cause, normalized or not."""
UNEVEN = 100.0
"""Ratio of the largest feature to the typical one above which it drowns out the others."""


@dataclass(frozen=True)
class InputAnomaly(Detector):
    """The inputs are wrong in scale by orders of magnitude, all equal, or not finite.

    ## What it means
    Layers are initialized for inputs with mean 0 and standard deviation 1. Pixels from 0 to 255, a column in thousands
    next to others near 1, or values of 1e-4 make the first layer's outputs too large or too small: learning is unstable
    or slow. If all samples of a batch are equal, there is nothing to learn from them.

    ## How it is told apart
    The scale is measured where inputs enter the first layer, after any preprocessing inside the model, and at later
    layers that get an input directly (a time, a second model's data, numbers next to embeddings). It is not judged if a
    normalization comes first or right after that layer; if one feature drowns out the others, only one that comes first
    helps. Pixels in [0, 1], one-hot and sparse inputs are healthy, and so is an offset. Also reported are:

    - batches of equal samples, or with a tenth of blank samples each time (constant border pixels are fine);
    - an offset fifty times as large as the differences between samples, and training inputs that are mostly zeros while
      validation inputs are not: a warning if the model hardly learns, else info;
    - a scale that jumps by a factor of 10 or drifts by 2.5 in the middle of the run, or a mean that moves by two
      standard deviations without a normalization to remove it, if the loss gets worse (that of validation, if known);
    - batches that are thirty times as large as the others, again and again: some come from another source or unit;
    - tokens above some number that are in the targets but never in the inputs: these were clipped. Tokens that are
      dropped at random do appear elsewhere.

    ## What to do
    `x = (x - mean) / std` with mean and standard deviation of the training set, per feature or channel, or BatchNorm as
    the first layer. For values that are not finite, find the samples: `torch.isfinite(x).all()`.

    ## How to see that it is cured
    `entry_rms` is between 0.1 and 3.

    ## Example
    >>> print(InputAnomaly().check(Chart.of(entry_rms=[140.0] * 3, entry_absmax=[255.0] * 3)))
    step 0: DA01 input-anomaly (warning): inputs of size 140 (largest 255) enter the first layer, which expects about 1
    """

    code = "DA01"
    name = "input-anomaly"
    reads = (
        "entry_rms",
        "side_entry_rms",
        "input_nonfinite",
        "input_mean",
        "input_constant",
        "input_blank",
        "entry_spread",
        "target_beyond",
    )
    suggests = ("normalize-inputs", "clean-data", "add-normalization")
    references = ("https://link.springer.com/chapter/10.1007/978-3-642-35289-8_3",)
    closes_after = 3

    samples: int = 3
    """Samples in a row that must show it."""
    large: float = 30.0
    """Root mean square of the first layer's input above which it is a warning; above a third of this it is info."""
    blank: float = 0.1
    """Share of blank samples above which every batch must be: the labels of these samples teach nothing."""
    erased: float = 0.7
    """Share of zeros in training inputs above which they are erased, if validation inputs are whole."""
    offset: float = 0.02
    """Difference between samples, as a share of their size, below which the rest is an offset."""
    leap: float = LEAP
    """Factor of a change in scale above which a small rise of the loss suffices; below it, the loss must rise more."""
    away: float = 2.0
    """Standard deviations by which the mean of inputs must have moved in the middle of the run."""
    unheard: float = 0.05
    """Share of target tokens, all above the highest input token, above which inputs were clipped."""
    small: float = 0.01
    """Largest absolute value of the first layer's input below which the input is too small."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check for values that are not finite, then for equal samples, then for changes, content and scale."""
        wrong = chart["input_nonfinite"]
        if wrong.step == chart.step and wrong.latest > 0:
            message = f"{number_text(wrong.latest)} values of the input are not finite"
            return self.symptom(chart, "warning", message, value=wrong.latest, limit=0.0)
        constant = chart["input_constant"].last(self.samples)
        if constant.size == self.samples and float(constant.min()) == 1.0 and not is_unrolled(chart):
            message = "all samples of a batch are equal: the inputs carry no information"
            severity: Severity = "info" if _learns_from_elsewhere(chart) else "warning"
            return self.symptom(chart, severity, message, value=1.0, since=int(chart["input_constant"].steps[0]))
        return (
            self._clipped(chart)
            or self._leapt(chart)
            or self._swings(chart)
            or self._moved(chart)
            or self._erased(chart)
            or self._blank(chart)
            or self._scale(chart)
            or self._offset(chart)
            or self._muffled(chart)
            or self._side(chart)
        )

    def _clipped(self, chart: Chart) -> Symptom | None:
        """Check for target tokens above some number that never appear in the inputs."""
        beyond, following = chart["target_beyond"].last(self.samples), chart["target_is_next"].last(self.samples)
        if beyond.size < self.samples or following.size < self.samples:
            return None
        lost = 1 - float(following.max())
        if not float(beyond.min()) > 0.99 or not self.unheard < lost < 1 - self.unheard:
            return None
        message = f"{share_text(lost)} of the target tokens are above every input token, and the inputs have other "
        message += "tokens in their place: the inputs were clipped to a smaller vocabulary"
        since = int(chart["target_beyond"].steps[0])
        return self.symptom(chart, "warning", message, value=lost, limit=self.unheard, confidence=0.9, since=since)

    def _erased(self, chart: Chart) -> Symptom | None:
        """Check for training inputs that are mostly zeros while validation inputs are not."""
        share = erased_share(chart)
        if not share > self.erased:
            return None
        severity: Severity = "warning" if hardly_learns(chart) or _validation_leads(chart) else "info"
        message = f"{share_text(share)} of the training input is zero, but validation gets whole samples"
        since = int(chart["input_zero"].steps[0])
        return self.symptom(chart, severity, message, value=share, limit=self.erased, since=since)

    def _leapt(self, chart: Chart) -> Symptom | None:
        """Check for a change in the scale of inputs that made the loss worse."""
        times, since = leap_of_scale(chart)
        if times == 1.0:
            return None
        far = times > self.leap
        suffered = has_suffered(chart, since) if far else has_suffered(chart, since, steps=32, doubts=4.0)
        if not suffered and not costs_validation(chart, since):
            return None
        now, before = chart["entry_rms"].latest, median(chart["entry_rms"].values[chart["entry_rms"].steps < since])
        whose, limit = "the loss" if suffered else "the validation loss", self.leap if far else DRIFT
        message = f"inputs went from a size of {number_text(before)} to {number_text(now)} by step {since}, and "
        message += f"{whose} got worse: they are scaled in place, or once too often"
        return self.symptom(chart, "warning", message, value=times, limit=limit, since=since)

    def _swings(self, chart: Chart) -> Symptom | None:
        """Check for batches that are far larger than the others, again and again: another source or unit."""
        usual, large, count = swinging_scale(chart)
        if not large > self.large or removes_offsets(chart):
            return None
        looked = chart["entry_rms"].last(10).size
        message = f"in {count} of the last {looked} batches checked, inputs are of size {number_text(large)}, in the "
        message += f"others of {number_text(usual)}: they are not all scaled alike"
        since = int(chart["entry_rms"].steps[np.flatnonzero(chart["entry_rms"].values > 0.3 * large)[0]])
        return self.symptom(chart, "warning", message, value=large, limit=self.large, since=since)

    def _moved(self, chart: Chart) -> Symptom | None:
        """Check for a change in the mean of inputs that made the loss worse."""
        shift, since = shift_of_mean(chart)
        # A shift of the mean does less harm than a change of scale, so the loss must rise more.
        if not shift > self.away or removes_offsets(chart) or spares_validation(chart, since):
            return None
        suffered = has_suffered(chart, since, steps=32, doubts=4.0)
        if not suffered and not costs_validation(chart, since):
            return None
        message = f"the mean of inputs has moved by {number_text(shift)} standard deviations since step {since}, and "
        message += f"the {'' if suffered else 'validation '}loss got worse: an offset grows, or the normalization has "
        message += "changed"
        return self.symptom(chart, "warning", message, value=shift, limit=self.away, since=since)

    def _offset(self, chart: Chart) -> Symptom | None:
        """Check for an offset that drowns out the differences between samples."""
        spread = drowned_spread(chart)
        if not spread < self.offset:
            return None
        severity: Severity = "warning" if hardly_learns(chart) else "info"
        message = (
            f"inputs differ between samples by only {number_text(spread)} of their size, and the rest is a common "
        )
        message += "offset: the first layer gets nearly the same input for all"
        since = int(chart["entry_spread"].steps[0])
        return self.symptom(chart, severity, message, value=spread, limit=self.offset, since=since)

    def _muffled(self, chart: Chart) -> Symptom | None:
        """Check for large inputs before a normalization that keeps a common offset, in a run that does not learn."""
        sizes = chart["entry_rms"].last(self.samples)
        if sizes.size < self.samples or not float(sizes.min()) > self.large or removes_offsets(chart):
            return None
        if _is_made_for_it(chart):
            return None
        broken = any(name in chart.open_episodes for name in BROKEN)
        if chart["entry_rms"].count < 2 * self.samples or not (broken or hardly_learns(chart)):
            return None
        message = f"inputs of size {number_text(median(sizes))} enter the first layer; the normalization after it "
        message += "does not remove what all samples share, and the run does not learn"
        first = int(chart["entry_rms"].steps[0])
        return self.symptom(chart, "warning", message, value=median(sizes), limit=self.large, since=first)

    def _blank(self, chart: Chart) -> Symptom | None:
        """Check for blank samples in every batch checked, such as files that could not be read."""
        series = chart["input_blank"]
        shares = series.last(self.samples)
        if shares.size < self.samples or not self.blank < float(shares.min()):
            return None
        if float(shares.min()) == 1.0 and is_unrolled(chart):
            return None  # a loop over time may start from blank inputs
        message = f"{100 * median(shares):.0f} % of the samples are blank: all of their values are equal"
        first = int(series.steps[-shares.size])
        severity: Severity = "info" if _is_sparse_table(chart) else "warning"
        return self.symptom(chart, severity, message, value=median(shares), limit=self.blank, since=first)

    def _side(self, chart: Chart) -> Symptom | None:
        """Check the scale of a second input: a time, a second model's data."""
        series = chart["side_entry_rms"]
        sizes = series.last(self.samples)
        if sizes.size < self.samples or not float(sizes.min()) > self.large:
            return None
        message = f"a second input of size {number_text(median(sizes))} enters a layer that expects about 1"
        first = int(series.steps[-sizes.size])
        return self.symptom(chart, "warning", message, value=median(sizes), limit=self.large, since=first)

    def _scale(self, chart: Chart) -> Symptom | None:
        sizes, largest = chart["entry_rms"].last(self.samples), chart["entry_absmax"].last(self.samples)
        if sizes.size < self.samples or largest.size < self.samples:
            return None
        ratio = chart["entry_ratio"].latest
        drowns = ratio > UNEVEN and not normalizes_each(chart)
        size, top = median(sizes), median(largest)
        # A bias before the normalization hides small inputs, unless the normalization removes what all samples share.
        hidden = 0 < top < self.small and not removes_offsets(chart) and hardly_learns(chart)
        if (chart.fact("data.normalized_first") or _is_made_for_it(chart)) and not drowns and not hidden:
            return None
        severity: Severity
        if float(sizes.min()) > self.large / 3:
            severity = "warning" if drowns or float(sizes.min()) > self.large else "info"
        elif 0 < top < self.small:
            severity = "warning"
        else:
            return None
        message = f"inputs of size {number_text(size)} (largest {number_text(top)}) enter the first layer, "
        message += "which expects about 1"
        if ratio > UNEVEN:
            message += f"; one feature is {number_text(ratio)} times the typical one"
        first = int(chart["entry_rms"].steps[-sizes.size])
        return self.symptom(chart, severity, message, value=size, limit=self.large, since=first)


def _is_made_for_it(chart: Chart, least: float = 0.1, most: float = 3.0) -> bool:
    """Whether the first layer's outputs are about 1 and differ between samples, whatever the inputs' size.

    Its weights were initialized for this scale. Others give large outputs for large inputs, and for tiny inputs zero or
    the bias.
    """
    sizes, spreads = chart.modules("act_rms"), chart.modules("act_spread")
    if not sizes.rows or not spreads.rows or not sizes.rows[0][1].size or not spreads.rows[0][1].size:
        return False
    return bool(least < sizes.rows[0][1][0] < most and spreads.rows[0][1][0] > 0.3)


def _is_sparse_table(chart: Chart, zeros: float = 0.7) -> bool:
    """Whether most of a table is zero even in rows that are not blank: a blank row is then normal."""
    blank, zero = chart["input_blank"].latest, chart["input_zero"].latest
    return len(chart.context.get("input_shape") or ()) == 2 and blank < 1 and (zero - blank) / (1 - blank) > zeros


def _learns_from_elsewhere(chart: Chart) -> bool:
    """Whether the loss is clearly below that of a constant guess and outputs vary, or it is too early to tell.

    Nodes of a graph may be equal by design: the model then learns from their connections.
    """
    loss, chance = chart["loss"], chance_level(chart)
    if not loss:
        return False
    limit = 0.8 * chance if chance > 0 else 0.5 * Progress.of(loss).start
    return loss.count < SETTLED or (median(loss.last(8)) < limit and chart["output_spread"].latest > 0.01)


def normalizes_each(chart: Chart) -> bool:
    """Whether a normalization comes before the first layer that sums features."""
    return "Norm" in next(iter(chart.fact("modules.kinds", ())), "")


def removes_offsets(chart: Chart) -> bool:
    """Whether a normalization removes what all samples share: one that comes first, or a BatchNorm soon after."""
    kinds = [str(kind) for kind in chart.fact("modules.kinds", ())]
    follows = bool(chart.fact("data.normalized_first")) and any("BatchNorm" in kind for kind in kinds[:3])
    return normalizes_each(chart) or follows


def drowned_spread(chart: Chart, samples: int = 3) -> float:
    """The share of their size by which samples differ at the first layer; NaN if unknown or normalized away."""
    spreads = chart["entry_spread"].last(samples)
    if spreads.size < samples or not float(spreads.min()) > 0 or removes_offsets(chart):
        return math.nan
    return float(spreads.max())


def erased_share(chart: Chart, samples: int = 3, wider: float = 1.8) -> float:
    """The share of zeros in training inputs if inputs in passes without gradients vary far more; else NaN.

    Only for classification: in other tasks, filling in what is erased may be the goal.
    """
    zeros, own, idle = (chart[name].last(samples) for name in ("input_zero", "input_std", "idle_input_std"))
    if zeros.size < samples or not idle.size or not chart.fact("loss.classes"):
        return math.nan
    return float(zeros.min()) if float(idle.min()) > wider * float(own.max()) > 0 else math.nan


def _validation_leads(chart: Chart) -> bool:
    """Whether validation, on whole samples, is clearly better than training."""
    loss, held_out = chart["loss"], chart["val_loss"]
    return held_out.count >= 2 and held_out.latest < 0.93 * median(loss.last(32))
