"""Whether graphs of finished steps are still alive: a list or sum of losses, or outputs that are kept.

An autograd node takes no weak reference, but it has a `metadata` dict. A mark is stored there, at the end of the graph
furthest from the loss: anything that holds the loss, an output or a hidden layer's output holds that node and thus the
mark. The gauge only has a weak reference to the mark and keeps no graph alive.

A hidden state that is never detached joins the graphs of all steps into one, which ends at the first step. The mark is
therefore stored at the last node that this step made.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from torchdoctor.vitals.clock import sequence_number
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge
from torchdoctor.vitals.transfer import Slot

DEEPEST = 10_000
"""Maximum number of nodes from the loss to the end of its graph."""
SAMPLES, STEPS = 6, 64
"""Consecutive samples whose graphs must still be alive, and steps that they span: a few steps may be intended."""
FEWER, BEFORE = 4, 8
"""Fewer samples suffice after this many whose graphs were released at once: later in a run, looks are far apart."""
TIMES = 3
"""Multiple of the longest time after which graphs were released: what is collected per epoch is released after it."""
MOST = 64
KEY = "torchdoctor"


class Mark:
    """What is stored at a node."""

    __slots__ = ("__weakref__",)


class KeptGraphs(PassGauge):
    """Tells `graph.kept`."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(tell)
        self._fresh: list[weakref.ref[Mark]] = []
        """Marks of the current sample."""
        self._held: dict[int, list[weakref.ref[Mark]]] = {}
        """By step: marks that were alive at the last look."""
        self._longest = 0
        """Longest number of steps for which graphs were kept and then released."""
        self._let_go = 0
        """Samples whose graphs were gone at the next look."""
        self._told = False
        self._began = -1
        """Autograd's counter when the current sample began."""

    def arm(self) -> None:
        """Start a new sample: the loss is seen at backward or when it is logged."""
        super().arm()
        self._fresh = []
        self._began = sequence_number() or -1
        self.at_backward()

    def _backward(self, loss: Tensor) -> None:
        self._lay_down(loss)

    def loss_logged(self, name: str, loss: Tensor) -> None:
        """A loss with its graph was logged."""
        self._lay_down(loss)

    def _lay_down(self, loss: Tensor) -> None:
        node = _furthest(loss.grad_fn, self._began)
        if node is None or KEY in node.metadata:
            return
        mark = node.metadata[KEY] = Mark()
        self._fresh.append(weakref.ref(mark))

    def after_step(self, index: int, slot: Slot) -> None:
        """Check which of the earlier samples' graphs are still alive."""
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
            if len(later) > 1:  # it was alive at the next sample
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


def _furthest(node: Any, since: int) -> Any:
    """The last node from a loss to a leaf, following the first input that has a graph; None if there is no graph.

    It stops where nodes begin that are older than `since`, autograd's counter at the start of the step.
    """
    for _ in range(DEEPEST):
        if node is None:
            return None
        before = next((parent for parent, _ in node.next_functions if _has_history(parent)), None)
        if before is None or before._sequence_nr() < since:
            return node
        node = before
    return node


def _has_history(node: Any) -> bool:
    return node is not None and type(node).__name__ != "AccumulateGrad"
