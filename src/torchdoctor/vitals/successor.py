"""Successors: other optimizers that step the watched parameters, instead of the given ones or beside them.

A loop may build a new optimizer when it unfreezes layers, adds some, or starts its second phase. Each new optimizer
that holds watched parameters becomes a candidate, and is watched from its first step on. The only tap is on their
construction, so neither the watched steps nor those of other models cost anything. Optimizers that are older than the
doctor are searched for in memory, once, if the given ones leave out some parameters or losses come without a step:
that takes about a third of a garbage collection.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from torchdoctor.vitals.captures import Captures
from torchdoctor.vitals.clock import sequence_number
from torchdoctor.vitals.hooks import Handle, StepHook, step_hook
from torchdoctor.vitals.patient import Setup, optimizer_tensors, own_tensors, unwrap_model, unwrap_optimizer

if TYPE_CHECKING:
    from torchdoctor.vitals.monitor import Monitor

GONE = 64
"""Steps of the others after which an optimizer that stays behind is no longer watched, until it steps again."""
SET = 2
"""Changes of the learning rate of an optimizer that no longer steps from which something is meant to set it."""
MOST = 8
"""Optimizers from which no further one is watched: a loop may have one for each tensor, which steps in backward."""
TURN = 8
"""Steps of another one after which an optimizer that returns takes over from it, instead of stepping beside it."""
NOTED = 3
"""Notes about single successors; then a last one says that there are more."""


class Successors:
    """Follows the optimizers that step what a monitor watches: the list in its setup holds those watched now."""

    def __init__(self, monitor: Monitor, setup: Setup, captures: Captures, note: Callable[[str, str], None]) -> None:
        self._monitor, self._setup, self._captures, self._note = monitor, setup, captures, note
        self._watched = setup.optimizers
        self._given = _names(self._watched)
        self._hooks: WeakKeyDictionary[Optimizer, _Hooks] = WeakKeyDictionary()
        self._retired: WeakKeyDictionary[Optimizer, _Rates] = WeakKeyDictionary()
        """Optimizers that others have taken over from."""
        self._stepped: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        """When each of several optimizers stepped last."""
        self._count = 0
        self._searched = False

    # ── hooks ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def attached(self) -> bool:
        """Whether hooks are on."""
        return bool(self._hooks)

    def attach(self) -> None:
        """Watch the given optimizers; search for others if these leave out some parameters."""
        lane = self._monitor.lane
        for optimizer in self._watched:
            self._put_hooks(optimizer, lane.before_step, lane.after_step)
        held = {id(tensor) for optimizer in self._watched for tensor in optimizer_tensors(optimizer)}
        if any(tensor.requires_grad and id(tensor) not in held for tensor in self._own().values()):
            try:
                self.search()
            except Exception as error:  # noqa: BLE001  what else is in memory must not matter
                self._monitor.failed("search", error)

    def detach(self) -> None:
        """Take all hooks off."""
        for hooks in self._hooks.values():
            for handle in hooks.handles:
                handle.remove()
        self._hooks.clear()

    def _put_hooks(self, optimizer: Optimizer, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        first, last = step_hook(self._monitor, before), step_hook(self._monitor, after)
        handles = optimizer.register_step_pre_hook(first), optimizer.register_step_post_hook(last)
        self._hooks[optimizer] = _Hooks(first, last, handles)

    def _turn(self, optimizer: Optimizer, *, watched: bool) -> None:
        """Send an optimizer's steps to the lane; or make it a candidate, which its next step brings back."""
        lane, hooks = self._monitor.lane, self._hooks[optimizer]
        hooks.before.turn(lane.before_step if watched else self.candidate_steps, watched=watched)
        hooks.after.turn(lane.after_step if watched else _ignore, watched=watched)

    def _find(self, optimizer: Optimizer) -> bool:
        """Make it a candidate if it holds watched parameters; returns whether it is a new one."""
        if optimizer in self._hooks or not self._mine(optimizer, self._own()):
            return False
        self._put_hooks(optimizer, self.candidate_steps, _ignore)
        self._turn(optimizer, watched=False)
        return True

    def optimizer_built(self, optimizer: Optimizer) -> None:
        """An optimizer was built in mid-run, perhaps for other parameters."""
        if self._hooks and self._find(optimizer):
            if self._captures.thread == get_ident():
                self._monitor.lane.settle()  # so that the step is known
            changes = self._monitor.changes
            changes.tell({"loop.built": [changes.step, type(optimizer).__name__]})

    def search(self) -> bool:
        """Search, once, for optimizers that are older than the doctor; returns whether any may be a successor."""
        if self._searched:
            return False
        self._searched = True
        found = [item for item in gc.get_referrers(*_classes(Optimizer)) if issubclass(type(item), Optimizer)]
        ready = [item for item in found if {"param_groups", "_optimizer_step_pre_hooks"} <= item.__dict__.keys()]
        return any([self._find(item) for item in ready])

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def candidate_steps(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A candidate is about to step: from here on it is watched, unless it only does a part of another's step."""
        monitor, closure = self._monitor, len(args) > 1 or bool(kwargs)
        if monitor.is_busy() or self._captures.thread != get_ident() or len(self._watched) >= MOST:
            return None
        if unwrap_optimizer(optimizer) is not optimizer or _has_a_doctor(optimizer):
            return None
        if not closure and all(tensor.grad is None for tensor in self._mine(optimizer, self._own())):
            return None
        monitor.lane.leave()
        late = bool(self._monitor.changes.steps) and sequence_number() == self._monitor.changes.mark
        joins = self._take_in(optimizer)
        # It belongs to the step just taken, by another optimizer: both are measured together from the next one on.
        return None if joins and late else monitor.lane.before_step(optimizer, args, kwargs)

    def _take_in(self, optimizer: Optimizer) -> bool:
        """Watch an optimizer, in the place of those that it supersedes; returns whether it joins them instead."""
        watched, before = self._watched, self._retired.pop(optimizer, None)
        # Two that step in turn at each batch are watched together; at greater intervals, one takes over from the other.
        together = before is not None and self._monitor.changes.steps - before.since < TURN
        left = [] if together else self._superseded(optimizer)
        alike = len(left) == 1 and type(left[0]) is type(optimizer) and _shape(left[0]) == _shape(optimizer)
        self._tell(optimizer, left, returns=before is not None, alike=alike)
        place = watched.index(left[0]) if left else len(watched)
        self._retire(left)
        watched.insert(place, optimizer)
        self._turn(optimizer, watched=True)
        self._monitor.follow(alike=alike)
        return not left

    def _superseded(self, successor: Optimizer) -> list[Optimizer]:
        """Those of which the successor holds most of what still is in the model."""
        own, tensors = self._own(), {id(tensor) for tensor in optimizer_tensors(successor)}
        found = []
        for item in self._watched:
            mine = [id(tensor) in tensors for tensor in self._mine(item, own)]
            if 2 * sum(mine) >= len(mine):
                found.append(item)
        return found

    def _retire(self, items: Sequence[Optimizer]) -> None:
        for item in items:
            self._watched.remove(item)
            self._turn(item, watched=False)
        for item in items:
            self._retired[item] = _Rates(item, self._monitor.changes.steps)

    def leave_behind(self, optimizer: Optimizer) -> bool:
        """One of several steps: after others have joined, those that have not stepped for long are let go."""
        if not self._count:
            return False
        count = self._stepped[optimizer] = self._monitor.changes.steps
        gone = [item for item in self._watched if count - self._stepped.setdefault(item, count) > GONE]
        if not gone:
            return False
        self._monitor.changes.add("optimizer", f"the {' and the '.join(_names(gone))} no longer steps")
        self._retire(gone)
        self._monitor.follow(alike=False)
        return True

    # ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, optimizer: Optimizer, left: Sequence[Optimizer], *, returns: bool, alike: bool) -> None:
        self._count += 1
        count, changes = sum(1 for _ in optimizer_tensors(optimizer)), self._monitor.changes
        shown = f"{type(optimizer).__name__}, {count} tensor{'s' if count > 1 else ''}"
        given = f"the {' and the '.join(self._given)} given to Doctor"
        which = "an earlier" if returns else "another"
        if left:
            before = given if self._count == 1 else f"the {' and the '.join(_names(left))}"
            said = f"{which} optimizer ({shown}) took over from {before}"
        elif returns:
            said = f"{which} optimizer ({shown}) stepped again"
        else:
            said = f"another optimizer ({shown}) than {given} stepped parameters of the model"
        changes.add("optimizer", said)
        changes.tell({"loop.built": None})
        if self._count <= NOTED:
            self._note(f"change {self._count}", f"at step {changes.step} {said}, and is watched since.")
        elif self._count == NOTED + 1:
            again = f"until step {changes.step} other optimizers took over {self._count} times: each is watched."
            if alike:
                again += " If the loop builds the same one anew each time, what its state had averaged is lost."
            self._note("change", again)

    def mind_the_rates(self) -> None:
        """Tell whether a scheduler still sets the learning rates of an optimizer that no longer steps."""
        for item, rates in list(self._retired.items()):
            if rates.are_still_set(item, self._watched):
                said = {"old": type(item).__name__, "new": _names(self._watched)[0], "rates": rates.seen[:2]}
                self._monitor.changes.tell({"schedule.elsewhere": said})

    def _own(self) -> dict[int, Tensor]:
        models = map(unwrap_model, self._setup.models.values())
        return {id(tensor): tensor for model in models for tensor in own_tensors(model)}

    @staticmethod
    def _mine(optimizer: Optimizer, own: Mapping[int, Tensor]) -> list[Tensor]:
        return [tensor for tensor in optimizer_tensors(optimizer) if id(tensor) in own]


class _Hooks(NamedTuple):
    """The hooks of an optimizer, and their handles."""

    before: StepHook
    after: StepHook
    handles: tuple[Handle, Handle]


class _Rates:
    """The learning rates of an optimizer that no longer steps, and those of its successors at that time."""

    def __init__(self, item: Optimizer, steps: int) -> None:
        self.since = steps
        self.seen = [_rate(item)]
        self._theirs: list[float] | None = None

    def are_still_set(self, item: Optimizer, watched: Sequence[Optimizer]) -> bool:
        """Whether the rate has changed several times, and those of the successors have not."""
        theirs = [_rate(other) for other in watched]
        self._theirs = self._theirs or theirs
        if _rate(item) != self.seen[-1]:
            self.seen = [*self.seen[:1], *self.seen[1:][-SET:], _rate(item)]
        return len(self.seen) > SET and theirs == self._theirs


def _rate(optimizer: Optimizer) -> float:
    """The first learning rate; 0 if it is on a device, where reading it could mean waiting."""
    rate = optimizer.param_groups[0].get("lr")
    return float(rate) if isinstance(rate, int | float) else 0.0


def _ignore(*args: Any) -> None:
    """A candidate has stepped."""


def _names(optimizers: Iterable[Optimizer]) -> list[str]:
    return list(dict.fromkeys(type(item).__name__ for item in optimizers))


def _shape(optimizer: Optimizer) -> list[list[int]]:
    return [[id(tensor) for tensor in group["params"]] for group in optimizer.param_groups]


def _has_a_doctor(optimizer: Optimizer) -> bool:
    """Whether it was given to another doctor."""
    return any(getattr(hook, "monitor", None) is not None for hook in optimizer._optimizer_step_pre_hooks.values())


def _classes(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    part: type[Optimizer]
    for part in kind.__subclasses__():
        yield part
        yield from _classes(part)
