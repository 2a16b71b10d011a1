"""CK20 data-quality."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.nested import leading
from torchdoctor.checks.rows import ENOUGH, hashes, information
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text, share_text
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.vitals.batch_numbers import ROWS, is_whole


@dataclass(frozen=True)
class Entry:
    """The input of a layer."""

    name: str
    normalizes: bool
    size: float
    largest: float


@dataclass(frozen=True)
class DataQuality(Check):
    """The batch is fit to learn from.

    ## What it checks
    The batch must not have

    - non-finite values;
    - samples that are copies of each other, or equal samples with different labels;
    - targets that are the inputs themselves;
    - labels of one class only, or nearly so;
    - table columns that never change, or a column that is the label;
    - inputs far too large or too small for a first layer without normalization.

    ## How it is told apart
    - Non-finite values that do not reach the loss (masked missing targets, a mask of -inf) pass.
    - Copies count only if samples hold enough information that equality cannot be chance: four switches may be equal.
    - A constant column counts only if most other columns vary continuously; image borders, one-hot columns and a column
      of ones are common.
    - An unbalanced batch passes if the loss has class weights. Classes are counted only if there is one label per
      sample: a segmentation mask is mostly background.

    ## What to do
    Look at the batch yourself, sample by sample. Drop or impute missing values, shuffle, weight the classes, scale
    inputs to mean 0 and std 1, and remove the outcome from the table.

    ## Example
    >>> x = torch.randn(8, 3)
    >>> x[2, 1] = torch.nan
    >>> print(DataQuality().run(Subject.of(nn.Linear(3, 1), nn.MSELoss(), (x, torch.zeros(8, 1)))).message)
    1 of 24 values of the inputs is not finite
    """

    code = "CK20"
    name = "data-quality"
    quick = True
    static = True
    needs_loss = False
    suggests = ("clean-data", "normalize-inputs", "rebalance-classes", "shuffle-data")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    copies: float = 0.25
    """Share of samples that may be copies of others."""
    labels: int = 16
    """Fewest labels for judging the balance of classes."""
    top: float = 0.95
    """Share of the most frequent class above which the batch is unbalanced."""
    continuous: float = 0.8
    """Share of a table's other columns that must vary continuously before a constant one is reported."""

    def applies(self, subject: Subject) -> str | None:
        """A batch with tensors."""
        return None if leading(subject.inputs) is not None else "the batch holds no tensor"

    def run(self, subject: Subject) -> Outcome:
        """Run one test after the other, the most serious first."""
        inputs = leading(subject.inputs)
        if inputs is None:
            return self.passed("the batch holds no tensor")
        looks = (self._finite, self._copies, self._same, self._classes, self._columns, self._scale)
        for look in looks:
            outcome = look(subject, inputs)
            if outcome is not None:
                return outcome
        return self.passed(f"{subject.samples} samples are finite, distinct and of a usual scale")

    def _finite(self, subject: Subject, inputs: Tensor) -> Outcome | None:
        for what, thing in (("inputs", subject.inputs), ("targets", subject.targets)):
            for tensor in numbers(thing):
                bad = int((~torch.isfinite(tensor)).sum())
                if bad and not _reaches_nothing(subject):
                    message = f"{bad} of {tensor.numel()} values of the {what} {'is' if bad == 1 else 'are'} not finite"
                    advice = "Drop or impute them, and find their source: missing values, a division by 0."
                    return self.failed(message, advice, value=float(bad), limit=0.0)
        return None

    def _copies(self, subject: Subject, inputs: Tensor) -> Outcome | None:
        samples = inputs.shape[0]
        if samples < 4 or _has_several(subject.inputs):
            return None
        found = hashes(inputs)
        different = len(set(found))
        targets = subject.targets
        if different == 1 and isinstance(targets, Tensor) and targets.shape[:1] == (samples,):
            if len(set(hashes(targets))) > 1:
                message = f"all {samples} inputs of the batch are equal, while their targets differ"
                return self.failed(message, "Check how a sample is made: an unused index, or a buffer that is reused.")
            return None
        if information(inputs) < ENOUGH:
            return None
        share = 1 - different / samples
        if share > self.copies:
            message = f"{samples - different} of {samples} samples are copies of others"
            advice = "Look for an unused index, a sampler with replacement, or duplicate records."
            return self.failed(message, advice, value=share, limit=self.copies, severity="warning")
        conflicts = _conflicts(found, targets)
        if conflicts > 1:
            message = f"{conflicts} samples are equal to samples with a different label"
            return self.failed(message, "Find out which label is right.", value=conflicts, severity="warning")
        return None

    def _same(self, subject: Subject, inputs: Tensor) -> Outcome | None:
        """Targets equal to the inputs: integers, at the same positions, and the model does not shift them."""
        targets = subject.targets
        if (
            not isinstance(targets, Tensor)
            or not is_whole(targets)
            or targets.shape != inputs.shape
            or inputs.dim() < 2
        ):
            return None
        if not bool((targets == inputs).float().mean() > 0.999) or inputs.shape[1] < 3 or _shifts(subject, targets):
            return None
        message = "the targets are the inputs, at the same positions: the model only has to copy"
        return self.failed(message, "To predict what comes next: `inputs, targets = x[:, :-1], x[:, 1:]`.")

    def _classes(self, subject: Subject, inputs: Tensor) -> Outcome | None:
        targets = subject.targets
        if not isinstance(targets, Tensor) or targets.numel() != inputs.shape[0] or targets.numel() < self.labels:
            return None
        labels, classes = targets.flatten(), subject.classes
        if targets.is_floating_point():
            if not bool(((labels == 0) | (labels == 1)).all()) or not _is_binary(subject):
                return None
            classes = 2
        counts = Counter(labels.tolist())
        most = max(counts.values()) / labels.numel()
        if classes is None or classes < 2 or _is_weighted(subject):
            return None
        if len(counts) > 1 and (most <= self.top or labels.numel() < 2 * self.labels):
            return None
        message = (
            f"{share_text(most)} of {labels.numel()} labels are one class, of {classes} that the model can predict"
        )
        advice = "Shuffle the data. If the classes are this unbalanced, use class weights or a balancing sampler."
        return self.failed(message, advice, value=most, limit=self.top, severity="warning")

    def _columns(self, subject: Subject, inputs: Tensor) -> Outcome | None:
        """In a table: columns that never change, and a column that is the label."""
        if not inputs.is_floating_point() or inputs.dim() != 2 or inputs.shape[0] < ROWS or inputs.shape[1] < 2:
            return None
        table = inputs.detach().float()
        constant = (table.amax(0) == table.amin(0)) & (table[0] != 1)
        varied = torch.tensor([column.unique().numel() > 0.5 * len(column) for column in table.T.cpu()], device="cpu")
        others = max(1, int((~constant).sum()))
        if constant.any() and float(varied.sum()) / others >= self.continuous:
            where = [f"column {index}" for index in constant.nonzero().flatten().tolist()]
            message = f"{len(where)} of {table.shape[1]} columns never change: {names_text(where)}"
            advice = "Remove them, or find out why they are constant."
            return self.failed(message, advice, where=tuple(where), value=float(len(where)), severity="warning")
        label = _label_column(table, subject.targets)
        if label is None:
            return None
        message = f"column {label} is the label itself, in other numbers: there is nothing to learn"
        return self.failed(message, "Remove the outcome from the inputs.", where=(f"column {label}",))

    def _scale(self, subject: Subject, inputs: Tensor) -> Outcome | None:
        """The scale of the inputs, if neither of the first two layers normalizes."""
        entries = _entries(subject)
        if not entries or any(entry.normalizes for entry in entries[:2]):
            return None
        first, usual = entries[0], InputAnomaly()
        if not first.size > usual.large and not 0 < first.largest < usual.small:
            return None
        message = (
            f"the inputs of {first.name} have an RMS of {number_text(first.size)} (largest "
            f"{number_text(first.largest)}), "
        )
        message += "and nothing normalizes them"
        advice = "Scale inputs to mean 0 and std 1 (images: divide by 255 first)."
        return self.failed(
            message, advice, where=(first.name,), value=first.size, limit=usual.large, severity="warning"
        )


