"""The zeroing ledger: were gradients cleared between a step and the next backward, and how many backwards made a step?

A few witnesses per optimizer have a hook during sampled steps. Clearing is recognized from a gradient's identity and
version, never from its values: a gradient that was set to None comes back as another tensor, and one that was zeroed
has one more write than backward makes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.guard import guarded
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.graph_nodes import is_loss_node
from torchdoctor.vitals.hooks import Handle, Hook
from torchdoctor.vitals.loss_graph import leaf_tensors
from torchdoctor.vitals.passes import PassGauge, is_compiled
from torchdoctor.vitals.patient import Setup, optimizer_tensors
from torchdoctor.vitals.transfer import Slot

WITNESSES = 3
"""Tensors per optimizer that are watched, because a pass may not use one of them."""
THROWN_AWAY = 40
"""Gradients that arrive and are cleared, while no weight changes, after which the step is called missing."""
LATELY = 3
"""Samples whose backwards count: a loop may change its behavior during a run."""
MEAN = 1
"""The code that torch's losses use for a mean."""
FACTORS = 4
"""Numbers by which a trainer and its loop may multiply and divide a loss, one after the other."""
MICRO_BATCHES = 4
"""Calls of one loss function, each with its own backward, that make micro-batches: tasks and players are fewer."""


@dataclass
class _Witness:
    """One tensor: its state and its gradient's when last seen, and what happened since its last step."""

    optimizer: int
    tensor: Tensor
    tell: Tell
    known: bool
    """Whether the gradient as last seen is known to have been applied by a step."""
    gradient: weakref.ref[Tensor] | None = None
    version: int = 0
    weight_version: int = 0
    backwards: int = 0
    cleared: bool = False
    cleared_between: bool = False
    waited: bool = False
    """Whether another optimizer has stepped since an unused gradient arrived."""
    mixed: bool = False
    """Whether the next gradient was added to that one."""
    thrown: int = 0
    """Gradients that were cleared before any step used them."""
    handles: list[Handle] = field(default_factory=list)

    def failed(self, call: str, error: Exception) -> None:
        """A tensor that fails is no witness."""
        self.known = False

    def remember(self) -> None:
        """Remember the present state, to recognize the next change."""
        grad = self.tensor.grad
        self.gradient = None if grad is None else weakref.ref(grad)
        self.version = 0 if grad is None else grad._version
        self.weight_version = self.tensor._version

    @guarded
    def arrived(self, tensor: Tensor) -> None:
        """A backward pass has added to the gradient."""
        grad = tensor.grad
        if grad is None or grad.is_sparse:
            return
        same = self.gradient is not None and self.gradient() is grad
        kept = same and grad._version == self.version + 1
        if tensor._version != self.weight_version:  # the weights have changed: by a step, or by SAM's perturbation
            self.known, self.backwards, self.thrown, self.cleared, self.cleared_between = True, 0, 0, False, False
        self.cleared |= not kept
        if not same and self.backwards:  # an identical tensor may have been clipped or reduced over ranks
            self.cleared_between = True
            self.thrown += 1
            if self.thrown == THROWN_AWAY:
                self.tell({"loop.losses_without_step": self.thrown})
        self.mixed |= kept and self.waited and self.backwards > 0
        self.waited = False
        self.backwards += 1
        self.remember()


