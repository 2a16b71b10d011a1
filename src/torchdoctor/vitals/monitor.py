"""The monitor sits in the loop: hooks and taps feed the gauges, and the ledger turns their numbers into records.

Nothing here waits for the device, and nothing here raises into the loop: every entry point is guarded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from torchdoctor.guard import guarded
from torchdoctor.records import Record
from torchdoctor.settings import Settings
from torchdoctor.stretch import Rows, Stretch
from torchdoctor.vitals import taps
from torchdoctor.vitals.bunching import Bunching, Terms
from torchdoctor.vitals.captures import Captures
from torchdoctor.vitals.changes import LoopChanges
from torchdoctor.vitals.context import optimizer_facts, shown_batch, tensors_in
from torchdoctor.vitals.first_batch import FirstBatch
from torchdoctor.vitals.gauge import Gauge
from torchdoctor.vitals.gauges import build_gauges
from torchdoctor.vitals.groups import GroupGauge
from torchdoctor.vitals.hooks import after_first
from torchdoctor.vitals.lane import Lane
from torchdoctor.vitals.layout import Layout, group_shapes
from torchdoctor.vitals.ledger import STRANDED, Ledger
from torchdoctor.vitals.looks import CloseLooks
from torchdoctor.vitals.origin import OriginSearch
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.root_losses import RootLosses
from torchdoctor.vitals.sampling import Sampling
from torchdoctor.vitals.slot import Slot
from torchdoctor.vitals.stopwatch import Stopwatch
from torchdoctor.vitals.successor import Successors
from torchdoctor.vitals.updates import UpdateGauge

is_capturing = torch.cuda.is_current_stream_capturing
ORIGIN_SEARCHES = 3
"""How often a run may be searched for the origin of a non-finite value: each search slows down one step."""


class Monitor(taps.Listener):
    """Watches models and optimizers; `emit` receives records in order, `note` a key and a sentence to show once."""

    def __init__(
        self,
        setup: Setup,
        settings: Settings,
        emit: Callable[[Sequence[Record | Stretch]], None],
        note: Callable[[str, str], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self.failed = failed
        self.owner: object = None
        """The object that attached this monitor."""
        self._setup, self._optimizers, self._scaler = setup, setup.optimizers, setup.scaler
        self._emit, self._note = emit, note
        self._index = {id(optimizer): number for number, optimizer in enumerate(self._optimizers)}
        self._single = len(self._optimizers) == 1
        self._origin = OriginSearch(setup.models)
        self._origin_searches = 0
        self._stepping = self._in_closure = self._draining = False
        self._stepped_since_update = [False] * len(self._optimizers)
        layout = self._layout = Layout(setup.models, self._optimizers)
        sampling = Sampling.on(settings, note, cuda=layout.is_cuda)
        self._looks = CloseLooks(sampling, len(self._optimizers), self._tell, cuda=layout.is_cuda)
        self._looks.use(self._build_gauges())
        self._ledger = Ledger(len(self._optimizers), layout.device, len(layout), note, self._unstepped)
        if not layout.is_cuda:  # there, reading what was measured before would wait
            self._ledger.stray = self.tell_strays
        self.first_batch = FirstBatch(setup.models.values(), self._ledger.clock, emit, failed)
        self._captures = Captures(layout, self._ledger, self._looks.tell)
        self._ledger.clock.backward_seen = self._captures.backward_seen
        self._groups = GroupGauge(self._optimizers)
        self.stopwatch = Stopwatch(self._ledger, sampling)
        bunching = Bunching(self._ledger, self._captures, self._looks, self._groups, self.stopwatch)
        self._bunching, self.lane = bunching, Lane(self, bunching, self._captures)
        self.changes = LoopChanges(self._ledger.clock, self._looks.tell)
        self.successors = Successors(self, setup, self._captures, note)
        self._roots: RootLosses | None = None
        """Takes the loss where backward begins, until the loop logs one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the watched tensors, in order."""
        return self._layout.names

    @property
    def usual_losses(self) -> int:
        """The most losses that one step has had, at least 1."""
        return max(self._ledger.usual, 1)

    @property
    def silent_for(self) -> int:
        """Steps taken without a loss, if most were: none was logged, nor seen where backward began."""
        count, taken = self._ledger.clock.count, 0 if self._roots is None else self._roots.taken
        return 0 if self._ledger.has_losses() or 2 * taken > count else count - taken

    # ── attaching ────────────────────────────────────────────────────────────────────────────────────────────────

    def _build_gauges(self) -> list[Gauge]:
        layout = self._layout
        return [UpdateGauge(layout.tensors, layout.held), *build_gauges(self._setup, self._looks.tell)]

    def attach(self) -> None:
        """Put the hooks on."""
        self.successors.attach()
        self._roots = RootLosses(self, self._setup, self._ledger.put_root, self._note)
        self._roots.follow()
        self.first_batch.attach()
        taps.add(self.lane)
        self._looks.arm(self._ledger.clock.count)

    def detach(self) -> None:
        """Take everything off and release the model."""
        taps.remove(self.lane)
        self.lane.leave()
        if self._roots is not None:
            self._roots.detach()
        self.successors.detach()
        self.first_batch.detach()
        self._captures.pending.clear()
        self._origin.disarm()
        self._looks.disarm()
        self.tell_strays()
        self._looks.use(())

    # ── what the loop does ───────────────────────────────────────────────────────────────────────────────────────

    @guarded
    def loader_begins(self, loader: Any) -> None:
        """Batches come from this loader next."""
        self.first_batch.loader_begins(loader)
        if any(model.training for model in self._setup.models.values()) and self.changes.is_new(loader):
            self.lane.leave()
            self.changes.data_changed()

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Measure what the step is about to apply; if there is a closure, after its first call."""
        if self._capturing():
            return None
        closure = args[1] if len(args) > 1 and callable(args[1]) else kwargs.get("closure")
        if self._roots is not None:
            self._roots.step_begins(has_closure=closure is not None)
        if closure is None:
            self._stepping = True
            self._measure(self._index[id(optimizer)])
            return None
        self._in_closure = True
        watched = after_first(closure, partial(self.measure_in_closure, self._index[id(optimizer)]))
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    @guarded
    def measure_in_closure(self, index: int) -> None:
        """The closure has computed its gradients."""
        if self._roots is not None:
            self._roots.take_first()
        self._measure(index)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The step was taken."""
        if not (self._stepping or self._in_closure):
            return  # it was recorded into a CUDA graph
        if self._roots is not None:
            self._roots.step_is_over()
        self._stepping = self._in_closure = False
        index = self._index[id(optimizer)]
        slot = self._ledger.slot_for(index)
        self._looks.after_step(index, slot)
        self._stepped_since_update[index] = True
        self._advance(index, slot)

    def scaler_updates(self, scaler: GradScaler) -> None:
        """Close steps that the scaler skipped, for which no hook fires."""
        if not scaler.is_enabled():
            return
        for index, optimizer in enumerate(self._optimizers):
            state = scaler._per_optimizer_states.get(id(optimizer))
            if not state or not state.get("found_inf_per_device"):
                continue
            self._scaler = scaler
            slot = self._ledger.last
            if not self._stepped_since_update[index]:
                slot = self._ledger.slot_for(index)
                self._measure(index)
                slot.facts["skipped"] = 1.0
                self._advance(index, slot)
            self._stepped_since_update[index] = False
            if slot is not None and scaler._scale is not None:
                slot.keep("loss_scale", scaler._scale.detach(), copy=True)
                slot.facts.setdefault("skipped", 0.0)

    def total_computed(self, tensors: Sequence[Tensor], total: Tensor, lists: taps.Lists) -> None:
        """A total norm was computed, perhaps of our gradients."""
        if not (self._stepping or self._capturing()):
            self._captures.total_computed(tensors, total, lists, self._looks.armed)

    def clipped(self, parameters: Any, max_norm: float) -> None:
        """Gradients were clipped, perhaps ours."""
        self._captures.clipped(parameters, max_norm)

    def has_clipped(self) -> bool:
        """Whether a clip is known of the upcoming step, which is off the lane."""
        upcoming = self._ledger.upcoming
        return upcoming is not None and "clip" in upcoming.facts

    def clips_otherwise(self, tensors: Sequence[Tensor], order: float | None) -> None:
        """Tensors are about to be clipped by value or by another norm than ours, perhaps our gradients."""
        if self._stepping or self._capturing():
            return
        for index in self._captures.owners_of(tensors):
            self._captures.clips_otherwise(index, order, self._pending_scale(self._optimizers[index]))

    def clipped_by_value(self, tensors: Sequence[Tensor], limit: Any) -> None:
        """Tensors were clipped by value, perhaps our gradients."""
        if not (self._stepping or self._capturing()):
            self._captures.clipped_by_value(tensors, limit)

    def is_busy(self) -> bool:
        """Whether an optimizer is in its step: another one that steps now is a part of it."""
        return self._stepping or self._in_closure or self.lane.is_stepping or self._capturing()

    def follow(self, *, alike: bool) -> None:
        """The list of optimizers has changed; `alike` if only for another one with the same tensors."""
        optimizers = self._optimizers
        self._index = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
        self._single = len(optimizers) == 1
        self._stepped_since_update = [False] * len(optimizers)
        self._looks.follow(len(optimizers))
        self._ledger.follow(len(optimizers))
        if self._roots is not None:
            self._roots.follow()
        if not alike:
            self._groups.lay_out()
            self._relayout()
        clock = self._ledger.clock
        facts = {"optimizer": optimizer_facts(optimizers)}
        self._emit([{"type": "context", "step": clock.label(clock.count), "context": facts}])

    # ── what the loop logs ───────────────────────────────────────────────────────────────────────────────────────

    def log_loss(self, value: Tensor | float, graph: Tensor | None, name: str, step: int | None) -> None:
        """Log a loss: `value` is a float or a detached scalar on a device, `graph` the tensor it came from."""
        self._stepping = False  # it is still set if a step raised
        if self._ledger.is_further(name):
            self.changes.loss_named(name)
        number = self.put_loss(value, graph, name)
        if step is not None and not self._ledger.clock.call(number, step):
            self._mind_the_step("log_loss", step, number)
        if self._ledger.is_late:
            self.successors.search()

    def put_loss(self, value: Tensor | float, graph: Tensor | None, name: str) -> int:
        """Enter a loss; returns its step's number."""
        number = self._ledger.put_loss(name, value, graph, self._in_closure)
        if graph is not None:
            self._looks.loss_logged(number, name, graph)
        return number

    def leave_roots(self) -> None:
        """Leave the fast path; from now on only what the loop logs is its loss."""
        self.lane.leave()
        roots, self._roots = self._roots, None
        if roots is not None:
            roots.detach()
            self._ledger.hand_back(roots.taken)

    def log_validation(self, values: Mapping[str, Tensor | float], step: int | None) -> None:
        """Enter the results of a validation at the step just taken."""
        self.lane.leave()
        self.stopwatch.interrupted = True
        if step is not None:
            self._place_validation(step)
        self._ledger.put_validation(values)
        self.drain()

    def log_gradients(self) -> bool:
        """Measure the gradients as they are now; False if there are none."""
        self.lane.leave()
        scales = [self._pending_scale(optimizer) for optimizer in self._optimizers]
        return any([self._captures.take_all(index, scale) for index, scale in enumerate(scales)])

    def log_batch(self, batch: Sequence[Any]) -> bool:
        """Count the non-finite values in a batch, for the upcoming step; False if there is no tensor in it."""
        self.lane.leave()
        shown = tuple(shown_batch(batch))
        if not shown:
            return False
        self._looks.batch_logged(self._ledger.clock.count, shown)
        floating = [tensor for tensor in tensors_in(batch) if tensor.is_floating_point() and not tensor.is_sparse]
        if not floating:
            return True
        slot = self._ledger.next
        with torch.no_grad():
            bad = [(~torch.isfinite(item)).sum() for item in floating]
            slot.keep("batch_nonfinite", bad[0] if len(bad) == 1 else torch.stack(bad).sum())
        return True

    def stranded(self) -> tuple[int, int]:
        """At least how many losses were logged without a step, or 0 if that may be right; and the last step."""
        if self.lane.waiting >= STRANDED:
            self.lane.leave()
        clock = self._ledger.clock
        learns = any(model.training for model in self._setup.models.values())  # else it is a validation
        return self._ledger.stranded() if learns else 0, clock.label(clock.count - 1) if clock.count else -1

    @guarded
    def tell_strays(self) -> None:
        """Emit losses that are not finite without waiting for their step, which may never come."""
        self.drain(wait=True)
        if not self._draining:
            self._emit(self._ledger.strays())

    def drain(self, *, wait: bool = False) -> None:
        """Turn what has arrived on the host into records; with `wait`, everything that was measured."""
        if self._draining:  # a listener asked for a report
            return
        self.lane.settle()
        self.successors.mind_the_rates()
        self._read(wait=wait)

    def _read(self, *, wait: bool) -> None:
        self._draining = True
        try:
            rows = Rows()
            for slot, records in self._ledger.arrived(rows, wait=wait):
                if slot.sampled:
                    self._emit(rows.taken())
                    with self._looks.sampling:
                        self._emit(list(records))
                else:
                    rows.add(records)
                if slot.values.get("same_total") == [0.0] and math.isfinite(slot.facts.get("total", math.inf)):
                    self._single = False  # torch's total differs from ours: no fast path here
                if slot.facts.get("nonfinite") and self.successors.attached and self._origin_searches < ORIGIN_SEARCHES:
                    self._origin_searches += 1
                    self._origin.arm()
            self._emit(rows.taken())
        finally:
            self._draining = False

    # ── the fast path for ordinary steps ─────────────────────────────────────────────────────────────────────────

    def ordinary(self) -> Terms | None:
        """The terms under which the next steps may take the fast path; None if they may not."""
        if not self._single or self._scaler is not None or (self._origin_searches and self._origin.armed):
            return None
        return self._bunching.terms(self._layout)

    def settled(self) -> None:
        """After some steps were processed: read what has arrived, and check what the next step needs."""
        self._groups.look(0, self._ledger.last)
        self._ledger.transfer.close()
        if self._ledger.transfer.is_due():
            self.drain()
        self._looks.keep_up(self._ledger.clock.count)

    def hasten(self) -> None:
        """Something was found: a close look at the next step may explain it."""
        if self._looks.hasten(self._ledger.clock.count):
            self.lane.curtail()

    def read(self) -> bool:
        """Read numbers that were under way while ordinary steps continue; True if some still are."""
        transfer = self._ledger.transfer
        if not transfer.has_landed():
            return True
        if not self._draining:
            self._read(wait=False)
            if self._origin_searches and self._origin.armed:
                self.lane.leave()
        return transfer.under_way

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _capturing(self) -> bool:
        """Whether a CUDA graph is being recorded: it would replay whatever we did here."""
        return self._layout.is_cuda and is_capturing()

    def _measure(self, index: int) -> None:
        optimizer = self._optimizers[index]
        if group_shapes(self._optimizers) != self._layout.shapes:
            before = self._layout
            self._relayout()
            self.changes.regrouped(before, self._layout)
        if not self._single and self.successors.leave_behind(optimizer):
            index = self._index[id(optimizer)]
        slot = self._ledger.slot_for(index)
        self._captures.take_rest(index, optimizer, slot)
        self.changes.gradients(index, slot)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            slot.keep("found_inf", found_inf.detach(), copy=True)
        self._looks.before_step(index, slot, interrupted=self.stopwatch.interrupted)

    def _advance(self, index: int, slot: Slot) -> None:
        """A step is over: number it, close the one before, read what has arrived."""
        ledger = self._ledger
        if ledger.advance(index, slot):
            self.stopwatch.enter(slot, time.perf_counter())
            if slot.sampled and self._layout.is_cuda:
                slot.facts["memory"] = float(torch.cuda.memory_allocated(self._layout.device))
                self._looks.took(self.stopwatch.excess(slot))
        self._looks.step_over(index, slot)
        if slot.sampled:  # deliver a close look at once: first what came before it, then the look itself
            ledger.transfer.hurry = max(ledger.transfer.hurry, 2)
        self._captures.mark_gradient()
        self._groups.read(index, slot)
        if self._origin_searches and self._origin.armed:
            found = self._origin.disarm()
            if found is not None:
                self._emit([{"type": "origin", "step": ledger.clock.label(slot.number), **found}])
        if ledger.transfer.is_due():
            self.drain()
        self._looks.keep_up(ledger.clock.count)

    def _unstepped(self, losses: int) -> bool:
        """Report this many losses without a step, unless they belong to a validation; returns whether they count."""
        count = any(model.training for model in self._setup.models.values())
        if count and losses and self.successors.search():
            return False  # an older optimizer may have taken over: its next step will show
        if count or not losses:
            self._tell({"loop.unstepped": losses})
        return count

    def _place_validation(self, step: Any) -> None:
        """Use the validation's step number only if the losses have none of their own."""
        clock = self._ledger.clock
        number = max(clock.count - 1, 0)
        if not clock.is_told:
            if not clock.call(number, step):
                self._mind_the_step("log_validation", step, number)
        elif step not in (clock.label(number), clock.label(number) + 1):  # before or after it was counted
            self._mind_the_step("log_validation", step, number)

    def _mind_the_step(self, call: str, given: Any, number: int) -> None:
        shown = f"{given!r:.40}" if isinstance(given, int | float | str) else f"a {type(given).__name__}"
        self._note(
            "steps",
            f"{call}(step={shown}) was not followed: the run was at step {self._ledger.clock.label(number)}, and "
            "steps must be integers from 0 to 1e11 that never go back. From here on, torchdoctor counts the "
            "optimizer's steps itself.",
        )

    def _tell(self, facts: Mapping[str, Any]) -> None:
        clock = self._ledger.clock
        self._emit([{"type": "facts", "step": clock.label(clock.count), "facts": dict(facts)}])

    def _pending_scale(self, optimizer: Optimizer) -> Tensor | None:
        """The loss scale that the gradients still contain, if a scaler is active and has not removed it."""
        scaler = self._scaler
        if scaler is None or not scaler.is_enabled() or scaler._scale is None:
            return None
        state = scaler._per_optimizer_states.get(id(optimizer))
        return scaler._scale if not state or state["stage"] is OptState.READY else None

    def _relayout(self) -> None:
        """The optimizers' tensors have changed: read what was measured, then assign the columns anew."""
        self.drain(wait=True)
        layout = self._layout = Layout(self._setup.models, self._optimizers)
        self._captures.lay_out(layout)
        self._looks.use(self._build_gauges())
        self._ledger.lay_out(layout.device, len(layout))
        clock = self._ledger.clock
        self._emit([{"type": "context", "step": clock.label(clock.count), "context": {}, "tensors": list(self.names)}])
