"""DA03 batch-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, acts, is_game
from torchdoctor.symptoms.target_values import climbs_from_zero
from torchdoctor.symptoms.validation_inputs import evenly, is_like_training

FEWEST = 4
"""Smallest batch size at which the spread of targets within a batch is judged."""


@dataclass(frozen=True)
class BatchAnomaly(Detector):
    """The same batch again and again, or batches sorted by class.

    ## What it means
    A loop that takes the first batch of a new iterator at each step trains on a few samples forever: the training loss
    is excellent and validation is not. With data sorted by class, the model forgets each class while it sees the next.

    ## How it is told apart
    Inputs are compared by checksum. Training on the whole data set at once, or overfitting one batch on purpose,
    repeats the batch too, so a repeated batch alone is info. These are warnings:

    - The batch repeats after different batches came before.
    - A small batch is read anew each time with the same content, and validation does not follow or is far worse.
    - A small batch holds the same samples in a different order, and validation is twice as high as training.
    - Only a few different batches come, or no sample that was not in the first few, and validation is ten times as
      high as training.
    - Each batch holds several copies of each sample, and the task is classification (otherwise info).
    - Two samples of a batch share a class far more often than two samples of the run. Balanced or few-shot samplers
      stay far below this limit.
    - Float targets are in order (info by itself, because a time series is) and it does harm: the loss spikes or
      oscillates, errors exceed the spread within a batch, or validation on similar inputs is three times as high as
      training. Targets that climb steadily from zero stay info: they may be estimates of the model itself.

    ## What to do
    `for x, y in loader:` instead of `next(iter(loader))` inside the loop; `DataLoader(..., shuffle=True)`; with
    several processes `sampler.set_epoch(epoch)`; no seed set inside the loop.

    ## How to see that it is cured
    `input_checksum` changes from batch to batch; `target_collision` is near `pooled_collision`.

    ## Example
    >>> chart = Chart.of(input_checksum=[7.25] * 60, context={"batch_size": 32})
    >>> print(BatchAnomaly().check(chart))
    step 0: DA03 batch-anomaly (warning): every batch checked is the same one, of 32 samples
    """

    code = "DA03"
    name = "batch-anomaly"
    reads = ("input_checksum", "target_collision", "target_std", "val_loss")
    suggests = ("shuffle-data", "clean-data")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    closes_after = 3

    samples: int = 5
    """Batches in a row, as sampled, that must agree."""
    small: int = 128
    """Largest batch size that is unlikely to be the whole data set."""
    few: int = 6
    """Number of different batches up to which the data counts as only a few batches."""
    patience: int = 50
    """Steps before a small batch that is read anew each time is a warning: validation may show that it is enough."""
    copies: float = 0.3
    """Share of different samples in a batch below which the batch counts as copies."""
    order: float = 0.35
    """Excess of the chance of a shared class within a batch over that in the run, above which data is sorted."""
    narrow: float = 0.3
    """Spread of float targets within a batch, as a share of the spread of batch means, below which data is sorted."""
    forgotten: float = 0.5
    """The same if validation shows that the model forgets other batches."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check for repeated batches, then for few or copied samples, then for sorted labels and values."""
        return (
            self._repeated(chart)
            or self._reordered(chart)
            or self._few(chart)
            or self._copied(chart)
            or self._sorted(chart)
            or self._narrow(chart)
        )

    def _reordered(self, chart: Chart) -> Symptom | None:
        """Every batch holds the same samples in a different order: they are all the data, and too few."""
        size = chart.context.get("batch_size")
        if not has_same_samples(chart, self.samples) or not isinstance(size, int) or size > self.small:
            return None
        apart = _validation_is_apart(chart)
        message = f"every batch checked holds the same {size} samples, in a different order"
        if apart:
            message += f", and validation loss is {chart['val_loss'].latest:.3g} while training loss is"
            message += f" {chart['loss'].baseline(32).recent:.3g}"
        severity: Severity = "warning" if apart and not _is_whole(chart) else "info"
        return self.symptom(chart, severity, message, since=int(chart["input_content"].steps[-self.samples]))

    def _repeated(self, chart: Chart) -> Symptom | None:
        series = chart["input_checksum"]
        last = series.last(self.samples)
        if last.size < self.samples or last[-1] == 0 or same_at_last(series) < self._enough(series):
            return None
        if chart["input_constant"].latest == 1.0:
            return None  # all samples are equal: input-anomaly reports this
        last = last[last == last[-1]]
        equal = series.values == last[0]
        since = int(series.steps[int(np.flatnonzero(~equal)[-1]) + 1 if not equal.all() else 0])
        if comes_round(equal):
            return None
        size = chart.context.get("batch_size")
        few = isinstance(size, int) and size <= self.small
        reread = not chart.fact("data.same_tensor", False)
        apart = _validation_is_apart(chart) or _validation_never_came(chart)
        if acts(chart) and not equal.all() and not apart:
            return None
        # If batches differed before, this one is not all the data. A trained policy may see the same every time.
        stuck = np.unique(series.values[~equal]).size >= self.samples and not acts(chart)
        doubted = stuck or (few and reread and chart.step >= self.patience and not _validation_follows(chart))
        doubtful = (few and apart and not _validation_follows(chart)) or (doubted and not _is_whole(chart))
        severity: Severity = "warning" if doubtful and size != 1 else "info"
        checked = f"checked since step {since}" if not equal.all() else "checked"
        message = f"every batch {checked} is the same one" + (f", of {size} samples" if size else "")
        if apart:
            message += f", and validation loss is {chart['val_loss'].latest:.3g} while training loss is"
            message += f" {chart['loss'].baseline(32).recent:.3g}"
        elif severity == "info":
            message += "; this is fine if it is the whole data set"
        return self.symptom(chart, severity, message, value=float(last.size), since=since)

    def _enough(self, series: Series) -> int:
        """How many checksums must agree: fewer if all earlier ones differ from each other."""
        before = series.values[: len(series) - same_at_last(series)]
        return self.samples - 2 if np.unique(before).size == before.size >= self.samples else self.samples

    def _few(self, chart: Chart) -> Symptom | None:
        """Only a few different batches, or only the samples of the first few: the model memorizes them."""
        series, size = chart["input_checksum"], chart.context.get("batch_size")
        different = np.unique(series.values).size
        alike = len(series) >= 2 * self.few and 1 < different <= self.few
        if not (alike or has_few_samples(chart, self.few)) or _is_whole(chart):
            return None
        high = chart["val_loss"].latest > 0.2 * Progress.of(chart["loss"]).start
        if not high or not _validation_is_apart(chart, times=10.0):
            return None
        batches = f"batches of {size} samples" if size else "batches"
        message = f"the same {different} {batches} repeat all the time, " if alike else ""
        message = message or f"after the first few {batches}, no batch holds a new sample, "
        message += f"and validation loss is {chart['val_loss'].latest:.3g} while training loss is "
        message += f"{chart['loss'].baseline(32).recent:.3g}"
        return self.symptom(chart, "warning", message, since=int(series.steps[0]))

    def _copied(self, chart: Chart) -> Symptom | None:
        """Each batch holds copies of a few samples: the model learns less from it than its size suggests."""
        share = copied_share(chart, self.samples)
        if not share < self.copies:
            return None
        severity: Severity = "warning" if chart.fact("loss.classes") else "info"  # else copies may tighten a bound
        message = f"each batch holds every sample {number_text(round(1 / share, 1))} times, as exact copies"
        since = int(chart["input_distinct"].steps[0])
        return self.symptom(chart, severity, message, value=share, limit=self.copies, since=since)

    def _sorted(self, chart: Chart) -> Symptom | None:
        within, over = chart["target_collision"].last(2 * self.samples), chart["pooled_collision"].latest
        size = chart.context.get("batch_size")
        if within.size < self.samples or not isinstance(size, int) or size < 8:
            return None
        typical = median(within)
        if not typical > over + self.order:
            return None
        message = f"two samples of a batch share a class in {100 * typical:.0f} % of pairs, "
        checked = chart["pooled_collision"].count  # the share falls as more classes come: say when it was measured
        message += f"two of the first {checked} batches checked in {100 * over:.0f} %: the data is sorted by class"
        since = _began(chart["target_collision"], over + self.order)
        return self.symptom(chart, "warning", message, value=typical, limit=over + self.order, since=since)

    def _narrow(self, chart: Chart) -> Symptom | None:
        within, between = within_and_between(chart)
        forgets = _forgets(chart)
        limit = self.forgotten if forgets else self.narrow
        size = chart.context.get("batch_size")
        if not within < limit * between or (isinstance(size, int) and size < FEWEST):
            return None
        hurt = forgets or _has_jumped(chart) or _lags(chart)
        hurt = hurt or ((_is_binary(chart) or _oscillates(chart)) and not climbs_from_zero(chart))
        severity: Severity = "warning" if hurt else "info"
        if is_game(chart):
            return None  # targets from the model's own predictions move as it learns; GAN batches have one label each
        message = f"targets vary by {within:.2g} within a batch, and the means of batches by {between:.2g}: "
        return self.symptom(chart, severity, message + "the data is sorted", value=within)


