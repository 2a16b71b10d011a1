"""Finds parameters that are left behind: an optimizer whose tensors get no gradients, or a loss's untrained parameters.

In the first case, the optimizer had gradients, has none anymore and keeps stepping: its tensors were frozen for the
other player's turn and never unfrozen, or the loop trains a copy of them. In the second case, a criterion has
parameters, such as class centers, but the optimizer only holds the model's. A third case is a layer that `forward`
builds anew at each call. Only gradients, shapes and versions of tensors are read: no kernel, no waiting.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from torch import Tensor, nn

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.graph_nodes import LINEAR, node_name, parents_of
from torchdoctor.vitals.loss_graph import MOST_NODES, leaf_tensors
from torchdoctor.vitals.passes import PassGauge
from torchdoctor.vitals.patient import Setup, optimizer_tensors, tensor_names, unwrap_model
from torchdoctor.vitals.transfer import Slot

WITNESSES = 3
"""Tensors per optimizer whose versions are watched, because the loop may write to them between two samples."""
BARE, STEPS = 5, 60
"""Consecutive samples, and steps, without a gradient or a write: players take turns, and samples may miss some."""
SURE = 3
"""Samples at which a criterion's parameter must have had a gradient and not changed."""
LISTED = 16


COPIED = 2
"""Consecutive samples at which the loss must depend on tensors like the optimizer's, and on none of its own."""
ANEW = 2
"""Consecutive samples at which layers between known ones must be different tensors than at the sample before."""
FIRST = 4
"""Samples that are checked for this: it happens from the start or never."""


class LeftBehind(PassGauge):
    """Tells `graph.resting`, `graph.copied`, `graph.made_anew` and `graph.criterion_left_out`."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._setup, self._tell = setup, tell
        self._root: Any = None
        """The last node of this sample's loss; released when the step is taken."""
        self._copied = 0
        self._strangers: list[weakref.ref[Tensor]] = []
        """Weights at the sample before of layers that belong to no model and no optimizer."""
        self._anew = self._walked = 0
        count = len(setup.optimizers)
        self._versions: list[list[int]] = [[] for _ in range(count)]
        self._moved: list[int | None] = [None] * count
        """The last sample at which an optimizer had something to do."""
        self._bare = [0] * count
        self._own: dict[str, tuple[int, int]] = {}
        """By parameter of the criterion: its version when first seen, and samples with a gradient since."""

    def arm(self) -> None:
        """Start a sampled step: wait for its loss."""
        super().arm()
        self.at_backward()

    def _backward(self, loss: Tensor) -> None:
        self._root = loss.grad_fn

    def disarm(self) -> None:
        """Release the loss's graph."""
        self._root = None
        super().disarm()

    def before_step(self, index: int, slot: Slot) -> None:
        """Check whether this optimizer has anything to do, and look at the criterion's parameters."""
        self._look_at_criterion()
        tensors = list(optimizer_tensors(self._setup.optimizers[index]))
        versions = self._witness(tensors)
        busy = any(tensor.grad is not None for tensor in tensors)
        self._look_for_strangers()
        self._look_for_copies([] if busy else tensors, slot.number)
        if busy or (self._versions[index] and versions != self._versions[index]):
            self._moved[index], self._bare[index] = slot.number, 0
            return
        self._bare[index] += 1
        since = self._moved[index]
        if since is not None and self._bare[index] >= BARE and slot.number - since >= STEPS:
            self._tell({"graph.resting": self._resting(tensors, since)})

    def after_step(self, index: int, slot: Slot) -> None:
        """Keep the versions, to compare them at the next sampled step."""
        self._versions[index] = self._witness(list(optimizer_tensors(self._setup.optimizers[index])))

    def _look_for_strangers(self) -> None:
        """Check whether layers that follow known ones but belong to no model or optimizer are new each time.

        Copies of a whole model, as in meta-learning, follow nothing known; nor do convolutions with random weights that
        augment a batch.
        """
        if self._root is None or self._walked >= FIRST:
            return
        self._walked += 1
        known = {id(item) for model in self._setup.models.values() for item in unwrap_model(model).parameters()}
        known.update(id(item) for optimizer in self._setup.optimizers for item in optimizer_tensors(optimizer))
        found = [weight for weight in _weights_between(self._root, known) if id(weight) not in known]
        before, self._strangers = self._strangers, [weakref.ref(weight) for weight in found]
        alive = {id(weight) for reference in before if (weight := reference()) is not None}
        self._anew = self._anew + 1 if before and found and not any(id(weight) in alive for weight in found) else 0
        if self._anew >= ANEW:
            self._tell({"graph.made_anew": [list(weight.shape) for weight in found][:LISTED]})

    def _look_for_copies(self, tensors: list[Tensor], number: int) -> None:
        """Check whether the loss depends on tensors of the same shapes as those without a gradient."""
        root, self._root = self._root, None
        if len(self._setup.optimizers) > 1 or (not self._copied and (not tensors or root is None)):
            return
        alike = self._alike(tensors, root) if tensors and root is not None else 0
        self._copied = min(self._copied + 1, COPIED) if alike else 0
        self._tell({"graph.copied": {"tensors": alike, "samples": self._copied} if alike else None})

    def _alike(self, tensors: list[Tensor], root: Any) -> int:
        """Number of trainable leaves of a loss with the shape of a tensor without a gradient; 0 if they are few."""
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
        # Parameters of modules inside it do not count: a network that only judges is not meant to learn, frozen or not.
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


def _weights_between(root: Any, known: set[int]) -> list[nn.Parameter]:
    """Weights of the linear layers and convolutions in a graph whose input depends on known tensors."""
    fed: dict[Any, list[Any]] = {root: []}
    """The nodes that each node feeds."""
    waiting = [root]
    while waiting and len(fed) < MOST_NODES:
        node = waiting.pop()
        for parent in parents_of(node):
            if parent not in fed:
                waiting.append(parent)
            fed.setdefault(parent, []).append(node)
    waiting = [node for node in fed if id(_leaf(node)) in known]
    touched = set(waiting)
    while waiting:
        fresh = [node for node in fed[waiting.pop()] if node not in touched]
        touched.update(fresh)
        waiting += fresh
    found: dict[nn.Parameter, None] = {}
    for node in fed:
        parents = list(parents_of(node)) if node_name(node) in LINEAR else []
        if any(parent in touched for parent in parents if _weight(parent) is None and _leaf(parent) is None):
            found.update((weight, None) for parent in parents if (weight := _weight(parent)) is not None)
    return list(found)


def _leaf(node: Any) -> Tensor | None:
    return node.variable if node_name(node) == "AccumulateGrad" else None


def _weight(node: Any) -> nn.Parameter | None:
    """The parameter with two or more dimensions that a node is or transposes; None for any other node."""
    node = next(parents_of(node), None) if node_name(node) in ("T", "Transpose", "Permute") else node
    leaf = None if node is None else _leaf(node)
    return leaf if isinstance(leaf, nn.Parameter) and leaf.dim() > 1 else None
