"""The interface of a gauge that looks at sampled steps only.

The order of calls in a sampled step: `arm` (right after the step before), the loop's forward passes, `loss_logged` if
the loop logs before it steps, `before_step`, the optimizer's step, `after_step`, `disarm`. Between two samples, a gauge
has no hooks and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from torchdoctor.vitals.transfer import Slot

Tell = Callable[[Mapping[str, Any]], None]
"""Takes structural facts by dotted key, from `arm` on; only new or changed facts reach the journal."""


class Gauge:
    """Does nothing at any point; a gauge overrides what it needs.

    Numbers on the device go into the slot (`Slot.keep` for a scalar vital, a `Part` for one number per tensor or
    module) and reach the journal without anything waiting for them. A gauge must not draw random numbers, change a
    mode, keep a graph alive or wait for the device.
    """

    spent = 0.0
    """Seconds that its hooks have taken inside the loop's own calls so far."""
    stepped = -1
    """The optimizer that has just stepped when the gauge is armed; -1 at the start."""
    hastened = False
    """Whether something has just been found when the gauge is armed: this sample may explain it."""

    def arm(self) -> None:
        """Put hooks on: the forward passes of a sampled step come next."""

    def loss_logged(self, name: str, loss: Tensor) -> None:
        """A loss with its graph was logged for the sampled step."""

    def batch_logged(self, tensors: tuple[Tensor, ...]) -> None:
        """The batch of the sampled step was logged."""

    def before_step(self, index: int, slot: Slot) -> None:
        """The gradients of optimizer number `index` are ready."""

    def after_step(self, index: int, slot: Slot) -> None:
        """Optimizer number `index` has stepped."""

    def disarm(self) -> None:
        """Take everything off again: the sampled step is over."""
