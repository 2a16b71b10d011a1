"""DA02 target-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, acts, is_game

SIGNED = ("SoftMarginLoss", "HingeEmbeddingLoss", "CosineEmbeddingLoss", "MarginRankingLoss")
"""Losses whose labels are -1 and 1."""
ASKS_FOR_NUMBERS = ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
RANGES = {
    "ReLU": (0.0, math.inf),
    "ReLU6": (0.0, 6.0),
    "Softplus": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
"""What activations can give."""


@dataclass(frozen=True)
class TargetAnomaly(Detector):
    """The targets are out of the model's reach, of one class, padding, equal to the inputs, or not finite.

    ## What it means
    A fresh model answers with values about 0 to 1. Targets in thousands are far away: the loss and its gradient are
    huge, or, with Adam, the outputs creep towards them for thousands of steps. Labels of one class, or targets that
    are the inputs themselves, can be had without learning anything.

    ## How it is told apart
    Large targets that the model reaches are healthy: it is a note at first, and a warning only if the outputs are
    still a fiftieth of the targets after a hundred steps, or a tenth after three hundred. Contrastive losses use one
    label for all on purpose; their classes outnumber the batch. A bounded last layer is right where targets are
    bounded too. An autoencoder's targets are its inputs, but they are not whole numbers. A model may shift its
    tokens by itself: targets that are the inputs are a note until the loss falls as that of copying does. A column that
    predicts the label well is a good feature; one that follows it in every batch, while no other comes near, is the
    label. One part of a loss may be far larger than another; only large targets make that a finding. Padding that the
    loss leaves out (`ignore_index`) is not counted here either. Labels of tokens are compared with the tokens: the next
    ones are as they should be, unless no layer's attention is masked; those after the next were shifted twice. Inputs
    that come again, value by value, should ask for the same; noise that is to be told, and experience that a loop
    collects, need not. A binary loss asks for numbers between 0 and 1: others, such as -1, make it fall without end,
    unless it is told to weigh them with 0. Tiny targets are a finding only where answering their mean would cost far
    less.

    ## What to do
    `y = (y - y.mean()) / y.std()` and scale predictions back; or begin with the bias of the last layer at `y.mean()`.
    For labels: count them, `torch.bincount(labels)`. For language models: `inputs, targets = x[:, :-1], x[:, 1:]`;
    for padded texts, `nn.CrossEntropyLoss(ignore_index=PAD)`.

    ## How to see that it is cured
    `target_std` is near 1, and `output_rms` reaches the targets' size within some hundred steps.

    ## Example
    >>> size = 2000.0
    >>> chart = Chart.of(step=100, target_mean=[size] * 3, target_std=[1.0] * 3, output_rms=[5.0, 6.0, 7.0])
    >>> TargetAnomaly().check(chart).message
    'targets are of size 2000, outputs still of size 7 at step 102'
    """

    code = "DA02"
    name = "target-anomaly"
    reads = (
        "target_std",
        "target_classes",
        "target_nonfinite",
        "target_is_input",
        "target_padding",
        "label_in_input",
        "target_in_input",
        "output_rms",
        "part_target_size",
        "answer_changed",
        "binary_outside",
    )
    suggests = ("normalize-targets", "clean-data", "rebalance-classes", "fix-loss")
    references = ("https://karpathy.github.io/2019/04/25/recipe/", "https://arxiv.org/abs/1602.07714")
    closes_after = 3

    large: float = 100.0
    """Size of float targets that is worth a note."""
    tiny: float = 0.01
    """Size of float targets under which they may be less than what a step moves the outputs by."""
    steps: int = 95
    """Steps after which outputs should be on their way."""
    reached: float = 0.02
    """Share of the targets' size that the outputs have by then; five times as much after three times the steps."""
    padding: float = 0.5
    """Share of the labels that belong to a stretch of one label at the end of a sequence."""
    exact: float = 0.9999
    """Correlation of a column of the inputs with the labels above which it is the label."""
    drowned: float = 300.0
    """Times another part of the loss that a part with large targets may be."""
    ahead: float = 0.01
    """Share of attention that may go to later tokens where the labels are the next ones: rounding at the most."""
    paired: float = 0.05
    """Share of the samples that come again whose target may be another."""
    one_token: float = 0.9
    """Share of the inputs that are one token from which they equal their neighbours anyway."""
    labels: int = 256
    """Labels that must have been seen before they are called all of one class."""

    def check(self, chart: Chart) -> Symptom | None:
        """Not finite, then the inputs themselves, padding, one class, then the scale."""
        wrong = chart["target_nonfinite"]
        if wrong.step == chart.step and wrong.latest > 0:
            message = f"{number_text(wrong.latest)} values of the targets are not finite"
            return self.symptom(chart, "warning", message, value=wrong.latest, limit=0.0)
        same = chart["target_is_input"].last(3)
        if same.size == 3 and float(same.min()) > 0.999 and not chart["token_top_share"].latest > self.one_token:
            message = "the targets are the inputs, at the same positions: the model only has to copy"
            since = int(chart["target_is_input"].steps[0])
            # A model may shift what it is given by itself: then it does not fall as quickly as copying is learnt.
            return self.symptom(chart, "warning" if _is_easy(chart) else "info", message, value=1.0, since=since)
        return (
            self._is_a_column(chart)
            or self._missing(chart)
            or self._changes(chart)
            or self._shift(chart)
            or self._unmasked(chart)
            or self._padding(chart)
            or self._none_counts(chart)
            or self._one_class(chart)
            or self._one_number(chart)
            or self._out_of_range(chart)
            or self._faint(chart)
            or self._unsigned(chart)
            or self._outside(chart)
            or self._drowns(chart)
            or self._scale(chart)
        )

    def _is_a_column(self, chart: Chart) -> Symptom | None:
        """A table that still holds its outcome: one column follows the label exactly, in every batch looked at."""
        closest, first = chart["label_in_input"], chart["label_in_input"].steps[:1]
        if is_copied(chart):
            message = "the number that is asked for is in the input, at the same place of each sample"
            since = int(chart["target_in_input"].steps[0])
            return self.symptom(chart, "warning", message, value=chart["target_in_input"].latest, since=since)
        if is_given_away(chart, self.exact):
            message = "one column of the inputs is the label, or one for each class: there is nothing to learn"
        elif is_given_away(chart):
            message = f"one column of the inputs gives the label away: it correlates by {number_text(closest.latest)}, "
            message += f"the next column by {number_text(chart['label_in_another'].latest)}"
        else:
            return None
        return self.symptom(chart, "warning", message, value=closest.latest, limit=self.exact, since=int(first[0]))

    def _changes(self, chart: Chart) -> Symptom | None:
        """The same inputs come with other targets: both were shuffled, or augmented, apart from each other."""
        share = answers_changed(chart, self.paired)
        if not share > self.paired:
            return None
        message = f"{share:.0%} of the samples that come again, with the very same input, have another target"
        since = int(chart["answer_changed"].steps[0])
        return self.symptom(chart, "warning", message, value=share, limit=self.paired, since=since)

    def _missing(self, chart: Chart) -> Symptom | None:
        """A number that stands for a value that was not measured, such as -9999, is learnt like any other."""
        value, size = stands_for_missing(chart), part_off_at_times(chart)
        if not math.isnan(value):
            message = f"targets of {number_text(value)} come again and again, far from all others: "
            message += "it stands for what was not measured"
            return self.symptom(chart, "warning", message, value=value, since=int(chart["target_std"].steps[0]))
        if size > 0:
            message = f"targets of one part of the loss are of size {number_text(size)} in some batches and of "
            message += f"{number_text(median(chart['part_target_size'].values))} in others"
            return self.symptom(chart, "warning", message, value=size, since=int(chart["part_target_size"].steps[0]))
        return None

    def _faint(self, chart: Chart) -> Symptom | None:
        """Targets of a binary loss that are 0 or next to 0: a mask that was divided by 255 once too often."""
        if not is_faint(chart):
            return None
        high = chart["target_max"].latest
        message = f"targets of a binary loss are 0 or {number_text(high)}, never 1: they were divided once too often"
        return self.symptom(chart, "warning", message, value=high, limit=1.0, since=int(chart["target_max"].steps[0]))

    def _unsigned(self, chart: Chart) -> Symptom | None:
        """Labels 0 and 1 of a loss that wants -1 and 1: a label of 0 asks for nothing."""
        if not is_unsigned(chart):
            return None
        message = f"labels are 0 and 1, and {chart.fact('loss.function')} wants -1 and 1: those of 0 teach nothing"
        since = int(chart["target_min"].steps[0])
        return self.symptom(chart, "warning", message, value=0.0, limit=-1.0, since=since)

    def _outside(self, chart: Chart) -> Symptom | None:
        """Targets of a binary loss under 0 or above 1: it has no minimum there, and asks for ever larger outputs."""
        if not is_outside(chart):
            return None
        share = chart["binary_outside"].latest
        message = f"{share:.0%} of the targets of a binary loss are not between 0 and 1: it falls without end there"
        return self.symptom(chart, "warning", message, value=share, since=int(chart["binary_outside"].steps[0]))

    def _drowns(self, chart: Chart) -> Symptom | None:
        """One part of the loss has large targets and outweighs the others by far: they are not heard."""
        sizes, ratios = chart["part_target_size"], chart["part_loss_ratio"].last(4)
        if chart.step < self.steps or ratios.size < 4 or not float(sizes.last(4).min()) > self.large / 3:
            return None
        if not float(ratios.min()) > self.drowned:
            return None
        message = f"targets of one part of the loss are of size {number_text(sizes.latest)}: "
        message += f"it is {number_text(float(ratios[-1]))} times another part"
        return self.symptom(chart, "warning", message, value=sizes.latest, limit=self.large, since=int(sizes.steps[0]))

    def _shift(self, chart: Chart) -> Symptom | None:
        """Next tokens that attention can read, or the tokens after the next."""
        following, second = chart["target_is_next"].last(3), chart["target_after_next"].last(3)
        if following.size < 3 or second.size < 3:
            return None
        since = int(chart["target_is_next"].steps[0])
        if is_of_the_past(chart):
            message = "the labels are the tokens before, which the model has seen: they were shifted the wrong way"
            severity: Severity = "warning" if _copies(chart) else "info"
            return self.symptom(chart, severity, message, value=chart["target_is_before"].latest, since=since)
        if float(second.min()) > 0.99 and float(following.max()) < 0.5:
            message = "the labels are the tokens after the next ones: they were shifted twice"
            return self.symptom(chart, "warning", message, value=float(second.min()), since=since)
        if float(following.min()) > 0.99 and looks_ahead(chart) > self.ahead:
            message = f"the labels are the next tokens, and {looks_ahead(chart):.0%} of the attention goes to later "
            message += "ones: the answers can be read"
            return self.symptom(chart, "warning", message, value=looks_ahead(chart), limit=self.ahead, since=since)
        return None

    def _unmasked(self, chart: Chart) -> Symptom | None:
        """Masked tokens are to be told, and the loss counts those that were not masked as well."""
        if not counts_unmasked(chart):
            return None
        share = chart["target_is_input"].latest
        message = f"{share:.0%} of the labels are in the input at their own place, the others under a mask: "
        message += "the loss counts what was not masked (ignore_index)"
        since = int(chart["target_is_input"].steps[0])
        return self.symptom(chart, "warning", message, value=share, confidence=0.8, since=since)

    def _padding(self, chart: Chart) -> Symptom | None:
        """More of what the loss counts is one label, repeated to the end of the sequences, than anything else."""
        shares = chart["target_padding"].last(3)
        if shares.size < 3 or not float(shares.min()) > self.padding:
            return None
        message = f"{100 * float(shares[-1]):.0f} % of the labels are one and the same to the end of each sequence: "
        message += "the loss counts padding (ignore_index)"
        since = int(chart["target_padding"].steps[0])
        return self.symptom(chart, "warning", message, value=float(shares[-1]), limit=self.padding, since=since)

    def _out_of_range(self, chart: Chart) -> Symptom | None:
        kind, low, high = output_range(chart)
        if kind and not chart["target_std"]:
            return self._beyond(chart, kind, high - low)
        mean, deviation = chart["target_mean"].latest, chart["target_std"].latest
        margin = 0.1 * deviation
        below = mean - deviation < low - margin and chart["target_min"].latest < low - margin
        above = mean + deviation > high + margin and chart["target_max"].latest > high + margin
        if not kind or not (below or above) or chart["target_std"].count < 3:
            return None
        reach = f"nothing below {number_text(low)}" if below else f"nothing above {number_text(high)}"
        value = chart["target_min" if below else "target_max"].latest
        message = f"targets go to {number_text(value)}, but the last layer, {kind}, gives {reach}"
        first = int(chart["target_std"].steps[0])
        return self.symptom(chart, "warning", message, value=value, limit=low if below else high, since=first)

    def _beyond(self, chart: Chart, kind: str, width: float) -> Symptom | None:
        """Targets that are not seen: a mean loss larger than the width of all answers has some outside of them."""
        if not is_beyond(chart, width):
            return None
        level = number_text(chart["loss"].latest)
        message = f"the mean error is {level}, but all that the last layer, {kind}, can give is within "
        message += number_text(width)
        return self.symptom(chart, "warning", message, value=chart["loss"].latest, limit=width, since=0)

    def _none_counts(self, chart: Chart) -> Symptom | None:
        """No label is one of a class: all are left out, and the mean of nothing is 0 / 0."""
        if not counts_nothing(chart):
            return None
        message = "no label is one that the loss counts: all are ignore_index, and the mean of nothing is not a number"
        return self.symptom(chart, "warning", message, value=0.0, since=chart["target_classes"].step)

    def _one_class(self, chart: Chart) -> Symptom | None:
        binary = chart.fact("loss.kind") == "bce" and chart["target_two_valued"]
        classes, size = chart.fact("loss.classes", 2 if binary else None), chart.context.get("batch_size")
        pooled = chart["pooled_classes"]
        if not isinstance(classes, int) or not isinstance(size, int) or pooled.latest != 1 or classes >= size:
            return None
        if pooled.count * size < self.labels or pooled.count < 4 or _are_compared(chart, classes):
            return None
        message = f"all labels seen so far are of one class, of {classes} that the model can tell"
        return self.symptom(chart, "warning", message, value=1.0, since=int(pooled.steps[0]))

    def _one_number(self, chart: Chart) -> Symptom | None:
        """All that is asked for is one and the same number: values that were rounded, or read as something else."""
        if not is_one_number(chart):
            return None
        message = f"all targets seen so far are {number_text(chart['target_mean'].latest)}: there is nothing to learn"
        return self.symptom(chart, "warning", message, value=0.0, since=int(chart["target_std"].steps[0]))

    def _lost(self, chart: Chart, size: float) -> Symptom | None:
        """Tiny targets: what the outputs move by at a step is more than all that is asked for."""
        if chart.step < self.steps or not is_lost(chart, size):
            return None
        message = (
            f"targets are of size {number_text(size)}, outputs still of size {number_text(chart['output_rms'].latest)}"
        )
        message += f" at step {chart.step}: to answer their mean would cost far less"
        since = int(chart["target_std"].steps[0])
        return self.symptom(chart, "warning", message, value=size, limit=self.tiny, since=since)

    def _scale(self, chart: Chart) -> Symptom | None:
        mean, deviation, output = (chart[name] for name in ("target_mean", "target_std", "output_rms"))
        logarithms = chart.fact("loss.function") == "PoissonNLLLoss"
        if deviation.count < 2 or not output or logarithms:
            return None
        size, reached = math.hypot(mean.latest, deviation.latest), output.latest
        if 0 < size < self.tiny:
            return self._lost(chart, size)
        if not size > self.large / 3:
            return None
        shares = output.last(3) / size
        slow = chart.step >= self.steps and float(shares.max()) < self.reached
        slow = slow or (chart.step >= self.steps and _costs_more_than_a_guess(chart))
        if slow or (chart.step >= 3 * self.steps and float(shares.max()) < 5 * self.reached):
            message = f"targets are of size {number_text(size)}, outputs still of size {number_text(reached)}"
            message += f" at step {chart.step}"
            severity: Severity = "info" if acts(chart) else "warning"  # the targets of a loop that acts grow with it
            return self.symptom(chart, severity, message, value=size, limit=self.large, since=int(deviation.steps[0]))
        if size > self.large and chart.step < self.steps:
            message = f"targets are of size {number_text(size)}; outputs begin at {number_text(output.first)}"
            return self.symptom(chart, "info", message, value=size, limit=self.large)
        return None


