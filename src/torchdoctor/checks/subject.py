"""What is checked, and its properties that checks need: the kind of task, tokens, classes and layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from torchdoctor.checks.nested import leading, shorter, tensors
from torchdoctor.checks.runnable import Runnable

CONTEXT_NAMES = (
    "block_size",
    "n_positions",
    "max_position_embeddings",
    "context_length",
    "max_seq_len",
    "max_seq_length",
    "max_length",
    "seq_len",
    "n_ctx",
    "context",
)
"""Names that models and their configurations use for the longest sequence."""


@dataclass
class Subject(Runnable):
    """A model with all that is needed to run it, and its properties. Made by `Subject.of`.

    >>> batch = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
    >>> subject = Subject.of(nn.Linear(3, 2), nn.CrossEntropyLoss(), batch)
    >>> subject.kind, subject.classes
    ('classification', 2)
    """

    @cached_property
    def outputs(self) -> Tensor | None:
        """The prediction for the batch in eval mode, without its graph; None if there is none."""
        if self.broken or len(self.models) > 1 or self.calling.loss == "whole":
            return None
        with self.fresh(), torch.no_grad():
            self.evaluate()
            found = self.prediction()
        return None if found is None else found.detach()

    @cached_property
    def kind(self) -> str:
        """ "language-model", "classification", "regression", "reconstruction", or "other"."""
        outputs, targets = self.outputs, self.targets
        if outputs is None:
            return "other"
        if targets is None:
            return "reconstruction" if outputs.shape == getattr(leading(self.inputs), "shape", None) else "other"
        if not isinstance(targets, Tensor):
            return "other"
        if targets.is_floating_point():
            return "regression" if targets.numel() == outputs.numel() else "other"
        if self.tokens is not None and outputs.dim() == 3 and outputs.shape[:2] == self.tokens.shape == targets.shape:
            return "language-model"
        return "classification" if outputs.dim() > 1 else "other"

    @cached_property
    def tokens(self) -> Tensor | None:
        """The input of token numbers, of shape (samples, length); None if there is none."""
        found = self.read_tokens
        if found is None:
            return None
        # A decoder's tokens: the targets are these, shifted by one.
        several = [item for item in tensors(self.inputs) if _are_tokens(item)]
        return next((item for item in several if _comes_before(item, self.targets)), found)

    @property
    def extent(self) -> str:
        """The size of the batch, in words."""
        length = f" of {self.tokens.shape[1]} tokens" if self.tokens is not None else ""
        return f"{self.samples} samples{length}"

    @cached_property
    def read_tokens(self) -> Tensor | None:
        """The token input that is read first: the encoder's, if there is also a decoder."""
        found = self.inputs.get("input_ids") if isinstance(self.inputs, Mapping) else None
        found = leading(self.inputs) if found is None else found
        if not isinstance(found, Tensor) or not _are_tokens(found):
            return None
        return found if any(True for _ in self.of_type(nn.Embedding)) else None

    def with_tokens(self, tokens: Tensor) -> Any:
        """The inputs with other tokens; masks and the like are cut or extended to their shape."""
        if isinstance(self.inputs, Tensor):
            return tokens
        old = self.tokens
        pairs = self.inputs.items() if isinstance(self.inputs, Mapping) else enumerate(self.inputs)
        made = {
            key: tokens
            if item is old
            else _resized(item, tokens.shape)
            if isinstance(item, Tensor) and old is not None and item.shape == old.shape
            else _rows(item, tokens.shape[0])
            if isinstance(item, Tensor) and old is not None and item.shape[:1] == old.shape[:1] != tokens.shape[:1]
            else item
            for key, item in pairs
        }
        return made if isinstance(self.inputs, Mapping) else tuple(made.values())

    @cached_property
    def classes(self) -> int | None:
        """The number of classes in the outputs, for classification and language models."""
        if self.outputs is None or self.kind not in ("classification", "language-model"):
            return None
        flat = self.kind == "language-model" or self.outputs.dim() == 2 or self.calling.loss == "flat"
        return int(self.outputs.shape[-1 if flat else 1])

    @cached_property
    def predicts_next(self) -> bool:
        """Whether each position's target is the next token (as targets, or as labels that the model shifts)."""
        tokens, targets = self.tokens, self.targets
        if self.kind != "language-model" or tokens is None or tokens.shape[1] < 3:
            return False
        counted = targets >= 0
        shifted = (targets[:, :-1] == tokens[:, 1:]) | ~counted[:, :-1]
        same = self.calling.feeds_targets and isinstance(self.inputs, Mapping)
        same = same and bool(((targets == tokens) | ~counted).float().mean() > 0.99)
        return bool(counted.float().mean() > 0.5) and (bool(shifted.float().mean() > 0.95) or same)

    @cached_property
    def vocabulary(self) -> int | None:
        """The number of tokens in the token embedding."""
        sizes: list[int] = []
        tokens = self.tokens
        if tokens is None or self.broken:
            return None

        def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
            given = args[0] if args else None
            if isinstance(module, nn.Embedding) and isinstance(given, Tensor) and given.shape == tokens.shape:
                sizes.extend([module.num_embeddings] if torch.equal(given.long(), tokens.long()) else [])

        with self.fresh(), torch.no_grad(), self.watched(see):
            self.forward()
        return min(sizes, default=None)

    @cached_property
    def context(self) -> int | None:
        """The longest sequence that a model of tokens says it takes; None if it does not say."""
        for place in (getattr(self.model, "config", None), self.model):
            for name in CONTEXT_NAMES:
                value = place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        tables = [
            item.num_embeddings
            for name, item in self.of_type(nn.Embedding)
            if any(word in name.lower() for word in ("pos", "wpe"))
        ]
        return min(tables, default=None)

    def of_type(self, *kinds: type[nn.Module]) -> Iterator[tuple[str, Any]]:
        """The modules of some classes, by name."""
        return ((name, module) for name, module in self.modules.items() if isinstance(module, kinds))

    @cached_property
    def has_batchnorm(self) -> bool:
        """Whether it has BatchNorm, which normalizes samples together."""
        return any(True for _ in self.of_type(nn.modules.batchnorm._BatchNorm))

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether it has recurrent layers."""
        return any(True for _ in self.of_type(nn.RNNBase, nn.RNNCellBase))

    @cached_property
    def has_attention(self) -> bool:
        """Whether it has attention, judging by the names of its modules."""
        words = ("attention", "attn")
        return any(any(word in type(module).__name__.lower() for word in words) for module in self.modules.values())

    def shortened(self, length: int) -> Self:
        """The subject with only the beginnings of its sequences."""
        tokens = self.tokens
        if tokens is None:
            return self
        inputs, targets = shorter(self.inputs, length, tokens.shape), shorter(self.targets, length, tokens.shape)
        return replace(self, inputs=inputs, targets=targets)


def _are_tokens(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.dim() == 2


def _comes_before(tokens: Tensor, targets: Any) -> bool:
    if not isinstance(targets, Tensor) or targets.shape != tokens.shape or tokens.shape[1] < 3:
        return False
    counted = targets[:, :-1] >= 0
    return bool(counted.any()) and bool((targets[:, :-1] == tokens[:, 1:])[counted].float().mean() > 0.95)


def _resized(mask: Tensor, shape: torch.Size) -> Tensor:
    rows = _rows(mask, shape[0])
    return rows[:, torch.arange(shape[1], device=mask.device).clamp(max=mask.shape[1] - 1)]


def _rows(tensor: Tensor, samples: int) -> Tensor:
    return tensor[torch.arange(samples, device=tensor.device) % tensor.shape[0]]
