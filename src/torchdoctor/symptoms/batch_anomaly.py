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
from torchdoctor.symptoms.validation_inputs import evenly, is_like_training

FEWEST = 4
"""Samples of a batch from which on it is known how they vary."""


@dataclass(frozen=True)
class BatchAnomaly(Detector):
    """The same batch again and again, or batches sorted by class.

    ## What it means
    A loop that takes the first batch of a fresh iterator each time trains on a few samples for ever: the loss is
    wonderful and validation is not. Data sorted by class make the model forget each class while it sees the next.

    ## How it is told apart
    Inputs are compared by a checksum, so equal means equal. Training on the whole data set at once repeats the batch
    too, and so does overfitting one batch on purpose: that is a note. It is a warning where a small batch is
    read anew each time with the same content and validation is not seen to follow, where it is far worse, or where
    batches differed before; so it is where all batches looked at are a handful, put together alike each time, or hold
    no other samples than the first few did, and validation is ten times as high as training, or the same samples in
    another order and validation is twice as high.
    Copies of each sample within a batch are a warning where classes are to be told and other batches hold others.
    For order, the chance that two samples of a batch share a class is compared with that of two samples of the whole
    run: balanced or few-shot samplers stay far below what sorted data show. Values in order are a note, as a series is;
    they are a warning where errors stay larger than what a batch spans, or where validation on inputs like all of those
    is three times as high as training.

    ## What to do
    `for x, y in loader:` instead of `next(iter(loader))` inside of the loop; `DataLoader(..., shuffle=True)`; with
    several processes `sampler.set_epoch(epoch)`; no seed set inside the loop.

    ## How to see that it is cured
    `input_checksum` changes from sample to sample; `target_collision` is near `pooled_collision`.

    ## Example
    >>> chart = Chart.of(input_checksum=[7.25] * 60, context={"batch_size": 32})
    >>> print(BatchAnomaly().check(chart))
    step 0: DA03 batch-anomaly (warning): every batch looked at is the same one, of 32 samples
    """

    code = "DA03"
    name = "batch-anomaly"
    reads = ("input_checksum", "target_collision", "target_std", "val_loss")
    suggests = ("shuffle-data", "clean-data")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    closes_after = 3

    samples: int = 5
    """Samples that must agree."""
    small: int = 128
    """Samples in a batch, at most, of which it is doubted that they are the whole data set."""
    few: int = 6
    """Different batches, at most, that the data seem to consist of."""
    patience: int = 50
    """Steps for which a small batch that is read anew may be all the data there are: validation may tell."""
    copies: float = 0.3
    """Share of a batch's samples that are no copies of others in it, at the least."""
    order: float = 0.35
    """Difference between the chance of one class within a batch and over the run."""
    narrow: float = 0.3
    """Deviation of float targets within a batch, relative to that of the batches' means."""
    forgotten: float = 0.5
    """The same where validation shows that what other batches held is forgotten."""

    def check(self, chart: Chart) -> Symptom | None:
        """Repeated, then sorted by label, then sorted by value."""
        return (
            self._repeated(chart)
            or self._reordered(chart)
            or self._few(chart)
            or self._copied(chart)
            or self._sorted(chart)
            or self._narrow(chart)
        )

    def _reordered(self, chart: Chart) -> Symptom | None:
        """The same samples in each batch, in another order: all the data there are, and too few."""
        size = chart.context.get("batch_size")
        if not has_same_samples(chart, self.samples) or not isinstance(size, int) or size > self.small:
            return None
        apart = _validation_is_apart(chart)
        message = f"every batch looked at holds the same {size} samples, in another order"
        if apart:
            message += f", and validation is at {chart['val_loss'].latest:.3g} while training is at"
            message += f" {chart['loss'].baseline(32).recent:.3g}"
        severity: Severity = "warning" if apart and not _is_whole(chart) else "info"
        return self.symptom(chart, severity, message, since=int(chart["input_content"].steps[-self.samples]))

    def _repeated(self, chart: Chart) -> Symptom | None:
        series = chart["input_checksum"]
        last = series.last(self.samples)
        if last.size < self.samples or last[-1] == 0 or same_at_last(series) < self._enough(series):
            return None
        if chart["input_constant"].latest == 1.0:
            return None  # all samples are one and the same, which input-anomaly says
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
        # What changed before is not all the data; a policy that has learnt its way sees the same every time.
        stuck = np.unique(series.values[~equal]).size >= self.samples and not acts(chart)
        doubted = stuck or (few and reread and chart.step >= self.patience and not _validation_follows(chart))
        doubtful = (few and apart and not _validation_follows(chart)) or (doubted and not _is_whole(chart))
        severity: Severity = "warning" if doubtful and size != 1 else "info"
        looked = f"looked at since step {since}" if not equal.all() else "looked at"
        message = f"every batch {looked} is the same one" + (f", of {size} samples" if size else "")
        if apart:
            message += f", and validation is at {chart['val_loss'].latest:.3g} while training is at"
            message += f" {chart['loss'].baseline(32).recent:.3g}"
        elif severity == "info":
            message += "; nothing is wrong if these are all the data there are"
        return self.symptom(chart, severity, message, value=float(last.size), since=since)

    def _enough(self, series: Series) -> int:
        """Samples that must agree: fewer where each one before was a batch of its own."""
        before = series.values[: len(series) - same_at_last(series)]
        return self.samples - 2 if np.unique(before).size == before.size >= self.samples else self.samples

    def _few(self, chart: Chart) -> Symptom | None:
        """A handful of batches, or the samples of a few, that the model knows by heart and nothing else."""
        series, size = chart["input_checksum"], chart.context.get("batch_size")
        different = np.unique(series.values).size
        alike = len(series) >= 2 * self.few and 1 < different <= self.few
        if not (alike or has_few_samples(chart, self.few)) or _is_whole(chart):
            return None
        high = chart["val_loss"].latest > 0.2 * Progress.of(chart["loss"]).start
        if not high or not _validation_is_apart(chart, times=10.0):
            return None
        message = f"the same {different} batches of {size} samples come again and again, " if alike else ""
        message = message or f"all samples of each batch, {size} of them, have come before since the first few, "
        message += f"and validation is at {chart['val_loss'].latest:.3g} while training is at "
        message += f"{chart['loss'].baseline(32).recent:.3g}"
        return self.symptom(chart, "warning", message, since=int(series.steps[0]))

    def _copied(self, chart: Chart) -> Symptom | None:
        """Each batch is a few samples, several times: less is learnt from it than its size says."""
        share = copied_share(chart, self.samples)
        if not share < self.copies:
            return None
        severity: Severity = "warning" if chart.fact("loss.classes") else "info"  # bounds are tightened by copies
        message = f"each batch holds every sample {number_text(round(1 / share, 1))} times, to the last digit"
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
        message = f"two samples of a batch are of one class in {100 * typical:.0f} % of pairs, "
        message += f"of the whole run in {100 * over:.0f} %: the data are sorted by class"
        first = int(chart["target_collision"].steps[0])
        return self.symptom(chart, "warning", message, value=typical, limit=over + self.order, since=first)

    def _narrow(self, chart: Chart) -> Symptom | None:
        within, between = within_and_between(chart)
        forgets = _forgets(chart)
        limit = self.forgotten if forgets else self.narrow
        size = chart.context.get("batch_size")
        if not within < limit * between or (isinstance(size, int) and size < FEWEST):
            return None
        hurt = forgets or _is_binary(chart) or _has_hurt(chart) or _lags(chart)
        severity: Severity = "warning" if hurt else "info"
        if is_game(chart):
            return None  # values that the model foretells itself move as it learns; players are told one answer a batch
        message = f"targets vary by {within:.2g} within a batch and by {between:.2g} from batch to batch: "
        return self.symptom(chart, severity, message + "the data are sorted", value=within)


