"""The loss of a loop that logs none: the scalar that each backward begins from.

It is taken at every step, and only if its backward has changed the watched gradients. Several in one step are added up,
because the step's gradient is that of their sum: a trainer divides each micro-batch by their number. Means that nothing
has divided are averaged, as logged losses are. What was cleared before the step does not count. If the loss means
nothing by itself, because losses take turns or other networks learn through the model, it is not taken. Once the loop
logs a loss, what it logs counts, and nothing of this stays on. While several optimizers step, no loss is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from torchdoctor.guard import guarded
from torchdoctor.vitals import roots
from torchdoctor.vitals.ledger import ROOT
from torchdoctor.vitals.loss_graph import leaf_tensors
from torchdoctor.vitals.patient import Setup, optimizer_tensors
from torchdoctor.vitals.root_kinds import is_whole, kinds_of

if TYPE_CHECKING:
    from torchdoctor.vitals.monitor import Monitor

WITNESSES = 3
"""Tensors whose gradients show that a backward was that of the watched model: it may not use one of them."""
SEARCHES = 8
"""How often other witnesses are looked for, if a step was taken without any backward that changed these."""
COPIED_FIRST = 3
"""Losses on a device that are copied before each is trusted to have memory of its own."""
YOUNG, TURNS = 64, 3
"""First steps in which losses may turn out to take turns; and how often the kind of loss then changes."""
LATE = 8
"""Losses that were cleared unused, after which another optimizer may have stepped, that is older than the doctor."""
TOLD_AFTER = 20
"""Steps after which the report says where the loss comes from."""
Marks = list[tuple[int, int] | None]
"""What shows a change of each witness's gradient: its identity and version."""
State = tuple[list[Any], Marks, frozenset[str]]
"""The gradients of the witnesses, which must not be freed meanwhile, their marks, and the kind of loss."""
NO_KIND: frozenset[str] = frozenset()

current_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
is_capturing = torch.cuda.is_current_stream_capturing


