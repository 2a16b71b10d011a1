"""CK09 initial-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.probing import answer, compared, mean_of, uncertain
from torchdoctor.checks.subject import Subject
from torchdoctor.records import Severity, number_text
from torchdoctor.vitals.loss_inputs import what_is_compared

EXPECTED = "Check the scale of inputs and logits: `model(x).std()` should be near 1 or below."


@dataclass(frozen=True)
class InitialLoss(Check):
    """The first loss is finite and not far above that of a constant guess.

    ## What it checks
    An untrained model should do no worse than a constant guess. With C classes that is a loss of ln C, with a binary
    loss ln 2. In a regression, outputs and targets should be of similar size.

    ## How it is told apart
    Twice ln C is usual for a head with He initialization, so up to 3 ln C + 1 is allowed. A first loss below ln C comes
    from a pretrained model and passes. Class weights, sums and further terms are left out of the comparison. In a
    regression, outputs may be ten times as large as the targets, and targets a hundred times their own spread or a
    thousand times the outputs: only beyond that does the check fail.

    ## What to do
    Initialize the last layer with small weights. Scale inputs, and the targets of a regression, to mean 0 and std 1.

    ## Example
    >>> import torch
    >>> model = torch.nn.Linear(4, 10)
    >>> _ = torch.nn.init.normal_(model.weight, std=100.0, generator=torch.Generator().manual_seed(0))
    >>> batch = torch.ones(8, 4), torch.arange(8)
    >>> InitialLoss().run(Subject.of(model, torch.nn.CrossEntropyLoss(), batch)).passed
    False
    """

    code = "CK09"
    name = "initial-loss"
    quick = True
    suggests = ("initialize", "normalize-inputs", "normalize-targets", "fix-loss")
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    ratio: float = 3.0
    """Multiple of the loss of a constant guess above which it fails; it must also be 1 above it."""
    grave: float = 10.0
    """Multiple of the loss of a constant guess above which it is critical; in a regression, of the targets' size."""
    far: float = 1000.0
    """Multiple of the outputs' size (at least 1) that the targets of a regression may have."""
    offset: float = 100.0
    """Multiple of their standard deviation that such targets may be away from zero."""

    def run(self, subject: Subject) -> Outcome:
        """Compare the loss with a constant guess, or the outputs with the targets of a regression."""
        subject.model.train()
        loss = subject.loss()
        value = float(loss.detach())
        if not math.isfinite(value):
            return self.failed(
                f"the first loss is {number_text(value)}",
                "Look for non-finite values in the batch, for a batch whose targets are all ignored, and for log, sqrt "
                "or division of 0 in the loss.",
                value=value,
            )
        found = compared(loss) or what_is_compared(loss)
        chance = uncertain(found) if found is not None and not found.between_outputs else None
        if found is not None and chance is not None:
            return self._against_chance(mean_of(found), chance)
        outputs, targets = subject.outputs, subject.targets
        if subject.kind == "regression" and outputs is not None and targets.numel() > 1:
            learning = answer(subject, training=True)  # as in the loss: untrained running statistics have no scale
            outputs = learning if learning.shape == outputs.shape else outputs
            return self._against_targets(outputs.reshape(targets.shape), targets, value)
        return self.passed(f"the first loss is {number_text(value)}; chance level is not known", value=value)

    def _against_chance(self, value: float, chance: float) -> Outcome:
        limit = self.ratio * chance + 1
        message = f"the first loss is {number_text(value)}, that of a constant guess {number_text(chance)}"
        if value > limit:
            severity: Severity = "critical" if value > self.grave * chance + 1 else "warning"
            return self.failed(message, EXPECTED, value=value, limit=limit, severity=severity)
        if value < 0.5 * chance:
            message += ": this model is already trained"
        return self.passed(message, value=value, limit=limit)

    def _against_targets(self, output: Tensor, target: Tensor, value: float) -> Outcome:
        output, target = output.detach().float(), target.detach().float()
        error, size = _rms(output - target), _rms(target)
        given, spread = _rms(output), float(target.std(correction=0))
        message = f"the first loss is {number_text(value)}; outputs have an RMS of {number_text(given)}, targets of "
        message += f"{number_text(size)} with a std of {number_text(spread)}"
        if error > self.grave * max(size, 1.0):
            return self.failed(message, EXPECTED, value=error, limit=self.grave * max(size, 1.0), severity="warning")
        far = size > self.far * max(given, 1.0)
        if far or size > self.offset * max(spread, 0.3 * given, 0.3):
            advice = "Scale the targets: `y = (y - y.mean()) / y.std()`, and scale predictions back; or start the bias "
            advice += "of the last layer at `y.mean()`."
            limit = self.far if far else self.offset
            return self.failed(message, advice, value=size, limit=limit, severity="warning")
        return self.passed(message, value=value)


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())
