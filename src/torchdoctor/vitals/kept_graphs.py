"""Whether the graphs of steps that are over are still held: a loss in a list, a sum of losses, outputs that are kept.

A node of autograd takes no weak reference, but it has a place for notes (`metadata`). A mark is laid down there, at the
end of the graph that is furthest from the loss: whoever holds the loss, an output or a hidden layer's output holds that
node, and with it the mark. The gauge has a weak reference to the mark, and keeps no graph alive itself.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge
from torchdoctor.vitals.transfer import Slot

DEEPEST = 10_000
"""Nodes on the way from the loss to the end of its graph."""
SAMPLES, STEPS = 6, 64
"""Samples in a row whose graphs must still be held, and steps that they span: a window of a few steps is a method."""
FEWER, BEFORE = 4, 8
"""Samples that are enough where so many had been let go at once before: looks are far apart later in a run."""
TIMES = 3
"""Times as long as graphs were ever held and let go: what is collected for an epoch is let go after it."""
MOST = 64
KEY = "torchdoctor"


class Mark:
    """What is laid down at a node."""

    __slots__ = ("__weakref__",)


class KeptGraphs(PassGauge):
    """Tells `graph.kept`."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(tell)
        self._fresh: list[weakref.ref[Mark]] = []
        """Marks of the sample that is under way."""
        self._held: dict[int, list[weakref.ref[Mark]]] = {}
        """By step: marks that were not gone when last looked at."""
        self._longest = 0
        """Steps for which graphs were held and then let go."""
        self._let_go = 0
        """Samples whose graphs were gone at the next look."""
        self._told = False

    def arm(self) -> None:
        """A new sample: the loss shows itself at backward, or where it is logged."""
        super().arm()
        self._fresh = []
        self.at_backward()

    def _backward(self, loss: Tensor) -> None:
        self._lay_down(loss)

    def loss_logged(self, name: str, loss: Tensor) -> None:
        """A loss with its graph was logged."""
        self._lay_down(loss)

    def _lay_down(self, loss: Tensor) -> None:
        node = _furthest(loss.grad_fn)
        if node is None or KEY in node.metadata:
            return
        mark = node.metadata[KEY] = Mark()
        self._fresh.append(weakref.ref(mark))

    def after_step(self, index: int, slot: Slot) -> None:
        """Which of the earlier samples' graphs are still there?"""
        self._look(slot.number)
        if self._fresh and len(self._held) < MOST:
            self._held.setdefault(slot.number, []).extend(self._fresh)
            self._fresh = []

    def _look(self, now: int) -> None:
        steps = sorted(self._held)
        gone = [step for step in steps if not any(mark() is not None for mark in self._held[step])]
        for step in gone:
            del self._held[step]
            later = [other for other in steps if other > step]
            if len(later) > 1:  # it was there at the sample after it
                self._longest = max(self._longest, later[-1] - step)
            else:
                self._let_go += 1
        held = [step for step in steps if step not in gone and step < now]
        if gone and self._told:
            self._told = False
            self.tell({"graph.kept": None})
        if len(held) < (FEWER if self._let_go >= BEFORE else SAMPLES) or self._told:
            return
        if not gone and now - held[0] >= max(STEPS, TIMES * self._longest):
            self._told = True
            self.tell({"graph.kept": held[0]})


def _furthest(node: Any) -> Any:
    """The last node on the way from a loss to a leaf, by the first input each time; None where there is no graph."""
    for _ in range(DEEPEST):
        if node is None:
            return None
        before = next((parent for parent, _ in node.next_functions if _has_history(parent)), None)
        if before is None:
            return node
        node = before
    return node


def _has_history(node: Any) -> bool:
    return node is not None and type(node).__name__ != "AccumulateGrad"