class ZeroingLedger(PassGauge):
    """Tells `zeroing.*`: by optimizer, in their order."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._setup = setup
        count = len(setup.optimizers)
        self._witnesses: list[_Witness] = []
        self._looks = [0] * count
        self._kept = [0] * count
        """How often an old gradient was still there at backward."""
        self._row = [0] * count
        """How often in a row, up to now."""
        self._between = [0] * count
        self._shared = False
        """Whether a backward also reached parameters outside the watched ones, which learn through these."""
        self._mixed = [0] * count
        self._backwards: list[deque[int]] = [deque(maxlen=LATELY) for _ in range(count)]
        self._logged: dict[str, int] = {}
        self._weights: list[Tensor] = []
        """The gradient at each logged loss of this sample: 1/k if the loss was divided by k."""
        self._made: list[Tensor] = []
        """The same for each loss that the loss function computed."""
        self._divided: list[float] = []
        """The factor in front of each mean at which a backward of this sample began, unless it is 1."""
        self._whole = 0
        """Backwards of this sample that began at a mean that nothing had divided, or only by 1."""

    def arm(self) -> None:
        """The previous step is over and its gradients are still there: remember them, and wait for the next ones."""
        self.disarm()
        super().arm()
        self._logged.clear()
        self._weights.clear()
        self._made.clear()
        self._divided.clear()
        self._whole = 0
        loss_fn = self._setup.loss_fn
        if isinstance(loss_fn, nn.Module) and not is_compiled(loss_fn) and len(self._setup.optimizers) == 1:
            self.after(loss_fn, "_loss_made")
        if len(self._setup.optimizers) == 1:
            self.at_backward()
        for number, optimizer in enumerate(self._setup.optimizers):
            usable = [tensor for tensor in optimizer_tensors(optimizer) if tensor.requires_grad and tensor.is_leaf]
            for position in sorted({len(usable) * part // (WITNESSES - 1) for part in range(WITNESSES)}):
                if usable:
                    self._watch(number, usable[min(position, len(usable) - 1)])

    def _watch(self, number: int, tensor: Tensor) -> None:
        # With several optimizers, only the one that has just stepped has used its gradients; others may wait.
        known = (len(self._setup.optimizers) == 1 or number == self.stepped) and tensor.grad is not None
        witness = _Witness(number, tensor, self.tell, known)
        witness.remember()
        register: Callable[[Hook], Handle] = tensor.register_post_accumulate_grad_hook
        witness.handles.append(register(Hook(witness, "arrived")))
        self._witnesses.append(witness)

    def loss_logged(self, name: str, loss: Tensor) -> None:
        """If logged before backward, a loss shows its weight; one that is a quotient or product is weighted already."""
        if loss.grad_fn is not None and not type(loss.grad_fn).__name__.startswith(("Div", "Mul")):
            self._logged[name] = self._logged.get(name, 0) + 1
            self._weigh(loss, self._weights)

    def _loss_made(self, module: nn.Module, args: Any, loss: Any) -> None:
        if self.learns and isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
            self._weigh(loss, self._made)

    def _backward(self, loss: Tensor) -> None:
        """If backward begins at a mean, nothing has divided it; a quotient shows its divisor."""
        node = loss.grad_fn
        if node is not None and self._between[0] and not self._shared:  # walking a graph costs milliseconds
            self._shared = self._goes_further(node)
        weight = divided(node)
        if weight == 1:
            self._whole += 1
        elif weight is not None:
            self._divided.append(weight)

    def _goes_further(self, node: Any) -> bool:
        """Whether a graph ends in these parameters and in others: a generator or an actor learns through its critic.

        What this leaves in the critic is rightly cleared before its own backward.
        """
        own = {id(tensor) for optimizer in self._setup.optimizers for tensor in optimizer_tensors(optimizer)}
        own |= {id(tensor) for model in self._setup.models.values() for tensor in model.parameters()}
        mine = [id(tensor) in own for tensor in leaf_tensors(node)]
        return any(mine) and not all(mine)

    def _weigh(self, loss: Tensor, weights: list[Tensor]) -> None:
        register: Callable[[Hook], Handle] = loss.register_hook
        register(Hook(self, "weighed" if weights is self._weights else "weighed_made"))

    def weighed(self, grad: Tensor) -> None:
        """Backward has reached a logged loss."""
        self._weights.append(grad.detach())

    def weighed_made(self, grad: Tensor) -> None:
        """Backward has reached a loss that the loss function computed."""
        self._made.append(grad.detach())

    def before_step(self, index: int, slot: Slot) -> None:
        """Report what the witnesses of this optimizer have seen."""
        mine = [witness for witness in self._witnesses if witness.optimizer == index]
        self._witnesses = [witness for witness in self._witnesses if witness.optimizer != index]
        for witness in self._witnesses:
            witness.waited |= witness.backwards > 0
        for witness in mine:
            _release(witness)
            if witness.gradient is None or witness.gradient() is not witness.tensor.grad:
                witness.cleared_between = False  # the user assigned another gradient
        if not mine:
            return
        verdicts = [witness.cleared for witness in mine if witness.known and witness.backwards]
        if verdicts:
            self._looks[index] += 1
            self._kept[index] += not any(verdicts)
            self._row[index] = 0 if any(verdicts) else self._row[index] + 1
        self._between[index] += any(witness.cleared_between for witness in mine)
        if self._shared:
            self._between[index] = 0
        self._mixed[index] += all(witness.mixed for witness in mine)
        backwards = max(witness.backwards for witness in mine)
        self._backwards[index].append(backwards)
        self._keep_weight(slot, backwards)
        self.tell(self._facts())

    def _keep_weight(self, slot: Slot, backwards: int) -> None:
        # Several losses with one name are micro-batches; with several names, they are parts of an objective that is
        # rightly a sum.
        weights = self._weights if list(self._logged.values()) == [backwards] else []
        if not weights and len(self._made) >= MICRO_BATCHES:
            weights = self._made
        if not weights and MICRO_BATCHES <= backwards == self._whole:
            slot.add("loss_weight", 1.0)
        elif not weights and backwards == len(self._divided) > 0:
            slot.add("loss_weight", sum(self._divided) / backwards)
        if 1 < backwards == len(weights):
            weight = torch.stack(weights).float().mean()
            scale = getattr(self._setup.scaler, "_scale", None)
            slot.keep("loss_weight", weight if scale is None else weight / scale)

    def disarm(self) -> None:
        """Take the hooks off."""
        super().disarm()
        for witness in self._witnesses:
            _release(witness)
        self._witnesses = []

    def _facts(self) -> dict[str, Any]:
        return {
            # capped: a fact is told whenever it changes, and a hundred samples say no more than five
            "zeroing.kept": [min(kept, 5) for kept in self._kept],
            "zeroing.cleared": [min(look - kept, 5) for look, kept in zip(self._looks, self._kept, strict=True)],
            "zeroing.kept_in_a_row": [min(row, 5) for row in self._row],
            "zeroing.between_backwards": [min(count, 5) for count in self._between],
            "zeroing.mixed": [min(count, 5) for count in self._mixed],
            "zeroing.backwards": [min((count for count in seen if count), default=0) for seen in self._backwards],
            "zeroing.most_backwards": [max(seen, default=0) for seen in self._backwards],
        }


def _release(witness: _Witness) -> None:
    for handle in witness.handles:
        handle.remove()
    witness.handles.clear()


def divided(node: Any) -> float | None:
    """The product of the numbers on the host by which a mean was multiplied; None if it is no mean, or not known.

    >>> mean = nn.functional.mse_loss(torch.zeros(2, requires_grad=True), torch.ones(2))
    >>> [divided(loss.grad_fn) for loss in (mean / 4, 0.5 * mean, mean * 1 / 1, mean, mean + 1)]
    [0.25, 0.5, 1.0, 1.0, None]
    """
    factor = 1.0
    for _ in range(FACTORS):
        name = type(node).__name__
        if not name.startswith(("DivBackward", "MulBackward")):
            return factor if is_loss_node(node) and getattr(node, "_saved_reduction", 0) == MEAN else None
        other = getattr(node, "_saved_other", None)
        if not isinstance(other, Tensor) or other.numel() != 1 or other.device.type != "cpu" or other.requires_grad:
            return None
        if not (number := float(other)):
            return None
        factor = factor / number if name.startswith("Div") else factor * number
        node = node.next_functions[0][0]
    return None
