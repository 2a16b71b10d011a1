"""CK23 accumulation-equals-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks.batch_independence import linked, takes_time_first, time_first
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.probing import cut, seed
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text

RUNNING = ("Logcumsumexp", "Cumsum", "Cummax", "Sort")
"""Graph nodes whose result for one sample depends on its position among the others."""


@dataclass(frozen=True)
class AccumulationEqualsBatch(Check):
    """Gradients averaged over parts of the batch equal the gradient of the whole batch.

    ## What it checks
    The gradient of the batch is compared with the mean of the gradients of its two halves, in eval mode so that dropout
    and BatchNorm do not interfere (in training BatchNorm normalizes each part separately, with or without
    accumulation). If they differ, gradient accumulation and multi-device training do not learn what one large batch
    would.

    ## How it is told apart
    - A summed loss adds up instead of averaging: it passes, and the message says so.
    - A mean over counted items (tokens that are not ignored, class weights) passes if the halves, weighted by their
      counts, agree with the whole.
    - A loss that compares samples with each other (contrastive, or ordered by time as in survival analysis) is skipped:
      it needs the whole batch.

    ## What to do
    Divide by a number that is the same for every part: `loss.sum() / total`. Do not use batch statistics in the loss.

    ## Example
    >>> def loss(output, target):
    ...     errors = (output - target).square().flatten()
    ...     return errors.mean() / errors.std().detach()
    >>> batch = torch.eye(8), torch.arange(8.0)[:, None] ** 2
    >>> AccumulationEqualsBatch().run(Subject.of(torch.nn.Linear(8, 1), loss, batch)).passed
    False
    """

    code = "CK23"
    name = "accumulation-equals-batch"
    quick = True
    suggests = ("fix-accumulation", "fix-loss")
    references = ("https://unsloth.ai/blog/gradient",)

    most: float = 0.05
    """Largest allowed difference between the two gradients, as a share of the batch gradient's norm."""

    def applies(self, subject: Subject) -> str | None:
        """Two samples or more, and a single model."""
        if subject.samples < 2:
            return "the batch holds only one sample"
        if len(subject.models) > 1:
            return "several models share one loss"
        if linked(subject):
            return "a graph in the inputs or buffers links samples on purpose"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Compare the two halves with the whole batch."""
        if time_first(subject) is True:
            raise CannotTell("judging by the targets, inputs are time first: their first dimension is not samples")
        samples = subject.samples
        whole = subject.sized(samples - samples % 2)
        half = whole.samples // 2
        parts = [cut(whole, range(half)), cut(whole, range(half, whole.samples))]
        if parts[0].samples + parts[1].samples != whole.samples:
            raise CannotTell("the batch cannot be split in two")
        subject.evaluate()
        _ask_in_eval(whole)
        with torch.backends.cudnn.flags(enabled=False):  # cuDNN's recurrent layers have no backward in eval mode
            if _is_pairwise(whole):
                raise CannotTell("the loss compares the samples of a batch with each other, so it needs all of them")
            target, *halves = [self._gradient(part) for part in (whole, *parts)]
        size = float(target.norm())
        if not 0 < size < float("inf"):
            raise CannotTell(f"the gradient of the batch is {number_text(size)}")
        apart = float((target - (halves[0] + halves[1]) / 2).norm()) / size
        message = f"the mean gradient of two halves differs from the batch gradient by {number_text(apart)} of its norm"
        if apart <= self.most:
            return self.passed(message, value=apart, limit=self.most)
        if float((target - halves[0] - halves[1]).norm()) / size <= self.most:
            return self.passed("the loss is a sum: do not divide it when accumulating", value=0.0, limit=self.most)
        weighed, share = _weighed(target, halves)
        if weighed <= self.most and _may_weigh(whole, parts, share):
            message += f"; weighted {number_text(share)} to {number_text(1 - share)} by their counts, they agree"
            return self.passed(message, value=weighed, limit=self.most)
        if any(True for _ in takes_time_first(subject)) and time_first(subject) is None:
            raise CannotTell("the first dimension of the batch may be time, so its halves may not be separate samples")
        advice = "Divide the loss by a number that is the same for every part, and do not use batch statistics in it."
        return self.failed(message, advice, value=apart, limit=self.most, severity="warning")

    @staticmethod
    def _gradient(subject: Subject) -> Tensor:
        seed()
        loss = subject.loss()
        if not loss.requires_grad:
            raise CannotTell("the loss has no autograd graph")
        found = [grad.to_dense().flatten().double() for grad in subject.gradients(loss).values() if grad is not None]
        if not found:
            raise CannotTell("no parameter has a gradient")
        return torch.cat(found)


@torch.no_grad()
def _ask_in_eval(subject: Subject) -> None:
    """Raise CannotTell if the loss cannot be computed in eval mode or differs between two passes."""
    losses = []
    for number in range(2):
        seed(number)
        try:
            losses.append(float(subject.loss()))
        except Exception as error:  # detection models return losses in train mode only
            raise CannotTell("in eval mode the model returns something that the loss does not accept") from error
    if abs(losses[0] - losses[1]) > 1e-6 * abs(losses[0]):
        raise CannotTell("the model draws random numbers in eval mode, so two passes cannot be compared")


def _weighed(target: Tensor, halves: list[Tensor]) -> tuple[float, float]:
    """The weight of the first half that fits best, and the relative difference that remains with it."""
    difference = halves[0] - halves[1]
    share = float((target - halves[1]) @ difference / difference.square().sum().clamp_min(1e-30))
    return float((target - share * halves[0] - (1 - share) * halves[1]).norm() / target.norm()), share


def _may_weigh(whole: Subject, parts: list[Subject], share: float) -> bool:
    """Whether halves may count differently: class weights, labels per position, or unequal numbers of ignored ones."""
    targets = whole.targets
    weighted = isinstance(getattr(whole.loss_fn, "weight", None), Tensor)
    if not isinstance(targets, Tensor) or not 0 <= share <= 1 or targets.is_floating_point():
        return False
    ignored = [int((part.targets < 0).sum()) for part in parts]
    return weighted or targets.dim() > 1 or ignored[0] != ignored[1]


def _is_pairwise(subject: Subject) -> bool:
    """Whether the loss compares pairs of samples. A smaller batch is tried too: a layer may be as wide as the batch."""
    sizes = [size for size in (subject.samples, subject.samples - 2) if size > 2]
    return bool(sizes) and all(_has_square(subject.sized(size)) for size in sizes)


def _has_square(subject: Subject) -> bool:
    """Whether a samples × samples matrix (or of two views), or a running sum over samples, leads to the loss."""
    seed()
    waiting, seen = [subject.loss().grad_fn], 0
    while waiting and seen < 64:
        node = waiting.pop(0)
        seen += 1
        if node is None:
            continue
        for known in getattr(node, "_input_metadata", ()):
            shape = tuple(known.shape)
            if len(shape) >= 2 and shape[-1] == shape[-2] and shape[-1] in (subject.samples, 2 * subject.samples):
                return True
            if _runs_over_samples(node, shape, subject.samples):
                return True
        waiting += [parent for parent, _ in node.next_functions]
    return False


def _runs_over_samples(node: Any, shape: tuple[int, ...], samples: int) -> bool:
    """Whether a node accumulates or ranks over the samples of a batch: risk sets, ranks."""
    if not any(word in type(node).__name__ for word in RUNNING):
        return False
    place = getattr(node, "_saved_dim", None)
    if place is None or not shape:
        return False
    place = place - 2**64 if place >= 2**63 else place  # a negative dimension is saved as unsigned
    return bool(-len(shape) <= place < len(shape) and shape[place] == samples)