def _are_compared(chart: Chart, classes: int) -> bool:
    """Whether the classes are none that the model gives: one thing among others is to be found, always the first."""
    widths = dict(zip(chart.module_names, chart.fact("modules.widths", ()), strict=False))
    given = [widths.get(name) for name in chart.fact("modules.outputs", ())]
    return bool(given) and all(width and width not in (1, classes) for width in given)


def _is_easy(chart: Chart, share: float = 0.3) -> bool:
    """Whether most of what a guess by frequency costs is gone, or no loss is known: copying is learnt at once."""
    loss, entropy = chart["loss"], chart["pooled_entropy"].latest
    if not loss:
        return True
    guess = entropy if entropy > 0 else Progress.of(loss).start
    return loss.count >= 16 and median(loss.last(8)) < share * guess


def is_lost(chart: Chart, size: float, samples: int = 3) -> bool:
    """Whether outputs are ten times as large as targets that are no yes or no, and cost more than their mean would."""
    outputs = chart["output_rms"].last(samples)
    if not size > 0 or outputs.size < samples or chart.fact("loss.kind") == "bce":
        return False
    return float(outputs.min()) > 10 * size and _costs_more_than_a_guess(chart)


def counts_nothing(chart: Chart) -> bool:
    """Whether a batch had labels, none of them that of a class, and its mean loss is therefore not a number."""
    classes, losses = chart["target_classes"], chart["loss"]
    mean = chart.fact("loss.reduction", "mean") == "mean"
    return classes.latest == 0 and mean and losses.nonfinite > 0


