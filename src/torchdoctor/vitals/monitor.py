"""The monitor sits in the loop: hooks and taps feed the gauges, and the ledger turns their numbers into records.

Nothing here waits for the device, and nothing here raises into the loop: every way in is guarded.
"""

from __future__ import annotations

import math
import operator
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from torchdoctor.guard import guarded
from torchdoctor.records import Record
from torchdoctor.settings import Settings
from torchdoctor.stretch import Rows, Stretch
from torchdoctor.vitals import taps
from torchdoctor.vitals.clock import sequence_number
from torchdoctor.vitals.context import batch_facts
from torchdoctor.vitals.gauge import Gauge
from torchdoctor.vitals.gauges import build_gauges
from torchdoctor.vitals.gradients import Capture, GradientGauge, Order
from torchdoctor.vitals.groups import GroupGauge
from torchdoctor.vitals.hooks import Handle, Hook, step_hook
from torchdoctor.vitals.lane import Begun, Lane, Terms
from torchdoctor.vitals.ledger import Ledger
from torchdoctor.vitals.looks import CloseLooks
from torchdoctor.vitals.origin import OriginSearch
from torchdoctor.vitals.patient import Setup, optimizer_tensors, tensor_names
from torchdoctor.vitals.sampling import GRACE, Sampling
from torchdoctor.vitals.slot import Bunch, Part, Raw, Slot
from torchdoctor.vitals.updates import UpdateGauge

is_capturing = torch.cuda.is_current_stream_capturing
LATE_CLIPS = 3
"""Clips after the step that make it a habit."""
ORIGIN_SEARCHES = 3
"""How often a run may be searched for the origin of a non-finite value: each search slows one step."""


