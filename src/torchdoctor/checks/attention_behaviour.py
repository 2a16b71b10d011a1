"""CK06 attention-behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks.attention import Attended, attended
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.probing import SAME, altered, answer, moved_by, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text, share_text


@dataclass(frozen=True)
class AttentionBehaviour(Check):
    """Attention looks only where it may, its rows sum to one, and its heads are alive.

    ## What it checks
    The weights of every attention in a pass, whether written by hand, fused or `nn.MultiheadAttention`:

    - a model that predicts the next token does not look ahead;
    - positions hidden by `attention_mask` do not change the other outputs;
    - the softmax is over the keys, so each row sums to one, and no weight is NaN;
    - heads are not pinned to a single key at initialization;
    - no head gives every key the same weight, or adds nothing to the output, while other heads of its layer work.

    ## How it is told apart
    - Encoders may look both ways: looking ahead is judged only if the targets are the inputs shifted by one. Whether
      the model looks ahead is judged by its outputs; the weights only name the module.
    - Attention over something other than positions (slots, channels, pooling) is not square, and its rows are not
      judged.
    - Trained models have heads that look at one position; more than half of all heads must be pinned here.
    - If all heads of a layer add nothing, the layer starts at zero on purpose (a last projection, a gate).

    ## What to do
    Use `F.scaled_dot_product_attention(q, k, v, is_causal=True)`. By hand: divide scores by `head_size ** 0.5`, set
    hidden ones to `-inf` before the softmax, and take the softmax over `dim=-1`.

    ## Example
    >>> from torch import nn
    >>> class Tiny(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.token, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)
    ...     def forward(self, tokens):
    ...         x = self.token(tokens)
    ...         return self.head((x @ x.transpose(1, 2)).softmax(dim=1) @ x)
    >>> subject = Subject.of(Tiny(), None, torch.arange(12).view(2, 6) % 5)
    >>> print(AttentionBehaviour().run(subject).message)
    the softmax of model is over the queries: the weights on the keys do not sum to one
    """

    code = "CK06"
    name = "attention-behaviour"
    quick = True
    needs_loss = False
    suggests = ("fix-mask",)
    references = ("https://arxiv.org/abs/1706.03762",)

    pinned: float = 0.99
    """Mean weight of a head's strongest key above which the head counts as pinned."""
    share: float = 0.5
    """Share of heads that must be pinned before this is reported."""

    def applies(self, subject: Subject) -> str | None:
        """Models that run and whose output is visible."""
        if subject.broken:
            return "the model does not run on the batch: see forward-shapes"
        return whole_loss(subject)

    def run(self, subject: Subject) -> Outcome:
        """Check the weights and the outputs, the worst problems first."""
        seen = attended(subject, effects=True)
        square = [item for item in seen if item.is_square]
        if not seen and not subject.has_attention:
            raise CannotTell("the model has no attention")
        return (
            self._not_finite(seen)
            or self._rows(square)
            or self._looks_ahead(subject, square)
            or self._ignores_mask(subject)
            or self._pinned(square)
            or self._dead(square)
            or self._silent(seen)
            or self.passed(_summary(subject, seen, square))
        )

    def _not_finite(self, seen: list[Attended]) -> Outcome | None:
        bad = [item.where for item in seen if not bool(torch.isfinite(item.weights).all())]
        if not bad:
            return None
        return self.failed(
            f"attention weights of {names_text(bad)} are NaN: every key of a row is hidden, or the scores are "
            "not finite",
            "Let each query see at least one key, such as its own.",
            where=tuple(dict.fromkeys(bad)),
        )

    def _rows(self, square: list[Attended]) -> Outcome | None:
        wrong = [item for item in square if item.dimension != -1 and not _sums_to_one(item.weights)]
        if not wrong:
            return None
        over = {-2: "the queries", -3: "the heads"}.get(wrong[0].dimension, "the batch")
        return self.failed(
            f"the softmax of {names_text([item.where for item in wrong])} is over {over}: "
            "the weights on the keys do not sum to one",
            "Take the softmax over the keys: scores.softmax(dim=-1).",
            where=tuple(dict.fromkeys(item.where for item in wrong)),
        )

    def _looks_ahead(self, subject: Subject, square: list[Attended]) -> Outcome | None:
        tokens = subject.tokens
        if not subject.predicts_next or tokens is None:
            return None
        half = tokens.shape[1] // 2
        later = torch.zeros_like(tokens, dtype=torch.bool)
        later[:, half:] = True
        before = answer(subject, subject.inputs, subject.targets)
        after = answer(subject, altered(subject, later), subject.targets)
        changed = moved_by(before[:, :half], after[:, :half])
        if changed <= SAME:
            return None
        where = tuple(dict.fromkeys(item.where for item in square if bool((item.weights.triu(1) > 1e-6).any())))
        return self.failed(
            f"the model looks ahead: changing the tokens from position {half} on changes the outputs before it by "
            f"{number_text(changed)} of their size",
            "Hide later positions before the softmax: is_causal=True, or scores set to -inf above the diagonal.",
            where=where[:4],
            value=changed,
            limit=SAME,
        )

    def _ignores_mask(self, subject: Subject) -> Outcome | None:
        found = _masked(subject)
        if found is None:
            return None
        key, inputs, hidden = found
        tokens = subject.tokens
        assert tokens is not None
        before = answer(subject, inputs)
        other = {**inputs, **{name: item for name, item in altered(subject, hidden).items() if name != key}}
        after = answer(subject, other)
        if before.shape[:2] == tokens.shape:
            before, after = before[~hidden], after[~hidden]
        changed = moved_by(before, after)
        if changed <= SAME:
            return None
        return self.failed(
            f"{key} is ignored: changing the tokens it hides changes the other outputs by "
            f"{number_text(changed)} of their size",
            "Pass the mask to every attention, and leave hidden positions out of pooling.",
            value=changed,
            limit=SAME,
        )

    def _pinned(self, square: list[Attended]) -> Outcome | None:
        tops = [(item.where, top) for item in square for top in _tops(item.weights)]
        pinned = [(where, top) for where, top in tops if top > self.pinned]
        if not pinned or len(pinned) <= self.share * len(tops):
            return None
        return self.failed(
            f"{len(pinned)} of {len(tops)} heads put {share_text(pinned[0][1], 1)} of their weight on a single key",
            "Divide scores by head_size ** 0.5, and initialize queries and keys smaller: a saturated softmax passes "
            "no gradient.",
            where=tuple(dict.fromkeys(where for where, _ in pinned))[:4],
            value=len(pinned) / len(tops),
            limit=self.share,
            severity="warning",
        )

    def _dead(self, square: list[Attended]) -> Outcome | None:
        for item in square:
            if item.weights.dim() != 4:
                continue
            spreads = [_unevenness(item.weights[:, head]) for head in range(item.weights.shape[1])]
            dead = [str(head) for head, spread in enumerate(spreads) if spread == 0]
            if dead and max(spreads) > 1e-4:
                return self.failed(
                    f"head {names_text(dead)} of {item.where} gives every key the same weight for any input",
                    "Check how queries and keys are split into heads, and their weights.",
                    where=(item.where,),
                    severity="warning",
                )
        return None

    def _silent(self, seen: list[Attended]) -> Outcome | None:
        for item in seen:
            silent = [str(head) for head, effect in enumerate(item.effect) if effect == 0]
            if silent and len(silent) < len(item.effect):
                return self.failed(
                    f"head {names_text(silent)} of {item.where} adds nothing to the output for any input",
                    "Check the values of these heads: their weights may be zero, or a split may leave them out.",
                    where=(item.where,),
                    value=float(len(silent)),
                    limit=0.0,
                    severity="warning",
                )
        return None


