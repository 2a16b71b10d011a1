"""The census of those left behind: an optimizer that steps for nobody, and a loss's own parameters that nobody steps.

The first had gradients, has none any more and steps on: its tensors were frozen for the other player's turn and never
thawed, or the loop trains a copy of them. The second are the weights of a criterion, such as class centres, where the
optimizer has the model's alone. Gradients, shapes and versions of tensors only: no kernel, no wait.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor, nn

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.loss_graph import leaf_tensors
from torchdoctor.vitals.passes import PassGauge
from torchdoctor.vitals.patient import Setup, optimizer_tensors, tensor_names, unwrap_model
from torchdoctor.vitals.transfer import Slot

WITNESSES = 3
"""Tensors an optimizer whose versions are watched: somebody may write to them between two samples."""
BARE, STEPS = 5, 60
"""Samples in a row, and steps, without a gradient or a write: players take turns, and samples may miss some."""
SURE = 3
"""Samples at which a criterion's parameter must have had a gradient and not moved."""
LISTED = 16


COPIED = 2
"""Samples in a row at which the loss must be that of tensors like those of the optimizer, and of none of them."""


class LeftBehind(PassGauge):
    """Tells `graph.resting`, `graph.copied` and `graph.criterion_left_out`."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._setup, self._tell = setup, tell
        self._root: Any = None
        """The last node of the loss of this sample; let go of when the step is taken."""
        self._copied = 0
        count = len(setup.optimizers)
        self._versions: list[list[int]] = [[] for _ in range(count)]
        self._moved: list[int | None] = [None] * count
        """The last sample at which an optimizer had something to do."""
        self._bare = [0] * count
        self._own: dict[str, tuple[int, int]] = {}
        """Of each parameter of the criterion's own: its version when first seen, and samples since."""

    def arm(self) -> None:
        """A sampled step comes: whose loss will it be?"""
        super().arm()
        self.at_backward()

    def _backward(self, loss: Tensor) -> None:
        self._root = loss.grad_fn

    def disarm(self) -> None:
        """Let go of the loss's graph."""
        self._root = None
        super().disarm()

    def before_step(self, index: int, slot: Slot) -> None:
        """Whether there is anything for this optimizer to do, and for the criterion's parameters."""
        self._look_at_criterion()
        tensors = list(optimizer_tensors(self._setup.optimizers[index]))
        versions = self._witness(tensors)
        busy = any(tensor.grad is not None for tensor in tensors)
        self._look_for_copies([] if busy else tensors, slot.number)
        if busy or (self._versions[index] and versions != self._versions[index]):
            self._moved[index], self._bare[index] = slot.number, 0
            return
        self._bare[index] += 1
        since = self._moved[index]
        if since is not None and self._bare[index] >= BARE and slot.number - since >= STEPS:
            self._tell({"graph.resting": self._resting(tensors, since)})

    def after_step(self, index: int, slot: Slot) -> None:
        """Versions are compared with those after the last sampled step."""
        self._versions[index] = self._witness(list(optimizer_tensors(self._setup.optimizers[index])))

    def _look_for_copies(self, tensors: list[Tensor], number: int) -> None:
        """Whether what is trained are tensors of the same shapes as those that have no gradient."""
        root, self._root = self._root, None
        if len(self._setup.optimizers) > 1 or (not self._copied and (not tensors or root is None)):
            return
        alike = self._alike(tensors, root) if tensors and root is not None else 0
        self._copied = min(self._copied + 1, COPIED) if alike else 0
        self._tell({"graph.copied": {"tensors": alike, "samples": self._copied} if alike else None})

    def _alike(self, tensors: list[Tensor], root: Any) -> int:
        """How many trainable leaves of a loss have the shape of a tensor without a gradient; 0 where they are few."""
        known = {id(tensor) for tensor in tensors}
        known.update(id(item) for model in self._setup.models.values() for item in unwrap_model(model).parameters())
        leaves = [leaf for leaf in leaf_tensors(root) if leaf.requires_grad]
        if any(id(leaf) in known for leaf in leaves):
            return 0
        alike = Counter(leaf.shape for leaf in leaves) & Counter(tensor.shape for tensor in tensors)
        return alike.total() if 2 * alike.total() > len(tensors) else 0

    def _resting(self, tensors: list[Tensor], since: int) -> dict[str, Any]:
        named = tensor_names(self._setup.models, self._setup.optimizers)
        names = [named[tensor] for tensor in tensors if tensor in named][:LISTED]
        return {"tensors": names, "since": since, "frozen": not any(tensor.requires_grad for tensor in tensors)}

    def _look_at_criterion(self) -> None:
        criterion = self._setup.loss_fn
        if not isinstance(criterion, nn.Module):
            return
        # Not those of modules inside it: a network that only judges is not meant to learn, frozen or not.
        own = [(name, tensor) for name, tensor in criterion._parameters.items() if tensor is not None]
        if not own:
            return
        known = {id(tensor) for optimizer in self._setup.optimizers for tensor in optimizer_tensors(optimizer)}
        known.update(id(item) for model in self._setup.models.values() for item in unwrap_model(model).parameters())
        left = []
        for name, tensor in own:
            first, samples = self._own.get(name, (tensor._version, 0))
            self._own[name] = first, samples + (tensor.grad is not None)
            moved = tensor._version != first
            if tensor.requires_grad and not moved and id(tensor) not in known and self._own[name][1] >= SURE:
                left.append(f"loss_fn.{name}")
        self._tell({"graph.criterion_left_out": left[:LISTED]})

    def _witness(self, tensors: list[Tensor]) -> list[int]:
        places = {(len(tensors) - 1) * part // (WITNESSES - 1) for part in range(WITNESSES)} if tensors else set()
        return [tensors[place]._version for place in sorted(places)]
