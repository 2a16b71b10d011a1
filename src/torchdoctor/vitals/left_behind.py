"""The census of those left behind: an optimizer that steps for nobody, and a loss's own parameters that nobody steps.

The first had gradients, has none any more and steps on: its tensors were frozen for the other player's turn and never
thawed, or the loop trains a copy of them. The second are the weights of a criterion, such as class centres, where the
optimizer has the model's alone. Likewise the weights of a layer that is made inside `forward`, another one at each
call. Gradients, shapes and versions of tensors only: no kernel, no wait.
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
"""Tensors an optimizer whose versions are watched: somebody may write to them between two samples."""
BARE, STEPS = 5, 60
"""Samples in a row, and steps, without a gradient or a write: players take turns, and samples may miss some."""
SURE = 3
"""Samples at which a criterion's parameter must have had a gradient and not moved."""
LISTED = 16


COPIED = 2
"""Samples in a row at which the loss must be that of tensors like those of the optimizer, and of none of them."""
ANEW = 2
"""Samples in a row at which layers between known ones must be other tensors than at the sample before,"""
FIRST = 4
"""and samples that are looked at for it: from the start, or not at all."""


class LeftBehind(PassGauge):
    """Tells `graph.resting`, `graph.copied`, `graph.made_anew` and `graph.criterion_left_out`."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._setup, self._tell = setup, tell
        self._root: Any = None
        """The last node of the loss of this sample; let go of when the step is taken."""
        self._copied = 0
        self._strangers: list[weakref.ref[Tensor]] = []
        """Weights of layers of nobody's at the sample before."""
        self._anew = self._walked = 0
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
        """Versions are compared with those after the last sampled step."""
        self._versions[index] = self._witness(list(optimizer_tensors(self._setup.optimizers[index])))

    def _look_for_strangers(self) -> None:
        """Whether layers that no model and no optimizer knows, behind which known ones lie, are others each time.

        Copies of a whole model, as for a task of meta-learning, have nothing known behind them; nor have convolutions
        that are drawn to augment a batch.
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


def _weights_between(root: Any, known: set[int]) -> list[nn.Parameter]:
    """The weights of the linear layers and convolutions of a graph that take what known tensors have had a part in."""
    fed: dict[Any, list[Any]] = {root: []}
    """What each node feeds."""
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
    """The parameter of two dimensions or more that a node is, or turns round; None of any other node."""
    node = next(parents_of(node), None) if node_name(node) in ("T", "Transpose", "Permute") else node
    leaf = None if node is None else _leaf(node)
    return leaf if isinstance(leaf, nn.Parameter) and leaf.dim() > 1 else None
