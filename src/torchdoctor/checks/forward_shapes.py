"""CK02 forward-shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text
from torchdoctor.vitals.census import hidden_tensors


@dataclass(frozen=True)
class ForwardShapes(Check):
    """The model and its loss run on the batch, and the model on batches and sequences of other sizes.

    ## What it checks
    The model accepts the batch, and the loss accepts the output. A language model also runs on shapes (1, 10), (4, 128)
    and (1, its longest sequence), other models on one sample and on a few. The output must have one entry per sample
    and otherwise the same shape as for the batch.

    ## How it is told apart
    Sequences are never longer than the model's stated maximum or, if it states none, than the batch. A model that does
    not run on the batch is critical. One that runs on the batch but not on other sizes is a warning: training goes well
    until the last, smaller batch of an epoch, or until the model is used.

    ## What to do
    Take sizes from the input (`batch, length = x.shape[:2]`) rather than from the configuration, cut masks and
    positions to the length (`mask[:length, :length]`), and name the dimension in `squeeze(-1)`: a bare `squeeze()`
    removes the batch dimension if there is a single sample.

    ## Example
    >>> class Squeezed(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x).squeeze()
    >>> subject = Subject.of(Squeezed(8, 1), torch.nn.MSELoss(), (torch.randn(6, 8), torch.randn(6)))
    >>> print(ForwardShapes().run(subject).message)
    the output has shape () for 1 sample, expected (1,): for 6 it is (6,)
    """

    code = "CK02"
    name = "forward-shapes"
    quick = True
    needs_loss = False

    configurations: tuple[tuple[int, int], ...] = ((1, 10), (4, 128))
    """Samples and length on which a language model runs, besides its longest sequence."""

    def run(self, subject: Subject) -> Outcome:
        """The batch first, then other sizes."""
        if subject.broken and (left := _left_behind(subject)):
            return self.failed(
                f"the model does not run on the batch: {names_text(left)} did not move with the model to "
                f"{subject.device}: {subject.broken}",
                "Use nn.ModuleList, nn.Parameter or register_buffer, so that .to(device) and checkpoints include it.",
                where=tuple(left),
            )
        if subject.broken:
            return self.failed(
                f"the model does not run on the batch: {subject.broken}",
                "Compare the shapes and types of the batch with what the model's forward expects."
                if len(subject.models) == 1
                else "",
            )
        if subject.no_loss and (subject.loss_fn is not None or subject.targets is not None):
            return self._without_loss(subject)
        if len(subject.models) > 1 or subject.calling.loss == "whole":
            return self.passed("the models and their loss run on the batch")
        subject.evaluate()
        outputs = subject.outputs
        if outputs is None:
            return self.passed("the model runs on the batch")
        with torch.no_grad():
            wrong = self._sequences(subject) if subject.kind == "language-model" else self._batches(subject, outputs)
        if isinstance(wrong, Outcome):
            return wrong
        return self.passed(f"the output has shape {_text(outputs)} for the batch, and is right for {wrong}")

    def _without_loss(self, subject: Subject) -> Outcome:
        if subject.loss_fn is None:
            return self.failed(
                f"no loss is computed: {subject.no_loss}",
                "Pass the loss function that the training loop uses, or a batch in the form that the model expects.",
            )
        output, targets = subject.outputs, subject.targets
        shapes = f" from an output of shape {_text(output)}" if output is not None else ""
        wanted = f" and targets of shape {_text(targets)}" if isinstance(targets, Tensor) else ""
        return self.failed(
            f"the loss cannot be computed{shapes}{wanted}: {subject.no_loss}",
            "Give the output and the targets the shapes and types that the loss expects.",
        )

    def _sequences(self, subject: Subject) -> Outcome | str:
        tokens = subject.tokens
        assert tokens is not None and subject.outputs is not None
        longest = max(subject.context or 0, tokens.shape[1])
        sizes = [(samples, length) for samples, length in self.configurations if length <= longest]
        sizes = list(dict.fromkeys([*sizes, (1, longest)]))
        for samples, length in sizes:
            columns = torch.arange(length, device=tokens.device) % tokens.shape[1]
            rows = torch.arange(samples, device=tokens.device) % tokens.shape[0]
            other = tokens[rows][:, columns]
            try:
                found = subject.prediction(subject.forward(subject.with_tokens(other)))
            except Exception as error:  # noqa: BLE001  the check looks for exceptions
                advice = "Take the length from the input, and cut masks and positions to it."
                return self._raised(f"tokens of shape ({samples}, {length})", error, advice)
            expected = (samples, length, subject.outputs.shape[2])
            if found is None or tuple(found.shape) != expected:
                shape = "none" if found is None else _text(found)
                return self.failed(
                    f"the output has shape {shape} for tokens of shape ({samples}, {length}), expected {expected}",
                    "Keep samples and positions apart, and take both sizes from the input.",
                    severity="warning",
                )
        return ", ".join(f"({samples}, {length})" for samples, length in sizes)

    def _batches(self, subject: Subject, outputs: Tensor) -> Outcome | str:
        whole = subject.samples
        if (
            whole < 2
            or not subject.divisible
            or not outputs.dim()
            or outputs.shape[0] != whole
            or whole in outputs.shape[1:]
        ):
            return "no other size, because the output does not have one entry per sample"
        sizes = [samples for samples in dict.fromkeys((1, 2, whole // 2)) if 0 < samples < whole]
        for samples in sizes:
            part = subject.sized(samples)
            try:
                found = part.prediction(part.forward())
            except Exception as error:  # noqa: BLE001
                subject.hindrance = "the model does not run on other batch sizes: see forward-shapes"
                advice = "Take the number of samples from the input, or drop the last batch of an epoch."
                return self._raised(f"{samples} sample{'s' if samples > 1 else ''}", error, advice)
            expected = (samples, *outputs.shape[1:])
            if found is not None and tuple(found.shape) != expected:
                return self.failed(
                    f"the output has shape {_text(found)} for {samples} sample{'s' if samples > 1 else ''}, "
                    f"expected {expected}: for {whole} it is {_text(outputs)}",
                    "Name the dimension: squeeze(-1), flatten(1), and do not hard-code the batch size in view().",
                    severity="warning",
                )
        return f"{' and '.join(str(samples) for samples in sizes)} samples"

    def _raised(self, what: str, error: Exception, advice: str) -> Outcome:
        text = " ".join(str(error).split())[:200]
        message = f"the model runs on the batch, but not on {what}: {type(error).__name__}: {text}"
        return self.failed(message, advice, severity="warning")


def _left_behind(subject: Subject) -> list[str]:
    """Attributes with tensors on another device: neither parameters nor buffers, so `.to()` did not move them."""
    found = (
        f"{name}.{attribute}".removeprefix("model.")
        for name, module in subject.modules.items()
        for attribute, tensor in hidden_tensors(module)
        if tensor.device != subject.device
    )
    return list(dict.fromkeys(found))


def _text(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
