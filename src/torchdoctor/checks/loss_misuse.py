"""CK18 loss-misuse."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.probing import whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.symptoms.suspicious_loss import MEANING
from torchdoctor.vitals.loss_graph import read_graph
from torchdoctor.vitals.loss_inputs import what_is_compared

SHAPES = "Using a target size"
"""Start of torch's own warning about broadcasting."""

BOUNDED = {"Tanh": "tanh", "Hardtanh": "hardtanh", "Softsign": "softsign"}
COSTS = ("NllLoss", "NllLossForward", "NllLoss2D", "NllLoss2DForward", "LogSoftmax")
SHAPES_ONLY = (
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Transpose",
    "Permute",
    "T",
    "Squeeze",
    "Unsqueeze",
    "Clone",
    "Alias",
)
PASSING = frozenset(("Mean", "Sum", *COSTS, *SHAPES_ONLY))
"""Graph nodes between a cross-entropy and its scores that do not change the scores."""
WAY = 12
"""Most nodes that are followed."""


@dataclass(frozen=True)
class LossMisuse(Check):
    """The loss gets the kind of inputs it is made for.

    ## What it checks
    The graph behind the loss, and the numbers that enter it:

    - probabilities, or scores bounded by a tanh, where logits are expected;
    - raw scores where log-probabilities are expected;
    - a softmax over the batch;
    - N outputs against N × 1 targets;
    - a cross-entropy of a single class;
    - an extra minus sign;
    - a loss without a graph.

    ## How it is told apart
    The order of operations is read from the graph, and the outputs are tested for being probabilities (not negative,
    and each row sums to one) or log-probabilities. A softmax inside attention or before a squared error is fine, and so
    is `log_softmax` before `nll_loss` or before a cross-entropy, where it changes nothing. With several models, as in a
    GAN, a minus sign is usual.

    ## What to do
    `F.cross_entropy(logits, target)` and `F.binary_cross_entropy_with_logits(logits, target)` take raw outputs,
    `F.nll_loss` and `F.kl_div` log-probabilities. `assert output.shape == target.shape` before MSE and L1.

    ## Example
    >>> model = nn.Sequential(nn.Linear(3, 5), nn.Softmax(-1))
    >>> batch = torch.randn(4, 3), torch.arange(4)
    >>> print(LossMisuse().run(Subject.of(model, nn.CrossEntropyLoss(), batch)).message)
    cross-entropy gets probabilities (softmax is applied twice): pass logits
    """

    code = "CK18"
    name = "loss-misuse"
    quick = True
    suggests = ("fix-loss",)
    references = (
        "https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
        "https://pytorch.org/docs/stable/notes/broadcasting.html",
    )

    def run(self, subject: Subject) -> Outcome:
        """Read the graph, then the numbers."""
        subject.model.train()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            loss = subject.loss()
        if loss.grad_fn is None:
            message = "the loss has no autograd graph: backward reaches no parameter"
            return self.failed(message, "Look for detach(), .item(), no_grad() and argmax between model and loss.")
        codes = [code for code in read_graph(loss.grad_fn).lint if code in MEANING]
        if len(subject.models) > 1:  # what one model minimizes, the other may maximize
            codes = [code for code in codes if code != "negated"]
        said = [MEANING[code] for code in codes] or list(self._by_numbers(subject, loss))
        shapes = [str(item.message) for item in heard if str(item.message).startswith(SHAPES)]
        if not said and shapes:
            said = [f"outputs and targets have different shapes and are broadcast: {shapes[0].split('. ')[0]}"]
        if said:
            return self.failed("; ".join(dict.fromkeys(said)), _ADVICE)
        return self.passed("the inputs of the loss fit it, as far as its graph and its numbers show")

    @staticmethod
    def _by_numbers(subject: Subject, loss: Tensor) -> Iterator[str]:
        found = what_is_compared(loss)
        outputs = None if whole_loss(subject) else subject.outputs
        if found is not None and isinstance(found.module, nn.NLLLoss):
            scores = found.output.float().movedim(1, -1)
            if scores.shape[-1] == 1:
                yield "a cross-entropy of a single class is always 0: use BCE-with-logits for two classes"
            elif float(scores.amax()) > 1e-3 or float(torch.logsumexp(scores, -1).abs().amax()) > 0.05:
                yield MEANING["nll-without-log-softmax"]
            elif outputs is not None and outputs.shape[-1] > 1 and _are_probabilities(outputs, scores):
                yield MEANING["softmax-before-cross-entropy"]
            elif bound := _bounded_scores(loss):
                yield f"cross-entropy gets scores bounded by a {bound}, so it cannot come near 0: pass logits"
        if found is not None and isinstance(found.module, nn.BCEWithLogitsLoss):
            scores = found.output.float()
            if scores.dim() > 1 and scores.shape[-1] > 1 and bool((torch.logsumexp(scores, -1).abs() < 1e-3).all()):
                yield "BCE-with-logits gets log-probabilities (log_softmax): pass logits"
            elif scores.numel() >= 8 and bool(((scores >= 0) & (scores <= 1)).all()) and _ends_in_sigmoid(subject):
                yield MEANING["sigmoid-before-bce-with-logits"]
        kind = subject.loss_fn
        if isinstance(kind, nn.KLDivLoss) and outputs is not None and float(outputs.amin()) >= 0:
            yield "KL divergence gets probabilities, but its input must be log-probabilities"


_ADVICE = (
    "Pass raw outputs to cross_entropy and binary_cross_entropy_with_logits, log-probabilities to nll_loss and kl_div, "
    "and outputs and targets of the same shape to mse_loss and l1_loss."
)


def _are_probabilities(outputs: Tensor, scores: Tensor) -> bool:
    """Whether the model returned probabilities and the loss did not take their logarithms."""
    for dimension in {1, outputs.dim() - 1} if outputs.dim() > 1 else ():
        rows = outputs.float().movedim(dimension, -1)
        if bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 1e-3).all()):
            return rows.shape != scores.shape or not torch.allclose(rows.clamp_min(1e-12).log(), scores, atol=1e-3)
    return False


def _bounded_scores(loss: Tensor) -> str:
    """The bounding function that directly gives a cross-entropy's scores, with no scaling after it; empty if none."""
    node: Any = loss.grad_fn
    for _ in range(WAY):
        name = type(node).__name__.removesuffix("0").removesuffix("Backward")
        if name in BOUNDED:
            return BOUNDED[name]
        parents = [parent for parent, _ in getattr(node, "next_functions", ()) if parent is not None]
        if name not in PASSING or len(parents) != 1:
            return ""
        node = parents[0]
    return ""


def _ends_in_sigmoid(subject: Subject) -> bool:
    last = list(subject.modules.values())[-1]
    return isinstance(last, nn.Sigmoid)