def numbers(thing: Any) -> Iterator[Tensor]:
    """Floating-point tensors in a batch, except masks."""
    if isinstance(thing, Tensor):
        if thing.is_floating_point():
            yield thing.detach()
    elif isinstance(thing, dict):
        for key, item in thing.items():
            if "mask" not in str(key):
                yield from numbers(item)
    elif isinstance(thing, tuple | list):
        for item in thing:
            yield from numbers(item)


def _reaches_nothing(subject: Subject) -> bool:
    """Whether the loss and the gradients are finite anyway."""
    if subject.broken or subject.no_loss:
        return False
    with subject.fresh():
        loss = subject.loss()
        if not math.isfinite(float(loss.detach())) or not loss.requires_grad:
            return math.isfinite(float(loss.detach()))
        return all(bool(torch.isfinite(grad).all()) for grad in subject.gradients(loss).values() if grad is not None)


def _has_several(inputs: Any) -> bool:
    """Whether a sample consists of more than one tensor, masks aside."""
    items = (
        list(inputs.items())
        if isinstance(inputs, dict)
        else list(enumerate(inputs))
        if isinstance(inputs, tuple)
        else []
    )
    return sum(isinstance(item, Tensor) and "mask" not in str(key) for key, item in items) > 1


def _conflicts(found: list[bytes], targets: Any) -> int:
    """The number of samples that are equal to one with another label."""
    if not isinstance(targets, Tensor) or targets.shape != (len(found),) or not is_whole(targets):
        return 0
    labels: dict[bytes, Counter[int]] = defaultdict(Counter)
    for row, label in zip(found, targets.tolist(), strict=True):
        labels[row][label] += 1
    return sum(counts.total() for counts in labels.values() if len(counts) > 1)