def _sums_to_one(weights: Tensor) -> bool:
    return bool(((weights.float().sum(-1) - 1).abs() < 1e-3).all())


def _masked(subject: Subject) -> tuple[str, dict[str, Any], Tensor] | None:
    """The key of a mask, inputs in which it hides the end of each sequence, and the positions it hides."""
    tokens = subject.tokens
    if tokens is None or not isinstance(subject.inputs, Mapping) or tokens.shape[1] < 4:
        return None
    if tokens is not subject.read_tokens:  # the mask belongs to the encoder
        return None
    key = next((name for name in ("attention_mask", "key_padding_mask") if name in subject.inputs), None)
    if key is None or subject.inputs[key].shape != tokens.shape:
        return None
    hidden = torch.zeros_like(tokens, dtype=torch.bool)
    hidden[:, -(tokens.shape[1] // 4) :] = True
    shown = subject.inputs[key]
    # PyTorch's padding masks are true at padding, Hugging Face's at real tokens
    mask = hidden if "padding" in key else ~hidden
    return key, {**subject.inputs, key: mask.to(shown.dtype)}, hidden


def _tops(weights: Tensor) -> list[float]:
    """Per head: the mean of each query's largest weight, except the first query, which may have a single key."""
    heads = weights.unbind(1) if weights.dim() == 4 else [weights]
    return [float(head[..., 1:, :].amax(-1).mean()) for head in heads]


def _unevenness(weights: Tensor) -> float:
    """The largest difference between a query's weights on the keys that it may look at."""
    allowed = weights > 0
    high = weights.amax(-1)
    low = weights.masked_fill(~allowed, torch.inf).amin(-1)
    several = allowed.sum(-1) > 1
    return float((high - low)[several].amax()) if bool(several.any()) else 1.0


def _summary(subject: Subject, seen: list[Attended], square: list[Attended]) -> str:
    if not seen:
        return (
            "no attention weights could be seen; outputs do not look ahead"
            if subject.predicts_next
            else "no problem found"
        )
    heads = sum(item.weights.shape[1] if item.weights.dim() == 4 else 1 for item in square or seen)
    ahead = ", none looks ahead" if subject.predicts_next else ""
    return f"{len(seen)} attentions with {heads} heads: rows sum to one{ahead}, no head is dead"