def stands_for_missing(chart: Chart, far: float = 100.0, least: int = 2) -> float:
    """The number that is the farthest target of several batches, to the last digit, and cannot be one; else NaN.

    It is a hundred times as far out as all targets of other batches, or nothing but nines and far from the rest.
    """
    means, spreads = chart["target_mean"].values, chart["target_std"].values
    for name in ("target_min", "target_max"):
        values = chart[name].values
        if values.size < least + 2 or not values.size == means.size == spreads.size or not np.isfinite(values).all():
            continue
        value = float(values[np.argmax(np.abs(values))])
        here = values == value
        if np.count_nonzero(here) < least or not abs(value) >= far - 1:
            continue
        usual = np.abs(means[~here]) + spreads[~here]
        apart = usual.size >= least and bool((abs(value) > far * usual).all())
        nines = value == round(value) and set(str(abs(int(value)))) == {"9"}
        if apart or (nines and bool((np.abs(value - means[here]) > 3 * spreads[here]).all())):
            return value
    return math.nan


def part_off_at_times(chart: Chart, far: float = 100.0, least: int = 2) -> float:
    """The size of the targets of one part of a loss, where it is a hundred times the usual in a few batches; else 0."""
    sizes = chart["part_target_size"].values
    high = sizes[sizes > far * max(median(sizes), 0.01)] if sizes.size >= 3 * least else sizes[:0]
    return median(high) if high.size >= least else 0.0


