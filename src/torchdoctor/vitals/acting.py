"""The acting gauge: whether the loop asks its model what to do, and learns later from what came of it.

A loop that collects its own experience shows itself by passes on single states, or many on a few, whose answers no
loss is made of; or by one loss of many such passes, now more and now fewer, as long as an episode lasts. Its loss is no
measure of progress: new experience and new targets move it up as well as down.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge, entrances, is_compiled, is_plain
from torchdoctor.vitals.transfer import Slot

FEW = 8
"""Rows of the least batch that is trained on, and passes on less than that which are a rollout or an episode."""
EPISODES = 3
"""Different lengths of episodes: of samples that are learnt one by one, only the last of an epoch are fewer."""


class ActingGauge(PassGauge):
    """Tells `loop.acts`."""

    def __init__(self, models: Mapping[str, nn.Module], tell: Tell) -> None:
        super().__init__(tell)
        self._models = [model for model in entrances(models) if not is_compiled(model)]
        self._asked: list[tuple[int, list[bool]]] = []
        """Passes that may ask for an action: how many states, and whether a gradient came back to the answer."""
        self._rows = 0
        """Of the largest batch that is trained on."""
        self._states = 0
        """Passes on a single state since the last backward."""
        self._lengths: set[int] = set()
        """Of episodes, each of which one loss was made of."""
        self._told = False

    def arm(self) -> None:
        """Hooks on the models, until it is known."""
        super().arm()
        if not self._told:
            self.at_backward()
            for model in self._models:
                self.after(model, "_answered")

    def _answered(self, module: nn.Module, args: Any, output: Any) -> None:
        state = args[0] if args else None
        if not is_plain(state) or not state.dim() or not state.is_floating_point():
            return
        rows = state.shape[0] if state.dim() > 1 else 1
        # A cell of a recurrent net is given what it said before.
        follows = any(isinstance(item, Tensor) and item.requires_grad for item in args)
        self._states += self.learns and rows == 1 and not follows
        if self.learns and rows > 1:
            self._rows = max(self._rows, rows)
        elif len(self._asked) < FEW and not self.learns and module.training:
            self._asked.append((rows, []))
        elif len(self._asked) < FEW and self.learns and is_plain(output) and output.requires_grad:
            used: list[bool] = []
            output.register_hook(partial(_note, used))  # type: ignore[no-untyped-call]
            self._asked.append((rows, used))

    def _backward(self, loss: Tensor) -> None:
        if self._states >= FEW:
            self._lengths.add(self._states)
        self._states = 0

    def before_step(self, index: int, slot: Slot) -> None:
        """A boundary point of an equation is a single row too; it is learnt from, and does not count."""
        idle = [rows for rows, used in self._asked if not used and rows < self._rows]
        asks = self._rows >= FEW and (1 in idle or len(idle) == FEW)
        if asks or len(self._lengths) >= EPISODES:
            self._told = True
            self.tell({"loop.acts": True})

    def forget(self) -> None:
        """Of another mode's passes nothing is dropped: a policy may act in either."""

    def disarm(self) -> None:
        """Begin anew."""
        super().disarm()
        self._asked, self._rows, self._states = [], 0, 0


def _note(used: list[bool], gradient: Tensor) -> None:
    """A gradient has come back to an answer."""
    used.append(True)
