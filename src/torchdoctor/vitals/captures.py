"""The gradients of the upcoming step: whose norms are known already, and what is left to measure.

Clipping computes every gradient's norm just before the step. These norms are recognized and kept instead of being
computed again, unless the gradients have changed in between.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchdoctor.vitals import taps
from torchdoctor.vitals.clock import sequence_number
from torchdoctor.vitals.gradients import Capture, GradientGauge, Order, local
from torchdoctor.vitals.layout import Layout
from torchdoctor.vitals.ledger import Ledger
from torchdoctor.vitals.slot import Part, Slot

MOST_BOUNDS = 64
"""Maximum number of limits kept: a loop has one, or a new one at every step."""
LATE_CLIPS = 3
"""Clips after the step, or of nothing, that make it a habit."""


class Captures:
    """Norms that others computed of the watched gradients, and our own; `tell` takes structural facts."""

    def __init__(self, layout: Layout, ledger: Ledger, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._ledger, self._tell = ledger, tell
        self._together = False
        """Whether torch computes the norms of all our gradients in one call."""
        self._gradient_at_step: tuple[weakref.ref[Tensor], int] | None = None
        self._clip_mark: int | None = None
        """Autograd's node counter at a clip, if no node was made since the previous step."""
        self._late_clips = self._vain_clips = 0
        self._is_of_nothing = False
        """Whether the latest total norm was that of no gradient at all."""
        self._vain: tuple[str, Any, int | None] | None = None
        """Since the last step, a clip of nothing: which fact that is, its limit, and the optimizer it belongs to."""
        self.order_of_clip: float | None = None
        """Order of the norm that the upcoming step is clipped by, if it is not 2; infinity for clipping by value."""
        self._bounds: dict[tuple[int, float, float], float] = {}
        self.thread = get_ident()
        """The thread that took the last step."""
        self.lay_out(layout)

    def lay_out(self, layout: Layout) -> None:
        """Start over with a new layout."""
        self.pending: list[Capture] = []
        """What was captured for upcoming steps."""
        self._layout = layout
        self._gradients = GradientGauge(layout.tensors, layout.held)

    def order(self, *, clips: bool) -> Order | None:
        """All gradients of a single optimizer in order, if one call computes all their norms: a clip's, or ours."""
        if not clips:
            return self._gradients.whole
        order = self._gradients.order
        return order if order is not None and 0 in order.complete and self._together else None

    def total_computed(self, tensors: Sequence[Tensor], total: Tensor, lists: taps.Lists, sampled: int) -> None:
        """A total norm was computed: if it is of our gradients, keep it."""
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        self._is_of_nothing = not len(tensors)
        listed, norms = lists[0] if len(lists) == 1 else _joined(lists)
        sharded = hasattr(total, "to_local")
        if sharded:  # keep the local part, as we measure it ourselves: the whole would need a collective
            total, norms = local(total), [local(norm) for norm in norms]
        seen = len(listed) == len(tensors)
        order = self._gradients.recognize(listed if seen else tensors) if len(tensors) else None
        if order is None or order.owner < 0:
            return
        slot = self._ledger.slot_for(order.owner)
        if self.order_of_clip is not None and any(capture.slot is slot for capture in self.pending):
            return  # the gradients before the other clip are what counts
        if seen and self._is_known(slot, listed):
            return
        slot.kept.append(("total", total.detach() if total.requires_grad else total, total._version))
        if seen:
            self._capture(slot, order, listed, norms)
            self._together = len(lists) == 1 and len(norms) > 1 and not sharded
            if self._together and slot.number == sampled:  # compare with what the fast path would return
                same = torch.linalg.vector_norm(torch.stack(tuple(norms)), 2.0) == total
                slot.keep("same_total", same.float())

    def _is_known(self, slot: Slot, tensors: Sequence[Tensor]) -> bool:
        """Whether these norms were captured before, by a log and then a clip: nothing but a clip has changed them.

        If more was added to all gradients since, as by another micro-batch, what was captured then is dropped.
        """
        captured = [capture for capture in self.pending if capture.slot is slot]
        same = [item for item in captured if item.first is tensors[0] and item.last is tensors[-1]]
        if same and len(captured) == 1 and not same[0].untouched:
            self.pending = [capture for capture in self.pending if capture.slot is not slot]
            slot.kept = [item for item in slot.kept if item[0] != "total"]
            slot.parts = [part for part in slot.parts if part.vital != "grad_norm"]
            return False
        return bool(same) and same[0].untouched

    def _capture(self, slot: Slot, order: Order, tensors: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        slot.parts.append(Part("grad_norm", norms, order.indices))
        slot.facts["captured"] = True
        first, last = tensors[0], tensors[-1]
        self.pending.append(Capture(slot, first, last, (first._version, last._version), order.complete))

    def clipped(self, parameters: Any, max_norm: float) -> None:
        """Gradients were clipped."""
        first = parameters if isinstance(parameters, Tensor) else next(iter(parameters), None)
        owner = self._layout.owners.get(id(first))
        if self._is_of_nothing and (first is None or owner is not None):
            self._vain = ("clip.no_parameters" if first is None else "clip.no_gradients"), max_norm, owner
        if self._is_of_nothing or owner is None:
            return
        for capture in self.pending:
            capture.refresh()
        self._mark_clip()
        if isinstance(max_norm, int | float) and max_norm < math.inf:  # an infinite limit only asks for the norm
            slot = self._ledger.slot_for(owner)
            if self.order_of_clip is None:
                slot.facts["clip"] = float(max_norm)
            elif isinstance(parameters, list):
                grads = [item.grad for item in parameters if item.grad is not None]
                slot.facts["clip"] = self.bound(grads, self.order_of_clip, max_norm)

    def _mark_clip(self) -> None:
        now = sequence_number()
        self._clip_mark = now if now == self._ledger.clock.mark and self._ledger.clock.count else None

    def owners_of(self, tensors: Sequence[Tensor]) -> set[int]:
        """The optimizers whose gradients are among these."""
        held = zip(self._layout.tensors, self._layout.held, strict=True)
        by_gradient = {id(tensor.grad): owner for tensor, owner in held if tensor.grad is not None and owner >= 0}
        return {by_gradient[id(tensor)] for tensor in tensors if id(tensor) in by_gradient}

    def clips_otherwise(self, index: int, order: float | None, scale: Tensor | None) -> None:
        """Measure an optimizer's gradients now, before they are clipped by value or by another norm than ours."""
        self.order_of_clip = math.inf if order is None else order
        captured = [capture for capture in self.pending if index in capture.owners]
        if not captured or not all(capture.untouched for capture in captured):
            self.take_all(index, scale)

    def clipped_by_value(self, tensors: Sequence[Tensor], limit: Any) -> None:
        """Already measured gradients were clipped by value."""
        captured = [capture for capture in self.pending if not capture.untouched]
        for capture in captured:
            capture.refresh()
        if captured and isinstance(limit, int | float) and limit < math.inf:
            self._mark_clip()
            captured[0].slot.facts["clip"] = self.bound(tensors, math.inf, limit)

    def bound(self, tensors: Sequence[Tensor], order: float, limit: float) -> float:
        """The largest L2 norm that tensors can have if their norm of this order is at most the limit."""
        key = len(tensors), order, float(limit)
        if key not in self._bounds:
            if len(self._bounds) >= MOST_BOUNDS:
                self._bounds.clear()
            elements = sum(tensor.numel() for tensor in tensors)
            self._bounds[key] = l2_bound(elements, order, float(limit))
            self._tell({"clip.order": str(order)})
        return self._bounds[key]

    def take_all(self, index: int, scale: Tensor | None) -> bool:
        """Measure one optimizer's gradients as they are now; False if there are none."""
        capture = self._gradients.measure(self._ledger.slot_for(index), index, "grad_norm", scale)
        if capture is not None:
            self.pending.append(capture)
        return capture is not None

    def take_rest(self, index: int, optimizer: Optimizer, slot: Slot) -> None:
        """An optimizer is about to step: measure what was not captured or has changed since."""
        self.thread = get_ident()
        self._judge_clip()
        self._judge_vain_clip(index, slot)
        if taps.recent:
            self._take_recent()
        captured = [capture for capture in self.pending if index in capture.owners]
        if not captured or not all(capture.untouched for capture in captured):
            known = any(capture.slot is slot for capture in self.pending)
            scale = getattr(optimizer, "grad_scale", None)
            self._gradients.measure(slot, index, "applied_norm" if known else "grad_norm", scale)
        self.order_of_clip = None
        # keep another optimizer's share of a common clip
        self.pending = [item for item in self.pending if item.slot is slot and item.owners - {index}]

    def _judge_clip(self) -> None:
        """Count a clip after its step: no forward pass came before the clip, but one came before the next step."""
        mark, self._clip_mark = self._clip_mark, None
        now = sequence_number()
        if mark is not None and now is not None and now > mark:
            self._late_clips += 1
            if self._late_clips == LATE_CLIPS:
                self._tell({"clip.after_step": True})

    def _judge_vain_clip(self, index: int, slot: Slot) -> None:
        """Count a clip that found no gradient, if nothing else clips this step: frozen parts may be clipped as well."""
        if self._vain is None or self._vain[2] not in (None, index):
            return
        (fact, limit, _), self._vain = self._vain, None
        self._vain_clips = 0 if "captured" in slot.facts or "clip" in slot.facts else self._vain_clips + 1
        if self._vain_clips == LATE_CLIPS:
            self._tell({fact: float(limit) if isinstance(limit, int | float) and limit > 0 else True})

    def _take_recent(self) -> None:
        """Norms without a total, from a function that was imported before the tap was installed."""
        tensors, norms = _joined(taps.take_recent())
        norms = [local(norm) for norm in norms]
        order = self._gradients.recognize(tensors) if len(tensors) else None
        if order is not None and order.owner >= 0:
            slot = self._ledger.slot_for(order.owner)
            self._capture(slot, order, tensors, norms)
            slot.detailed = slot.facts["own"] = True

    def mark_gradient(self) -> None:
        """A step was taken: remember a gradient weakly, to tell it from a later one."""
        grad = None if self._layout.witness is None else self._layout.witness.grad
        self._gradient_at_step = None if grad is None else (weakref.ref(grad), grad._version)

    def forget_gradient(self) -> None:
        """Steps and a forward pass have happened since: any gradient now counts as new."""
        self._gradient_at_step = None

    def backward_seen(self) -> bool:
        """Whether a gradient has arrived since the last step: asked so rarely that no hook is needed."""
        grad, known = None if self._layout.witness is None else self._layout.witness.grad, self._gradient_at_step
        return grad is not None and (known is None or known[0]() is not grad or known[1] != grad._version)


def l2_bound(elements: int, order: float, limit: float) -> float:
    """The largest L2 norm of this many elements whose norm of this order is at most the limit.

    >>> l2_bound(100, math.inf, 0.5), l2_bound(100, 1, 0.5), l2_bound(16, 4, 1.0)
    (5.0, 0.5, 2.0)
    """
    return limit * max(elements, 1) ** (0.5 - 1.0 / order) if order > 2 else limit


def _joined(lists: taps.Lists) -> tuple[list[Tensor], list[Tensor]]:
    """Join the lists of several devices or types into one."""
    return [tensor for part in lists for tensor in part[0]], [norm for part in lists for norm in part[1]]