def _shifts(subject: Subject, targets: Tensor) -> bool:
    """Whether the model shifts labels itself, so that the first label does not matter."""
    if not subject.calling.feeds_targets:
        return False
    others = targets.clone()
    others[:, 0] = torch.where(targets[:, 0] == targets[0, 1], targets[0, 2], targets[0, 1])
    if torch.equal(others, targets):
        return True
    with subject.fresh(), torch.no_grad():
        subject.evaluate()
        return bool(torch.isclose(subject.loss(), subject.loss(subject.inputs, others), rtol=1e-6))


def _is_binary(subject: Subject) -> bool:
    outputs = subject.outputs
    return outputs is not None and outputs.numel() == outputs.shape[0]


def _is_weighted(subject: Subject) -> bool:
    loss = subject.loss_fn
    return any(isinstance(getattr(loss, name, None), Tensor) for name in ("weight", "pos_weight", "alpha"))


def _label_column(table: Tensor, targets: Any) -> int | None:
    """The column that tracks the class labels exactly."""
    if not isinstance(targets, Tensor) or targets.numel() != table.shape[0]:
        return None
    labels = targets.detach().flatten().float()
    if not bool((labels == labels.round()).all()) or torch.equal(labels, labels[:1].expand_as(labels)):
        return None
    labels = labels - labels.mean()
    columns = table - table.mean(0)
    sizes = columns.square().sum(0).sqrt() * labels.square().sum().sqrt()
    closeness = (labels @ columns).abs() / sizes.clamp_min(1e-12)
    best = int(closeness.argmax())
    return best if float(closeness[best]) > TargetAnomaly().exact else None


def _entries(subject: Subject) -> list[Entry]:
    """The inputs of norms and of layers with parameters, in execution order."""
    seen: list[Entry] = []

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        norm = "norm" in type(module).__name__.lower()
        given = args[0] if args else None
        if not norm and not any(True for _ in module.parameters(recurse=False)):
            return
        number = isinstance(given, Tensor) and given.is_floating_point() and given.numel() > 0
        value = given.detach().float().abs() if number and isinstance(given, Tensor) else torch.ones(1, device="cpu")
        seen.append(Entry(name, norm, float(value.square().mean().sqrt()), float(value.amax())))

    if subject.broken or len(subject.models) > 1 or subject.calling.loss == "whole":
        return []
    with subject.fresh(), torch.no_grad(), subject.watched(see):
        subject.forward()
    return seen