def same_at_last(series: Series) -> int:
    """How many of the last values are one and the same.

    >>> same_at_last(Chart.of(input_checksum=[1.0, 2.0, 3.0, 3.0])["input_checksum"])
    2
    """
    values = series.values
    return int(np.argmax(np.append((values != values[-1])[::-1], True))) if values.size else 0


def comes_round(equal: NDArray[np.bool_], turns: int = 2) -> bool:
    """Whether a batch had come again before, with others in between, as in data that are read in a fixed order.

    Looks at steps that are a multiple of the epoch apart see the same one each time.

    >>> comes_round(np.array([0, 1, 0, 1, 0, 1, 1, 1], bool)), comes_round(np.array([0, 1, 0, 0, 0, 1, 1, 1], bool))
    (True, False)
    """
    begins = np.flatnonzero(equal & ~np.append(False, equal[:-1]))
    return begins.size > turns


def copied_share(chart: Chart, samples: int = 5) -> float:
    """The largest share of different samples in the last batches, where those differ from batch to batch; else NaN.

    Of a few states or categories there are copies too: then they come again in other batches.
    """
    shares, again = chart["input_distinct"].last(samples), chart["input_again"].last(samples)
    if shares.size < samples or not again.size or float(again.max()) > 0.3 or acts(chart):
        return math.nan
    return float(shares.max()) if float(shares.min()) > 0 and not has_same_samples(chart, samples) else math.nan


def has_same_samples(chart: Chart, samples: int = 5) -> bool:
    """Whether the last batches looked at hold the same samples, whatever their order: equal but for rounding."""
    values = chart["input_content"].last(samples)
    return values.size == samples and float(np.ptp(values)) < 1e-5 * float(values[-1])


