"""CK14 optimizer-coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.probing import whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text
from torchdoctor.vitals.census import hidden_tensors
from torchdoctor.vitals.loss_graph import read_graph
from torchdoctor.vitals.patient import optimizer_tensors


@dataclass(frozen=True)
class OptimizerCoverage(Check):
    """The optimizer holds every parameter that should be trained, once, and nothing else.

    ## What it checks
    - Trainable parameters that the loss depends on but no optimizer holds.
    - Parameters held twice, which are updated twice per step.
    - Tensors that an optimizer holds but no model has any more.
    - Layers in a plain Python list, which `parameters()` does not include, or created in forward.
    - Frozen layers between layers that are trained, and models in which nothing is trainable.

    ## How it is told apart
    Frozen parameters may be held or not: a frozen backbone, or a base under adapters. A few frozen layers in a row
    after layers that are trained are probably an oversight; more than half of the model is a method. Shared parameters
    count once. Parameters of the loss itself (a temperature, class centers) may be held. If there is no optimizer yet,
    only the model is checked.

    ## What to do
    Build the optimizer from `model.parameters()` after the model is complete and on its device. Keep layers in
    `nn.ModuleList` and tensors in `nn.Parameter`.

    ## Example
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    >>> optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    >>> subject = Subject.of(model, nn.MSELoss(), (torch.ones(2, 4), torch.ones(2, 1)), optimizer)
    >>> print(OptimizerCoverage().run(subject).message)
    2 of 4 trainable parameters are in no optimizer, although the loss depends on them: 0.weight, 0.bias
    """

    code = "CK14"
    name = "optimizer-coverage"
    quick = True
    suggests = ("add-parameters-to-optimizer", "unfreeze")
    references = ("https://pytorch.org/docs/stable/optim.html#constructing-it",)

    def run(self, subject: Subject) -> Outcome:
        """Compare what the loss depends on with what the optimizers hold."""
        trainable = {name: p for name, p in subject.parameters.items() if p.requires_grad}
        if not trainable:
            message = f"none of the {len(subject.parameters)} parameters is trainable"
            return self.failed(message, "Set `requires_grad_(True)` for the parameters to train.")
        subject.model.train()
        reached = self._reached(subject)
        hidden = _unregistered(subject, reached)
        if hidden:
            message = f"the loss depends on tensors in {names_text(hidden)} that parameters() does not include"
            advice = "Keep layers in nn.ModuleList or nn.ModuleDict, and tensors in nn.Parameter."
            return self.failed(message, advice, where=tuple(hidden))
        homeless = _homeless(subject)
        if homeless:
            message = f"the output depends on {len(homeless)} parameters that no model has: {names_text(homeless)}"
            advice = "Create layers in `__init__`, as attributes: layers created in `forward` are new in every pass."
            return self.failed(message, advice, where=tuple(homeless), value=float(len(homeless)), limit=0.0)
        held = Counter(id(t) for optimizer in subject.optimizers for t in optimizer_tensors(optimizer))
        if held and (failure := self._mismatch(subject, trainable, reached, held)) is not None:
            return failure
        frozen = frozen_between(subject)
        if frozen:
            message = f"{names_text(frozen)}: frozen, but behind layers that are trained"
            advice = "If that is not intended, call `requires_grad_(True)` and make sure that the optimizer holds them."
            return self.failed(message, advice, where=tuple(frozen), severity="warning")
        still = len(subject.parameters) - len(trainable)
        message = f"{len(trainable)} trainable parameters, " + ("all held once" if held else "no optimizer yet")
        return self.passed(message + (f"; {still} are frozen" if still else ""))

    @staticmethod
    def _reached(subject: Subject) -> frozenset[int]:
        loss = subject.loss()
        return read_graph(loss.grad_fn).leaves if loss.grad_fn is not None else frozenset()

    def _mismatch(
        self, subject: Subject, trainable: dict[str, nn.Parameter], reached: frozenset[int], held: Counter[int]
    ) -> Outcome | None:
        missing = [name for name, p in trainable.items() if id(p) in reached and id(p) not in held]
        if missing:
            message = f"{len(missing)} of {len(trainable)} trainable parameters are in no optimizer, although the loss "
            message += f"depends on them: {names_text(missing)}"
            advice = (
                "Build the optimizer from model.parameters() after the model is complete, or freeze these parameters."
            )
            return self.failed(message, advice, where=tuple(missing), value=float(len(missing)), limit=0.0)
        twice = [name for name, p in subject.parameters.items() if held[id(p)] > 1]
        if twice:
            message = f"{len(twice)} parameters are held more than once, so each step updates them twice: "
            advice = "Give each parameter to one group of one optimizer."
            return self.failed(message + names_text(twice), advice, where=tuple(twice), limit=1.0)
        known = {id(p) for p in subject.parameters.values()} | {id(t) for t in _of_loss(subject)} | reached
        stale = [
            f"group {number} {tuple(tensor.shape)}"
            for optimizer in subject.optimizers
            for number, group in enumerate(optimizer.param_groups)
            for tensor in group["params"]
            if id(tensor) not in known
        ]
        if stale:
            message = f"the optimizer holds {len(stale)} tensors that no model has: {names_text(stale)}"
            advice = "A layer was replaced, or the model copied, after the optimizer was built: build it last."
            return self.failed(message, advice, where=tuple(stale), value=float(len(stale)), limit=0.0)
        return None


def _of_loss(subject: Subject) -> Iterator[Tensor]:
    if isinstance(subject.loss_fn, nn.Module):
        yield from subject.loss_fn.parameters()


def _unregistered(subject: Subject, reached: frozenset[int]) -> list[str]:
    """Plain attributes with tensors that the loss depends on and that neither the models nor an optimizer hold."""
    known = {id(p) for p in subject.parameters.values()}
    known.update(id(t) for optimizer in subject.optimizers for t in optimizer_tensors(optimizer))
    found = [
        name if attribute == name == "model" else f"{name}.{attribute}".removeprefix("model.")
        for name, module in subject.modules.items()
        for attribute, tensor in hidden_tensors(module)
        if tensor.requires_grad and tensor.is_leaf and id(tensor) in reached and id(tensor) not in known
    ]
    return list(dict.fromkeys(found))


def _homeless(subject: Subject) -> list[str]:
    """Shapes of the parameters behind the output that no model has, such as those of layers created in forward."""
    if whole_loss(subject) is not None:
        return []
    known = {id(p) for p in subject.parameters.values()} | {id(t) for t in _of_loss(subject)}
    known.update(id(t) for optimizer in subject.optimizers for t in optimizer_tensors(optimizer))
    output = subject.prediction()
    waiting: list[Any] = [] if output is None else [output.grad_fn]
    seen: set[Any] = set()
    found: dict[int, str] = {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in known:
            found[id(leaf)] = str(tuple(leaf.shape))
        waiting += [parent for parent, _ in node.next_functions]
    return list(found.values())


def frozen_between(subject: Subject) -> list[str]:
    """One run of frozen layers whose input comes from trained layers; empty if most layers are frozen.

    Adapters leave many frozen runs, or freeze nearly everything: these are methods, not mistakes.
    """
    ran: dict[str, bool] = {}
    behind: list[str] = []

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        own = list(module.parameters(recurse=False))
        if name in ran or not any(p.dim() > 1 for p in own):  # scales and offsets may be fixed; a matrix is a layer
            return
        ran[name] = not any(p.requires_grad for p in own)
        if ran[name] and args and isinstance(args[0], Tensor) and args[0].requires_grad:
            behind.append(name)

    with subject.watched(see):
        subject.loss()
    frozen = list(ran.values())
    stretches = sum(now and not before for before, now in zip([False, *frozen], frozen, strict=False))
    return behind if stretches == 1 and 2 * sum(frozen) <= len(frozen) else []
