"""How a candidate is declared broken, and what most of them are made with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdoctor.clinic.candidates.candidate import Candidate, Visit
from torchdoctor.clinic.candidates.parts import (
    next_token_loss,
    rows,
    tokens,
)

CROSS_ENTROPY = nn.CrossEntropyLoss()
BROKEN: list[Candidate] = []
LEARNING = ("initial-loss", "overfit-one-batch", "uses-its-input")
"""What may fail as well where nothing can be learnt."""


def wrong(*right: str, secondary: tuple[str, ...] = ()) -> Callable[[Callable[[], Visit]], Callable[[], Visit]]:
    """Declare what counts as right, and what may fail as well."""

    def declared(build: Callable[[], Visit]) -> Callable[[], Visit]:
        BROKEN.append(Candidate(build.__name__.replace("_", "-"), build, right, secondary))
        return build

    return declared


def classifier(net: nn.Module) -> Visit:
    """Rows, classes and Adam for a net."""
    return Visit(net, CROSS_ENTROPY, rows(), torch.optim.Adam(net.parameters(), 1e-3))


def language_model(net: nn.Module) -> Visit:
    """Tokens and Adam for a net."""
    return Visit(net, next_token_loss, tokens(), torch.optim.Adam(net.parameters(), 1e-3))


class Through(nn.Module):
    """A module out of a function, for what has no parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)
