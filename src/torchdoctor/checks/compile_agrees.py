"""CK25 compile-agrees."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.indices import unlooked
from torchdoctor.checks.probing import answer, seed, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text

NUDGE = 1e-6
"""Relative change applied to each number, to measure the effect of rounding."""


@dataclass(frozen=True)
class CompileAgrees(Check):
    """The compiled model computes the same as the original.

    ## What it checks
    Outputs in eval mode and gradients are compared between the model as it is and as `torch.compile` would run it. This
    reveals Python code that runs only during tracing, state written outside the graph, and operations with a wrong
    derivative.

    ## How it is told apart
    - Fused kernels round differently: a difference of 0.1 % is allowed (3 % in half precision), plus what changing
      inputs and weights by a millionth would cause. Non-finite values are ignored.
    - On a CPU the graph is traced and differentiated but not compiled to machine code, which would take minutes. On a
      GPU it is fully compiled.
    - A model that cannot be compiled is skipped with the reason: that is not a mistake in the model.
    - The compiler's cache is shared by the whole process: if this process has compiled anything, the check is skipped.

    ## What to do
    `torch._dynamo.explain(model)(x)` shows where the graph breaks. Move Python state and prints out of `forward`.

    ## Example
    >>> model = torch.nn.Linear(3, 1)
    >>> model.compile()
    >>> CompileAgrees().applies(Subject.of(model, torch.nn.MSELoss(), (torch.ones(4, 3), torch.ones(4, 1))))
    'the model is compiled already'
    """

    code = "CK25"
    name = "compile-agrees"
    suggests = ()
    references = ("https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html",)

    most: float = 1e-3
    """Largest allowed relative difference of outputs and gradients; thirty times as much in half precision."""
    backend: str = ""
    """Backend of torch.compile; if empty, "inductor" on a GPU and "aot_eager" on a CPU."""
    parameters: int = 200_000_000
    """Largest number of weights for which this check runs."""

    def applies(self, subject: Subject) -> str | None:
        """One model that is not compiled yet, in a process that has compiled nothing."""
        if (reason := whole_loss(subject)) is not None:
            return reason
        if any("_orig_mod" in name for name in subject.parameters) or subject.model._compiled_call_impl is not None:
            return "the model is compiled already"
        if sum(p.numel() for p in subject.parameters.values()) > self.parameters:
            return f"the model has more than {self.parameters:,} weights: compiling it takes too long for a check-up"
        if _compiled_before():
            return "this process has compiled other code, which this check would discard; run `torchdoctor check`"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Compare two uncompiled passes, then an uncompiled with a compiled one."""
        backend = self.backend or ("aot_eager" if subject.device.type == "cpu" else "inductor")
        small = subject.sized(min(subject.samples, 4))
        plain = self._values(small)
        if self._differ(plain, self._values(small), {})[1] > self.most:
            raise CannotTell("two passes differ even without compiling: see determinism")
        slack = self._slack(small, plain)
        model = small.model
        try:
            with _quiet(), _alone():
                model.compile(backend=backend)
                compiled = self._values(small)
        except Exception as error:  # a compiler may fail in any way
            text = " ".join(str(error).split())[:160]
            raise CannotTell(f"the model cannot be compiled here: {type(error).__name__}: {text}") from error
        finally:
            model._compiled_call_impl = None
        where, worst = self._differ(plain, compiled, slack)
        limit = self.most * (1 if next(iter(plain.values())).dtype in (torch.float32, torch.float64) else 30)
        if worst > limit:
            message = f"compiled ({backend}), outputs or gradients differ by {number_text(worst)} of their size: "
            message += names_text(where)
            advice = "`torch._dynamo.explain(model)(x)` shows what was traced: look for Python state in `forward`."
            return self.failed(message, advice, where=tuple(where), value=worst, limit=limit)
        return self.passed(f"compiled ({backend}), it agrees within {number_text(worst)}", value=worst, limit=limit)

    @staticmethod
    def _values(subject: Subject) -> dict[str, Tensor]:
        """The output and all gradients, in eval mode: compiled dropout draws other random numbers."""
        with subject.fresh():
            kept = {"output": answer(subject)}
            seed()
            with torch.backends.cudnn.flags(enabled=False):
                found = subject.gradients()
            kept.update((name, grad.detach().clone()) for name, grad in found.items() if grad is not None)
            return kept

    def _slack(self, subject: Subject, plain: dict[str, Tensor]) -> dict[str, float]:
        """By name: the largest change when all inputs and weights are changed slightly, in two directions."""
        slack: dict[str, float] = {}
        for sign in (1.0, -1.0):
            with subject.fresh(), torch.no_grad():
                torch.manual_seed(0)
                for parameter in subject.parameters.values():
                    _nudge(parameter, sign)
                inputs = nudged(subject.inputs, sign)
                with torch.enable_grad():
                    moved = self._values(replace(subject, inputs=inputs))
            for name in plain.keys() & moved.keys():
                slack[name] = max(slack.get(name, 0.0), _apart(plain[name], moved[name]))
        return slack

    def _differ(
        self, one: dict[str, Tensor], other: dict[str, Tensor], slack: dict[str, float]
    ) -> tuple[list[str], float]:
        """The names that differ, and the largest difference; gradients are judged relative to the largest of them."""
        gradients = [_finite(value) for name, value in one.items() if name != "output"]
        largest = max((float(value.abs().amax()) for value in gradients if value.numel()), default=0.0)
        outputs = _finite(one["output"]).double()
        sizes = {"output": float(outputs.square().mean().sqrt()) if outputs.numel() else 0.0}
        apart: dict[str, float] = {}
        for name in one.keys() & other.keys():
            beyond = _apart(one[name], other[name]) - 2 * slack.get(name, 0.0)
            apart[name] = max(0.0, beyond) / max(sizes.get(name, largest), 1e-30)
        apart.update((name, 1.0) for name in one.keys() ^ other.keys())
        return sorted(name for name, value in apart.items() if value > self.most), max(apart.values())


def _finite(value: Tensor) -> Tensor:
    return value[torch.isfinite(value)]


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference where the first is finite; infinite if only the second is not finite there.

    >>> _apart(torch.tensor([1.0, -torch.inf]), torch.tensor([1.5, 0.0]))
    0.5
    """
    known = torch.isfinite(one)
    apart = (one[known].double() - other[known].double()).abs().nan_to_num(torch.inf)
    return float(apart.amax()) if apart.numel() else 0.0


def _nudge(tensor: Tensor, sign: float) -> None:
    if tensor.is_floating_point():
        tensor.mul_(1 + sign * NUDGE * torch.randn_like(tensor))


def nudged(thing: Any, sign: float) -> Any:
    """The inputs with their numbers changed slightly."""
    if isinstance(thing, Tensor):
        other = thing.detach().clone()
        _nudge(other, sign)
        return other
    if isinstance(thing, Mapping):
        return {key: nudged(item, sign) for key, item in thing.items()}
    if isinstance(thing, list | tuple) and not hasattr(thing, "_fields"):
        return type(thing)(nudged(item, sign) for item in thing)
    return thing


def _compiled_before() -> bool:
    """Whether the compiler's caches hold anything."""
    return bool(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))


@contextlib.contextmanager
def _alone() -> Any:
    """Leave the compiler's caches as empty as before: they may reuse code for another model of the same classes."""
    try:
        with unlooked():
            yield
    finally:
        torch.compiler.reset()


@contextlib.contextmanager
def _quiet() -> Any:
    """Silence the compiler's log on stderr."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