def _began(series: Series, limit: float) -> int:
    """The step since which a series is above a limit, apart from single values: the border between two classes.

    >>> _began(Chart.of(a=[0.1, 0.1, 0.8, 0.1, 0.1, 1.0, 1.0, 0.4, 1.0, 1.0])["a"], 0.5)
    5
    """
    values = series.values
    middle = np.median(np.stack([np.r_[values[0], values[:-1]], values, np.r_[values[1:], values[-1]]]), axis=0)
    below = np.flatnonzero(middle <= limit)
    return int(series.steps[min(int(below[-1]) + 1, values.size - 1) if below.size else 0])


def same_at_last(series: Series) -> int:
    """How many of the last values are equal.

    >>> same_at_last(Chart.of(input_checksum=[1.0, 2.0, 3.0, 3.0])["input_checksum"])
    2
    """
    values = series.values
    return int(np.argmax(np.append((values != values[-1])[::-1], True))) if values.size else 0


def comes_round(equal: NDArray[np.bool_], turns: int = 2) -> bool:
    """Whether the batch also came in earlier stretches, with others in between, as in data read in a fixed order.

    If sampled steps are a multiple of the epoch apart, they see the same batch each time.

    >>> comes_round(np.array([0, 1, 0, 1, 0, 1, 1, 1], bool)), comes_round(np.array([0, 1, 0, 0, 0, 1, 1, 1], bool))
    (True, False)
    """
    begins = np.flatnonzero(equal & ~np.append(False, equal[:-1]))
    return begins.size > turns


