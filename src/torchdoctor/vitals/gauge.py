"""The shape of a gauge that looks at sampled steps only.

A sampled step, in order: `arm` (right after the step before it), the loop's forward passes, `loss_logged` where the
loop logs before it steps, `before_step`, the optimizer's step, `after_step`, `disarm`. Between two samples a gauge has
no hook on anything and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from torchdoctor.vitals.transfer import Slot

Tell = Callable[[Mapping[str, Any]], None]
"""Takes structural facts by dotted key, from `arm` on; only what is new or has changed reaches the journal."""


class Gauge:
    """Does nothing at every point; a gauge overrides what it needs.

    Numbers on the device go into the slot (`Slot.keep` for a scalar vital, a `Part` for one number a tensor or module)
    and reach the journal without anybody waiting for them. Nothing here may draw random numbers, change a mode, keep a
    graph alive or wait for the device.
    """

    spent = 0.0
    """Seconds that its hooks took inside the loop's own calls, so far."""
    stepped = -1
    """The optimizer whose step has just been taken when it is armed, -1 at the start."""

    def arm(self) -> None:
        """The forward passes of a sampled step come next: put hooks on."""

    def loss_logged(self, name: str, loss: Tensor) -> None:
        """A loss with its graph was logged for the sampled step."""

    def batch_logged(self, tensors: tuple[Tensor, ...]) -> None:
        """The batch of the sampled step was logged."""

    def before_step(self, index: int, slot: Slot) -> None:
        """The gradients of optimizer number `index` are ready."""

    def after_step(self, index: int, slot: Slot) -> None:
        """Optimizer number `index` has stepped."""

    def disarm(self) -> None:
        """The sampled step is over: take everything off again."""
