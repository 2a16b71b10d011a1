"""DA01 input-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
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
)
from torchdoctor.symptoms.not_learning import chance_level
from torchdoctor.symptoms.progress import SETTLED, Progress, is_unrolled

BROKEN = ("nan-or-inf", "loss-divergence", "unexpected-initial-loss", "activation-explosion")
"""What inputs that are too large bring about, normalized or not."""
UNEVEN = 100.0
"""Times the usual feature that one feature is: in a sum of them, the others are not heard."""


@dataclass(frozen=True)
class InputAnomaly(Detector):
    """The inputs are off by orders of magnitude, all the same, or not finite.

    ## What it means
    Layers are initialized for inputs of about mean 0 and deviation 1. Pixels from 0 to 255, a column in thousands
    beside others near 1, or values of 1e-4 make the first layer too loud or too quiet: learning is unstable or slow.
    If all samples of a batch are equal, there is nothing to learn from, unless the loss falls all the same.

    ## How it is told apart
    What counts is the scale at the door of the first layer, and of later ones that are fed with an input too (a time, a
    second model's data, numbers beside embeddings), after whatever the model does to its inputs, and not where a
    normalization comes first or right after it; where one feature drowns the others, only one that comes first helps.
    Pixels in [0, 1], one-hot and sparse inputs are healthy; so is an offset. Border pixels are constant in every batch:
    only a batch whose samples are all equal is a finding, or one in which a tenth of the samples are blank, again and
    again. An offset that is fifty times what samples differ by is one too, and so are training inputs that are nearly
    all erased: a warning where the model hardly learns, else a note. A scale that leaps by ten in the middle of a run,
    or drifts by two and a half, and a loss that is worse for it (validation's, where its own inputs stay what they
    were), is a warning whatever normalizes; so is a mean that moves by two deviations, unless a normalization takes it
    off. Tokens that are dropped at random come as themselves elsewhere; where all above some number never come, and are
    asked for, inputs were clipped.

    ## What to do
    `x = (x - mean) / std` with the training set's mean and deviation, by feature or by channel; or a BatchNorm as first
    layer. For values that are not finite: find the samples, `torch.isfinite(x).all()`.

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
    """Samples in a row that must show a scale, or batches of equal samples."""
    large: float = 30.0
    """Root mean square of what enters the first layer: a warning; a third of it is a note."""
    blank: float = 0.1
    """Share of samples without any content, in every batch, that costs the model what their labels say."""
    erased: float = 0.7
    """Share of zeros in what training is fed, where validation is fed whole samples."""
    offset: float = 0.02
    """Share of their size by which samples differ, under which they are nearly one and the same."""
    leap: float = LEAP
    """Times by which the scale of inputs must have changed in the middle of a run; of less, more must come."""
    away: float = 2.0
    """Deviations of a value by which the mean of inputs must have moved in the middle of a run."""
    unheard: float = 0.05
    """Share of next tokens, all of them above those that inputs hold, that is asked for and never given."""
    small: float = 0.01
    """Largest value of what enters the first layer, under which it is too small."""

    def check(self, chart: Chart) -> Symptom | None:
        """Not finite, then all equal, then the scale."""
        wrong = chart["input_nonfinite"]
        if wrong.step == chart.step and wrong.latest > 0:
            message = f"{number_text(wrong.latest)} values of the input are not finite"
            return self.symptom(chart, "warning", message, value=wrong.latest, limit=0.0)
        constant = chart["input_constant"].last(self.samples)
        if constant.size == self.samples and float(constant.min()) == 1.0 and not is_unrolled(chart):
            message = "all samples of a batch are equal: the inputs carry nothing to learn from"
            severity: Severity = "info" if _learns_from_elsewhere(chart) else "warning"
            return self.symptom(chart, severity, message, value=1.0, since=int(chart["input_constant"].steps[0]))
        return (
            self._clipped(chart)
            or self._leapt(chart)
            or self._moved(chart)
            or self._erased(chart)
            or self._blank(chart)
            or self._scale(chart)
            or self._offset(chart)
            or self._muffled(chart)
            or self._side(chart)
        )

    def _clipped(self, chart: Chart) -> Symptom | None:
        """Next tokens are asked for, and all of them above some number are missing from the inputs."""
        beyond, following = chart["target_beyond"].last(self.samples), chart["target_is_next"].last(self.samples)
        if beyond.size < self.samples or following.size < self.samples:
            return None
        lost = 1 - float(following.max())
        if not float(beyond.min()) > 0.99 or not self.unheard < lost < 1 - self.unheard:
            return None
        message = f"{lost:.0%} of the tokens asked for are above all that inputs hold, where others stand in their "
        message += "place: the inputs were clipped to a smaller vocabulary"
        since = int(chart["target_beyond"].steps[0])
        return self.symptom(chart, "warning", message, value=lost, limit=self.unheard, confidence=0.9, since=since)

    def _erased(self, chart: Chart) -> Symptom | None:
        """Nearly all of each training input is zero, and in validation it is not."""
        share = erased_share(chart)
        if not share > self.erased:
            return None
        severity: Severity = "warning" if hardly_learns(chart) or _validation_leads(chart) else "info"
        message = f"{share:.0%} of what training is fed is zero, and validation is fed whole samples"
        since = int(chart["input_zero"].steps[0])
        return self.symptom(chart, severity, message, value=share, limit=self.erased, since=since)

    def _leapt(self, chart: Chart) -> Symptom | None:
        """Inputs are of another scale than before, by far, and the loss has suffered."""
        times, since = leap_of_scale(chart)
        if times == 1.0:
            return None
        far = times > self.leap
        suffered = has_suffered(chart, since) if far else has_suffered(chart, since, steps=32, doubts=4.0)
        if not suffered and not costs_validation(chart, since):
            return None
        now, before = chart["entry_rms"].latest, median(chart["entry_rms"].values[chart["entry_rms"].steps < since])
        whose, limit = "the loss" if suffered else "validation", self.leap if far else DRIFT
        message = f"inputs went from a size of {number_text(before)} to {number_text(now)} after step {since}, and "
        message += f"{whose} has suffered: they are scaled in place, or once too often"
        return self.symptom(chart, "warning", message, value=times, limit=limit, since=since)

    def _moved(self, chart: Chart) -> Symptom | None:
        """The mean of all inputs is no longer where it was, by far, and the loss has suffered."""
        shift, since = shift_of_mean(chart)
        # Less of a change than another scale: more must come of it.
        if not shift > self.away or removes_offsets(chart) or not has_suffered(chart, since, steps=32, doubts=4.0):
            return None
        message = f"the mean of inputs has moved by {number_text(shift)} of their deviations since step {since}, and "
        message += "the loss has suffered: an offset grows, or they are normalized otherwise than before"
        return self.symptom(chart, "warning", message, value=shift, limit=self.away, since=since)

    def _offset(self, chart: Chart) -> Symptom | None:
        """All samples are nearly the same number: what they differ by is drowned by what they share."""
        spread = drowned_spread(chart)
        if not spread < self.offset:
            return None
        severity: Severity = "warning" if hardly_learns(chart) else "info"
        message = f"inputs differ from sample to sample by {number_text(spread)} of their size, and the rest is one "
        message += "offset: what the first layer gets is nearly the same for all"
        since = int(chart["entry_spread"].steps[0])
        return self.symptom(chart, severity, message, value=spread, limit=self.offset, since=since)

    def _muffled(self, chart: Chart) -> Symptom | None:
        """Large inputs before a normalization that keeps what all samples share, and a model that is stuck."""
        sizes = chart["entry_rms"].last(self.samples)
        if sizes.size < self.samples or not float(sizes.min()) > self.large or removes_offsets(chart):
            return None
        if _is_made_for_it(chart):
            return None
        broken = any(name in chart.open_episodes for name in BROKEN)
        if chart["entry_rms"].count < 2 * self.samples or not (broken or hardly_learns(chart)):
            return None
        message = f"inputs of size {number_text(median(sizes))} enter the first layer; the normalization after it "
        message += "keeps what all samples share, and the run does not learn"
        first = int(chart["entry_rms"].steps[0])
        return self.symptom(chart, "warning", message, value=median(sizes), limit=self.large, since=first)

    def _blank(self, chart: Chart) -> Symptom | None:
        """Samples in which there is nothing, in every batch looked at: files that could not be read."""
        series = chart["input_blank"]
        shares = series.last(self.samples)
        if shares.size < self.samples or not self.blank < float(shares.min()):
            return None
        if float(shares.min()) == 1.0 and is_unrolled(chart):
            return None  # a path begins where nothing is known yet
        message = f"{100 * median(shares):.0f} % of the samples are blank: all of their values are one number"
        first = int(series.steps[-shares.size])
        severity: Severity = "info" if _is_sparse_table(chart) else "warning"
        return self.symptom(chart, severity, message, value=median(shares), limit=self.blank, since=first)

    def _side(self, chart: Chart) -> Symptom | None:
        """The scale at another door: a second input, a time, what a second model is fed."""
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
        # A bias before the normalization hides small inputs from it, unless it takes off what all samples share.
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
            message += f"; one feature is {number_text(ratio)} times the usual one"
        first = int(chart["entry_rms"].steps[-sizes.size])
        return self.symptom(chart, severity, message, value=size, limit=self.large, since=first)


def _is_made_for_it(chart: Chart, least: float = 0.1, most: float = 3.0) -> bool:
    """Whether the first layer makes values of about 1 that differ from sample to sample, whatever the inputs' size.

    Its weights were given the size that the inputs ask for. Others make large values of large inputs, and of tiny ones
    nothing, or what the bias is.
    """
    sizes, spreads = chart.modules("act_rms"), chart.modules("act_spread")
    if not sizes.rows or not spreads.rows or not sizes.rows[0][1].size or not spreads.rows[0][1].size:
        return False
    return bool(least < sizes.rows[0][1][0] < most and spreads.rows[0][1][0] > 0.3)


def _is_sparse_table(chart: Chart, zeros: float = 0.7) -> bool:
    """Whether most of a table is zero, in rows that are not blank too: a row without any entry is one of them."""
    blank, zero = chart["input_blank"].latest, chart["input_zero"].latest
    return len(chart.context.get("input_shape") or ()) == 2 and blank < 1 and (zero - blank) / (1 - blank) > zeros


def _learns_from_elsewhere(chart: Chart) -> bool:
    """Whether the loss has fallen by more than an average answer explains, or is still too young to tell.

    Nodes of a graph may be equal by design: what is learnt from is how they are connected.
    """
    loss, chance = chart["loss"], chance_level(chart)
    if not loss:
        return False
    limit = 0.8 * chance if chance > 0 else 0.5 * Progress.of(loss).start
    return loss.count < SETTLED or (median(loss.last(8)) < limit and chart["output_spread"].latest > 0.01)


def normalizes_each(chart: Chart) -> bool:
    """Whether a normalization comes before the first layer that adds features up: after it, it comes too late."""
    return "Norm" in next(iter(chart.fact("modules.kinds", ())), "")


def removes_offsets(chart: Chart) -> bool:
    """Whether a normalization takes off what all samples share: one that comes first, or of a batch right after."""
    kinds = [str(kind) for kind in chart.fact("modules.kinds", ())]
    follows = bool(chart.fact("data.normalized_first")) and any("BatchNorm" in kind for kind in kinds[:3])
    return normalizes_each(chart) or follows


def drowned_spread(chart: Chart, samples: int = 3) -> float:
    """The share of their size by which samples differ at the first layer; NaN where unknown or taken care of."""
    spreads = chart["entry_spread"].last(samples)
    if spreads.size < samples or not float(spreads.min()) > 0 or removes_offsets(chart):
        return math.nan
    return float(spreads.max())


def erased_share(chart: Chart, samples: int = 3, wider: float = 1.8) -> float:
    """The share of zeros in what training is fed, where passes without gradients are fed far wider inputs; or NaN.

    Only of classes: where what is erased is to be filled in, it is the task.
    """
    zeros, own, idle = (chart[name].last(samples) for name in ("input_zero", "input_std", "idle_input_std"))
    if zeros.size < samples or not idle.size or not chart.fact("loss.classes"):
        return math.nan
    return float(zeros.min()) if float(idle.min()) > wider * float(own.max()) > 0 else math.nan


def _validation_leads(chart: Chart) -> bool:
    """Whether validation, on whole samples, is clearly better than training."""
    loss, held_out = chart["loss"], chart["val_loss"]
    return held_out.count >= 2 and held_out.latest < 0.93 * median(loss.last(32))