def _costs_more_than_a_guess(chart: Chart, times: float = 10.0, samples: int = 3) -> bool:
    """Whether answering the mean of the targets would still cost far less than what the model answers."""
    losses, guesses = chart["criterion"].last(samples), chart["guess_loss"].last(samples)
    return losses.size == guesses.size == samples and bool((losses > times * guesses).all())


def is_given_away(chart: Chart, close: float = 0.95, others: float = 0.7) -> bool:
    """Whether one column follows the label in every batch looked at, as no other does.

    A normal variable correlates with its own sign by 0.8: more means two groups with a gap between them.
    """
    closest, another = chart["label_in_input"].last(5), chart["label_in_another"].last(5)
    if closest.size < 5 or not float(closest.min()) > close:
        return False
    return close > 0.999 or (another.size == 5 and float(another.max()) < others)


def answers_changed(chart: Chart, least: float = 0.05, samples: int = 4) -> float:
    """The share of samples that came again unchanged with another target, where that cannot be meant; else 0.

    It can where a loop collects its own experience, where samples are alike from the beginning, and where numbers are
    others every time: noise that is to be told.
    """
    changed = chart["answer_changed"].last(samples)
    if changed.size < samples or chart["input_again"].first > 0 or chart.fact("loop.acts"):
        return 0.0
    whole = bool(chart.fact("loss.classes"))
    meant = not float(changed.min()) > 0 or (not whole and float(changed.max()) > 0.9)
    share = float(changed.mean())
    return share if share > least and not meant else 0.0