class RootLosses:
    """Follows each backward of the only optimizer's model, while there is only one.

    The loss goes to the lane at once, or to `put` when the step is measured.
    """

    def __init__(
        self,
        monitor: Monitor,
        setup: Setup,
        put: Callable[[Tensor | float], bool],
        note: Callable[[str, str], None],
    ) -> None:
        self._monitor, self._lane, self.failed = monitor, monitor.lane, monitor.failed
        self._setup, self._put, self._note = setup, put, note
        self._is_on = False
        self._witnesses: list[Tensor] = []
        self._cuda = torch.cuda.is_available()
        self._scaler: GradScaler | None = setup.scaler
        self._total: Tensor | float | None = None
        """The sum of the losses of the step in progress."""
        self._count = self._cleared = 0
        self._marks: Marks = []
        """What shows a change of the witnesses, after the last backward that counted."""
        self._step = -1
        """The lane's mark of the step that the sum belongs to."""
        self._deaf = False
        """Whether further losses of this step do not count, as in a line search."""
        self._known = self._whole = False
        """Whether a backward has ever counted; and whether it began from a mean that nothing had divided."""
        self._former, self._turns = NO_KIND, 0
        """The kind of the latest step's first loss, and how often it had nothing in common with the one before it."""
        self._undone = self._former, self._turns
        """Both before this step."""
        self._latest: tuple[Tensor, int] | None = None
        """The latest loss on a device, kept alive so that its memory is not reused, and its address."""
        self._to_copy = COPIED_FIRST
        self.taken = 0
        """Steps whose loss was taken."""

    def follow(self) -> None:
        """Follow the optimizer that steps from now on; or none, while there are several."""
        optimizers = self._setup.optimizers
        if len(optimizers) > 1:
            self.detach()
            self.tell_end()
            return
        self._optimizer, self._searches = optimizers[0], SEARCHES
        self._choose_witnesses()
        self._mark = marks_of_shards if any(hasattr(item, "to_local") for item in self._witnesses) else marks_of
        self._marks = self._mark([tensor.grad for tensor in self._witnesses])
        self._is_on = True
        roots.follow(self)

    def detach(self) -> None:
        """Leave no trace."""
        self._is_on = False
        roots.unfollow(self)
        self._total = self._latest = None

    # ── what the loop does ───────────────────────────────────────────────────────────────────────────────────────

    def backward_starts(self, loss: Tensor) -> State | None:
        """Remember the gradients: only a backward that changes them is that of this model's loss."""
        try:
            if (
                type(loss) is not Tensor
                or self._deaf
                or current_task() != -1  # inside another backward
                or self._lane.is_elsewhere()
                or (self._cuda and is_capturing())
            ):
                return None
            grads: list[Any] = [tensor.grad for tensor in self._witnesses]
            marks = self._mark(grads)
            if self._total is not None and self._step != self._lane.mark:
                self._total = None
            elif self._total is not None and self._is_cleared(marks):
                self._total, (self._former, self._turns) = None, self._undone
                self._cleared += 1
                if self._cleared == LATE:
                    self._monitor.successors.search()
            if self.taken >= YOUNG:
                return grads, marks, NO_KIND
            if not self._known:  # backward frees what shows it
                self._whole = is_whole(loss.grad_fn)
            return grads, marks, kinds_of(loss.grad_fn)
        except Exception as error:  # noqa: BLE001  the loop matters more; not `guarded`, which costs another frame
            self.failed("backward_starts", error)
            return None

    def backward_ended(self, loss: Tensor, before: State | None) -> None:
        """Add the loss to those of the step."""
        if before is None or not self._is_on:
            return
        try:
            marks = self._mark([tensor.grad for tensor in self._witnesses])
            if marks == before[1]:
                return
            self._marks, lane = marks, self._lane
            value = loss.item() if loss.is_cpu else self._kept(loss.detach())
            if self._total is not None:
                value = (self._total.float() if isinstance(self._total, Tensor) else self._total) + value
                self._count += 1
            elif self.taken < YOUNG and not self._is_meant(loss, before[2]):
                self.tell_end()
                self._monitor.leave_roots()
                return
            else:
                self._count, self._step = 1, lane.mark
            self._total = value
            if lane.is_open and lane.take_root(ROOT, self._mean() if self._count > 1 else value):
                self._count_step(self._count == 1)
        except Exception as error:  # noqa: BLE001
            self.failed("backward_ended", error)

    def scaler_steps(self, scaler: GradScaler, optimizer: Any) -> None:
        """From now on the scaler is known; a step that it skips has a loss too."""
        if self._total is not None and scaler.is_enabled() and not self._lane.is_elsewhere():
            self._scaler = scaler
            self._lane.leave()
            if optimizer is self._optimizer:
                self.take()

    def step_begins(self, *, has_closure: bool) -> None:
        """A step begins that is off the lane; its closure has yet to compute the loss."""
        self._deaf = False
        if not has_closure:
            self.take()

    def take_first(self) -> None:
        """A closure was called for the first time in its step; its further calls are trials."""
        self.take()
        self._deaf = True

    def step_is_over(self) -> None:
        """Listen again."""
        self._deaf = False

    @guarded
    def take(self) -> None:
        """Hand over the loss of the step that comes next and is off the lane."""
        if self._total is None:
            if self._is_on and self._searches:
                self._searches -= 1
                self._choose_witnesses()
            return
        value, scaler, self._total = self._mean(), self._scaler, None
        if scaler is not None and scaler.is_enabled() and scaler._scale is not None:
            # The loss is scaled, because torch refuses the steps of a scaler whose `scale` was never called.
            if isinstance(value, float) and not scaler._scale.is_cpu:
                return  # reading the scale would wait
            value = value / (scaler._scale.item() if isinstance(value, float) else scaler._scale)
        self._count_step(self._put(value))

    def tell_end(self) -> None:
        """Take back what the report says about where the loss comes from."""
        if self.taken >= TOLD_AFTER:
            self._note(
                "end of root loss",
                "several optimizers or kinds of loss share the steps, so what backward() begins from is not taken as "
                "the loss: call doctor.log_loss(loss) at each step.",
            )

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _choose_witnesses(self) -> None:
        """Prefer tensors that have a gradient: others may be unused."""
        tensors = [tensor for tensor in optimizer_tensors(self._optimizer) if tensor.requires_grad]
        self._witnesses = spread([tensor for tensor in tensors if tensor.grad is not None]) or spread(tensors)

    def _is_cleared(self, marks: Marks) -> bool:
        """Whether nothing of this step's earlier gradients is left: written to without a clip, they were zeroed."""
        return marks != self._marks and (None in marks or not self._lane.has_clipped())

    def _mean(self) -> Tensor | float:
        """The loss of the step so far."""
        assert self._total is not None
        return self._total / self._count if self._count > 1 and self._whole else self._total

    def _count_step(self, is_new: bool) -> None:
        self.taken += is_new
        if is_new and self.taken == TOLD_AFTER:
            self._note(
                "root loss",
                f"log_loss was not called in the first {TOLD_AFTER} steps: until it is, the loss of a step is what "
                "its backward() began from.",
            )

    def _kept(self, value: Tensor) -> Tensor:
        """A loss on a device without waiting for it: a copy, if every loss is written to the same place."""
        latest, place = self._latest, value.data_ptr()
        if self._to_copy >= 0 and latest is not None and latest[1] == place:
            self._to_copy, self._latest = -1, None
        if self._to_copy < 0:
            return value.clone()
        self._latest = value, place
        if not self._to_copy:
            return value
        self._to_copy -= 1
        return value.clone()

    def _is_meant(self, loss: Tensor, kinds: frozenset[str]) -> bool:
        """Whether a loss means something by itself; a term that comes and goes does not make it another kind of loss.

        Only the first loss of a step is looked at, and only in the first steps.
        """
        self._undone = self._former, self._turns
        self._turns += bool(self._former) and kinds.isdisjoint(self._former)
        self._former = kinds or self._former
        known, self._known = self._known, True
        return self._turns < TURNS and (known or not self._is_of_others(loss.grad_fn))

    def _is_of_others(self, root: Any) -> bool:
        """Whether a loss also depends on weights that neither the model nor its optimizer has.

        A generator or an actor learns through its critic: what this loss means is not known.
        """
        loss_fn = self._setup.loss_fn
        parts = [*self._setup.models.values(), *([loss_fn] if isinstance(loss_fn, nn.Module) else [])]
        own = [tensor for part in parts for tensor in part.parameters()] + [*optimizer_tensors(self._optimizer)]
        if any(hasattr(tensor, "to_local") for tensor in own):  # sharded: the leaves of the graph are other tensors
            return False
        known = set(map(id, own))
        return any(id(leaf) not in known for leaf in leaf_tensors(root) if type(leaf) is nn.Parameter)


def marks_of(grads: list[Any]) -> Marks:
    """What shows a change of each gradient."""
    return [None if grad is None else (id(grad), grad._version) for grad in grads]


def marks_of_shards(grads: list[Any]) -> Marks:
    """The same for shards, whose local parts are written to."""
    return marks_of([grad if grad is None else getattr(grad, "_local_tensor", grad) for grad in grads])


def spread(tensors: list[Tensor]) -> list[Tensor]:
    """A few tensors: the first, the last and those between.

    >>> [tensor.item() for tensor in spread(list(torch.arange(10)))], spread([])
    ([0, 4, 9], [])
    """
    last = len(tensors) - 1
    places = {last * part // (WITNESSES - 1) for part in range(WITNESSES)} if tensors else ()
    return [tensors[place] for place in sorted(places)]
