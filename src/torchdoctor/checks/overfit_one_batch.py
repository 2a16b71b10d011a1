"""CK10 overfit-one-batch."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdoctor.checks.batch_independence import linked
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.nested import leading
from torchdoctor.checks.practice import Practice
from torchdoctor.checks.probing import compared, cut, guess
from torchdoctor.checks.rows import hashes
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text

BLOCK = 50
"""Steps between two measurements of the loss."""
PATIENCE = 4
"""Measurements without progress after which training has settled."""
WANTED = 200
"""Steps that must fit the time limit; otherwise sequences are cut."""
SHORTEST = 16
"""Fewest tokens kept of a sequence."""


@dataclass(frozen=True)
class Attempt:
    """The result of one learning rate."""

    rate: float
    steps: int
    best: float
    settled: bool
    """Whether the loss had stopped improving; otherwise the time or step limit ended the attempt."""


@dataclass(frozen=True)
class OverfitOneBatch(Check):
    """The model can memorize a handful of samples.

    ## What it checks
    The model is trained on a few samples with Adam, up to 1,000 steps. A model that cannot memorize four samples will
    not learn a million: labels, loss, graph or last layer are wrong.

    ## How it is told apart
    - It passes if the loss falls below 0.01, or if most of what can be learned is learned. If the loss is still falling
      when time is up, there is no verdict.
    - Up to three learning rates are tried, so none needs to be right.
    - The better of the losses in train and eval mode counts, which allows for dropout and BatchNorm.
    - If equal inputs have different targets, the loss that no model can avoid is subtracted.
    - The floor of a loss with several terms (a VAE, a contrastive loss) is not known: it only has to fall. If the loss
      of a mostly frozen model (adapters) falls a little, there is no verdict.
    - A model with fewer weights than answers is skipped.

    ## What to do
    Fix the other failed checks first. Then ask: do the targets belong to these inputs? Can the last layer reach them
    (no ReLU, no softmax before a cross-entropy)? Is anything detached?

    ## Example
    >>> model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    >>> batch = torch.randn(4, 8), torch.tensor([0, 1, 2, 1])
    >>> OverfitOneBatch().run(Subject.of(model, nn.CrossEntropyLoss(), batch)).passed
    True
    """

    code = "CK10"
    name = "overfit-one-batch"
    suggests = ("fix-loss", "clean-data", "initialize", "use-relu-family")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    samples: int = 4
    """Samples to memorize; fewer if they are long."""
    steps: int = 1000
    """Most steps for each learning rate."""
    reached: float = 0.01
    """A loss at which nothing is left to learn."""
    left: float = 0.3
    """Share of the loss of a constant guess that may remain when the loss no longer falls."""
    seconds: float = 20.0
    """Time limit in seconds; a third of the remaining time if that is less."""
    rates: tuple[float, ...] = (3e-3, 3e-4, 3e-2)

    def applies(self, subject: Subject) -> str | None:
        """A single model with something to train."""
        if len(subject.models) > 1:
            return "several models are trained against each other, so their losses need not fall together"
        if not any(p.requires_grad for p in subject.parameters.values()):
            return "no parameter is trainable: see optimizer-coverage"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Train on a few samples; on two if four are too many for a narrow model."""
        small = self._smaller(subject)
        outcome = self._learn(small, 1.0)
        if outcome.passed or small.samples <= 2 or _is_square(2, small.classes):
            return outcome
        second = self._learn(cut(small, [0, 1]), 0.5)
        return self.passed(f"{outcome.message}; {second.message}") if second.passed else outcome

    def _learn(self, small: Subject, share: float) -> Outcome:
        small.model.train()
        loss = small.loss()
        start, found = float(loss.detach()), compared(loss)
        if not math.isfinite(start):
            raise CannotTell(f"the loss is {number_text(start)}: see initial-loss")
        if not loss.requires_grad:
            return self.failed("the loss has no autograd graph: nothing can be learned from it", _ADVICE)
        cost = guess(found) if found is not None else None
        classified = found is not None and isinstance(found.module, nn.NLLLoss)
        del loss, found
        floor = unlearnable(small) if classified else 0.0
        if cost is None:  # a loss of several terms: all that is known is that it must fall
            goal, enough = start - 0.1 * abs(start), start - 0.01 * abs(start)
        else:
            cost = min(cost if cost > 0.05 * start else start, start)
            goal = floor + self.reached
            enough = max(goal, floor + self.left * (cost - floor))
        attempts = self._attempts(small, goal, enough, share)
        best = min(attempts, key=lambda item: item.best)
        length = (
            f" of {small.tokens.shape[1]} tokens" if small.kind == "language-model" and small.tokens is not None else ""
        )
        message = (
            f"on {small.samples} samples{length} the loss went from {number_text(start)} to {number_text(best.best)}"
        )
        message += f" in {best.steps} steps"
        if best.best <= enough:
            return self.passed(message, value=best.best, limit=goal)
        if not all(item.settled for item in attempts):
            raise CannotTell(f"{message}, and time was up: give a larger budget")
        if best.best < start - 0.05 * abs(start) and _mostly_frozen(small):
            raise CannotTell(f"{message}; most of the model is frozen, and the rest may not be able to learn more")
        if cost is not None and cost < start:
            message += f", and no further; a constant guess has a loss of {number_text(cost)}"
        return self.failed(message, _ADVICE, value=best.best, limit=enough)

    def _smaller(self, subject: Subject) -> Subject:
        """The fewest samples that make a task, and no more than the model's weights can memorize."""
        inputs, outputs = leading(subject.inputs), subject.outputs
        answers = 1
        if isinstance(subject.targets, Tensor) and subject.samples:
            answers = max(1, subject.targets.numel() // subject.samples)
        elif outputs is not None and subject.samples:
            answers = max(1, outputs.numel() // subject.samples)
        weights = sum(p.numel() for p in subject.parameters.values() if p.requires_grad)
        length = answers if subject.kind == "language-model" else 1
        samples = max(2, min(self.samples, 512 // length))
        if inputs is not None and weights < 4 * samples * answers:
            samples = 2
        if weights < 2 * samples * answers:
            raise CannotTell(f"{weights} trainable weights cannot hold {samples * answers} answers")
        if _is_square(samples, subject.classes):
            samples = (subject.classes or 0) + 2
        if linked(subject):
            return subject
        return self._brief(subject if samples >= subject.samples else cut(subject, varied(subject)[:samples]))

    def _brief(self, small: Subject) -> Subject:
        """The beginnings of a language model's sequences, if whole ones would take too long to learn."""
        if small.kind != "language-model" or small.tokens is None:
            return small
        length, begun = small.tokens.shape[1], time.monotonic()
        with small.fresh():
            small.gradients()
            share = min(self.seconds, small.seconds_left / 3) / WANTED / (time.monotonic() - begun)
            if share >= 1 or length <= SHORTEST:
                return small
            length = max(SHORTEST, int(length * share))
            while _is_square(small.samples * length, small.classes):
                length += 1
            short = small.shortened(length)
            try:
                short.loss()
            except Exception:  # noqa: BLE001  a model for a single length
                return small
        return short

    def _attempts(self, small: Subject, goal: float, enough: float, share: float) -> list[Attempt]:
        end = time.monotonic() + share * min(self.seconds, small.seconds_left / 3)
        attempts: list[Attempt] = []
        for number, rate in enumerate(self.rates):
            now = time.monotonic()
            if attempts and now >= end:
                break
            with small.fresh():
                attempts.append(self._attempt(small, rate, goal, now + (end - now) / (len(self.rates) - number)))
            if attempts[-1].best <= enough:
                break
        return attempts

    def _attempt(self, small: Subject, rate: float, goal: float, end: float) -> Attempt:
        best, levels, steps, idle = math.inf, [math.inf], 0, 0
        practice = Practice(small, rate)
        while steps < self.steps and idle < PATIENCE:
            losses = practice.go_on(BLOCK, end)
            if not losses:
                break
            steps += len(losses)
            level = min(statistics.median(losses[-10:]), _resting(small))
            best = min(best, level)
            if best <= goal:
                break
            idle = 0 if level < levels[-1] - 0.02 * abs(levels[-1]) else idle + 1
            levels.append(min(level, levels[-1]))
            if len(losses) < BLOCK:
                break
        diverged = time.monotonic() < end and steps < self.steps
        return Attempt(rate, steps, best, settled=best <= goal or idle >= PATIENCE or diverged)


_ADVICE = (
    "Fix the other failed checks first. Then check that the targets belong to the inputs, that the last layer can "
    "reach them (no ReLU, no softmax before a cross-entropy), and that nothing is detached."
)


def _is_square(samples: int, classes: int | None) -> bool:
    """Whether the scores of so many samples may be a comparison of each sample with each other."""
    return classes is not None and abs(samples - classes) <= 1


def varied(subject: Subject) -> list[int]:
    """The samples, those with a new target first, because the batch may be sorted.

    >>> batch = torch.ones(5, 1), torch.tensor([2, 2, 2, 0, 1])
    >>> varied(Subject.of(nn.Linear(1, 3), nn.CrossEntropyLoss(), batch))
    [0, 3, 4, 1, 2]
    """
    targets, places = subject.targets, list(range(subject.samples))
    if not isinstance(targets, Tensor) or targets.shape[:1] != (subject.samples,):
        return places
    first: dict[bytes, int] = {}
    for place, row in enumerate(hashes(targets)):
        first.setdefault(row, place)
    return [*first.values(), *(place for place in places if place not in first.values())]


@torch.no_grad()
def _resting(subject: Subject) -> float:
    """The loss in eval mode; infinite if there is none."""
    subject.evaluate()
    try:
        value = float(subject.loss())
    except Exception:  # noqa: BLE001  some models return something else in eval mode
        return math.inf
    finally:
        subject.model.train()
    return value if math.isfinite(value) else math.inf


def unlearnable(subject: Subject) -> float:
    """The mean cross-entropy that remains because equal inputs have different labels.

    >>> batch = torch.tensor([[1.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0, 1])
    >>> round(unlearnable(Subject.of(nn.Linear(1, 2), nn.CrossEntropyLoss(), batch)), 3)
    0.347
    """
    inputs, targets = leading(subject.inputs), subject.targets
    if inputs is None or not isinstance(targets, Tensor) or targets.is_floating_point() or not targets.dim():
        return 0.0
    seen: dict[Hashable, Counter[int]] = defaultdict(Counter)
    rows, labels = inputs.flatten(1).tolist() if inputs.dim() > 1 else inputs[:, None].tolist(), targets.tolist()
    if targets.dim() == 1 and len(labels) == len(rows):
        for row, label in zip(rows, labels, strict=True):
            seen[tuple(row)][label] += 1
    elif subject.predicts_next and targets.shape == inputs.shape:
        for row, line in zip(rows, labels, strict=True):
            for place, label in enumerate(line):
                seen[tuple(row[: place + 1])][label] += 1
    total = sum(counts.total() for counts in seen.values())
    lost = sum(n * math.log(counts.total() / n) for counts in seen.values() for n in counts.values())
    return lost / total if total else 0.0


def _mostly_frozen(subject: Subject) -> bool:
    sizes = [(p.numel(), p.requires_grad) for p in subject.parameters.values()]
    return 2 * sum(size for size, learns in sizes if learns) < sum(size for size, _ in sizes)
