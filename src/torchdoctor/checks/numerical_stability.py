"""CK05 numerical-stability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.data_quality import numbers
from torchdoctor.checks.nested import leading
from torchdoctor.checks.precision import in_precision
from torchdoctor.checks.subject import Subject
from torchdoctor.records import share_text

HALVES = (torch.float16, torch.bfloat16)
LARGEST = torch.finfo(torch.float16).max
FEW = 4
"""Samples used for float16, which is slow on a CPU."""
SCALES = (1.0, 2.0**-12)
"""Loss scales, one of which must work: a GradScaler also lowers its scale when gradients overflow."""


@dataclass(frozen=True)
class NumericalStability(Check):
    """Outputs, loss and gradients stay finite on edge inputs and in half precision.

    ## What it checks
    - The batch itself.
    - Edge inputs: all zero, ten times as large (a thousand times for classifiers), a million times smaller; all tokens
      zero, all tokens the largest; a single sample, a single token.
    - A pass under autocast in bfloat16, which has the range of float32: outputs are finite and close to float32.
    - A pass under autocast in float16, whose range ends at 65,504: outputs, loss and gradients are finite.

    ## How it is told apart
    - Non-finite values on the batch itself are critical, on an edge input a warning. Masks are not changed.
    - A regression or an autoencoder may contain an exp on purpose, so its inputs are enlarged less. If token 0 is
      padding, a sequence of only padding is not tried. Inputs that the model rejects with an error are skipped.
    - In float16, operations that a GPU's autocast runs in float32 (norms, powers, losses) run in float32 on the CPU
      too. Gradients may need a smaller loss scale, as `GradScaler` would find. Inputs that float16 cannot hold are only
      mentioned.

    ## What to do
    Add an eps where a value may be zero (`x / (norm + eps)`, `torch.sqrt(x + eps)`, `torch.log(x + eps)`). Use
    `torch.logsumexp`, `F.log_softmax` and `F.cross_entropy` instead of `exp` and `log` by hand. Do not hide the problem
    with `torch.nan_to_num`. For values beyond float16, use bfloat16, or float32 for that part.

    ## Example
    >>> class Scaled(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x / x.std(1, keepdim=True))
    >>> batch = torch.randn(4, 8), torch.tensor([0, 1, 0, 1])
    >>> print(NumericalStability().run(Subject.of(Scaled(8, 2), nn.CrossEntropyLoss(), batch)).message)
    the output is NaN if inputs are all zero
    """

    code = "CK05"
    name = "numerical-stability"
    quick = True
    needs_loss = False
    suggests = ("change-precision", "clean-data")
    references = ("https://pytorch.org/docs/stable/notes/numerical_accuracy.html",)

    difference: float = 0.5
    """Relative change of the outputs in bfloat16 above which it fails."""

    def applies(self, subject: Subject) -> str | None:
        """Models that run on the batch."""
        return "the model does not run on the batch: see forward-shapes" if subject.broken else None

    def run(self, subject: Subject) -> Outcome:
        """Test the batch, the edge inputs and the precisions."""
        wrong = self._on_batch(subject)
        if wrong is not None:
            return wrong
        if len(subject.models) > 1 or subject.calling.loss == "whole":
            return self.passed("loss and gradients are finite on the batch")
        tried = []
        for what, inputs in edges(subject):
            with subject.fresh():
                found = _first_trouble(subject, inputs)
            if found is None:
                continue
            if found:
                return self.failed(
                    f"{found} if {what}",
                    "Add an eps where a value may be zero, and use log_softmax, logsumexp and cross_entropy "
                    "instead of exp and log by hand.",
                    where=tuple(_culprits(subject, inputs)),
                    severity="warning",
                )
            tried.append(what)
        return self._in_halves(subject, tried)

    def _on_batch(self, subject: Subject) -> Outcome | None:
        subject.model.train()
        if subject.no_loss:
            found = _kind(subject.outputs) if subject.outputs is not None else ""
            text = f"the output is {found}" if found else ""
        else:
            loss = subject.loss()
            bad = _kind(loss.detach())
            text = f"the loss is {bad}" if bad else ""
            if not bad and loss.requires_grad:
                gradients = subject.gradients(loss)
                names = [name for name, item in gradients.items() if item is not None and _kind(item)]
                text = f"the gradient of {names[0]} is {_kind(gradients[names[0]])}" if names else ""
        if not text:
            return None
        spoilt = any(map(_kind, numbers((subject.inputs, subject.targets))))
        why = ", which holds non-finite values" if spoilt else ""
        return self.failed(
            f"{text} on the batch itself{why}",
            "Check the named module, and the batch for non-finite values.",
            where=tuple(_culprits(subject, subject.inputs)),
        )

    def _in_halves(self, subject: Subject, tried: list[str]) -> Outcome:
        message = f"finite on the batch and on {len(tried)} edge cases"
        full = _answer(subject, None)
        if full is None or any(item.dtype in HALVES for item in subject.parameters.values()):
            return self.passed(message, edges=tried)
        size = max(float(full.double().square().mean().sqrt()), 1e-30)
        half = _answer(subject, torch.bfloat16)
        changed = None
        if half is not None:
            if not _kind(full) and _kind(half):
                return self.failed(
                    f"the output is {_kind(half)} under autocast in bfloat16, but finite in float32",
                    "Keep long sums and small differences in float32.",
                    severity="warning",
                )
            changed = _apart(half, full) / size
            message += f"; bfloat16 changes outputs by {share_text(changed, 1)}"
            if changed > self.difference and _apart(_answer(subject, None, seed=1), full) > 0.1 * changed * size:
                message += ", which is not judged because the model draws random numbers"
            elif changed > self.difference:
                return self.failed(
                    f"autocast in bfloat16 changes the outputs by {share_text(changed)} of their size",
                    "Look for differences of large numbers (a variance computed as E[x²] - E[x]²).",
                    value=changed,
                    limit=self.difference,
                    severity="warning",
                )
        if any(float(item.abs().amax()) > LARGEST for _, item in _numbers(subject.inputs) if item.numel()):
            message += "; float16 cannot hold the inputs: use bfloat16"
        elif found := _float16_trouble(subject):
            return self.failed(
                f"{found} under autocast in float16, but finite in float32: this matters only if you train in float16",
                "Train in bfloat16, or keep what grows beyond 65,504 in float32 "
                "(`with torch.autocast(device, enabled=False)`).",
                where=tuple(_culprits(subject, subject.inputs, torch.float16)),
                limit=LARGEST,
                severity="warning",
            )
        return self.passed(message, value=changed, limit=self.difference, edges=tried)


def edges(subject: Subject) -> Iterator[tuple[str, Any]]:
    """Edge inputs, each with a description."""
    tokens = subject.tokens
    if tokens is not None:
        padding = {item.padding_idx for _, item in subject.of_type(nn.Embedding)}
        if 0 not in padding:
            yield "all tokens are 0", subject.with_tokens(torch.zeros_like(tokens))
        size = subject.vocabulary
        if size is not None and size - 1 not in padding:
            yield f"all tokens are {size - 1}, the largest", subject.with_tokens(torch.full_like(tokens, size - 1))
        if subject.kind == "language-model":
            yield "there is a single token", subject.with_tokens(tokens[:1, :1])
    elif any(True for _ in _numbers(subject.inputs)):
        large = 1000.0 if subject.kind == "classification" else 10.0
        yield "inputs are all zero", _scaled(subject.inputs, 0.0)
        if not any(item.dtype in HALVES for _, item in _numbers(subject.inputs)):
            yield f"inputs are {large:g} times as large", _scaled(subject.inputs, large)
        yield "inputs are a million times smaller", _scaled(subject.inputs, 1e-6)
    if subject.samples > 1 and subject.divisible:
        yield "there is a single sample", subject.sized(1).inputs


def _numbers(thing: Any, key: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(thing, Tensor):
        if thing.is_floating_point() and "mask" not in key:
            yield key, thing
    elif isinstance(thing, Mapping):
        for name, item in thing.items():
            yield from _numbers(item, str(name))
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from _numbers(item, key)


def _scaled(thing: Any, factor: float, key: str = "") -> Any:
    if isinstance(thing, Tensor):
        return thing.detach() * factor if thing.is_floating_point() and "mask" not in key else thing
    if isinstance(thing, Mapping):
        return {name: _scaled(item, factor, str(name)) for name, item in thing.items()}
    if isinstance(thing, list | tuple) and not hasattr(thing, "_fields"):
        return type(thing)(_scaled(item, factor, key) for item in thing)
    return thing


def _first_trouble(subject: Subject, inputs: Any) -> str | None:
    """What is not finite for these inputs, output or gradient; empty if all is finite; None if they do not run."""
    subject.evaluate()
    try:
        found = subject.prediction(subject.forward(inputs))
    except Exception:  # noqa: BLE001  the model may reject such inputs
        return None
    if found is None:
        return None
    if bad := _kind(found.detach()):
        return f"the output is {bad}"
    same_size = _leading_shape(inputs) == _leading_shape(subject.inputs)
    if not found.requires_grad or not same_size:
        return ""
    if subject.kind in ("classification", "language-model") and (bad := _loss_trouble(subject, inputs)):
        return f"the output is finite, but the loss is {bad}"
    found.float().sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in subject.parameters.items():
        if parameter.grad is not None and (bad := _kind(parameter.grad)):
            return f"the output is finite, but the gradient of {name} is {bad}"
    return ""


@torch.no_grad()
def _loss_trouble(subject: Subject, inputs: Any) -> str:
    """What is not finite in a loss on scores, which may be of any size."""
    if subject.no_loss:
        return ""
    try:
        return _kind(subject.loss(inputs, subject.targets))
    except Exception:  # noqa: BLE001  the loss may reject them
        return ""


def _leading_shape(inputs: Any) -> Any:
    found = leading(inputs)
    return None if found is None else found.shape


def _kind(tensor: Tensor | None) -> str:
    """ "NaN", "infinite", or empty if all values are finite."""
    if tensor is None or not tensor.is_floating_point():
        return ""
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    if bool(torch.isfinite(tensor).all()):
        return ""
    return "NaN" if bool(tensor.isnan().any()) else "infinite"


def _culprits(subject: Subject, inputs: Any, precision: torch.dtype | None = None) -> list[str]:
    """The first module whose output is not finite although its inputs are."""
    found: list[str] = []

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        given = [item for item in args if isinstance(item, Tensor)]
        if not found and isinstance(output, Tensor) and _kind(output) and not any(_kind(item) for item in given):
            found.append(name)

    with subject.fresh(), torch.no_grad(), subject.watched(see):
        subject.evaluate()
        try:
            with in_precision(subject.device.type, precision):
                subject.forward(inputs)
        except Exception:  # noqa: BLE001  the location is optional
            return found
    return found


def _apart(one: Tensor | None, other: Tensor) -> float:
    """The RMS of the difference; 0 if there is nothing to compare with."""
    return 0.0 if one is None else float((one.double() - other.double()).square().mean().sqrt())


def _answer(subject: Subject, precision: torch.dtype | None, seed: int = 0) -> Tensor | None:
    """The prediction in a precision; None if the device or the model does not support it."""
    with subject.fresh(), torch.no_grad():
        subject.evaluate()
        torch.manual_seed(seed)
        try:
            with in_precision(subject.device.type, precision):
                found = subject.prediction()
        except Exception:  # noqa: BLE001
            return None
    return found if found is not None and found.is_floating_point() and found.numel() else None


def _float16_trouble(subject: Subject) -> str:
    """What is not finite in float16 but finite in float32: output, loss or a gradient; empty if nothing."""
    if subject.divisible and subject.samples > FEW:
        subject = subject.sized(FEW)
    narrow = _answer(subject, torch.float16)
    if narrow is None:
        return ""
    if found := _kind(narrow):
        return "" if _kind(_answer(subject, None)) else f"the output is {found}"
    trouble = ""
    for scale in () if subject.no_loss else SCALES:
        trouble = _backward_trouble(subject, torch.float16, scale)
        if not trouble:
            return ""
    return trouble if trouble and not _backward_trouble(subject, None) else ""


def _backward_trouble(subject: Subject, precision: torch.dtype | None, scale: float = 1.0) -> str:
    with subject.fresh(), torch.backends.cudnn.flags(enabled=False):
        subject.evaluate()
        torch.manual_seed(0)
        try:
            with in_precision(subject.device.type, precision):
                loss = subject.loss()
            if found := _kind(loss.detach()):
                return f"the loss is {found}"
            gradients = subject.gradients(loss.float() * scale) if loss.requires_grad else {}
        except Exception:  # noqa: BLE001  not every kernel supports every precision
            return ""
        return next((f"the gradient of {name} is {_kind(item)}" for name, item in gradients.items() if _kind(item)), "")