def is_of_the_past(chart: Chart, samples: int = 3) -> bool:
    """Whether the labels of tokens are the tokens before them, and not because all are alike."""
    before, following = chart["target_is_before"].last(samples), chart["target_is_next"].last(samples)
    same = before.size == following.size == samples
    return same and float(before.min()) > 0.99 and float(following.max()) < 0.5


def _copies(chart: Chart, share: float = 0.35) -> bool:
    """Whether the loss falls to where no language has it: a model that reads backwards has not seen its labels."""
    losses = chart["loss"]
    return losses.count >= 8 and median(losses.last(8)) < share * Progress.of(losses).start


def is_copied(chart: Chart, samples: int = 3) -> bool:
    """Whether one place of the input held the very numbers that a regression asks for, in all of the last samples."""
    shares = chart["target_in_input"].last(samples)
    return shares.size == samples and float(shares.min()) > 0.99


def is_faint(chart: Chart, samples: int = 5) -> bool:
    """Whether all targets of a binary loss are 0 or one and the same number next to it."""
    high, low = chart["target_max"].last(samples), chart["target_min"].last(samples)
    pairs = chart["target_two_valued"].last(samples)
    if chart.fact("loss.kind") != "bce" or not high.size == low.size == pairs.size == samples:
        return False
    return bool((pairs > 0).all() and (low == 0).all() and (high == high[0]).all()) and 0 < float(high[0]) < 0.05


