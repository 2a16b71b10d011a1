"""The fast path for ordinary steps.

Most steps of most loops are alike: one optimizer, one clip that sees every gradient or none, losses with their graphs.
Such a step only stores references, and up to 64 of them are processed together: a line of Python costs a microsecond
when the caches are full of the loop's own work, and a fifth of that in a burst. Anything that is not ordinary goes to
the monitor, after the stored steps have been processed. So the monitor alone decides what anything means.

The clip's total norm is computed here, with the same calls as in torch's own function. The reason is memory: torch
drops the vector of norms that it reduces, and keeping its many scalars instead would cost more than everything else
(they would be freed long after they have left the caches). From time to time torch's own function runs, and its total
is compared with ours.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchdoctor.vitals import taps
from torchdoctor.vitals.bunching import Bunching
from torchdoctor.vitals.captures import Captures
from torchdoctor.vitals.clock import sequence_number
from torchdoctor.vitals.gradients import VERIFY_EVERY, Order, foreach_norm, norms_of
from torchdoctor.vitals.graph_nodes import is_made_of_older
from torchdoctor.vitals.layout import shape_of
from torchdoctor.vitals.slot import Loss, Raw

if TYPE_CHECKING:
    from torchdoctor.vitals.monitor import Monitor

is_capturing = torch.cuda.is_current_stream_capturing
NO_NUMBER = 2**63
"""Lowest value that stands for a missing sequence number."""
MOST_LOSSES, TIMES = 64, 8
"""Maximum number of losses in an ordinary step, at most this multiple of the most so far; else the monitor decides."""
_rate = operator.itemgetter("lr")


class Lane(taps.Listener):
    """Sits between the loop and its monitor; `is_open` while steps are ordinary."""

    def __init__(self, monitor: Monitor, bunching: Bunching, captures: Captures) -> None:
        self.failed = monitor.failed
        self.is_open = False
        self._monitor, self._bunching, self._captures = monitor, bunching, captures
        self._cuda = self._awaited = False
        self._clips = True
        self._order: Order | None = None
        self._shape = (0, 0, 0)
        self._room = 0
        self._most_losses = MOST_LOSSES
        self._uses = 0
        self.mark = 0
        """Autograd's node counter after the last step."""
        self._has_stepped = False
        """Whether steps have passed since the lane was opened."""
        self._label: int | None = 0
        """What the user calls the step after the processed ones; None if step numbers are not followed."""
        self._previous: dict[str, Tensor | None] = {}
        """The latest loss of every name whose losses have memory of their own; kept alive so that it is not reused."""
        self._places: dict[str, int] = {}
        """Memory address of each of those."""
        self._steps: list[Raw] = []
        self._stepping = False
        self._forget()

    def _forget(self) -> None:
        self._total: Tensor | None = None
        self._norms: Tensor | None = None
        self._ends: tuple[Tensor, Tensor] | None = None
        self._versions = (0, 0)
        self._clip: float | None = None
        self._losses: list[Loss] = []

    # ── what the loop does ───────────────────────────────────────────────────────────────────────────────────────

    def is_elsewhere(self) -> bool:
        """Whether another thread took the last step that went the normal path."""
        return self._captures.thread != get_ident()

    def total_of(self, tensors: Any) -> Tensor | None:
        """The total norm, if these tensors are all our gradients in the known order."""
        order = self._order
        if not (self.is_open and self._clips) or self._stepping or self._total is not None or type(tensors) is not list:
            return None
        assert order is not None
        ours = order.tensors
        if len(tensors) != len(ours):
            return None
        first: Tensor = tensors[0]
        last: Tensor = tensors[-1]
        self._uses += 1
        if first is not ours[0].grad or last is not ours[-1].grad or self._uses % VERIFY_EVERY == 0:
            return None
        with torch.no_grad():
            norms = torch.stack(foreach_norm(tensors, 2.0))
            total: Tensor = torch.linalg.vector_norm(norms, 2.0)
        self._total, self._norms, self._ends = total, norms, (first, last)
        self._versions = first._version, last._version
        return total

    def total_computed(self, tensors: Sequence[Tensor], total: Tensor, lists: taps.Lists) -> None:
        """Torch computed a total norm itself."""
        if not self._stepping:
            self.leave()
            self._monitor.total_computed(tensors, total, lists)

    def clipped(self, parameters: Any, max_norm: float) -> None:
        """Gradients were clipped."""
        ends = self._ends
        if (
            ends is not None
            and self._clips
            and type(max_norm) is float
            and type(parameters) is list
            and sequence_number() != self.mark  # else there was no forward pass between the step and this clip
        ):
            self._clip = max_norm if max_norm < math.inf else None
            self._versions = ends[0]._version, ends[1]._version
            return
        self.leave()
        self._monitor.clipped(parameters, max_norm)

    def clips_otherwise(self, tensors: Sequence[Tensor], order: float | None) -> None:
        """Gradients are about to be clipped by value or by another norm than ours: measure all of them before that."""
        known = self._order
        if (
            self.is_open
            and order is None
            and not (self._clips or self._stepping or (self._cuda and is_capturing()))
            and self._total is None
            and known is not None
            and len(tensors) == len(known.tensors)
            and tensors[0] is known.tensors[0].grad
            and tensors[-1] is known.tensors[-1].grad
            and self._measure()
        ):
            self._ends, self._versions = (tensors[0], tensors[-1]), (-1, -1)
        elif not self._stepping:
            self.leave()
            self._monitor.clips_otherwise(tensors, order)

    def clipped_by_value(self, tensors: Sequence[Tensor], limit: Any) -> None:
        """Gradients were clipped by value."""
        ends = self._ends
        if ends is not None and not self._clips and type(limit) is float and sequence_number() != self.mark:
            self._clip = self._captures.bound(tensors, math.inf, limit)
            self._versions = ends[0]._version, ends[1]._version
        elif not self._stepping:
            self.leave()
            self._monitor.clipped_by_value(tensors, limit)

    def scaler_updates(self, scaler: Any) -> None:
        """Scaled gradients leave the fast path."""
        self.leave()
        self._monitor.scaler_updates(scaler)

    def loader_begins(self, loader: Any) -> None:
        """An epoch or a validation begins."""
        self._monitor.loader_begins(loader)

    def optimizer_built(self, optimizer: Optimizer) -> None:
        """An optimizer was built that may take over."""
        self._monitor.successors.optimizer_built(optimizer)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the step pass if everything about it is known or can be measured in one call."""
        if self.is_open:
            ends, groups = self._ends, optimizer.param_groups
            if (
                (self._clips if ends is None else self._versions != (ends[0]._version, ends[1]._version))
                or (len(args) != 1 and args[1:] != (None,))  # a trainer may pass a closure that is None
                or kwargs
                or self._shape != shape_of(groups)
                or taps.recent
                or "found_inf" in optimizer.__dict__
                or (self._cuda and is_capturing())
                or (ends is None and not self._measure())
            ):
                self.leave()
            else:
                self._ends = None
                self._stepping = True
                return None
        return self._monitor.before_step(optimizer, args, kwargs)

    def _measure(self) -> bool:
        """Measure the norms of all gradients if the loop does not clip; False if one is missing or different."""
        order = self._order
        assert order is not None
        try:
            measured = None if order.reduction is None else order.reduction()
            if measured is not None:
                self._norms, self._total = measured
                return True
            grads: list[Any] = [tensor.grad for tensor in order.tensors]
            with torch.no_grad():
                self._norms = torch.stack(norms_of(grads))
                self._total = torch.linalg.vector_norm(self._norms, 2.0)
        except (AttributeError, TypeError, RuntimeError):
            self._norms = self._total = None
        return self._total is not None

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The step was taken."""
        if not self._stepping:
            self._monitor.after_step(optimizer, args, kwargs)
            self._enter()
            return
        self._stepping = False
        rates = list(map(_rate, optimizer.param_groups))
        total = self._total
        assert total is not None
        now = time.perf_counter()
        self._steps.append((total, total._version, self._norms, self._clip, rates, now, self._losses))
        self._total, self._clip, self._losses = None, None, []
        self.mark = sequence_number() or 0
        self._room -= 1
        if self._room <= 0 or type(rates[0]) is not float:
            self.settle()
            self._monitor.settled()
            self._enter()
        elif self._awaited:
            self._awaited = self._monitor.read()

    def take_loss(self, loss: Any, name: str, step: int | None) -> bool:
        """Take a loss that has a graph and memory of its own; False if it cannot take the fast path."""
        if not self.is_open or type(loss) is not Tensor or self._stepping:
            return False
        known = self._previous
        if name not in known or not loss.requires_grad or loss.dim():
            return False
        # If nothing was computed since the step, the loss belongs to that step.
        number = -1 if sequence_number() == self.mark else _number_of(loss)
        early = number >= self.mark and not is_made_of_older(loss.grad_fn, self.mark)
        if number >= NO_NUMBER or (step is not None and not self._is_called(step, early)):
            return False
        value: Tensor | float
        if loss.is_cpu:
            value, version = loss.item(), 0
            if type(value) is not float or not math.isfinite(value):
                return False
        else:
            value = loss.detach()
            place, version = value.data_ptr(), value._version
            if place == self._places.get(name):
                return False
            known[name], self._places[name] = value, place
        if early:
            if len(self._losses) >= self._most_losses:
                return False
            self._losses.append((name, value, version))
        elif self._steps:
            self._steps[-1][-1].append((name, value, version))
        else:  # of a step that has been processed but not read yet
            self._monitor.put_loss(value, loss, name)
        return True

    def has_clipped(self) -> bool:
        """Whether gradients are known to have been clipped since the last step."""
        return self._clip is not None or self._monitor.has_clipped()

    def take_root(self, name: str, value: Tensor | float) -> bool:
        """Take the loss of this step so far, from which backward began; if it is not ordinary, leave the fast path."""
        if self.is_open and not self._stepping and (isinstance(value, Tensor) or math.isfinite(value)):
            self._losses = [(name, value, value._version if isinstance(value, Tensor) else 0)]
            return True
        self.leave()
        return False

    def _is_called(self, step: Any, early: bool) -> bool:
        """Whether this is what the user calls the step, or the user's numbers are not followed."""
        label = self._label
        return label is None or (type(step) is int and step == label + len(self._steps) - (not early))

    # ── in and out ───────────────────────────────────────────────────────────────────────────────────────────────

    def _enter(self) -> None:
        """Open for the next steps if the one just taken was ordinary."""
        terms = self._monitor.ordinary()
        self.is_open = terms is not None
        if terms is not None:
            (
                self._order,
                self._clips,
                self._shape,
                self._room,
                self._label,
                self._previous,
                self._cuda,
                self._awaited,
            ) = terms
            self._places = {name: loss.data_ptr() for name, loss in self._previous.items() if loss is not None}
            self.mark = sequence_number() or 0
            self._most_losses = min(MOST_LOSSES, TIMES * self._monitor.usual_losses)

    @property
    def is_stepping(self) -> bool:
        """Whether an optimizer is in its step."""
        return self._stepping

    @property
    def waiting(self) -> int:
        """Losses of the step in progress."""
        return len(self._losses)

    def settle(self) -> None:
        """Have the finished steps processed."""
        if self._steps:
            steps, self._steps = self._steps, []
            if self._label is not None:
                self._label += len(steps)
            assert self._order is not None
            self._bunching.absorb(steps, self._order, self.mark, clips=self._clips)
            self._has_stepped = True

    def curtail(self) -> None:
        """Make the next step the last of these."""
        self._room = min(self._room, 1)

    def leave(self) -> None:
        """Hand everything to the monitor, including the step in progress."""
        if not self.is_open:
            return
        self.is_open = self._stepping = False
        self.settle()
        if self._has_stepped:  # not at every step: this is rarely needed
            self._has_stepped = False
            if sequence_number() == self.mark:
                self._captures.mark_gradient()
            else:
                self._captures.forget_gradient()
        if self._ends is not None and not self._clips:
            self._captures.order_of_clip = math.inf
        begun = self._total, self._norms, self._ends, self._versions, self._clip, self._losses
        self._forget()
        self._bunching.resume(begun, self._order)


def _number_of(loss: Tensor) -> int:
    """The sequence number of the autograd node that made this loss."""
    node = loss.grad_fn
    return NO_NUMBER if node is None else int(node._sequence_nr())
