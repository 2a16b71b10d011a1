"""CK22 tied-weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text

TYING = ("tie_word_embeddings", "tie_weights", "tie_embeddings", "weight_tying", "tied", "share_embeddings")
"""Names of configuration options that tie head and embedding."""


@dataclass(frozen=True)
class TiedWeights(Check):
    """Weights that are meant to be tied are one parameter.

    ## What it checks
    - An embedding and an output layer of the same shape and values that are two parameters: a copy, which will drift
      apart at the first step.
    - Two parameters that share memory but not their gradient: they are updated and decayed twice.
    - A configuration that says "tied" although there are two parameters.

    ## How it is told apart
    Equal layers are common elsewhere (clones of a layer, a target network), so only an embedding and a linear layer are
    compared. Constant weights are ignored. A single shared parameter passes, and so do models that never tied weights.

    ## What to do
    Set `head.weight = embedding.weight`: the parameter itself, not `.data` or `.clone()`. Repeat it after loading the
    model or moving it by something that replaces parameters.

    ## Example
    >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    >>> _ = model[1].weight.data.copy_(model[0].weight.data)
    >>> print(TiedWeights().run(Subject.of(model, None, torch.ones(1, 3, dtype=torch.long))).message)
    0.weight and 1.weight are equal, but two parameters: they will drift apart
    """

    code = "CK22"
    name = "tied-weights"
    quick = True
    static = True
    needs_loss = False
    suggests = ()
    references = ("https://arxiv.org/abs/1608.05859",)

    def applies(self, subject: Subject) -> str | None:
        """Models with weights that could be tied, or that share memory."""
        if any(True for _ in _pairs(subject)) or _shared(subject) or _overlaid(subject):
            return None
        return "no output layer has the shape of an embedding, and no parameter is shared"

    def run(self, subject: Subject) -> Outcome:
        """Compare objects, memory and values."""
        advice = "Tie the parameter itself: `head.weight = embedding.weight`, then build the optimizer."
        overlaid = _overlaid(subject)
        if overlaid:
            one, other = overlaid[0]
            message = f"{one} and {other} share memory, but are two parameters: each step updates it twice"
            return self.failed(message, advice, where=(one, other))
        for (one, first), (other, second) in _pairs(subject):
            if first is not second and torch.equal(first, second) and bool((first != first.flatten()[0]).any()):
                message = f"{one} and {other} are equal, but two parameters: they will drift apart"
                return self.failed(message, advice, where=(one, other))
            if first is not second and _says_tied(subject):
                message = f"the configuration says that weights are tied, but {one} and {other} are two parameters"
                return self.failed(message, advice, where=(one, other))
        shared = _shared(subject)
        return self.passed(f"tied: {names_text(shared)}" if shared else "no weights are tied, and none should be")


def _pairs(subject: Subject) -> Iterator[tuple[tuple[str, nn.Parameter], tuple[str, nn.Parameter]]]:
    """Embeddings and linear layers of the same shape."""
    heads = list(subject.of_type(nn.Linear))
    for one, embedding in subject.of_type(nn.Embedding):
        for other, head in heads:
            if head.weight.shape == embedding.weight.shape:
                yield (f"{one}.weight", embedding.weight), (f"{other}.weight", head.weight)


def _shared(subject: Subject) -> list[str]:
    """All names of parameters that have more than one name."""
    found: dict[int, list[str]] = {}
    for path, module in subject.modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), []).append(f"{path}.{name}".removeprefix("model."))
    return [name for names in found.values() if len(names) > 1 for name in names]


def _overlaid(subject: Subject) -> list[tuple[str, str]]:
    """Different parameters at the same place in memory."""
    places: dict[tuple[int, torch.Size], str] = {}
    found = []
    for name, parameter in subject.parameters.items():
        if parameter.device.type == "meta" or not parameter.numel():
            continue
        place = (parameter.data_ptr(), parameter.shape)
        if place in places:
            found.append((places[place], name))
        places.setdefault(place, name)
    return found


def _says_tied(subject: Subject) -> bool:
    config: Any = getattr(subject.model, "config", None)
    named = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    return any(named.get(name) is True for name in TYING)
