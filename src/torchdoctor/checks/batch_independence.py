"""CK12 batch-independence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.nested import leading
from torchdoctor.checks.probing import SAME, altered, answer, awaken, by_sample, moved_by, next_along, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text


@dataclass(frozen=True)
class BatchIndependence(Check):
    """A sample's output depends on that sample alone.

    ## What it checks
    One sample of the batch is replaced by another, and the outputs of all other samples must not change. A `view` used
    instead of `transpose`, a softmax over dimension 0, and a missing `batch_first` all mix samples: they run without
    an error, but the model learns something that breaks at batch size 1.

    ## How it is told apart
    The model runs in eval mode, where BatchNorm uses its running statistics: mixing samples in training is its purpose.
    The check is skipped for BatchNorm without running statistics, and for models that compare samples on purpose (their
    output grows with the batch in two dimensions) or link them by a graph. It is also skipped if the first input
    dimension may be time.

    ## What to do
    Print shapes along `forward`. The batch must stay in one dimension: `reshape` does not move it, `transpose` does.
    `nn.LSTM`, `nn.MultiheadAttention` and `nn.Transformer` expect time first unless `batch_first=True`.

    ## Example
    >>> class Mixed(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x - x.mean(0))
    >>> batch = torch.randn(4, 3), torch.randn(4, 1)
    >>> BatchIndependence().run(Subject.of(Mixed(3, 1), nn.MSELoss(), batch)).passed
    False
    """

    code = "CK12"
    name = "batch-independence"
    quick = True
    suggests = ("fix-loss",)
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    most: float = SAME
    """Largest allowed change of the other outputs, as a share of their size."""

    def applies(self, subject: Subject) -> str | None:
        """Two samples or more that nothing links on purpose."""
        if (reason := whole_loss(subject)) is not None:
            return reason
        if subject.samples < 2:
            return "the batch holds only one sample"
        if any(not layer.track_running_stats for _, layer in subject.of_type(nn.modules.batchnorm._BatchNorm)):
            return "BatchNorm without running statistics mixes samples in eval mode too, by design"
        if linked(subject):
            return "a graph in the inputs or buffers links samples on purpose"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Replace the first sample, then the last, and compare the outputs of the others."""
        samples = subject.samples
        awaken(subject)
        whole = answer(subject)
        before = by_sample(subject, whole)
        if time_first(subject) is True:
            raise CannotTell("judging by the targets, inputs are time first: their first dimension is not samples")
        if _is_pairwise(subject, whole):
            raise CannotTell("the output compares the samples of a batch with each other")
        moved = 0.0
        for place in (0, samples - 1):
            chosen = torch.arange(samples, device=subject.device) == place
            after = by_sample(subject, answer(subject, altered(subject, chosen), subject.targets))
            moved = max(moved, moved_by(before[~chosen.to(before.device)], after[~chosen.to(before.device)]))
        said = "; BatchNorm, which mixes samples in training, was in eval mode" if subject.has_batchnorm else ""
        message = f"replacing one sample changes the outputs of the others by {number_text(moved)} of their size{said}"
        if not moved > self.most:
            return self.passed(message, value=moved, limit=self.most)
        first = [name for name, layer in takes_time_first(subject)]
        if first and time_first(subject) is None:
            raise CannotTell(f"either samples or time steps are mixed: {first[0]} expects time first")
        advice = "Keep the batch in one dimension: move it with transpose, not view; take the softmax over the last "
        advice += "dimension; set batch_first=True for recurrent layers and attention."
        return self.failed(message, advice, where=tuple(first[:3]), value=moved, limit=self.most)


def _is_pairwise(subject: Subject, whole: Tensor) -> bool:
    """Whether the shape of a single sample's output depends on the batch size."""
    if subject.samples < 3:
        return whole.dim() > 1 and whole.shape[1] == subject.samples
    try:
        fewer = answer(subject.sized(subject.samples - 1))
    except CannotTell:
        raise
    except Exception:  # noqa: BLE001  a fixed batch size tells nothing
        return False
    return whole.shape[1:] != fewer.shape[1:] and whole.shape[0] != fewer.shape[0]


def linked(subject: Subject) -> bool:
    """Whether an input looks like edges between samples: (2, edges) of integers, or samples × samples."""
    inputs = subject.inputs
    items = list(inputs.values()) if isinstance(inputs, dict) else list(inputs) if isinstance(inputs, tuple) else []
    edges = any(isinstance(t, Tensor) and not t.is_floating_point() and t.dim() == 2 and t.shape[0] == 2 for t in items)
    square = (subject.samples, subject.samples)
    tables = [*items[1:], *(buffer for model in subject.models.values() for buffer in model.buffers())]
    found = leading(inputs)
    long = found is not None and found.dim() > 1 and found.shape[1] == subject.samples  # more likely a position mask
    return (edges and subject.samples != 2) or (not long and any(_shape(t)[-2:] == square for t in tables))


def _shape(thing: Any) -> tuple[int, ...]:
    return tuple(thing.shape) if isinstance(thing, Tensor) else ()


def takes_time_first(subject: Subject) -> Iterator[tuple[str, nn.Module]]:
    """Layers that expect (time, samples, features)."""
    for name, layer in subject.of_type(nn.RNNBase, nn.MultiheadAttention):
        if not layer.batch_first:
            yield name, layer


def time_first(subject: Subject) -> bool | None:
    """Whether inputs are (time, samples, ...), judging by the targets; None if these do not show it."""
    inputs, targets = leading(subject.inputs), subject.targets
    if inputs is None or inputs.dim() < 2 or not isinstance(targets, Tensor) or not targets.dim():
        return None
    rows, columns = inputs.shape[:2]
    if rows != columns and targets.shape[0] in (rows, columns) and (targets.dim() < 2 or targets.shape[1] != columns):
        return bool(targets.shape[0] == columns)
    if next_along(subject, 1) or next_along(subject, 0):
        return not next_along(subject, 1)
    return None
