"""CK25 compile-agrees."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.probing import answer, moved_by, seed, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text


@dataclass(frozen=True)
class CompileAgrees(Check):
    """The compiled model computes what the model computes.

    ## What it checks
    Outputs in eval mode, and gradients, of the model as it is and as `torch.compile` would run it. Python that runs
    at tracing only, state that is written outside of the graph, and operations with a wrong derivative show here.

    ## How it is told apart
    Fused kernels round otherwise: a thousandth is allowed, more in half precision. On a CPU the graph is traced and
    differentiated as for compiling, but not turned into machine code, which would take minutes; on a GPU it is
    compiled in full. What cannot be compiled is skipped with the reason: it is no mistake of the model.

    ## What to do
    `torch._dynamo.explain(model)(x)` shows where the graph breaks. Take Python state and prints out of `forward`.

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
    """Share of the size by which outputs and gradients may differ; thirty times as much in half precision."""
    backend: str = ""
    """Of torch.compile; "": "inductor" on a GPU, "aot_eager" on a CPU."""
    parameters: int = 200_000_000
    """Weights of a model up to which this is done."""

    def applies(self, subject: Subject) -> str | None:
        """One model that is not compiled yet."""
        if (reason := whole_loss(subject)) is not None:
            return reason
        if any("_orig_mod" in name for name in subject.parameters) or subject.model._compiled_call_impl is not None:
            return "the model is compiled already"
        if sum(p.numel() for p in subject.parameters.values()) > self.parameters:
            return f"the model has more than {self.parameters:,} weights: compiling it takes too long for a check-up"
        return None

    def run(self, subject: Subject) -> Outcome:
        """The same twice, once compiled."""
        backend = self.backend or ("aot_eager" if subject.device.type == "cpu" else "inductor")
        small = subject.sized(min(subject.samples, 4))
        plain = self._values(small)
        if self._differ(plain, self._values(small))[1] > self.most:
            raise CannotTell("two passes differ without compiling: see determinism")
        model = small.model
        try:
            with _quiet():
                model.compile(backend=backend)
                compiled = self._values(small)
        except Exception as error:  # a compiler may fail in any way
            text = " ".join(str(error).split())[:160]
            raise CannotTell(f"it cannot be compiled here: {type(error).__name__}: {text}") from error
        finally:
            model._compiled_call_impl = None
        where, worst = self._differ(plain, compiled)
        limit = self.most * (1 if next(iter(plain.values())).dtype in (torch.float32, torch.float64) else 30)
        if worst > limit:
            message = f"compiled ({backend}), outputs or gradients differ by {number_text(worst)} of their size: "
            message += names_text(where)
            advice = "`torch._dynamo.explain(model)(x)` shows what was traced: look for Python state in `forward`."
            return self.failed(message, advice, where=tuple(where), value=worst, limit=limit)
        return self.passed(f"compiled ({backend}) it agrees within {number_text(worst)}", value=worst, limit=limit)

    @staticmethod
    def _values(subject: Subject) -> dict[str, Tensor]:
        """The output and all gradients, in eval mode: dropout draws otherwise when it is compiled."""
        with subject.fresh():
            kept = {"output": answer(subject)}
            seed()
            with torch.backends.cudnn.flags(enabled=False):
                found = subject.gradients()
            kept.update((name, grad.detach().clone()) for name, grad in found.items() if grad is not None)
            return kept

    def _differ(self, one: dict[str, Tensor], other: dict[str, Tensor]) -> tuple[list[str], float]:
        """What differs, and by how much at most; gradients are judged by the largest of them all."""
        largest = max((float(value.abs().amax()) for name, value in one.items() if name != "output"), default=0.0)
        apart = {"output": moved_by(one["output"], other["output"])}
        for name in one.keys() & other.keys() - {"output"}:
            apart[name] = float((one[name] - other[name]).abs().amax()) / max(largest, 1e-30)
        apart.update((name, 1.0) for name in one.keys() ^ other.keys())
        return sorted(name for name, value in apart.items() if value > self.most), max(apart.values())


@contextlib.contextmanager
def _quiet() -> Any:
    """Without the compiler's log on stderr."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
