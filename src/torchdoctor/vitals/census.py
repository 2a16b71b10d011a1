"""The graph census: tensors that the loss depends on, compared with those of the model and the optimizers.

A tensor takes part if it is a leaf of a logged loss's graph or has a gradient when an optimizer steps; the graph is
unknown if losses are logged as numbers. A tensor in an optimizer is absent if it never has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor, nn

from torchdoctor.vitals.clock import sequence_number
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.loss_graph import LossGraph, is_shared_out, read_graph
from torchdoctor.vitals.passes import PassGauge, is_compiled
from torchdoctor.vitals.patient import Setup, optimizer_tensors, own_tensors, tensor_names, unwrap_model
from torchdoctor.vitals.transfer import Slot

FIRST = 5
"""Number of first samples that are all examined; later, every `AGAIN`-th is, and those taken because of a finding."""
AGAIN = 10
SURE = 3
"""Samples after which "never so far" is worth reporting."""
WAITED = 90
"""Step from which every optimizer should have stepped, if there is only one, unnamed loss."""
PLAYED = 300
"""The same if losses have names: a critic may be trained a hundred steps ahead."""
OFTEN = 2
"""Samples that must show an old graph."""
LISTED = 32
"""Maximum number of names in a fact."""
MOST_ITEMS = 1000
"""Items of a plain list that are looked at: a model may hold its data there."""


class GraphCensus(PassGauge):
    """Tells `graph.*` and `loss.*`, such as `loss.divided`: backward begins at a sum divided by a count, a mean."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._setup = setup
        self._samples = 0
        self._due = False
        self._stepped = [0] * len(setup.optimizers)
        """Examined samples in which each optimizer stepped."""
        self._read: dict[str, LossGraph] = {}
        """By name: losses whose graph was read at this sample."""
        self._began = False
        """Whether backward has begun at this sample: its first loss is the one that is described."""
        self._roots: dict[str, tuple[int, int]] = {}
        """By name: the sample at which the loss was last logged, and the sequence number of its root node."""
        self._reached: set[str] = set()
        """Tensors that were a leaf of a loss's graph."""
        self._pushed: set[str] = set()
        """Tensors that had a gradient when an optimizer stepped."""
        self._versions: dict[str, int] = {}
        """Of tensors that take part and are in no optimizer: their version when first seen."""
        self._stepped_at = self._before = self._mark = -1
        """Autograd's counter after the step of the last sample, of the one before it, and of the one before that.

        `log_loss(4 * loss)` after a step makes a node that seems to belong to the next step: one step late is not old.
        """
        self._old = 0
        """Samples whose loss was computed from outputs older than an earlier sample."""
        self._more = 0
        """Samples to examine because something was found, or because the last one had such a loss."""
        self._trainable = -1
        self._asked = 0
        """Number of trainable tensors; and samples that are examined because this number has changed."""
        self._frozen: set[str] = set()
        """Tensors that were seen frozen."""
        self._absent: set[str] = set()
        self._ran: set[int] = set()
        """Ids of modules that run although their own tensors are absent."""
        self._left_over: dict[str, tuple[int, int]] | None = None
        """Gradients from an earlier training, present before watching began, by address and version."""

    def arm(self) -> None:
        """Start a new sample; watch whether modules with absent tensors run at all."""
        super().arm()
        if self._left_over is None:
            self._left_over = self._find_left_over()
        for module in self._owners() if self._absent else ():
            self.before(module, "_runs")
        loss_fn = self._setup.loss_fn
        if isinstance(loss_fn, nn.Module) and not is_compiled(loss_fn):
            self.after(loss_fn, "_loss_made")  # shows the graph if the loop logs a number, or after the step
        self.at_backward()  # likewise, if the loss is not a module either
        self._mark, self._before = self._before, self._stepped_at
        self._samples += 1
        self._due = self._has_thawed() or self._samples <= FIRST or self._samples % AGAIN == 0
        self._more = SURE if self.hastened else self._more
        self._due = self._due or self._more > 0
        self._more -= 1
        self._read.clear()  # ids of leaves are reused once a tensor is gone
        self._began = False

    def _has_thawed(self) -> bool:
        """Whether the number of trainable tensors has changed: then the next samples are all examined."""
        setup = self._setup
        tensors = {id(tensor): tensor for model in setup.models.values() for tensor in own_tensors(unwrap_model(model))}
        tensors |= {id(tensor): tensor for optimizer in setup.optimizers for tensor in optimizer_tensors(optimizer)}
        trainable = sum(tensor.requires_grad for tensor in tensors.values())
        if trainable != self._trainable:
            named = self._named()
            self._asked = 0 if self._trainable < 0 else SURE
            self._trainable = trainable
            self._frozen.update(name for tensor, name in named.items() if not tensor.requires_grad)
        self._asked -= 1
        return self._asked >= 0

    def _has_appeared(self) -> bool:
        """Whether an absent tensor has a gradient now: then it is examined at once."""
        named = self._named() if self._absent else {}
        self._due = any(tensor.grad is not None and name in self._absent for tensor, name in named.items())
        return self._due

    def _find_left_over(self) -> dict[str, tuple[int, int]]:
        """Only of tensors in no optimizer: after a cleared gradient, its address is soon reused."""
        held = {id(tensor) for optimizer in self._setup.optimizers for tensor in optimizer_tensors(optimizer)}
        return {
            name: (tensor.grad.data_ptr(), tensor.grad._version)
            for tensor, name in self._named().items()
            if tensor.grad is not None and id(tensor) not in held and not hasattr(tensor, "to_local")
        }

    def _is_left_over(self, name: str, gradient: Tensor) -> bool:
        known = (self._left_over or {}).get(name)
        return known is not None and known == (gradient.data_ptr(), gradient._version)

    def _runs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._ran.add(id(module))

    def _loss_made(self, module: nn.Module, args: Any, loss: Any) -> None:
        if self.learns and isinstance(loss, Tensor) and loss.numel() == 1:
            self.loss_logged("loss", loss)

    def _backward(self, loss: Tensor) -> None:
        self.loss_logged("loss", loss)
        if self._due and not self._began and loss.grad_fn is not None:
            self._began = True
            # Read here and not where the loss is logged: a loop may log another quotient than the one it learns from.
            if (shared := is_shared_out(loss.grad_fn)) is not None:
                self.tell({"loss.divided": shared})

    def loss_logged(self, name: str, loss: Tensor) -> None:
        """Read the graph of this loss, once per sample."""
        root = loss.grad_fn
        if root is None:
            if loss.requires_grad:  # requires_grad_() on a loss without a graph: backward runs and reaches nothing
                self.tell({"loss.detached": True})
            return
        again = self._look_for_repetition(name, root)
        if self._due and name not in self._read:
            self._read[name] = read_graph(root)
            if not again:
                self._look_for_old_outputs(self._read[name])
            facts = _loss_facts(list(self._read.values()))
            if len(self._setup.optimizers) > 1:  # what one player minimizes, the other may maximize
                facts["loss.lint"] = [code for code in facts["loss.lint"] if code != "negated"]
            self.tell(facts)

    def before_step(self, index: int, slot: Slot) -> None:
        """Gradients are there: which tensors take part?"""
        if not self._due and not self._has_appeared():
            return
        leaves = self._leaves()
        for tensor, name in self._named().items():
            if tensor.grad is not None and not self._is_left_over(name, tensor.grad):
                self._pushed.add(name)
            if id(tensor) in leaves:
                self._reached.add(name)
        self.tell({"graph.not_in_model": self._unregistered(leaves)})

    def after_step(self, index: int, slot: Slot) -> None:
        """Compare the tensors that take part with those that the optimizers hold."""
        self._stepped_at = sequence_number() or -1
        if not self._due:
            return
        named = self._named()
        if any(hasattr(tensor, "to_local") for tensor in named):
            return  # sharded: the leaves of the graph are different tensors
        self._stepped[index] += 1
        holders = {
            id(tensor): number
            for number, optimizer in enumerate(self._setup.optimizers)
            for tensor in optimizer_tensors(optimizer)
        }
        mine = self._model_ids()
        left = self._left_out(named, holders)
        facts: dict[str, Any] = {"graph.not_in_optimizer": left}
        if thawed := [name for name in left if name in self._frozen]:
            facts["graph.thawed"] = thawed
        if idle := self._idle(named, holders, slot.number):
            facts["graph.idle"] = idle
        trainable = [(name, id(tensor)) for tensor, name in named.items() if tensor.requires_grad]
        absent = [
            (name, key)
            for name, key in trainable
            if name not in self._pushed and key in holders and self._stepped[holders[key]] >= SURE
        ]
        if min(self._stepped) >= SURE:
            self._absent = {name for name, key in absent if key in mine}
            facts["graph.absent"] = [name for name, key in absent if key in mine][:LISTED]
            cut = {id(tensor) for module in self._owners() if id(module) in self._ran for tensor in _own(module)}
            facts["graph.cut"] = [name for name, key in absent if key in cut][:LISTED]
            facts["graph.stale"] = [name for name, key in absent if key not in mine][:LISTED]
            facts["graph.detached"] = len(absent) == len(trainable)
        self.tell(facts)

    def _owners(self) -> list[nn.Module]:
        """The modules that directly hold an absent tensor, if they can have a hook."""
        absent = {id(t) for t, name in self._named().items() if name in self._absent}
        return [
            module
            for model in self._setup.models.values()
            if not is_compiled(model)
            for module in unwrap_model(model).modules()
            if any(id(tensor) in absent for tensor in _own(module))
        ][:LISTED]

    def _named(self) -> dict[Tensor, str]:
        """Tensors by name, without empty ones, which learn nothing."""
        named = tensor_names(self._setup.models, self._setup.optimizers)
        return {tensor: name for tensor, name in named.items() if tensor.numel()}

    def _leaves(self) -> set[int]:
        return {leaf for graph in self._read.values() for leaf in graph.leaves}

    def _model_ids(self) -> set[int]:
        return {id(tensor) for model in self._setup.models.values() for tensor in unwrap_model(model).parameters()}

    def _look_for_repetition(self, name: str, root: Any) -> bool:
        """The same root at two samples is a loss that was computed once, or by a replayed CUDA graph."""
        try:
            number = int(root._sequence_nr())
        except AttributeError:
            return False
        sample, previous = self._roots.get(name, (self._samples, -1))
        again = number == previous and sample < self._samples
        if again:
            self.tell({"loss.stale": True})
        elif sample < self._samples or previous < 0:
            self._roots[name] = self._samples, number
        return again

    def _look_for_old_outputs(self, graph: LossGraph) -> None:
        """If no parameter was used since the step of an earlier sample, the outputs come from older weights."""
        if graph.complete and 0 <= graph.newest < self._mark:
            self._old += 1
            self._more = 1
            if self._old == OFTEN:
                self.tell({"loss.stale": "outputs"})

    def _left_out(self, named: Mapping[Tensor, str], holders: Mapping[int, int]) -> list[str]:
        """Trainable tensors that take part, are in no optimizer, and that nothing else has changed."""
        left: list[str] = []
        for tensor, name in named.items():
            if not tensor.requires_grad or id(tensor) in holders or name not in self._pushed | self._reached:
                continue
            seen = name in self._versions
            first = self._versions.setdefault(name, tensor._version)
            if seen and first == tensor._version and max(self._stepped) >= SURE:
                left.append(name)
        return left[:LISTED]

    def _idle(self, named: Mapping[Tensor, str], holders: Mapping[int, int], step: int) -> list[str]:
        """Unchanged tensors with gradients whose optimizer never stepped while others did."""
        idle: list[str] = []
        waited = step >= (WAITED if self._roots.keys() <= {"loss"} else PLAYED)
        for tensor, name in named.items():
            holder = holders.get(id(tensor))
            if holder is None or self._stepped[holder] or name not in self._pushed:
                continue
            seen = name in self._versions
            first = self._versions.setdefault(name, tensor._version)
            if waited and seen and first == tensor._version:
                idle.append(name)
        return idle[:LISTED]

    def _unregistered(self, leaves: set[int]) -> list[str]:
        """Model attributes with tensors that take part but are in no `parameters()` and no optimizer."""
        known = self._model_ids()
        known.update(id(tensor) for optimizer in self._setup.optimizers for tensor in optimizer_tensors(optimizer))
        found: dict[str, None] = {}
        for prefix, model in self._setup.models.items():
            for path, module in unwrap_model(model).named_modules():
                for attribute, tensor in hidden_tensors(module):
                    if not tensor.requires_grad or not tensor.is_leaf or id(tensor) in known:
                        continue
                    if tensor.grad is not None or id(tensor) in leaves:
                        found[".".join(part for part in (prefix, path, attribute) if part)] = None
        return list(found)[:LISTED]


def _own(module: nn.Module) -> Iterator[Tensor]:
    return module.parameters(recurse=False)


def _loss_facts(graphs: Sequence[LossGraph]) -> dict[str, Any]:
    """The combined facts of a sample's losses; kind and reduction are those of the first."""
    first = graphs[0]
    facts: dict[str, Any] = {
        "loss.lint": sorted({code for graph in graphs for code in graph.lint}),
        "loss.fragile": sorted({name for graph in graphs for name in graph.fragile}),
        "loss.hidden": any(graph.hidden for graph in graphs),
    }
    if first.kind is not None:
        facts["loss.kind"] = first.kind
    if first.reduction is not None:
        facts["loss.reduction"] = first.reduction
    if first.ending:
        facts["loss.ending"] = first.ending
    return facts


def hidden_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors in plain attributes of a module, in lists and dicts there, and in modules in those."""
    for attribute, value in vars(module).items():
        if attribute in ("_parameters", "_buffers", "_modules") or attribute.endswith("_hooks"):
            continue
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for item in islice(items, MOST_ITEMS):
            if isinstance(item, Tensor):
                yield attribute, item
            elif isinstance(item, nn.Module):
                yield from ((attribute, tensor) for tensor in item.parameters())