class Monitor(taps.Listener):
    """Watches models and optimizers; `emit` receives records in order, `note` a key and a sentence to say once."""

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
        """Whoever attached this monitor."""
        self._setup, optimizers = setup, setup.optimizers
        self._models, self._optimizers, self._scaler = setup.models, list(optimizers), setup.scaler
        self._emit, self._note = emit, note
        self._index = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
        self._single = len(optimizers) == 1
        self._together = False
        """Whether torch takes the norms of all our gradients in one go."""
        self._handles: list[Handle] = []
        self._batch_handles: list[Handle] = []
        self._captures: list[Capture] = []
        self._groups = GroupGauge(self._optimizers)
        self._origin = OriginSearch(setup.models)
        self._origin_searches = 0
        self._stepping = self._in_closure = self._draining = False
        self._stepped_since_update = [False] * len(optimizers)
        self._stepped_at, self._interrupted = 0.0, True
        self._gradient_at_step: tuple[weakref.ref[Tensor], int] | None = None
        self._clip_mark: int | None = None
        """Autograd's node counter at a clip, if no node was made since the step before it."""
        self._late_clips = 0
        tensors = self._lay_out()
        grace = 0.0 if self._cuda else GRACE
        sampling = Sampling(settings.sample_every, settings.overhead, note, grace)
        self._looks = CloseLooks(sampling, len(optimizers), self._tell)
        self._looks.use(self._build_gauges())
        self._ledger = Ledger(len(self._optimizers), self._device, tensors, note)
        self._ledger.clock.backward_seen = self._backward_seen
        self.lane = Lane(self)

    # ── attaching ────────────────────────────────────────────────────────────────────────────────────────────────

    def _lay_out(self) -> int:
        """Give every watched tensor a column; again when the optimizers' tensors change."""
        owners = {id(t): number for number, opt in enumerate(self._optimizers) for t in optimizer_tensors(opt)}
        self._owners = owners
        named = tensor_names(self._models, self._optimizers)
        tensors = list(named)
        self.names = tuple(named.values())
        held = [owners.get(id(tensor), -1) for tensor in tensors]
        self._tensors, self._held = tensors, held
        self._gradients = GradientGauge(tensors, held)
        self._witness = next(
            (t for t, owner in zip(tensors, held, strict=True) if owner >= 0 and t.requires_grad), None
        )
        devices = [tensor.device for tensor in tensors]
        self._device = max(set(devices), key=devices.count)
        self._cuda = self._device.type == "cuda"
        self._shape = self._group_shape()
        return len(tensors)

    def _build_gauges(self) -> list[Gauge]:
        return [UpdateGauge(self._tensors, self._held), *build_gauges(self._setup, self._looks.tell)]

    def _group_shape(self) -> list[tuple[int, int]]:
        return [(len(opt.param_groups), len(opt.param_groups[-1]["params"])) for opt in self._optimizers]

    def attach(self) -> None:
        """Put the hooks on."""
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(step_hook(self, self.lane.before_step)))
            self._handles.append(optimizer.register_step_post_hook(step_hook(self, self.lane.after_step)))
        for model in self._models.values():
            self._batch_handles.append(model.register_forward_pre_hook(Hook(self, "first_batch"), with_kwargs=True))
        taps.add(self.lane)
        self._looks.arm(self._ledger.clock.count)

    def detach(self) -> None:
        """Take everything off and let go of the model."""
        taps.remove(self.lane)
        self.lane.leave()
        for handle in self._handles + self._batch_handles:
            handle.remove()
        self._handles.clear()
        self._batch_handles.clear()
        self._captures.clear()
        self._origin.disarm()
        self._looks.disarm()
        self.drain(wait=True)
        self._looks.use(())

    # ── what the loop does ───────────────────────────────────────────────────────────────────────────────────────

    @guarded
    def first_batch(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The first forward pass tells the batch size and the precision; then this hook goes."""
        if torch.compiler.is_compiling():
            return
        for handle in self._batch_handles:
            handle.remove()
        self._batch_handles.clear()
        facts = batch_facts((args, kwargs))
        if facts:
            clock = self._ledger.clock
            self._emit([{"type": "context", "step": clock.label(clock.count), "context": facts}])

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Measure what the step is about to apply; with a closure, after its first call."""
        if self._capturing():
            return None
        closure = args[1] if len(args) > 1 and callable(args[1]) else kwargs.get("closure")
        if closure is None:
            self._stepping = True
            self._measure(self._index[id(optimizer)])
            return None
        index = self._index[id(optimizer)]
        self._in_closure = True
        first = True

        def watched(*inner: Any, **named: Any) -> Any:
            nonlocal first
            result = closure(*inner, **named)
            if first:
                first = False
                self.measure_in_closure(index)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    @guarded
    def measure_in_closure(self, index: int) -> None:
        """The closure has made its gradients."""
        self._measure(index)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The step was taken."""
        if not (self._stepping or self._in_closure):
            return  # it was recorded into a CUDA graph
        self._stepping = self._in_closure = False
        index = self._index[id(optimizer)]
        slot = self._ledger.slot_for(index)
        self._looks.after_step(index, slot)
        self._stepped_since_update[index] = True
        self._advance(index, slot)

    def scaler_updates(self, scaler: GradScaler) -> None:
        """Steps that the scaler skipped fire no hook: they are closed here."""
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
        """Somebody computed a total norm: if it is of our gradients, it need not be computed again."""
        if self._stepping or self._capturing():
            return
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        listed, norms = lists[0] if len(lists) == 1 else _joined(lists)
        seen = len(listed) == len(tensors)
        order = self._gradients.recognize(listed if seen else tensors) if len(tensors) else None
        if order is not None and order.owner >= 0:
            slot = self._ledger.slot_for(order.owner)
            slot.kept.append(("total", total.detach() if total.requires_grad else total, total._version))
            if seen:
                self._capture(slot, order, listed, norms)
                self._together = len(lists) == 1 and len(norms) > 1
                if self._together and slot.number == self._looks.armed:  # what the lane would have returned
                    same = torch.linalg.vector_norm(torch.stack(tuple(norms)), 2.0) == total
                    slot.keep("same_total", same.float())

    def _capture(self, slot: Slot, order: Order, tensors: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        slot.parts.append(Part("grad_norm", norms, order.indices))
        slot.facts["captured"] = True
        first, last = tensors[0], tensors[-1]
        self._captures.append(Capture(slot, first, last, (first._version, last._version), order.complete))

    def clipped(self, parameters: Any, max_norm: float) -> None:
        """Gradients were clipped."""
        first = parameters if isinstance(parameters, Tensor) else next(iter(parameters), None)
        owner = self._owners.get(id(first))
        if owner is None:
            return
        for capture in self._captures:
            capture.refresh()
        now = sequence_number()
        self._clip_mark = now if now == self._ledger.clock.mark and self._ledger.clock.count else None
        if isinstance(max_norm, int | float):
            self._ledger.slot_for(owner).facts["clip"] = float(max_norm)

    # ── what the loop says ───────────────────────────────────────────────────────────────────────────────────────

    def log_loss(self, value: Tensor | float, graph: Tensor | None, name: str, step: int | None) -> None:
        """A loss: `value` is a float or a detached scalar on a device, `graph` the tensor it came from."""
        self.lane.leave()
        self._stepping = False  # a step that raised has left it set
        number = self.put_loss(value, graph, name)
        if step is not None:
            self._ledger.clock.relabel(number, int(step))

    def put_loss(self, value: Tensor | float, graph: Tensor | None, name: str) -> int:
        """Enter a loss; returns its step's number."""
        number = self._ledger.put_loss(name, value, graph, self._in_closure)
        if graph is not None:
            self._looks.loss_logged(number, name, graph)
        return number

    def log_validation(self, values: Mapping[str, Tensor | float], step: int | None) -> None:
        """The results of a validation, at the step just taken."""
        self.lane.leave()
        self._interrupted = True
        if step is not None:
            self._ledger.clock.relabel(max(self._ledger.clock.count - 1, 0), int(step))
        self._ledger.put_validation(values)
        self.drain()

    def log_gradients(self) -> bool:
        """Measure the gradients as they are now; False if there are none."""
        self.lane.leave()
        seen = False
        for index, optimizer in enumerate(self._optimizers):
            slot, scale = self._ledger.slot_for(index), self._pending_scale(optimizer)
            capture = self._gradients.measure(slot, index, "grad_norm", scale)
            if capture is not None:
                self._captures.append(capture)
                seen = True
        return seen

    def log_batch(self, tensors: Sequence[Tensor]) -> None:
        """Note how much in a batch is not finite, for the step that comes."""
        self.lane.leave()
        self._looks.batch_logged(self._ledger.clock.count, tuple(tensors))
        floating = [tensor for tensor in tensors if tensor.is_floating_point() and not tensor.is_sparse]
        if not floating:
            return
        slot = self._ledger.next
        with torch.no_grad():
            bad = [(~torch.isfinite(item)).sum() for item in floating]
            slot.keep("batch_nonfinite", bad[0] if len(bad) == 1 else torch.stack(bad).sum())

    def drain(self, *, wait: bool = False) -> None:
        """Turn what has arrived on the host into records; with `wait`, all that was measured."""
        if self._draining:  # a listener asked for a report
            return
        self.lane.settle()
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
                    self._single = False  # torch's total is made otherwise than ours: no short way here
                if slot.facts.get("nonfinite") and self._handles and self._origin_searches < ORIGIN_SEARCHES:
                    self._origin_searches += 1
                    self._origin.arm()
            self._emit(rows.taken())
        finally:
            self._draining = False

    # ── the short way of ordinary steps ──────────────────────────────────────────────────────────────────────────

    def ordinary(self) -> Terms | None:
        """The terms on which the next steps may go the short way, None if they may not."""
        ledger = self._ledger
        last = ledger.last
        if (
            not self._single
            or last is None
            or self._captures
            or self._scaler is not None
            or self._looks.armed == ledger.clock.count
            or (self._origin_searches and self._origin.armed)
            or ledger.transfer.hurry
        ):
            return None
        clips = bool(last.facts.get("captured"))
        order = self._clipped_order() if clips else self._gradients.whole
        previous = ledger.owned()
        room = min(ledger.transfer.size, self._looks.sampling.next - ledger.clock.count)
        if order is None or previous is None or room < 2 or clips == ("own" in last.facts):
            return None
        label = ledger.clock.label(ledger.clock.count)
        return order, clips, self._shape[0], room, label, previous, self._cuda, ledger.transfer.under_way

    def _clipped_order(self) -> Order | None:
        """The order in which the clip takes our gradients, if it takes them all, in one go."""
        order = self._gradients.order
        return order if order is not None and 0 in order.complete and self._together else None

    def absorb(self, steps: Sequence[Raw], order: Order, mark: int, *, clips: bool) -> None:
        """Ordinary steps that are over, oldest first; `mark` is autograd's node counter after the last of them."""
        ledger = self._ledger
        before = steps[:-1]
        if before and ledger.upcoming is None and not self._interrupted and Bunch.are_alike(before):
            seconds = self._pass(ledger.clock.count, [step[5] for step in before])
            ledger.enter(Bunch(ledger.clock.count, before, seconds, order.indices, clips))
            steps = steps[-1:]
        for total, version, norms, clip, rates, now, losses in steps:
            slot = ledger.next
            slot.enter_losses(losses)
            slot.enter_norms((total, version), norms, clip, order.indices, clips=clips)
            self._time(slot, now)
            self._groups.enter_rates(0, slot, rates)
            ledger.advance(0, slot)
        ledger.clock.mark = mark

    def settled(self) -> None:
        """After some steps were absorbed: read what has arrived, and see what the step that comes needs."""
        self._groups.look(0, self._ledger.last)
        if self._ledger.transfer.is_due():
            self.drain()
        self._looks.keep_up(self._ledger.clock.count)

    def read(self) -> bool:
        """Read numbers that were on their way, while ordinary steps go on; True if they still are."""
        if not self._draining:
            self._read(wait=False)
            if self._origin_searches and self._origin.armed:
                self.lane.leave()
        return self._ledger.transfer.under_way

    def resume(self, begun: Begun, order: Order | None) -> None:
        """A step that had begun as an ordinary one goes on here."""
        total, norms, ends, versions, clip, losses = begun
        if total is None and not losses:
            return
        slot = self._ledger.next
        slot.enter_losses(losses)
        if total is not None and norms is not None and ends is not None and order is not None:
            slot.enter_norms((total, total._version), norms, clip, order.indices, clips=True)
            self._captures.append(Capture(slot, *ends, versions, order.complete))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def mark_gradient(self) -> None:
        """A step has been taken: remember a gradient, without keeping it alive, to know it from a later one."""
        grad = None if self._witness is None else self._witness.grad
        self._gradient_at_step = None if grad is None else (weakref.ref(grad), grad._version)

    def _backward_seen(self) -> bool:
        """Whether a gradient has arrived since the last step: asked so rarely that a look will do, without a hook."""
        grad, known = None if self._witness is None else self._witness.grad, self._gradient_at_step
        return grad is not None and (known is None or known[0]() is not grad or known[1] != grad._version)

    def _capturing(self) -> bool:
        """Whether a CUDA graph is being recorded: what we did there would be replayed for ever."""
        return self._cuda and is_capturing()

    def _measure(self, index: int) -> None:
        if self._group_shape() != self._shape:
            self._relayout()
        optimizer = self._optimizers[index]
        slot = self._ledger.slot_for(index)
        self._judge_clip()
        if taps.recent:
            self._take_recent()
        self._measure_rest(index, slot)
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            slot.keep("found_inf", found_inf.detach(), copy=True)
        self._looks.before_step(index, slot, interrupted=self._interrupted)

    def _measure_rest(self, index: int, slot: Slot) -> None:
        """What was not captured, or was changed since."""
        captured = [capture for capture in self._captures if index in capture.owners]
        if not captured or not all(capture.untouched for capture in captured):
            known = any(capture.slot is slot for capture in self._captures)
            scale = getattr(self._optimizers[index], "grad_scale", None)
            self._gradients.measure(slot, index, "applied_norm" if known else "grad_norm", scale)
        # another optimizer's share of a common clip stays
        self._captures = [item for item in self._captures if item.slot is slot and item.owners - {index}]

    def _judge_clip(self) -> None:
        """A clip with no forward pass since the step before it, and one after it, cut what had been used already."""
        mark, self._clip_mark = self._clip_mark, None
        now = sequence_number()
        if mark is not None and now is not None and now > mark:
            self._late_clips += 1
            if self._late_clips == LATE_CLIPS:
                self._looks.tell({"clip.after_step": True})

    def _take_recent(self) -> None:
        """Norms without a total, from a function that was imported before the tap was on."""
        tensors, norms = _joined(taps.take_recent())
        order = self._gradients.recognize(tensors) if len(tensors) else None
        if order is not None and order.owner >= 0:
            slot = self._ledger.slot_for(order.owner)
            self._capture(slot, order, tensors, norms)
            slot.detailed = slot.facts["own"] = True

    def _advance(self, index: int, slot: Slot) -> None:
        """A step is over: number it, close the one before, read what has arrived."""
        ledger = self._ledger
        if ledger.advance(index, slot):
            self._time(slot, time.perf_counter())
        self._looks.step_over(index, slot)
        self.mark_gradient()
        self._groups.read(index, slot)
        if self._origin_searches and self._origin.armed:
            found = self._origin.disarm()
            if found is not None:
                self._emit([{"type": "origin", "step": ledger.clock.label(slot.number), **found}])
        if ledger.transfer.is_due():
            self.drain()
        self._looks.keep_up(ledger.clock.count)

    def _tell(self, facts: Mapping[str, Any]) -> None:
        clock = self._ledger.clock
        self._emit([{"type": "facts", "step": clock.label(clock.count), "facts": dict(facts)}])

    def _time(self, slot: Slot, now: float) -> None:
        if not self._interrupted:
            slot.facts["seconds"] = self._pass(slot.number, [now])[0]
        self._stepped_at, self._interrupted = now, False
        if slot.sampled and self._cuda:
            slot.facts["memory"] = float(torch.cuda.memory_allocated(self._device))

    def _pass(self, number: int, ends: Sequence[float]) -> list[float]:
        """The seconds of some steps, the first of which has this number, by the times at which they ended."""
        seconds = list(map(operator.sub, ends, (self._stepped_at, *ends)))
        self._stepped_at, sampling = ends[-1], self._looks.sampling
        sampling.watched += sum(seconds)
        place = (5 - number) % 32
        if place < len(seconds):
            self._ledger.transfer.pace(min(seconds[place], sampling.watched / (number + len(seconds) - 1)))
        return seconds

    def _pending_scale(self, optimizer: Optimizer) -> Tensor | None:
        """The loss scale that is still in the gradients, if a scaler is at work and has not taken it out."""
        scaler = self._scaler
        if scaler is None or not scaler.is_enabled() or scaler._scale is None:
            return None
        state = scaler._per_optimizer_states.get(id(optimizer))
        return scaler._scale if not state or state["stage"] is OptState.READY else None

    def _relayout(self) -> None:
        """The optimizers' tensors have changed: read what was measured, then give out the columns again."""
        self.drain(wait=True)
        self._captures = []
        tensors = self._lay_out()
        self._looks.use(self._build_gauges())
        self._ledger.lay_out(self._device, tensors)
        clock = self._ledger.clock
        self._emit([{"type": "context", "step": clock.label(clock.count), "context": {}, "tensors": list(self.names)}])


def _joined(lists: taps.Lists) -> tuple[list[Tensor], list[Tensor]]:
    """One list out of those of several devices or types."""
    return [tensor for part in lists for tensor in part[0]], [norm for part in lists for norm in part[1]]
