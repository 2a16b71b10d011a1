"""Close looks: which steps are sampled, the gauges that look at them, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from torchdoctor.vitals.gauge import Gauge
from torchdoctor.vitals.moment import Moment
from torchdoctor.vitals.sampling import Sampling
from torchdoctor.vitals.transfer import Slot

BUDGET_EVERY = 100
"""Steps between two checks of the time spent against the budget."""

CALM = 25
"""Minimum steps between two extra looks, which follow an event."""


class CloseLooks:
    """Arms the gauges for a step and disarms them after it; `tell` receives structural facts that are new."""

    def __init__(
        self, sampling: Sampling, optimizers: int, tell: Callable[[Mapping[str, Any]], None], *, cuda: bool
    ) -> None:
        self.sampling = sampling
        self.armed = -1
        """The number of the step that the gauges are armed for; -1 for none."""
        self._gauges: list[Gauge] = []
        self._tell = tell
        self._known: dict[str, Any] = {}
        self._optimizers = range(optimizers)
        self._to_come: set[int] = set()
        """The optimizers whose part of the armed step is still to come."""
        self._stepped = -1
        """The optimizer that stepped last."""
        self._latest = -1
        """The number of the sampled step that has just been taken: its loss may be logged late."""
        self._cuda = cuda
        self._ready = Moment()
        """When the loop continued after the step before a sampled one."""
        self._budget_at = BUDGET_EVERY
        self._hastened = -CALM
        """The step at which the last extra look was taken."""
        self._spent = 0.0
        """Seconds that looks had taken when the gauges were armed."""

    def use(self, gauges: Iterable[Gauge]) -> None:
        """Use these gauges from now on."""
        self.disarm()
        self._gauges = list(gauges)

    def follow(self, optimizers: int) -> None:
        """Wait for this many optimizers at a close look."""
        self._optimizers = range(optimizers)

    def arm(self, number: int) -> None:
        """Look closely at the upcoming step."""
        self.sampling.next = self.sampling.after(number)
        self.disarm()
        self.armed, self._to_come = number, set(self._optimizers)
        self._spent = self._inside()
        self.sampling.begin(self._spent - self.sampling.spent)
        with self.sampling:
            for gauge in self._gauges:
                gauge.stepped = self._stepped
                gauge.hastened = number == self._hastened
                gauge.arm()
        self._ready = Moment(cuda=self._cuda)

    def disarm(self) -> None:
        """Take everything off again."""
        if self.armed >= 0:
            self.armed = -1
            with self.sampling:
                for gauge in self._gauges:
                    gauge.disarm()

    def loss_logged(self, number: int, name: str, loss: Tensor) -> None:
        """A loss of this step, with its graph, was logged."""
        # A late loss is only for gauges that are not armed for the next step yet: armed ones would assign it to that
        # step.
        if number == (self.armed if self.armed >= 0 else self._latest):
            with self.sampling:
                for gauge in self._gauges:
                    gauge.loss_logged(name, loss)

    def batch_logged(self, number: int, tensors: tuple[Tensor, ...]) -> None:
        """The batch of this step was logged."""
        if number == self.armed:
            with self.sampling:
                for gauge in self._gauges:
                    gauge.batch_logged(tensors)

    def before_step(self, index: int, slot: Slot, *, interrupted: bool) -> None:
        """An optimizer is about to step; if `interrupted`, other work came in between: waiting time means nothing."""
        if slot.number != self.armed:
            return
        slot.detailed = slot.sampled = True
        with self.sampling:
            for gauge in self._gauges:
                gauge.before_step(index, slot)
        entered = slot.facts.pop("entered", None)
        if entered is not None and not interrupted:
            slot.facts["waited"] = self._ready, entered

    def after_step(self, index: int, slot: Slot) -> None:
        """An optimizer has stepped."""
        if slot.sampled and slot.number == self.armed:  # else another optimizer's step has already begun the next look
            with self.sampling:
                for gauge in self._gauges:
                    gauge.after_step(index, slot)

    def took(self, excess: float | None) -> None:
        """The step took this much longer than others: the look cannot have cost more than that.

        A device with a full queue makes the host wait in the next call, which may be one of ours.
        """
        if excess is not None:
            self.sampling.waited += max(0.0, self._inside() - self._spent - excess)

    def _inside(self) -> float:
        return self.sampling.spent + sum(gauge.spent for gauge in self._gauges)

    def step_over(self, index: int, slot: Slot) -> None:
        """An optimizer's part of a step is over."""
        self._stepped = index
        self._latest = slot.number if slot.sampled else -1
        if slot.sampled and slot.number == self.armed:
            self._to_come.discard(index)
            if not self._to_come:
                self.disarm()

    def keep_up(self, count: int) -> None:
        """After this many steps: keep the budget, and get ready if the next step is looked at closely."""
        if count > self._budget_at:
            self._budget_at = count - 1 + BUDGET_EVERY
            self.sampling.keep_budget(count - 1, sum(gauge.spent for gauge in self._gauges))
        if count >= self.sampling.next:
            self.arm(count)

    def hasten(self, count: int) -> bool:
        """Something happened: look at the next step unless an extra look was recent. Returns whether it does."""
        if count - self._hastened < CALM or count >= self.sampling.next:
            return False
        self._hastened = self.sampling.next = count
        return True

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Pass on the structural facts that are new."""
        news = {key: value for key, value in facts.items() if key not in self._known or self._known[key] != value}
        if news:
            self._known.update(news)
            self._tell(news)
