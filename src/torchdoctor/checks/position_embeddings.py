"""CK07 position-embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.attention import attended
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.probing import answer, awaken, moved_by, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text

BLIND = 1e-9
"""Largest relative change of attention weights, in double precision, at which positions are not told apart."""


@dataclass(frozen=True)
class PositionEmbeddings(Check):
    """The order of tokens matters, positions are distinct, and there are enough of them.

    ## What it checks
    Two tokens are swapped. If the first attention gives both the same weights as before, in their new places, the model
    does not know their positions. Position tables, recognized by name, must be used, have no two equal rows, and be as
    long as the model's longest sequence.

    ## How it is told apart
    - Only attention needs positions: recurrent and convolutional models see order anyway, bags of words and sets ignore
      it on purpose.
    - Rotations (RoPE), biases (ALiBi, T5) and sinusoids all show in the attention weights.
    - A causal model without positions still gets some order from its mask, sometimes on purpose: that is a warning.
      Without a mask it is critical.
    - A table that starts at zero is fine if its rows get different gradients.

    ## What to do
    Add positions where tokens are embedded: `x = token(tokens) + position(torch.arange(length))`. Registering a buffer
    does not add it. Make the table as long as the longest sequence.

    ## Example
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = nn.Sequential(nn.Embedding(9, 8), layer, nn.Linear(8, 9))
    >>> subject = Subject.of(model, None, torch.arange(18).view(3, 6) % 7)
    >>> print(PositionEmbeddings().run(subject).message)
    token order does not matter: 1.self_attn gives each token the same weight at any position
    """

    code = "CK07"
    name = "position-embeddings"
    quick = True
    needs_loss = False
    references = ("https://arxiv.org/abs/1706.03762",)

    def applies(self, subject: Subject) -> str | None:
        """Models that run and whose output is visible."""
        if subject.broken:
            return "the model does not run on the batch: see forward-shapes"
        return whole_loss(subject)

    def run(self, subject: Subject) -> Outcome:
        """Check the tables first, then the order."""
        tables = position_tables(subject)
        with subject.fresh():
            square = any(item.is_square for item in attended(subject))
        if not tables and not (square and subject.tokens is not None):
            raise CannotTell("the model has no attention over tokens and no position table")
        for name, table in tables.items():
            wrong = self._too_short(subject, name, table) or self._same(subject, name, table)
            if wrong is not None:
                return wrong
        unused = [name for name, table in tables.items() if not _used(subject, table)]
        if unused:
            return self.failed(
                f"{unused[0]} is not used: changing its values changes nothing",
                "Add it to the token embedding in forward, or delete it.",
                where=tuple(unused),
            )
        told = f"{', '.join(tables)} of {max(_rows(t).shape[0] for t in tables.values())} rows" if tables else ""
        if not square or subject.tokens is None:
            return self.passed(f"{told}: distinct and used")
        return self._order(subject, told)

    def _too_short(self, subject: Subject, name: str, table: Tensor) -> Outcome | None:
        rows = _rows(table).shape[0]
        needed = max(subject.context or 0, subject.tokens.shape[1] if subject.tokens is not None else 0)
        if subject.tokens is None or rows >= needed:
            return None
        return self.failed(
            f"{name} has {rows} rows, but sequences may have {needed} tokens",
            "Make the table as long as the longest sequence.",
            where=(name,),
            value=float(rows),
            limit=float(needed),
        )

    def _same(self, subject: Subject, name: str, table: Tensor) -> Outcome | None:
        rows = _rows(table.detach())
        length = subject.tokens.shape[1] if subject.tokens is not None else rows.shape[0]
        rows = rows[: min(length, rows.shape[0])]
        different = torch.unique(rows, dim=0).shape[0]
        if different == rows.shape[0] or rows.shape[0] < 2:
            return None
        if table.requires_grad and not subject.no_loss:
            with subject.fresh():
                subject.model.train()
                awaken_others(subject, table)
                gradient = subject.gradients().get(name)
            if gradient is None or torch.unique(_rows(gradient)[:length], dim=0).shape[0] > different:
                return None  # equal rows will become different; a missing gradient is reported by another check
        return self.failed(
            f"{rows.shape[0] - different} of {rows.shape[0]} rows of {name} are the same as another",
            "Compute each row from its position, or initialize the table at random.",
            where=(name,),
            value=float(different),
            limit=float(rows.shape[0]),
        )

    def _order(self, subject: Subject, told: str) -> Outcome:
        tokens = subject.tokens
        assert tokens is not None
        pair = _two_places(tokens)
        if pair is None:
            raise CannotTell("the sequences of the batch repeat a single token")
        with subject.fresh():
            awaken(subject)
            double = _to_double(subject)
            changed, where = _noticed(subject, pair)
            if changed is None:
                return self.passed(f"{told}: distinct and used" if told else "attention is even: its order is unknown")
            limit = BLIND if double else 1e-5
            blind = changed <= limit
            if blind and not subject.predicts_next:
                blind = _equivariant(subject, pair, limit)
        if not blind:
            size = f"swapping two tokens changes the first attention's weights by {number_text(changed)}"
            return self.passed(f"{told}; {size}" if told else size, value=changed, limit=limit)
        through = ", except through the causal mask" if subject.predicts_next else ""
        return self.failed(
            f"token order does not matter{through}: {where} gives each token the same weight at any position",
            "Add a position embedding to the token embedding, or rotate queries and keys (RoPE).",
            where=(where,),
            value=changed,
            limit=limit,
            severity="warning" if subject.predicts_next else "critical",
        )


def position_tables(subject: Subject) -> dict[str, Tensor]:
    """Tables with a row for each position, learned or fixed, recognized by their names."""
    found: dict[str, Tensor] = {}
    for name, module in subject.modules.items():
        if isinstance(module, nn.Embedding) and _named(name.rpartition(".")[2]):
            found[f"{name}.weight"] = module.weight
        own = {**module._parameters, **module._buffers}
        for key, value in own.items():
            if value is None or not value.is_floating_point() or not _named(key):
                continue
            if _rows(value).dim() == 2 and min(_rows(value).shape) > 1:
                found[key if name == "model" else f"{name}.{key}"] = value
    return found


def _named(name: str) -> bool:
    name = name.lower()
    return ("pos" in name or name in ("pe", "wpe")) and not any(word in name for word in ("rel", "bias", "mask"))


def _rows(table: Tensor) -> Tensor:
    """One row per position: without dimensions of size one."""
    return table.squeeze() if table.dim() != 2 else table


def awaken_others(subject: Subject, table: Tensor) -> None:
    """Fill all other weights that are entirely zero with small random numbers."""
    kept = table.detach().clone()
    awaken(subject)
    with torch.no_grad():
        table.copy_(kept)


def _used(subject: Subject, table: Tensor) -> bool:
    with subject.fresh(), torch.no_grad():
        if table.requires_grad:
            awaken_others(subject, table)
        else:
            awaken(subject)
        before = answer(subject)
        table.add_(torch.randn_like(table) * (table.abs().mean() + 0.1))
        return moved_by(before, answer(subject)) != 0  # NaN does not show whether positions are used


def _two_places(tokens: Tensor) -> tuple[int, int, int] | None:
    """A sample and two of its positions, not the last, with different tokens."""
    for sample in range(min(4, tokens.shape[0])):
        row = tokens[sample, :-1]
        other = (row != row[0]).nonzero()
        if other.numel():
            return sample, 0, int(other[-1])
    return None


def _to_double(subject: Subject) -> bool:
    """Switch to double precision, if the model supports it."""
    try:
        subject.model.double()
        attended(subject)
    except Exception:  # noqa: BLE001  a model with its own dtypes
        subject.model.float()
        return False
    return True


def _noticed(subject: Subject, pair: tuple[int, int, int]) -> tuple[float | None, str]:
    """How much the last token's weights change when two earlier tokens are swapped; None if these are all equal."""
    sample, left, right = pair
    tokens = subject.tokens
    assert tokens is not None
    order = _swapped(tokens.shape[1], left, right, tokens.device)
    one, other = _one(subject, tokens[sample : sample + 1]), _one(subject, tokens[sample : sample + 1][:, order])
    length = tokens.shape[1]
    first, second = (
        next((item for item in attended(subject, given) if item.is_square and item.weights.shape[-1] == length), None)
        for given in (one, other)
    )
    if first is None or second is None:
        return None, ""
    before, after = first.weights[..., -1, :], second.weights[..., -1, :][..., order]
    seen = before > 0
    if not bool(seen.any()):
        return None, ""
    if not torch.equal(seen, after > 0):
        return 1.0, first.where
    # Logarithms: if one key has nearly all the weight, the others still differ visibly.
    before, after = before[seen].log(), after[seen].log()
    spread = float(before.amax() - before.amin())
    if spread == 0:
        return None, ""
    return float((before - after).abs().amax()) / spread, first.where


def _one(subject: Subject, tokens: Tensor) -> Any:
    """The inputs for a single sample, with nothing masked."""
    made = subject.with_tokens(tokens)
    if not isinstance(made, Mapping):
        return made
    # PyTorch's padding masks are true at padding, Hugging Face's at real tokens
    shown = {key: "padding" not in key for key, item in made.items() if "mask" in key and item.shape == tokens.shape}
    return {key: torch.full_like(item, shown[key]) if key in shown else item for key, item in made.items()}


def _equivariant(subject: Subject, pair: tuple[int, int, int], limit: float) -> bool:
    """Whether swapping tokens only swaps the outputs as well."""
    sample, left, right = pair
    tokens = subject.tokens
    assert tokens is not None
    order = _swapped(tokens.shape[1], left, right, tokens.device)
    before = answer(subject, _one(subject, tokens[sample : sample + 1]))
    after = answer(subject, _one(subject, tokens[sample : sample + 1][:, order]))
    if before.shape[:2] == (1, tokens.shape[1]):
        after = after[:, order]
    return moved_by(before, after) <= 10 * limit


def _swapped(length: int, left: int, right: int, device: torch.device) -> Tensor:
    order = torch.arange(length, device=device)
    order[left], order[right] = right, left
    return order