def has_few_samples(chart: Chart, looks: int = 6) -> bool:
    """Whether all that batches hold was known after the first few: those were the data.

    >>> has_few_samples(Chart.of(input_again=[0.5, 0.9, 0.95, *[1.0] * 6]))
    True
    >>> has_few_samples(Chart.of(input_again=[0.0, 0.0, 0.1, *[0.2] * 6]))
    False
    """
    again = chart["input_again"]
    later = again.values[3:]
    return again.count == len(again) and later.size >= looks and float(later.min()) == 1.0 and not acts(chart)


def _is_whole(chart: Chart) -> bool:
    """Whether one set of points for the whole run is a method: LBFGS needs it, an equation is solved on it."""
    used = chart.context.get("optimizer") or ()
    return bool(chart.fact("data.differentiated")) or any(item.get("class") == "LBFGS" for item in used)


def within_and_between(chart: Chart, samples: int = 10) -> tuple[float, float]:
    """How float targets vary within a batch, and how the means of batches vary; NaN where too few were seen.

    By medians and quartiles: one batch with an outlier is no order. A batch whose mean an outlier moves varies far more
    within than its mean is moved by: the mean over batches of what they vary by tells that from an order. Of zeros and
    ones there are no outliers, but where ones are rare most batches have none: there it is by variance.
    """
    means, spreads = chart["target_mean"].last(2 * samples), chart["target_std"].last(2 * samples)
    if min(means.size, spreads.size) < samples:
        return math.nan, math.nan
    if _is_binary(chart):
        return float(np.sqrt((spreads**2).mean())), float(means.std())
    between = max(float(np.ptp(np.percentile(some, (25, 75)))) for some in (means, evenly(chart["target_mean"], 20)))
    return max(median(spreads), float(spreads.mean())), between / 1.35


def _is_binary(chart: Chart) -> bool:
    """Whether targets are zeros and ones: then their mean says how they spread; that of shares or returns does not."""
    if not chart["target_min"] or not chart["target_max"]:
        return False
    if not float(chart["target_min"].lowest) >= 0 or not 0.999 < float(chart["target_max"].values.max()) <= 1:
        return False
    means, spreads = chart["target_mean"].last(20), chart["target_std"].last(20)
    return means.size == spreads.size and median(np.abs(means * (1 - means) - spreads**2)) < 0.02


def _lags(chart: Chart, times: float = 5.0, samples: int = 5, steps: int = 95) -> bool:
    """Whether errors are far larger than targets differ within a batch: to say one number for each would be better.

    What goes on in order and is learnt, such as a series, is foretold better than that.
    """
    power = {"mse": 2, "l1": 1}.get(chart.fact("loss.kind", ""), 0)
    errors, spreads = chart["criterion"].last(samples), chart["target_std"].last(samples)
    if not power or chart.step < steps or not errors.size == spreads.size == samples or _is_a_part(chart, samples):
        return False
    return median(errors - times * spreads**power) > 0


def _is_a_part(chart: Chart, samples: int) -> bool:
    """Whether the loss has other parts beside this one: a critic's error, whose targets the model moves itself.

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
    """Whether two evaluations on such inputs as training has, taken together, are far worse than the batch at hand.

    On inputs of a later time they may be.
    """
    values, losses = chart["val_loss"].last(2), chart["loss"]
    if values.size < 2 or not losses or not is_like_training(chart):
        return False
    return float(values.min()) > times * abs(losses.baseline(64).recent)


def _has_hurt(chart: Chart) -> bool:
    """Whether the loss leapt, at warning or above, or goes up and down: the model had forgotten what came back."""
    return any(
        episode.severity != "info" or episode.name == "loss-oscillation"
        for episode in chart.episodes
        if episode.name in ("loss-spike", "loss-divergence", "loss-oscillation")
    )


def _validation_never_came(chart: Chart, times: float = 3.0) -> bool:
    """Whether the first evaluations say enough: one worse than the untrained model, or two that get no better.

    Training is far below them, and has come far.
    """
    values, losses = chart["val_loss"].last(2), chart["loss"]
    if not values.size or not losses:
        return False
    train, start = losses.baseline(32).recent, Progress.of(losses).start
    if not 0 <= train < start / times or not float(values.min()) > times * train:
        return False
    return float(values.min()) > start or (values.size == 2 and float(values[1]) >= float(values[0]))


def _validation_follows(chart: Chart) -> bool:
    """Whether validation is near training, or far below the start: these samples teach what they should."""
    values, losses = chart["val_loss"].values, chart["loss"]
    if values.size < 2 or not losses or values[-1] > values[0]:
        return False
    return 0 <= float(values[-1]) < max(2 * losses.baseline(32).recent, 0.2 * Progress.of(losses).start)


def _validation_is_apart(chart: Chart, times: float = 2.0) -> bool:
    """Whether validation is far worse than training, and no longer gets better."""
    validation, train = chart["val_loss"], chart["loss"].baseline(32).recent
    values = validation.last(3)
    return values.size == 3 and float(values.min()) > times * abs(train) and float(values[-1]) > 0.95 * float(values[0])
