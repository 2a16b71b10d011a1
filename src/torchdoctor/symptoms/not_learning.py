"""LO04 not-learning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array, median, scatter
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import (
    has_fallen_far,
    has_gained,
    is_adversarial,
    outline_levels,
    trend_gain,
    working_since,
)

EARLY = 12
"""Steps in which the outputs may still show nothing but the initialization."""
LOOKUPS = 4
"""Steps of a model made of embeddings alone that count as one."""
FEW = 4
"""Samples per step below which a step counts only in part."""
EQUAL = 0.01
"""Difference from chance level, as a share of it, up to which the message calls the loss no better than chance."""
FAR = 1.2
"""Multiple of chance level above which a falling loss is left alone: a margin or scale may make it start high."""


@dataclass(frozen=True)
class NotLearning(Detector):
    """The loss has been flat since the very start.

    ## What it means
    The run has learned nothing so far, and most often never will: gradients of the loss do not reach the weights, the
    optimizer does not hold them, labels do not match inputs, or the learning rate is off by orders of magnitude.
    Waiting is the most expensive way to find out.

    ## How it is told apart
    Steps count from the end of the warm-up. A loss that fell first and then stopped is `loss-plateau`; one that still
    falls, but slowly, is `slow-learning`. A flat stretch is reported only if the noise could not hide a gain of a few
    per cent, so wandering losses (policy gradients, adversarial games) are not reported. If chance level is known
    (ln C, the variance of y), a loss well below it has learned something, and one at it has not. If labels are seen,
    the loss is compared with a constant guess on the same batches.

    There is more time if

    - each evaluation is better than the one before;
    - outputs within a batch differ more and more: deep models leave a saddle that way, before the loss shows it;
    - the model is made of embeddings alone: each batch touches only a few rows, so it gets four times as long;
    - batches have only one or two samples: sixteen or four times as long until it is a warning;
    - the optimizer is RAdam, which starts slowly: twice as long.

    ## What to do
    Try to overfit one batch: `for _ in range(300): step(batch)`. If its loss does not approach zero, the loop is
    broken, not the data: look at `p.grad` and at `optimizer.param_groups`. If it does, check that labels match inputs.
    Then try learning rates ten times higher and lower.

    ## How to see that it is cured
    The loss is clearly below its first values within a hundred steps.

    ## Example
    >>> losses = [2.31, 2.29, 2.3, 2.32, 2.28] * 50
    >>> print(NotLearning().check(Chart.of(loss=losses, lr=[1e-3] * 250)))
    step 0: LO04 not-learning (warning): loss has stayed at 2.3 for 250 steps, since the start
    """

    code = "LO04"
    name = "not-learning"
    reads = ("loss",)
    suggests = ("scale-lr", "fix-loss", "add-parameters-to-optimizer", "ask-for-help")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    every = 20
    closes_after = 4

    notice: int = 80
    """Steps after the warm-up without any gain that are reported as info, or as a warning if there is no gradient."""
    known: int = 100
    """Steps after which a loss at chance level is a warning: recurrent layers and attention need most of them."""
    pairs: int = 4
    """Batches needed on which both the loss and that of a constant guess are known."""
    steps: int = 200
    """Steps after the warm-up without any gain that are a warning."""
    gain: float = 0.03
    """Share of the loss that may have been gained unseen, at most; five times as much if chance level is known."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the trend since the warm-up, and compare the loss with its first values and with chance level."""
        series = chart["loss"]
        if series.count < self.notice or has_fallen_far(series) or is_adversarial(chart):
            return None
        chance = chance_level(chart)
        if has_gained(series, chance):
            return None
        if "batch-anomaly" in chart.open_episodes and not _is_one_batch(chart):
            return None  # if each batch holds a single class, chance level means nothing
        since = working_since(chart)
        if since is None or series.outline.start > self.notice:  # it continues from a checkpoint
            return None
        levels = outline_levels(series)
        later = levels[series.outline.before(since) :]
        half = later[later.size // 2 :] if chance > 0 else later
        count = round(series.count * later.size / levels.size)
        level = median(half)
        waited = count // _patience(chart)
        if waited < self.notice or not self._is_naive(levels, level, chance):
            return None
        waited //= _share_of_few(chart)  # their learning rate is lower, too: only a note is due so soon
        learnt, doubt, pairs = against_guess(chart, max(since, EARLY))
        sure = pairs >= self.pairs and learnt + 2 * doubt < self.gain  # free of the noise between batches
        lost = not (sure and abs(learnt) + 2 * doubt < self.gain) and _was_lower(levels, level)
        limit = math.inf if level > chance or sure else (5 if chance > 0 else 1) * self.gain * abs(level)
        if lost or not _is_flat(half, limit) or (level > FAR * chance and _falls(later)):
            return None
        better, nearly = _validates_better(chart), 0.9 * self.known  # allows for a warm-up of a few steps
        still = bool(np.ptp(later) <= 1e-6 * abs(level)) or _no_gradient(chart)
        if pairs >= self.pairs:  # the guess is scored on the same batches: the difference is what was learned
            if learnt > 2 * doubt + 0.01:
                return None
            coming = learnt < -0.1 and (better or _falls(later))  # from far above chance level down to it
            learns = better and chart["val_loss"].latest < (1 - self.gain) * chance
            # a loss far above chance level may still be falling toward it, hidden by noise
            learns = learns or (pairs >= 2 * self.pairs and learnt > max(3 * doubt, 0.01))  # little, but surely
            at_guess = sure and abs(learnt) < 0.1 + 2 * doubt and waited >= nearly and not learns
            better, stuck = learns or coming or learnt > doubt + 0.01, (still or at_guess) and not coming
        else:
            told = waited >= nearly and ("loss.chance" in chart.facts or _is_flat(half, 0.01 * chance))
            stuck = still or (told and not better and level > (1 - self.gain) * chance)
        coming = level < chance and _is_on_its_way(half, later)
        stuck, better = stuck and not coming, better or coming
        # A head alone may learn little, but surely; so may any model whose loss still falls.
        little = chart.fact("graph.frozen_share", 0.0) > 0 or _falls(later)
        better = better or (little and _is_below(half, 0.95 * chance))
        young = waited < 2 * self.steps and not still and tells_apart(chart)
        long = waited >= self.steps
        severity: Severity = "warning" if not young and (stuck or (long and not better)) else "info"
        every = int(chart.context.get("logged_every") or 1) if "source" in chart.context else 1
        message = _in_words(level, count * every, chance)
        return self.symptom(chart, severity, message, value=level, confidence=0.8, since=int(max(since, 0)))

    def _is_naive(self, levels: Array, level: float, chance: float) -> bool:
        """Whether the loss is near or above chance level, or not below its first values if that is unknown."""
        if chance > 0:
            return level > (1 - 3 * self.gain) * chance
        return median(levels[:5]) - level <= max(self.gain * abs(level), 2 * scatter(levels))


def _in_words(level: float, count: int, chance: float) -> str:
    if not chance > 0:
        return f"loss has stayed at {number_text(level)} for {count} steps, since the start"
    guess = f"; a constant guess that ignores the input gives {number_text(chance)}"
    if level < (1 + EQUAL) * chance:
        better = "no better than" if level > (1 - EQUAL) * chance else "hardly below"
        guess = f", {better} the {number_text(chance)} of a constant guess that ignores the input"
    return f"loss is {number_text(level)} after {count} steps{guess}"


def _share_of_few(chart: Chart) -> int:
    """How many steps hold as many samples as a step of `FEW`: 1 unless there are fewer."""
    samples = _samples(chart)
    return FEW // samples if 0 < samples < FEW else 1


def _patience(chart: Chart) -> int:
    """How many steps count as one: more than one for embeddings alone, tiny batches and RAdam's slow start."""
    if looks_up_only(chart):
        return LOOKUPS
    if (fewer := _share_of_few(chart)) > 1:
        return fewer
    return 2 if chart.groups and all(group.get("optimizer") == "RAdam" for group in chart.groups) else 1


def _samples(chart: Chart) -> int:
    """Samples per step; 0 if unknown.

    The input of a recurrent loop may be the steps of one sample, but a single label has no other to collide with.
    """
    passes = max((int(count) for count in chart.fact("zeroing.backwards") or ()), default=1) or 1
    if chart["target_classes"].latest == 1 and chart["target_collision"].latest == 0:
        return passes
    shape, size = chart.context.get("input_shape") or (), chart["input_size"]
    if len(shape) < 2 or not size or not size.latest > 0:  # the first forward pass may belong to an evaluation
        return 0
    return passes * max(round(size.latest / max(math.prod(int(part) for part in shape[1:]), 1)), 1)


def looks_up_only(chart: Chart) -> bool:
    """Whether the model consists of embeddings alone: a batch touches few of their rows, so each row learns rarely.

    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["Embedding", "Dropout", "Embedding"]}})
    >>> looks_up_only(chart)
    True
    """
    kinds = {kind for kind in chart.fact("modules.kinds") or () if kind not in ("Dropout", "Identity")}
    return bool(kinds) and kinds <= {"Embedding", "EmbeddingBag"}


def _validates_better(chart: Chart) -> bool:
    """Whether each of the last evaluations was better than the one before: they are less noisy than batches."""
    values = chart["val_loss"].last(4)
    return values.size > 1 and bool((np.diff(values) < 0).all()) and float(values[-1]) < 0.99 * float(values[0])


def tells_apart(chart: Chart, samples: int = 4, growth: float = 1.5) -> bool:
    """Whether outputs within a batch differ more at each look: the model leaves a saddle, though the loss is flat.

    If labels are random or weights do not change, the spread of the outputs stays about the same.

    >>> tells_apart(Chart.of(output_std=[4e-4, 5e-4, 6e-4, 9e-4]))
    True
    >>> tells_apart(Chart.of(output_std=[0.1, 0.2, 0.1, 0.3]))
    False
    """
    series = chart["output_std"]
    values = series.last(samples)
    rises = values.size == samples and bool((np.diff(values) > 0).all())
    return rises and series.latest > max(growth * float(values[0]), 0.5 * series.first)  # not after a collapse


def _is_flat(levels: Array, limit: float) -> bool:
    """Whether the levels did not clearly fall, and cannot have moved by more than the limit."""
    gain, doubt = trend_gain(levels)
    doubt = max(doubt, 3 * scatter(levels) / math.sqrt(levels.size))
    return gain <= 5 * doubt and abs(gain) + 2 * doubt < limit


def _is_below(levels: Array, limit: float) -> bool:
    """Whether the median level is below the limit, and farther below chance level than noise explains."""
    level = median(levels)
    return level < limit and limit / 0.95 - level > 8 * scatter(levels) / math.sqrt(levels.size)


def _is_one_batch(chart: Chart) -> bool:
    checksums = chart["input_checksum"].last(3)
    return checksums.size == 3 and bool((checksums == checksums[0]).all())


def _is_on_its_way(half: Array, whole: Array) -> bool:
    """Whether the loss falls, even slowly: clearly in the second half, or evenly over the whole run."""
    gain, doubt = trend_gain(half)
    way, about = trend_gain(whole)
    return gain > 3 * doubt or (gain > 2 * doubt and way > 5 * about and gain > 0.3 * way)


def _falls(levels: Array) -> bool:
    """Whether the last quarter is clearly below the second one; the first is left out because a start may be high."""
    quarter = levels.size // 4
    before, now = levels[quarter : 2 * quarter], levels[-quarter:]
    return median(before) - median(now) > max(0.05 * abs(median(now)), 4 * scatter(now) / math.sqrt(quarter))


def _was_lower(levels: Array, level: float) -> bool:
    """Whether the loss was clearly lower at some time: then the run had learned something and lost it."""
    pieces = [median(piece) for piece in np.array_split(levels, 8)]
    return min(pieces) < level - 0.15 * abs(level)


def loss_scale(chart: Chart, samples: int = 3) -> float:
    """The constant factor between the logged loss and the value of the loss function; 1.0 if there is none or unknown.

    A loss function that sums is left out: trainers sum over tokens and divide by their number.

    >>> loss_scale(Chart.of(loss=[0.002, 0.0018, 0.0019], criterion=[2.0, 1.8, 1.9]))
    0.001
    >>> loss_scale(Chart.of(loss=[2.1, 2.0, 1.7], criterion=[2.0, 1.8, 1.6]))
    1.0
    """
    losses, plain = chart["loss"], chart["criterion"]
    if len(plain) < samples or chart.fact("loss.reduction") == "sum":
        return 1.0
    _, mine, theirs = np.intersect1d(losses.steps, plain.steps, assume_unique=True, return_indices=True)
    if mine.size < samples or not float(np.abs(plain.values[theirs]).min()) > 0:
        return 1.0
    with np.errstate(over="ignore"):
        ratios = losses.values[mine] / plain.values[theirs]
    scale = median(ratios)
    constant = float(np.ptp(ratios)) <= 0.02 * abs(scale)
    return float(f"{scale:.6g}") if constant and (0 < scale < 0.1 or scale > 10) else 1.0


def chance_level(chart: Chart) -> float:
    """Chance level, the loss of a constant guess: ln C, the entropy of the labels or var(y); NaN if unknown.

    If the logged loss is a constant multiple of the loss function's value, so is the chance level.
    """
    return _plain_chance(chart) * loss_scale(chart)


def _plain_chance(chart: Chart) -> float:
    value = chart.fact("loss.chance")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _by_frequency(chart, float(value))
    mean = chart.fact("loss.reduction") == "mean"
    if not mean and not chart.fact("loss.divided"):  # trainers divide a sum by the number of tokens
        return math.nan
    if mean and chart.fact("loss.function") == "MSELoss":
        return chart["pooled_std"].latest ** 2
    # The loss function was not given, but its kind and the number of classes are known, and the first loss agrees.
    classes = 1 if _may_compare_samples(chart) else chart.fact("outputs.classes", 1)
    guess = math.log(classes) if chart.fact("loss.kind") == "cross-entropy" else 0.0
    if guess and abs(chart["loss"].first - guess) < 0.25 * guess:
        return _by_frequency(chart, guess)
    guesses = chart["guess_loss"].last(8)
    return float(guesses.mean()) if mean and guess and guesses.size >= 4 else math.nan


def _may_compare_samples(chart: Chart) -> bool:
    """Whether the loss may choose among the samples of a batch, as contrastive losses do, and not among classes.

    >>> _may_compare_samples(Chart.of(loss=[4.16], context={"batch_size": 64}))
    True
    >>> _may_compare_samples(Chart.of(loss=[4.16], context={"batch_size": 64}, target_classes=[10.0]))
    False
    """
    if chart.fact("loss.between_outputs"):
        return True
    batch = chart.context.get("batch_size")
    if not isinstance(batch, int) or batch <= 2 or chart["target_classes"] or chart.fact("loss.classes"):
        return False
    others = {batch, 2 * batch - 1} - {chart.fact("outputs.classes")}
    return any(abs(chart["loss"].first / math.log(count) - 1) < 0.02 for count in others)


def _by_frequency(chart: Chart, guess: float) -> float:
    """The entropy of the labels if enough were seen and it is not far below ln C; otherwise ln C."""
    entropy = chart["pooled_entropy"]
    seen = entropy.count * int(chart.context.get("batch_size") or 0)
    enough = seen >= 20 * math.exp(guess)  # with few labels the entropy is underestimated
    return entropy.latest if enough and 0.5 * guess < entropy.latest < guess else guess


def against_guess(chart: Chart, since: int) -> tuple[float, float, int]:
    """The share by which the loss is below a constant guess on the same batches, its uncertainty, and their number.

    >>> chart = Chart.of(guess_loss=[2.0, 3.0, 1.0], criterion=[1.5, 2.2, 0.8])
    >>> learnt, doubt, batches = against_guess(chart, 0)
    >>> round(learnt, 2), batches
    (0.25, 3)
    """
    guesses, losses = chart["guess_loss"], chart["criterion"]
    if guesses and not losses and chart.fact("loss.kind") == "cross-entropy" and chart.fact("loss.reduction") == "mean":
        losses = chart["loss"]
    steps, mine, theirs = np.intersect1d(guesses.steps, losses.steps, assume_unique=True, return_indices=True)
    first = int(np.searchsorted(steps, since))
    guess = guesses.values[mine[first:]]
    if guess.size < 2 or not float(guess.mean()) > 0:
        return math.nan, math.nan, 0
    below = guess - losses.values[theirs[first:]]
    scale = float(guess.mean())
    return float(below.mean()) / scale, float(below.std()) / math.sqrt(guess.size - 1) / scale, int(guess.size)


def _no_gradient(chart: Chart) -> bool:
    """Whether the recent gradient norms are practically zero."""
    norms = chart["grad_norm"]
    return bool(norms) and median(norms.last(50)) < 1e-10
