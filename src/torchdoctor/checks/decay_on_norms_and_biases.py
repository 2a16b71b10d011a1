"""CK15 decay-on-norms-and-biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text

DECOUPLED = ("adamw", "lion", "nadamw", "adafactor", "muon", "lamb")
"""Prefixes of optimizer names with decoupled weight decay: a share of the weight times the learning rate."""


@dataclass(frozen=True)
class DecayOnNormsAndBiases(Check):
    """Strong weight decay leaves norms and biases alone.

    ## What it checks
    Weight decay keeps weight matrices small. On a norm's gain it pulls a value that should stay near one towards zero,
    and on a bias it has no benefit. A decay of 0.1, which is common for transformers, then costs accuracy.

    ## How it is told apart
    Mild decay on everything is a common recipe and passes: 0.01 in AdamW, 5e-4 in SGD. It is a warning from 0.05 if
    decay is decoupled (AdamW), and from 5e-3 if it is added to the gradient (SGD, Adam).

    ## What to do
    Make two groups: parameters with two or more dimensions get weight decay, the others do not.

    ## Example
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    >>> optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    >>> print(DecayOnNormsAndBiases().run(Subject.of(model, None, torch.ones(1, 4), optimizer)).message)
    3 norms and biases decay by 0.1: 0.bias, 1.weight, 1.bias
    """

    code = "CK15"
    name = "decay-on-norms-and-biases"
    quick = True
    static = True
    needs_loss = False
    suggests = ("set-weight-decay",)
    references = ("https://arxiv.org/abs/1812.01187",)

    decoupled: float = 0.05
    """Decoupled weight decay (AdamW and similar) from which this is reported."""
    coupled: float = 5e-3
    """Weight decay added to the gradient from which this is reported."""

    def applies(self, subject: Subject) -> str | None:
        """An optimizer with weight decay."""
        if not subject.optimizers:
            return "no optimizer was given"
        if not any(_decay(group) for optimizer in subject.optimizers for group in optimizer.param_groups):
            return "the optimizer has no weight decay"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Look for norms and biases in the groups with strong decay."""
        spared = norms_and_biases(subject)
        strongest, where = 0.0, list[str]()
        for optimizer in subject.optimizers:
            for group in optimizer.param_groups:
                decay = _decay(group)
                limit = self.decoupled if _is_decoupled(optimizer, group) else self.coupled
                found = [spared[id(p)] for p in group["params"] if id(p) in spared and p.requires_grad]
                if found and decay >= limit:
                    strongest, where = max(strongest, decay), where + found
        if where:
            message = f"{len(where)} norms and biases decay by {number_text(strongest)}: {names_text(where)}"
            advice = "Make two groups: `p.dim() >= 2` with weight decay, the others with weight_decay=0."
            return self.failed(message, advice, where=tuple(where), value=strongest, severity="warning")
        return self.passed(f"none of the {len(spared)} norms and biases has strong weight decay")


def norms_and_biases(subject: Subject) -> dict[int, str]:
    """Biases, and vectors in normalization layers, by the id of the tensor."""
    found: dict[int, str] = {}
    for path, module in subject.modules.items():
        norm = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() < 2 and (norm or "bias" in name):
                found.setdefault(id(parameter), f"{path}.{name}".removeprefix("model."))
    return found


def _decay(group: dict[str, Any]) -> float:
    value = group.get("weight_decay", 0.0)
    return float(value) if isinstance(value, int | float | torch.Tensor) else 0.0


def _is_decoupled(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    known = group.get("decoupled_weight_decay")
    return bool(known) if known is not None else type(optimizer).__name__.lower().startswith(DECOUPLED)