def copied_share(chart: Chart, samples: int = 5) -> float:
    """The largest share of different samples in the last batches; NaN if other batches hold the same samples.

    A few states or categories give copies too, but these repeat in other batches.
    """
    shares, again = chart["input_distinct"].last(samples), chart["input_again"].last(samples)
    if shares.size < samples or not again.size or float(again.max()) > 0.3 or acts(chart):
        return math.nan
    return float(shares.max()) if float(shares.min()) > 0 and not has_same_samples(chart, samples) else math.nan


def has_same_samples(chart: Chart, samples: int = 5) -> bool:
    """Whether the last batches checked hold the same samples in any order (equal up to rounding)."""
    values = chart["input_content"].last(samples)
    return values.size == samples and float(np.ptp(values)) < 1e-5 * float(values[-1])


def has_few_samples(chart: Chart, looks: int = 6) -> bool:
    """Whether batches hold only samples of the first few batches: those are all the data.

    >>> has_few_samples(Chart.of(input_again=[0.5, 0.9, 0.95, *[1.0] * 6]))
    True
    >>> has_few_samples(Chart.of(input_again=[0.0, 0.0, 0.1, *[0.2] * 6]))
    False
    """
    again = chart["input_again"]
    later = again.values[3:]
    return again.count == len(again) and later.size >= looks and float(later.min()) == 1.0 and not acts(chart)


def _is_whole(chart: Chart) -> bool:
    """Whether one set of points for the whole run is on purpose: LBFGS needs it, and solvers of equations use it."""
    used = chart.context.get("optimizer") or ()
    return bool(chart.fact("data.differentiated")) or any(item.get("class") == "LBFGS" for item in used)


def within_and_between(chart: Chart, samples: int = 10) -> tuple[float, float]:
    """How much float targets vary within a batch, and how much the means of batches vary; NaN if too few are known.

    It uses medians and quartiles, because one batch with an outlier is not an order. An outlier widens the spread
    within its batch far more than it moves the mean, so the mean spread over batches is a lower bound. Targets of 0 and
    1 have no outliers, but if ones are rare, most batches have none: for these it uses the variance.
    """
    means, spreads = chart["target_mean"].last(2 * samples), chart["target_std"].last(2 * samples)
    if min(means.size, spreads.size) < samples:
        return math.nan, math.nan
    if _is_binary(chart):
        return float(np.sqrt((spreads**2).mean())), float(means.std())
    between = max(float(np.ptp(np.percentile(some, (25, 75)))) for some in (means, evenly(chart["target_mean"], 20)))
    return max(median(spreads), float(spreads.mean())), between / 1.35


