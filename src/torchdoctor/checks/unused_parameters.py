"""CK26 unused-parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.checks.batch_independence import linked
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.probing import seed
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text
from torchdoctor.vitals.loss_graph import read_graph


@dataclass(frozen=True)
class UnusedParameters(Check):
    """Every trainable parameter is used in every pass.

    ## What it checks
    The graph of the loss over several passes: parameters that it never reaches, and those that it reaches in some
    passes only. `DistributedDataParallel` waits for all gradients: if one is missing, it stops with an error or hangs.
    On one device unused parameters waste memory, and often belong to a layer that somebody forgot to call.

    ## How it is told apart
    Frozen parameters are ignored. Layers that are skipped at random (stochastic depth, LayerDrop) and experts without a
    token are used in some passes only: that passes, and the message says what it needs. With several models the check
    is skipped, because one model's loss need not reach the others. A parameter whose gradient is zero counts as used.

    ## What to do
    Remove the layer, call it, or freeze it. If it is intended, set `find_unused_parameters=True`.

    ## Example
    >>> import torch
    >>> class Forgetful(torch.nn.Linear):
    ...     def __init__(self):
    ...         super().__init__(3, 1)
    ...         self.extra = torch.nn.Linear(3, 3)
    >>> batch = torch.ones(4, 3), torch.ones(4, 1)
    >>> print(UnusedParameters().run(Subject.of(Forgetful(), torch.nn.MSELoss(), batch)).message)
    2 of 4 trainable parameters are never used: extra.weight, extra.bias
    """

    code = "CK26"
    name = "unused-parameters"
    quick = True
    suggests = ()
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",)

    passes: int = 4
    """Passes with different seeds."""

    def applies(self, subject: Subject) -> str | None:
        """A single model with something to train."""
        if len(subject.models) > 1:
            return "with several models, the loss of one need not reach the others"
        if not any(p.requires_grad for p in subject.parameters.values()):
            return "no parameter is trainable: see optimizer-coverage"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Read the graphs of several losses."""
        trainable = {name: p for name, p in subject.parameters.items() if p.requires_grad}
        small = subject if linked(subject) else subject.sized(min(4, subject.samples))
        always, ever = set(trainable), set[str]()
        for number in range(self.passes):
            subject.model.train()
            seed(number)
            loss = small.loss()
            graph = read_graph(loss.grad_fn) if loss.grad_fn is not None else None
            if graph is None:
                raise CannotTell("the loss has no autograd graph: see loss-misuse")
            if not graph.complete:
                raise CannotTell("the graph of the loss is too large to read")
            used = {name for name, p in trainable.items() if id(p) in graph.leaves}
            always, ever = always & used, ever | used
        never = [name for name in trainable if name not in ever]
        sometimes = [name for name in trainable if name in ever and name not in always]
        advice = "Remove the layer, call it, or freeze it; if it is intended, wrap the model with "
        advice += "DistributedDataParallel(find_unused_parameters=True)."
        if never:
            message = f"{len(never)} of {len(trainable)} trainable parameters are never used: {names_text(never)}"
            return self.failed(message, advice, where=tuple(never), value=float(len(never)), severity="warning")
        if sometimes:
            message = f"{len(sometimes)} of {len(trainable)} trainable parameters are used in some passes only: "
            message += f"{names_text(sometimes)}; DistributedDataParallel needs find_unused_parameters=True"
            return self.passed(message, value=float(len(sometimes)))
        return self.passed(f"all {len(trainable)} trainable parameters are used in each of {self.passes} passes")