def is_one_number(chart: Chart, samples: int = 5, fitting: float = 0.01) -> bool:
    """Whether a regression is asked for one number, whatever the sample, and its error is the whole loss.

    What an equation leaves over is to be 0 everywhere, and so is a distance that a loop takes by itself.
    """
    spreads, whole, part = chart["pooled_std"].last(samples), chart["loss"], chart["criterion"]
    if spreads.size < samples or spreads.any() or chart.fact("loss.function") not in ASKS_FOR_NUMBERS:
        return False
    if chart.fact("data.differentiated") or chart.fact("loop.acts") or is_game(chart):
        return False
    _, mine, theirs = np.intersect1d(whole.steps, part.steps, assume_unique=True, return_indices=True)
    same = np.abs(whole.values[mine] - part.values[theirs]) <= fitting * np.abs(part.values[theirs])
    given = chart["output_rms"].first
    return same.size >= samples and bool(same.all()) and given > 0


def is_outside(chart: Chart, samples: int = 3) -> bool:
    """Whether a binary loss was asked for less than 0 or more than 1 in all of the last samples."""
    shares = chart["binary_outside"].last(samples)
    return shares.size == samples and float(shares.min()) > 0


def is_unsigned(chart: Chart, samples: int = 3) -> bool:
    """Whether a loss whose labels are -1 and 1 is given 0 and 1."""
    low, high = chart["target_min"].last(samples), chart["target_max"].last(samples)
    pairs = chart["target_two_valued"].last(samples)
    if chart.fact("loss.function") not in SIGNED or not low.size == high.size == pairs.size == samples:
        return False
    return bool((low == 0).all() and (high == 1).all() and (pairs > 0).all())


def counts_unmasked(chart: Chart, samples: int = 4) -> bool:
    """Whether most labels are the tokens at their place, and one token stands at nearly all other places."""
    same, masked = chart["target_is_input"].last(samples), chart["target_masked"].last(samples)
    if not same.size == masked.size == samples:
        return False
    return float(same.min()) > 0.65 and float(same.max()) < 0.98 and float(masked.min()) > 0.7


def asks_for_class_numbers(chart: Chart, samples: int = 3) -> bool:
    """Whether a model whose answers lie between 0 and 1 is asked for 0, 1, 2, 3 ...: classes, taken for quantities."""
    whole, low, high = (chart[f"target_{name}"].last(samples) for name in ("whole", "min", "max"))
    if output_range(chart)[0] not in ("Sigmoid", "Softmax") or not whole.size == low.size == high.size == samples:
        return False
    return bool((whole > 0).all() and (low >= 0).all() and (high >= 2).all())


def looks_ahead(chart: Chart) -> float:
    """The share of attention that goes to later tokens, in all layers and samples that were seen; 0 where unknown."""
    return chart["attention_ahead"].lowest if chart["attention_ahead"].count > 1 else 0.0


def is_beyond(chart: Chart, width: float, samples: int = 3) -> bool:
    """Whether the lowest loss so far says that targets lie outside of all that a bounded last layer can give."""
    power = {"l1": 1, "mse": 2}.get(chart.fact("loss.kind", ""), 0)
    if not power or chart.fact("loss.reduction") != "mean" or chart["output_rms"].count < samples:
        return False
    return chart["loss"].lowest > 2 * width**power


def output_range(chart: Chart) -> tuple[str, float, float]:
    """The activation that ends the model, and the least and the largest value it can give; empty where it is open."""
    outputs, kinds = chart.fact("modules.outputs", ()), chart.fact("modules.kinds", ())
    size, row = chart["output_rms"].latest, chart.modules("act_rms").latest
    if len(outputs) != 1 or outputs[0] not in chart.module_names or row.size != len(kinds):
        return "", 0.0, 0.0
    index = chart.module_names.index(outputs[0])
    if kinds[index] not in RANGES or not abs(row[index] - size) <= 1e-2 * size:  # what enters the loss is another
        return "", 0.0, 0.0
    return (kinds[index], *RANGES[kinds[index]])
