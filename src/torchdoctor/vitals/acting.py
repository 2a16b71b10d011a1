"""The acting gauge: whether the loop lets its model choose actions and later learns from their results.

A loop that collects its own experience is recognized by passes on a single state, or on a few states, whose outputs no
loss uses; or by a loss of many single-state passes whose number varies with the length of the episode. The loss of such
a loop does not measure progress: new experience and new targets also move it up.
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
"""Minimum rows of a training batch; minimum passes with fewer rows that count as a rollout or an episode."""
EPISODES = 3
"""Different episode lengths needed. If samples are trained on one by one, only an epoch's last group is shorter."""


class ActingGauge(PassGauge):
    """Tells `loop.acts`."""

    def __init__(self, models: Mapping[str, nn.Module], tell: Tell) -> None:
        super().__init__(tell)
        self._models = [model for model in entrances(models) if not is_compiled(model)]
        self._asked: list[tuple[int, list[bool]]] = []
        """Passes that may choose an action: number of states, and whether a gradient came back to the output."""
        self._rows = 0
        """Rows of the largest training batch."""
        self._states = 0
        """Passes on a single state since the last backward."""
        self._lengths: set[int] = set()
        """Lengths of the episodes, each of which was the source of one loss."""
        self._told = False

    def arm(self) -> None:
        """Put hooks on the models until the answer is known."""
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
        # A recurrent cell gets its own earlier output as input.
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
        """Report what was found. A single row whose output gets a gradient (an equation's boundary) does not count."""
        idle = [rows for rows, used in self._asked if not used and rows < self._rows]
        asks = self._rows >= FEW and (1 in idle or len(idle) == FEW)
        if asks or len(self._lengths) >= EPISODES:
            self._told = True
            self.tell({"loop.acts": True})

    def forget(self) -> None:
        """Keep everything when the mode changes: a policy may act in either mode."""

    def disarm(self) -> None:
        """Start over."""
        super().disarm()
        self._asked, self._rows, self._states = [], 0, 0


def _note(used: list[bool], gradient: Tensor) -> None:
    """A gradient has come back to an output."""
    used.append(True)