def _is_binary(chart: Chart) -> bool:
    """Whether targets are zeros and ones: unlike for shares or returns, their mean then determines their variance."""
    if not chart["target_min"] or not chart["target_max"]:
        return False
    if not float(chart["target_min"].lowest) >= 0 or not 0.999 < float(chart["target_max"].values.max()) <= 1:
        return False
    means, spreads = chart["target_mean"].last(20), chart["target_std"].last(20)
    return means.size == spreads.size and median(np.abs(means * (1 - means) - spreads**2)) < 0.02


def _lags(chart: Chart, times: float = 5.0, samples: int = 5, steps: int = 95) -> bool:
    """Whether errors are far larger than the spread of targets within a batch: a constant per batch would be better.

    A model that learns an ordered series predicts it better than that.
    """
    power = {"mse": 2, "l1": 1}.get(chart.fact("loss.kind", ""), 0)
    errors, spreads = chart["criterion"].last(samples), chart["target_std"].last(samples)
    if not power or chart.step < steps or not errors.size == spreads.size == samples or _is_a_part(chart, samples):
        return False
    return median(errors - times * spreads**power) > 0


def _is_a_part(chart: Chart, samples: int) -> bool:
    """Whether the loss has other parts beside this criterion, as that of a critic whose targets the model moves itself.

    >>> _is_a_part(Chart.of(loss=[1.0, 2.5, 2.0], criterion=[2.0, 4.0, 9.0]), 3)
    True
    """
    whole, part = chart["loss"], chart["criterion"]
    _, mine, theirs = np.intersect1d(whole.steps, part.steps, assume_unique=True, return_indices=True)
    if mine.size < samples or not float(part.values[theirs].min()) > 0:
        return False
    with np.errstate(over="ignore"):
        ratios = (whole.values[mine] / part.values[theirs])[-samples:]
    return float(np.ptp(ratios)) > 0.1 * abs(median(ratios))


def _forgets(chart: Chart, times: float = 3.0) -> bool:
    """Whether the last two evaluations, on inputs like those of training, are far above the training loss.

    On inputs of a later time they may be.
    """
    values, losses = chart["val_loss"].last(2), chart["loss"]
    if values.size < 2 or not losses or not is_like_training(chart):
        return False
    return float(values.min()) > times * abs(losses.baseline(64).recent)


def _oscillates(chart: Chart) -> bool:
    return any(episode.name == "loss-oscillation" for episode in chart.episodes)


def _has_jumped(chart: Chart) -> bool:
    """Whether the loss jumped or swings, at warning or above: the model had forgotten the data that came back."""
    names = ("loss-spike", "loss-divergence", "loss-oscillation")
    return any(episode.severity != "info" and episode.name in names for episode in chart.episodes)


def _validation_never_came(chart: Chart, times: float = 3.0) -> bool:
    """Whether the first evaluations suffice: one worse than the untrained model, or two that do not improve.

    The training loss must be far below them and far below its start.
    """
    values, losses = chart["val_loss"].last(2), chart["loss"]
    if not values.size or not losses:
        return False
    train, start = losses.baseline(32).recent, Progress.of(losses).start
    if not 0 <= train < start / times or not float(values.min()) > times * train:
        return False
    return float(values.min()) > start or (values.size == 2 and float(values[1]) >= float(values[0]))


def _validation_follows(chart: Chart) -> bool:
    """Whether validation is near training or far below the start: what the model learns here generalizes."""
    values, losses = chart["val_loss"].values, chart["loss"]
    if values.size < 2 or not losses or values[-1] > values[0]:
        return False
    return 0 <= float(values[-1]) < max(2 * losses.baseline(32).recent, 0.2 * Progress.of(losses).start)


def _validation_is_apart(chart: Chart, times: float = 2.0) -> bool:
    """Whether validation is far above training and no longer improves."""
    validation, train = chart["val_loss"], chart["loss"].baseline(32).recent
    values = validation.last(3)
    return values.size == 3 and float(values.min()) > times * abs(train) and float(values[-1]) > 0.95 * float(values[0])
