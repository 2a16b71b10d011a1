"""DA02 target-anomaly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import acts
from torchdoctor.symptoms.target_values import (
    are_compared,
    cost_nothing,
    costs_more_than_a_guess,
    counts_nothing,
    is_beyond,
    is_faint,
    is_lost,
    is_no_distance,
    is_one_number,
    is_outside,
    is_unsigned,
    leap_of_size,
    output_range,
    part_off_at_times,
    stands_for_missing,
)
from torchdoctor.symptoms.targets_given import (
    answers_changed,
    copies,
    counts_unmasked,
    is_copied,
    is_easy,
    is_given_away,
    is_of_the_past,
    looks_ahead,
)

OTHER_TARGET = "have a different target than before"
"""End of the message if the same inputs come with different targets."""


@dataclass(frozen=True)
class TargetAnomaly(Detector):
    """The targets are out of the model's reach, all of one class, padding, equal to the inputs, or not finite.

    ## What it means
    The outputs of a new model are roughly between 0 and 1. Targets in the thousands are far away: the loss and its
    gradient are huge, or, with Adam, the outputs approach them slowly over thousands of steps. Labels of a single
    class, or targets equal to the inputs, can be predicted without learning anything.

    ## How it is told apart
    - Large targets that the model reaches are healthy. They are info at first, and a warning only if the outputs are
      still below 2 % of the targets after a hundred steps, or below 10 % after three hundred. A loss that
      became too low for this distance measures something else, such as the error of logarithms. Tiny targets are
      reported only if predicting their mean would give a far lower loss.
    - Contrastive losses use one label for all on purpose; their classes outnumber the batch.
    - A bounded last layer is fine if the targets are bounded too.
    - The targets of an autoencoder are its inputs, but they are not whole numbers. A model may shift its tokens itself,
      so targets equal to the inputs are info until the loss falls as quickly as copying would make it.
    - A column that predicts the label well is a good feature; one that follows it in every batch, while no other comes
      near, is the label.
    - One part of a loss may be far larger than another; this is reported only if its targets are large.
    - Padding that the loss ignores (`ignore_index`) is ignored here as well.
    - Token labels should be the next tokens, and attention must then be masked; labels two positions ahead were shifted
      twice.
    - Repeated inputs should have the same target, except for predicted noise, reinforcement learning and repeated
      measurements.
    - The targets of a binary loss must be between 0 and 1: with others, such as -1, it falls without limit, unless they
      have weight 0.

    ## What to do
    Use `y = (y - y.mean()) / y.std()` and scale predictions back, or initialize the bias of the last layer to
    `y.mean()`. Count labels with `torch.bincount(labels)`. For language models, use
    `inputs, targets = x[:, :-1], x[:, 1:]`; for padded texts, `nn.CrossEntropyLoss(ignore_index=PAD)`.

    ## How to see that it is cured
    `target_std` is near 1, and `output_rms` reaches the size of the targets within a few hundred steps.

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
    """Size of float targets above which they are reported as info."""
    tiny: float = 0.01
    """Size of float targets below which a step may move the outputs by more than that."""
    steps: int = 95
    """Steps after which the outputs should approach the targets."""
    reached: float = 0.02
    """Share of the targets' size that the outputs must have by then; five times as much after three times the steps."""
    padding: float = 0.5
    """Share of labels that repeat one label up to the end of the sequence above which they are padding."""
    exact: float = 0.9999
    """Correlation of a column of the inputs with the labels above which it is the label."""
    drowned: float = 300.0
    """Ratio between two parts of the loss above which the one with large targets drowns the other."""
    ahead: float = 0.01
    """Share of attention to later tokens above which next-token labels can be read; less may be rounding."""
    paired: float = 0.05
    """Share of repeated samples above which changed targets are reported."""
    one_token: float = 0.9
    """Share of the inputs that are a single token above which they equal their neighbors anyway."""
    labels: int = 256
    """Labels that must be seen before they are reported as all of one class."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test for non-finite targets first, then for targets equal to the inputs, then the rest; scale comes last."""
        wrong = chart["target_nonfinite"]
        if wrong.step == chart.step and wrong.latest > 0:
            message = f"{number_text(wrong.latest)} values of the targets are not finite"
            return self.symptom(chart, "warning", message, value=wrong.latest, limit=0.0)
        same = chart["target_is_input"].last(3)
        if same.size == 3 and float(same.min()) > 0.999 and not chart["token_top_share"].latest > self.one_token:
            message = "the targets are the inputs, at the same positions: the model only has to copy"
            since = int(chart["target_is_input"].steps[0])
            # A model may shift its inputs itself; then the loss does not fall as quickly as when it copies.
            return self.symptom(chart, "warning" if is_easy(chart) else "info", message, value=1.0, since=since)
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
        """The inputs contain the target: one column follows the label in every sampled batch."""
        closest, first = chart["label_in_input"], chart["label_in_input"].steps[:1]
        if is_copied(chart):
            message = "the target value is in the input, at the same position of each sample"
            since = int(chart["target_in_input"].steps[0])
            return self.symptom(chart, "warning", message, value=chart["target_in_input"].latest, since=since)
        if is_given_away(chart, self.exact):
            message = "one column of the inputs is the label, or one per class: there is nothing to learn"
        elif is_given_away(chart):
            message = f"one column of the inputs reveals the label: its correlation is {number_text(closest.latest)}, "
            message += f"that of the next column {number_text(chart['label_in_another'].latest)}"
        else:
            return None
        return self.symptom(chart, "warning", message, value=closest.latest, limit=self.exact, since=int(first[0]))

    def _changes(self, chart: Chart) -> Symptom | None:
        """The same inputs come with different targets: both were shuffled or augmented separately."""
        share = answers_changed(chart, self.paired)
        if not share > self.paired:
            return None
        message = f"{share_text(share)} of the repeated samples, with identical inputs, {OTHER_TARGET}"
        changed = chart["answer_changed"]
        same = np.flatnonzero(changed.values == 0)  # targets were unchanged until then
        since = int(changed.steps[int(same[-1]) + 1 if same.size else 0])
        return self.symptom(chart, "warning", message, value=share, limit=self.paired, since=since)

    def _missing(self, chart: Chart) -> Symptom | None:
        """A placeholder for missing values, such as -9999, that is learned like any other number."""
        value, size = stands_for_missing(chart), part_off_at_times(chart)
        if not math.isnan(value):
            message = f"targets of {number_text(value)} occur again and again, far from all others: "
            message += "a placeholder for missing values"
            return self.symptom(chart, "warning", message, value=value, since=int(chart["target_std"].steps[0]))
        if size > 0:
            message = f"targets of one part of the loss are of size {number_text(size)} in some batches and of "
            message += f"{number_text(median(chart['part_target_size'].values))} in others"
            return self.symptom(chart, "warning", message, value=size, since=int(chart["part_target_size"].steps[0]))
        return None

    def _faint(self, chart: Chart) -> Symptom | None:
        """Targets of a binary loss that are 0 or close to 0: a mask that was divided by 255 once too often."""
        if not is_faint(chart):
            return None
        high = chart["target_max"].latest
        message = f"targets of a binary loss are 0 or {number_text(high)}, never 1: they were divided once too often"
        return self.symptom(chart, "warning", message, value=high, limit=1.0, since=int(chart["target_max"].steps[0]))

    def _unsigned(self, chart: Chart) -> Symptom | None:
        """Labels 0 and 1 for a loss that expects -1 and 1: nothing is learned from a label of 0."""
        if not is_unsigned(chart):
            return None
        message = f"labels are 0 and 1, but {chart.fact('loss.function')} expects -1 and 1: zeros teach nothing"
        since = int(chart["target_min"].steps[0])
        return self.symptom(chart, "warning", message, value=0.0, limit=-1.0, since=since)

    def _outside(self, chart: Chart) -> Symptom | None:
        """Targets of a binary loss below 0 or above 1: there it has no minimum, and outputs grow without limit."""
        if not is_outside(chart):
            return None
        share = chart["binary_outside"].latest
        message = f"{share_text(share)} of the targets of a binary loss are not between 0 and 1: there it falls "
        message += "without limit"
        return self.symptom(chart, "warning", message, value=share, since=int(chart["binary_outside"].steps[0]))

    def _drowns(self, chart: Chart) -> Symptom | None:
        """A part of the loss with large targets that drowns the other parts."""
        sizes, ratios = chart["part_target_size"], chart["part_loss_ratio"].last(4)
        if chart.step < self.steps or ratios.size < 4 or not float(sizes.last(4).min()) > self.large / 3:
            return None
        if not float(ratios.min()) > self.drowned:
            return None
        message = f"targets of one part of the loss are of size {number_text(sizes.latest)}: "
        message += f"this part is {number_text(float(ratios[-1]))} times as large as another"
        return self.symptom(chart, "warning", message, value=sizes.latest, limit=self.large, since=int(sizes.steps[0]))

    def _shift(self, chart: Chart) -> Symptom | None:
        """Token labels that were shifted wrongly, or next tokens that attention can read."""
        following, second = chart["target_is_next"].last(3), chart["target_after_next"].last(3)
        if following.size < 3 or second.size < 3:
            return None
        since = int(chart["target_is_next"].steps[0])
        if is_of_the_past(chart):
            message = "the labels are the previous tokens, which the model has seen: they were shifted the wrong way"
            severity: Severity = "warning" if copies(chart) else "info"
            return self.symptom(chart, severity, message, value=chart["target_is_before"].latest, since=since)
        if float(second.min()) > 0.99 and float(following.max()) < 0.5:
            message = "the labels are the tokens two positions ahead: they were shifted twice"
            return self.symptom(chart, "warning", message, value=float(second.min()), since=since)
        if float(following.min()) > 0.99 and looks_ahead(chart) > self.ahead:
            message = f"the labels are the next tokens, but {share_text(looks_ahead(chart))} of the attention goes to "
            message += "later tokens: the answers can be read"
            return self.symptom(chart, "warning", message, value=looks_ahead(chart), limit=self.ahead, since=since)
        return None

    def _unmasked(self, chart: Chart) -> Symptom | None:
        """Masked tokens should be predicted, but the loss counts the unmasked ones as well."""
        if not counts_unmasked(chart):
            return None
        share = chart["target_is_input"].latest
        message = f"{share_text(share)} of the labels are in the input at their own position, the others are masked: "
        message += "the loss counts unmasked tokens (ignore_index)"
        since = int(chart["target_is_input"].steps[0])
        return self.symptom(chart, "warning", message, value=share, confidence=0.8, since=since)

    def _padding(self, chart: Chart) -> Symptom | None:
        """Most labels that the loss counts are one label, repeated up to the end of the sequences."""
        shares = chart["target_padding"].last(3)
        if shares.size < 3 or not float(shares.min()) > self.padding:
            return None
        message = f"{100 * float(shares[-1]):.0f} % of the labels repeat one label up to the end of the sequence: "
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
        message = f"targets reach {number_text(value)}, but the last layer, {kind}, gives {reach}"
        first = int(chart["target_std"].steps[0])
        return self.symptom(chart, "warning", message, value=value, limit=low if below else high, since=first)

    def _beyond(self, chart: Chart, kind: str, width: float) -> Symptom | None:
        """Unseen targets: a mean error larger than the range of the outputs shows that some lie outside of it."""
        if not is_beyond(chart, width):
            return None
        level = number_text(chart["loss"].latest)
        message = f"the mean error is {level}, but the outputs of the last layer, {kind}, span only "
        message += number_text(width)
        return self.symptom(chart, "warning", message, value=chart["loss"].latest, limit=width, since=0)

    def _none_counts(self, chart: Chart) -> Symptom | None:
        """All labels of a batch are ignored, so the mean loss is 0 / 0."""
        if not counts_nothing(chart):
            return None
        message = "all labels of a batch are ignore_index: the loss ignores them all, and the mean of nothing is NaN"
        return self.symptom(chart, "warning", message, value=0.0, since=chart["target_classes"].step)

    def _one_class(self, chart: Chart) -> Symptom | None:
        binary = chart.fact("loss.kind") == "bce" and chart["target_two_valued"]
        classes, size = chart.fact("loss.classes", 2 if binary else None), chart.context.get("batch_size")
        pooled = chart["pooled_classes"]
        if not isinstance(classes, int) or not isinstance(size, int) or pooled.latest != 1 or classes >= size:
            return None
        # A loss of practically zero shows that all labels of those batches were of that class as well.
        seen = pooled.count * size + (size * cost_nothing(chart) if pooled.count * size >= self.labels / 4 else 0)
        if seen < self.labels or pooled.count < 4 or are_compared(chart, classes):
            return None
        message = f"all labels seen so far are of one class, although the model has {classes} classes"
        return self.symptom(chart, "warning", message, value=1.0, since=int(pooled.steps[0]))

    def _one_number(self, chart: Chart) -> Symptom | None:
        """All targets are the same number: they may have been rounded, or read wrongly."""
        if not is_one_number(chart):
            return None
        message = f"all targets seen so far are {number_text(chart['target_mean'].latest)}: there is nothing to learn"
        return self.symptom(chart, "warning", message, value=0.0, since=int(chart["target_std"].steps[0]))

    def _lost(self, chart: Chart, size: float) -> Symptom | None:
        """Tiny targets: a step moves the outputs by more than the size of the targets."""
        if chart.step < self.steps or not is_lost(chart, size):
            return None
        message = (
            f"targets are of size {number_text(size)}, outputs still of size {number_text(chart['output_rms'].latest)}"
        )
        message += f" at step {chart.step}: predicting their mean would give a far lower loss"
        since = int(chart["target_std"].steps[0])
        return self.symptom(chart, "warning", message, value=size, limit=self.tiny, since=since)

    def _arrives_soon(self, chart: Chart, size: float) -> bool:
        """Whether the error falls fast, and at this pace the outputs reach the targets within twice `steps`."""
        steps, values, errors = chart["output_rms"].steps[-2:], chart["output_rms"].last(2), chart["criterion"].last(2)
        if values.size < 2 or not values[1] > values[0] or errors.size < 2 or not errors[1] < 0.7 * errors[0]:
            return False
        pace = float(values[1] - values[0]) / float(steps[1] - steps[0])
        return chart.step + (size - float(values[1])) / pace < 2 * self.steps

    def _scale(self, chart: Chart) -> Symptom | None:
        mean, deviation, output = (chart[name] for name in ("target_mean", "target_std", "output_rms"))
        logarithms = chart.fact("loss.function") == "PoissonNLLLoss"
        if deviation.count < 2 or not output or logarithms:
            return None
        # One batch of heavy-tailed targets may be a hundred times as wide as the others.
        size, reached = math.hypot(mean.latest, median(deviation.last(5))), output.latest
        if 0 < size < self.tiny:
            return self._lost(chart, size)
        if not size > self.large / 3 or is_no_distance(chart, size):
            return None
        shares = output.last(3) / size
        slow = chart.step >= self.steps and float(shares.max()) < self.reached
        late = chart.step >= self.steps and not self._arrives_soon(chart, size)
        slow = slow or (late and costs_more_than_a_guess(chart))
        if slow or (chart.step >= 3 * self.steps and float(shares.max()) < 5 * self.reached):
            message = f"targets are of size {number_text(size)}, outputs still of size {number_text(reached)}"
            message += f" at step {chart.step}"
            leap = leap_of_size(chart)
            if leap.since > 0:
                message += f"; targets were of size {number_text(leap.before)} up to step {leap.last}"
            severity: Severity = "info" if acts(chart) else "warning"  # in RL, targets grow with the model
            since = leap.since if leap.since > 0 else int(deviation.steps[0])
            return self.symptom(chart, severity, message, value=size, limit=self.large, since=since)
        if size > self.large and chart.step < self.steps:
            message = f"targets are of size {number_text(size)}; outputs start at {number_text(output.first)}"
            return self.symptom(chart, "info", message, value=size, limit=self.large)
        return None
