"""CK03 gradient-flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.practice import Practice
from torchdoctor.checks.runnable import Watcher
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text

LEFT_OUT = ("expert", "router", "moe", "teacher", "ema", "momentum", "target_")
"""Parts of names of modules that run for some samples only, or that follow others without being trained."""
MOST_ASKED = 8
"""Most parameters without gradient that are tested for an effect on the loss, with a few passes each."""
LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


@dataclass(frozen=True)
class GradientFlow(Check):
    """Every trainable parameter gets a finite gradient, which neither vanishes nor explodes through depth.

    ## What it checks
    Two backward passes in training mode run without an error. Every trainable parameter has a gradient (none is cut off
    by `detach`, `.data`, `no_grad` or argmax, none is unused in forward), which is finite and not zero everywhere. The
    gradient at the output of the first layers is not 100,000 times smaller or larger than at the last.

    ## How it is told apart
    - Behind a layer that starts at zero (LoRA, ReZero, a gate, a head) gradients are zero at the first step only, so a
      zero must last for several steps. Biases may stay at zero: a norm after them cancels their effect.
    - Layers may be dropped at random, so a gradient must be missing in several passes.
    - A parameter without gradient that changes the loss is cut off, which is critical. One that does not change it is
      unused, which is a warning: it costs memory and breaks DDP.
    - Unselected experts and copies that follow by averaging (teacher, EMA) are ignored.
    - Depth is judged by the largest gradient in the first quarter of the layers: a branch with a small gate has a small
      gradient, but its trunk does not.

    ## What to do
    Follow the named parameter to the loss: remove `.detach()`, `.item()`, `.numpy()` and `torch.no_grad()` on the way,
    replace argmax or round by a differentiable function, and use the module in forward or delete it. Against vanishing
    gradients, use skip connections, normalization, and ReLU instead of sigmoid.

    ## Example
    >>> class Cut(nn.Sequential):
    ...     def forward(self, x):
    ...         return self[1](self[0](x).detach())
    >>> net = Cut(nn.Linear(4, 4), nn.Linear(4, 1))
    >>> subject = Subject.of(net, nn.MSELoss(), (torch.randn(8, 4), torch.randn(8, 1)))
    >>> GradientFlow().run(subject).message
    'no gradient reaches 2 of 4 trainable parameters although the loss depends on them: 0.weight, 0.bias'
    """

    code = "CK03"
    name = "gradient-flow"
    quick = True
    suggests = ("reattach-graph", "add-residuals", "initialize")
    references = ("https://pytorch.org/docs/stable/notes/autograd.html",)

    passes: int = 3
    """Passes in which a gradient must be missing."""
    steps: int = 5
    """Steps for which a gradient must stay zero."""
    ratio: float = 1e5
    """Factor by which the gradient may shrink or grow between the last layer and the first."""

    def run(self, subject: Subject) -> Outcome:
        """One pass, and more if something is missing."""
        subject.model.train()
        trainable = [name for name, item in subject.parameters.items() if item.requires_grad]
        if not trainable:
            return self.failed(
                "no parameter is trainable: all have requires_grad=False",
                "Set requires_grad_(True) on the parameters to train.",
            )
        depth: dict[str, float] = {}
        with subject.watched(_listener(depth)):
            loss = subject.loss()
        if not loss.requires_grad:
            return self.failed(
                "the loss does not depend on any parameter: it has no autograd graph",
                "Compute it from the model's output, without detach(), item() or torch.no_grad() on the way.",
            )
        if not bool(torch.isfinite(loss)):
            raise CannotTell(f"the loss on the batch is {number_text(float(loss))}: see numerical-stability")
        try:
            gradients = subject.gradients(loss)
        except RuntimeError as error:
            return self._raised(subject, "the backward pass raises", error)
        try:
            subject.gradients()
        except RuntimeError as error:
            return self._raised(subject, "the first pass runs, but the second raises", error)
        return (
            self._missing(subject, gradients)
            or self._not_finite(gradients)
            or self._zero(subject, gradients)
            or self._through_depth(depth)
            or self.passed(
                f"all {len(trainable)} trainable parameters get a gradient"
                + (f"; last to first layer {_ratio_text(depth)}" if len(depth) > 1 else "")
            )
        )

    def _raised(self, subject: Subject, what: str, error: Exception) -> Outcome:
        subject.hindrance = "a backward pass fails: see gradient-flow"
        text = " ".join(str(error).split())
        return self.failed(
            f"{what} {type(error).__name__}: {text[:200]}",
            "Do not change tensors in place that backward still needs (write `x = x + 1`, not `x += 1`), and detach "
            "what is kept from one pass to the next.",
        )

    def _missing(self, subject: Subject, gradients: Mapping[str, Tensor | None]) -> Outcome | None:
        missing = [name for name, item in gradients.items() if item is None and not _is_left_out(name)]
        for number in range(1, self.passes):
            if not missing:
                return None
            torch.manual_seed(number)
            again = subject.gradients()
            missing = [name for name in missing if again[name] is None]
        if not missing:
            return None
        cut = [name for name in missing[:MOST_ASKED] if _matters(subject, name)]
        if cut:
            return self.failed(
                f"no gradient reaches {len(missing)} of {len(gradients)} trainable parameters although the loss "
                f"depends on them: {names_text(cut)}",
                "Look between these parameters and the loss for detach(), .data, item(), no_grad, argmax or round.",
                where=tuple(cut),
                value=float(len(missing)),
            )
        return self.failed(
            f"{len(missing)} of {len(gradients)} trainable parameters are unused: {names_text(missing)}",
            "Use the module in forward, or delete it; DDP would need find_unused_parameters=True.",
            where=tuple(missing[:8]),
            value=float(len(missing)),
            severity="warning",
        )

    def _not_finite(self, gradients: Mapping[str, Tensor | None]) -> Outcome | None:
        bad = [name for name, item in gradients.items() if item is not None and not bool(torch.isfinite(item).all())]
        if not bad:
            return None
        return self.failed(
            f"the loss is finite, but the gradient of {names_text(bad)} is not",
            "Look for sqrt, log, norm, division or acos where the derivative is infinite, and add an eps inside.",
            where=tuple(bad[:8]),
            value=float(len(bad)),
        )

    def _zero(self, subject: Subject, gradients: Mapping[str, Tensor | None]) -> Outcome | None:
        def is_zero(gradient: Tensor | None) -> bool:
            return gradient is not None and not bool(gradient.any())

        zero = [name for name, item in gradients.items() if is_zero(item) and subject.parameters[name].dim() > 1]
        if not zero:
            return None
        practice = Practice(subject, 1e-3)
        for _ in range(self.steps):
            practice.go_on(1)
            again = subject.gradients()
            zero = [name for name in zero if is_zero(again[name])]
            if not zero:
                return None
        return self.failed(
            f"the gradient of {names_text(zero)} is exactly zero, even after {self.steps} steps",
            "Look for units that are dead for every input (a large negative bias before ReLU, a clamp), for a "
            "saturated sigmoid or softmax, and for a product with something that is always zero.",
            where=tuple(zero[:8]),
            value=float(len(zero)),
        )

    def _through_depth(self, depth: Mapping[str, float]) -> Outcome | None:
        if len(depth) < 3:
            return None
        names, last = list(depth), list(depth.values())[-1]
        early = {name: depth[name] for name in names[: max(1, len(names) // 4)] if depth[name] > 0}
        if not early or not last > 0:
            return None
        best = max(early, key=lambda name: early[name])
        shrunk = last / early[best]
        if shrunk > self.ratio:
            message = f"the gradient vanishes on its way back: at {best} it is {number_text(shrunk)} times smaller"
            advice = (
                "Use ReLU or GELU instead of sigmoid and tanh, normalization and skip connections, and an "
                "initialization that preserves the scale of the signal."
            )
        elif 1 / shrunk > self.ratio:
            message = f"the gradient explodes on its way back: at {best} it is {number_text(1 / shrunk)} times larger"
            advice = "Use an initialization that preserves the scale of the signal, normalization, or smaller weights."
        else:
            return None
        return self.failed(
            f"{message} than at {names[-1]}", advice, where=(best, names[-1]), value=shrunk, limit=self.ratio
        )


def _listener(depth: dict[str, float]) -> Watcher:
    """Record the gradient norm at each layer's output, in execution order."""

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, LAYERS) and isinstance(output, Tensor) and output.requires_grad:
            depth.setdefault(name, 0.0)

            def keep(gradient: Tensor) -> None:
                depth[name] = float(gradient.detach().double().norm())

            output.register_hook(keep)  # type: ignore[no-untyped-call]

    return see


def _matters(subject: Subject, name: str) -> bool:
    """Whether changing a parameter changes the loss."""
    with subject.fresh(), torch.no_grad():
        torch.manual_seed(0)
        before = subject.loss()
        torch.manual_seed(0)
        again = subject.loss()
        parameter = subject.parameters[name]
        parameter.add_(torch.randn_like(parameter) * (parameter.abs().mean() + 0.1))
        torch.manual_seed(0)
        after = subject.loss()
    return bool((after - again).abs() > 10 * (again - before).abs() + 1e-6 * before.abs())


def _is_left_out(name: str) -> bool:
    return any(word in name.lower() for word in LEFT_OUT)


def _ratio_text(depth: Mapping[str, float]) -> str:
    sizes = list(depth.values())
    return f"1 : {number_text(sizes[0] / sizes[-1])}" if sizes[-1] > 0 else "1 : ?"
