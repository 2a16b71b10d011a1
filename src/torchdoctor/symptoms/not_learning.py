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
"""Steps in which outputs may still be nothing but their initialization."""
LOOKUPS = 4
"""Steps of a model that only looks embeddings up that count as one."""
FEW = 4
"""Samples of a step that make it a whole one."""
LESS = 0.97
"""Share of the loss of a guess from which on a loss is no longer called the same."""
FAR = 1.2
"""Times the loss of a guess from which a loss that falls is on its way: a margin or a scale may have put it there."""


@dataclass(frozen=True)
class NotLearning(Detector):
    """The loss is flat from the very start.

    ## What it means
    The run has learnt nothing so far. Most often it never will: the loss does not reach the weights, the optimizer
    does not hold them, labels do not belong to inputs, or the learning rate is off by orders of magnitude. Waiting
    is the most expensive way to find out.

    ## How it is told apart
    Steps count from the end of a warm-up. A flat stretch is only believed where a gain of a few per cent could not
    have hidden in the noise, so losses that wander about (policy gradients, adversarial games) stay silent. A run that
    fell first and then stopped is `loss-plateau`; one that falls, but hardly, is `slow-learning`. Where the loss of a
    guess is known (ln C, the variance of y), a level well under it has learnt something, and one at it has not; best of
    all where labels are seen, so that loss and guess can be compared on the very same batches. Evaluations that get
    better one after the other are a reason to wait, and so are outputs that differ by more from look to look: deep
    models leave a saddle that way, long before the loss shows it. So is a model that consists of embeddings alone,
    whose rows each batch touches a few of: it is given four times as long. So are batches of one sample; RAdam, which
    holds its own first steps back, is given twice as long.

    ## What to do
    Try to overfit one batch: `for _ in range(300): step(batch)`. If the loss does not go towards zero there, the loop
    is broken, not the data: look at `p.grad` and at `optimizer.param_groups`. If it does, check that labels belong to
    inputs. Then try learning rates ten times higher and lower.

    ## How to see that it is cured
    The loss is clearly below its first values within a hundred steps.

    ## Example
    >>> losses = [2.31, 2.29, 2.3, 2.32, 2.28] * 50
    >>> print(NotLearning().check(Chart.of(loss=losses, lr=[1e-3] * 250)))
    step 0: LO04 not-learning (warning): loss has stayed at 2.3 for 250 steps, from the start on
    """

    code = "LO04"
    name = "not-learning"
    reads = ("loss",)
    suggests = ("scale-lr", "fix-loss", "add-parameters-to-optimizer", "ask-for-help")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)
    every = 20
    closes_after = 4

    notice: int = 80
    """Steps after the warm-up without any gain: a note; a warning without a gradient."""
    known: int = 100
    """Steps after which the level of a guess is a warning: recurrent layers and attention need most of them."""
    pairs: int = 4
    """Batches on which the loss must be known beside that of a guess."""
    steps: int = 200
    """Steps after the warm-up without any gain: a warning."""
    gain: float = 0.03
    """Share of the loss that might have been gained unseen, at most; five times that at the level of a guess."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the trend since the learning rate was up, and compare with the first values and with a guess."""
        series = chart["loss"]
        if series.count < self.notice or has_fallen_far(series) or is_adversarial(chart):
            return None
        chance = chance_level(chart)
        if has_gained(series, chance):
            return None
        if "batch-anomaly" in chart.open_episodes and not _is_one_batch(chart):
            return None  # of batches of one class each, no level is that of a guess
        since = working_since(chart)
        if since is None or series.outline.start > self.notice:  # a later step label: it goes on from a checkpoint
            return None
        levels = outline_levels(series)
        later = levels[series.outline.before(since) :]
        half = later[later.size // 2 :] if chance > 0 else later
        count = round(series.count * later.size / levels.size)
        level = median(half)
        waited = count // _patience(chart)
        if waited < self.notice or not self._is_naive(levels, level, chance):
            return None
        learnt, doubt, pairs = against_guess(chart, max(since, EARLY))
        sure = pairs >= self.pairs and learnt + 2 * doubt < self.gain  # the noise of batches is not in it
        lost = not (sure and abs(learnt) + 2 * doubt < self.gain) and _was_lower(levels, level)
        limit = math.inf if level > chance or sure else (5 if chance > 0 else 1) * self.gain * abs(level)
        if lost or not _is_flat(half, limit) or (level > FAR * chance and _falls(later)):
            return None
        better, nearly = _validates_better(chart), 0.9 * self.known  # what a warm-up of a few steps leaves of them
        still = bool(np.ptp(later) <= 1e-6 * abs(level)) or _no_gradient(chart)
        if pairs >= self.pairs:  # the same batch costs a guess just as much: what is left is what was learnt
            if learnt > 2 * doubt + 0.01:
                return None
            coming = learnt < -0.1 and (better or _falls(later))  # it began far above a guess, and is on its way there
            learns = better and chart["val_loss"].latest < (1 - self.gain) * chance
            # far above a guess it is not at one: it may be on its way there, and noise hides how fast
            at_guess = sure and abs(learnt) < 0.1 + 2 * doubt and waited >= nearly and not learns
            better, stuck = learns or coming or learnt > doubt + 0.01, (still or at_guess) and not coming
        else:
            told = waited >= nearly and ("loss.chance" in chart.facts or _is_flat(half, 0.01 * chance))
            stuck = still or (told and not better and level > (1 - self.gain) * chance)
        coming = level < chance and _is_on_its_way(half, later)
        stuck, better = stuck and not coming, better or coming
        # A head alone may learn little, but for sure; so may any model that came down to there, as of letters.
        little = chart.fact("graph.frozen_share", 0.0) > 0 or _falls(later)
        better = better or (little and _is_below(half, 0.95 * chance))
        young = waited < 2 * self.steps and not still and tells_apart(chart)
        long = waited >= self.steps
        severity: Severity = "warning" if not young and (stuck or (long and not better)) else "info"
        message = _in_words(level, count, chance)
        return self.symptom(chart, severity, message, value=level, confidence=0.8, since=int(max(since, 0)))

    def _is_naive(self, levels: Array, level: float, chance: float) -> bool:
        """Whether the level is that of a guess; where that is unknown, whether it is not below the first values."""
        if chance > 0:
            return level > (1 - 3 * self.gain) * chance
        return median(levels[:5]) - level <= max(self.gain * abs(level), 2 * scatter(levels))


def _in_words(level: float, count: int, chance: float) -> str:
    if not chance > 0:
        return f"loss has stayed at {number_text(level)} for {count} steps, from the start on"
    guess = f"; that of a guess without looking at the input is {number_text(chance)}"
    if level < LESS * chance:
        guess = f", hardly less than the {number_text(chance)} of a guess without looking at the input"
    return f"loss is {number_text(level)} after {count} steps{guess}"


def _patience(chart: Chart) -> int:
    """How many steps of this run count as one: of tables, of batches of a sample or two, of RAdam's slow start."""
    if looks_up_only(chart):
        return LOOKUPS
    samples = _samples(chart)
    if 0 < samples < FEW:
        return FEW // samples
    return 2 if chart.groups and all(group.get("optimizer") == "RAdam" for group in chart.groups) else 1


def _samples(chart: Chart) -> int:
    """Samples of a step, as far as they are known; else 0."""
    shape, size = chart.context.get("input_shape") or (), chart["input_size"]
    if len(shape) < 2 or not size or not size.latest > 0:  # the first forward pass may have been an evaluation's
        return 0
    passes = max((int(count) for count in chart.fact("zeroing.backwards") or ()), default=1) or 1
    return passes * max(round(size.latest / max(math.prod(int(part) for part in shape[1:]), 1)), 1)


def looks_up_only(chart: Chart) -> bool:
    """Whether all that learns are tables of embeddings: a batch touches few of their rows, so each learns more rarely.

    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["Embedding", "Dropout", "Embedding"]}})
    >>> looks_up_only(chart)
    True
    """
    kinds = {kind for kind in chart.fact("modules.kinds") or () if kind not in ("Dropout", "Identity")}
    return bool(kinds) and kinds <= {"Embedding", "EmbeddingBag"}


def _validates_better(chart: Chart) -> bool:
    """Whether each evaluation was better than the one before: the same samples again and again hide less in noise."""
    values = chart["val_loss"].last(4)
    return values.size > 1 and bool((np.diff(values) < 0).all()) and float(values[-1]) < 0.99 * float(values[0])


def tells_apart(chart: Chart, samples: int = 4, growth: float = 1.5) -> bool:
    """Whether outputs differ over a batch by more from look to look: a saddle is left by growth, long unseen in a loss.

    Of labels that belong to nothing, or weights that stand still, outputs differ by what they did, more or less.

    >>> tells_apart(Chart.of(output_std=[4e-4, 5e-4, 6e-4, 9e-4]))
    True
    >>> tells_apart(Chart.of(output_std=[0.1, 0.2, 0.1, 0.3]))
    False
    """
    series = chart["output_std"]
    values = series.last(samples)
    rises = values.size == samples and bool((np.diff(values) > 0).all())
    return rises and series.latest > max(growth * float(values[0]), 0.5 * series.first)  # not out of a collapse


def _is_flat(levels: Array, limit: float) -> bool:
    """Whether the levels did not fall, and can have moved by no more than a limit."""
    gain, doubt = trend_gain(levels)
    doubt = max(doubt, 3 * scatter(levels) / math.sqrt(levels.size))
    return gain <= 5 * doubt and abs(gain) + 2 * doubt < limit


def _is_below(levels: Array, limit: float) -> bool:
    """Whether the middle of the levels is below a limit, and that far below a guess that noise cannot have done it."""
    level = median(levels)
    return level < limit and limit / 0.95 - level > 8 * scatter(levels) / math.sqrt(levels.size)


def _is_one_batch(chart: Chart) -> bool:
    checksums = chart["input_checksum"].last(3)
    return checksums.size == 3 and bool((checksums == checksums[0]).all())


def _is_on_its_way(half: Array, whole: Array) -> bool:
    """Whether the loss falls, if slowly: for sure in the second half, or evenly from the start on."""
    gain, doubt = trend_gain(half)
    way, about = trend_gain(whole)
    return gain > 3 * doubt or (gain > 2 * doubt and way > 5 * about and gain > 0.3 * way)


def _falls(levels: Array) -> bool:
    """Whether the last quarter is clearly below the second: the first is no yardstick, any start may be high."""
    quarter = levels.size // 4
    before, now = levels[quarter : 2 * quarter], levels[-quarter:]
    return median(before) - median(now) > max(0.05 * abs(median(now)), 4 * scatter(now) / math.sqrt(quarter))


def _was_lower(levels: Array, level: float) -> bool:
    """Whether the run was better once, and lost it: then it had learnt."""
    pieces = [median(piece) for piece in np.array_split(levels, 8)]
    return min(pieces) < level - 0.15 * abs(level)


def loss_scale(chart: Chart, samples: int = 3) -> float:
    """What the loss is a constant multiple of its loss function's value by; 1.0 where it is none, or not known.

    A sum that is divided is a mean: trainers sum over tokens and divide by how many there are.

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
    """The loss of a guess that ignores the input, NaN where it is not known: ln C, the labels' entropy, var(y).

    Of a loss that is a constant multiple of what its function returns, the same multiple.
    """
    return _plain_chance(chart) * loss_scale(chart)


def _plain_chance(chart: Chart) -> float:
    value = chart.fact("loss.chance")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _by_frequency(chart, float(value))
    if chart.fact("loss.reduction") != "mean":
        return math.nan
    if chart.fact("loss.function") == "MSELoss":
        return chart["pooled_std"].latest ** 2
    # The loss function was not shown, but its kind is known, and so is the width of the outputs: the first loss agrees.
    classes = chart.fact("outputs.classes", 1)
    guess = math.log(classes) if chart.fact("loss.kind") == "cross-entropy" else 0.0
    if guess and abs(chart["loss"].first - guess) < 0.25 * guess:
        return _by_frequency(chart, guess)
    guesses = chart["guess_loss"].last(8)
    return float(guesses.mean()) if guess and guesses.size >= 4 else math.nan


def _by_frequency(chart: Chart, guess: float) -> float:
    """The labels' entropy where enough of them were seen, and it is not far below ln C; else ln C."""
    entropy = chart["pooled_entropy"]
    seen = entropy.count * int(chart.context.get("batch_size") or 0)
    enough = seen >= 20 * math.exp(guess)  # of few labels an entropy comes out too low
    return entropy.latest if enough and 0.5 * guess < entropy.latest < guess else guess


def against_guess(chart: Chart, since: int) -> tuple[float, float, int]:
    """By which share the loss is below that of a guess on the same batches, the doubt about it, and how many there are.

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
    """Whether the gradient is nothing, or is not there at all although steps are taken."""
    norms = chart["grad_norm"]
    return bool(norms) and median(norms.last(50)) < 1e-10
