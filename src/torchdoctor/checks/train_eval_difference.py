"""CK16 train-eval-difference."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.nested import tensors
from torchdoctor.checks.practice import Practice
from torchdoctor.checks.probing import SAME, answer, moved_by, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text, share_text

BatchNorm = nn.modules.batchnorm._BatchNorm
SETTLING = 8
"""Passes over the batch that BatchNorm computes its statistics from before they are used."""
DRAWN = frozenset({"rand", "rand_like", "randn", "randn_like", "normal_", "uniform_", "bernoulli", "bernoulli_"})
COMPARED = frozenset({"lt", "le", "gt", "ge"})
"""Names of torch functions that draw random numbers, and that compare them with a share to keep."""
DRAWS = 5
"""Passes whose median loss is taken."""


@dataclass(frozen=True)
class TrainEvalDifference(Check):
    """What the model learns in train mode also works in eval mode.

    ## What it checks
    - No dropout stays on in eval mode. `F.dropout(x)` does without `training=self.training`, and so does attention with
      a fixed `dropout_p`.
    - No noise is added to the inputs in eval mode.
    - No dropout drops 90 % or more in train mode: it may have been given the share to keep.
    - After a short training on the batch, the loss in eval mode agrees with that in train mode. BatchNorm gets its
      running statistics from the same batch.

    ## How it is told apart
    - Dropout makes the loss in train mode higher, so the check fails only if eval mode loses more than 30 % of the
      improvement.
    - Running statistics are recomputed, whatever their momentum; the momentum itself fails above 0.9 and at 0 or below.
    - Models that sample in eval mode (a VAE, random weights) are not reported: noise counts only if it has the shape of
      the inputs or becomes a mask, in classification and regression models.
    - For models that return something else in eval mode (detections, no auxiliary heads) the losses are not compared.

    ## What to do
    Use `nn.Dropout`, or pass `training=self.training`; torch's `p` is the share that is dropped. Process inputs and
    outputs the same way in both modes. With small batches, use GroupNorm or LayerNorm instead of BatchNorm.

    ## Example
    >>> class Forgetful(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(nn.functional.dropout(x))
    >>> batch = torch.ones(4, 3), torch.ones(4, 1)
    >>> print(TrainEvalDifference().run(Subject.of(Forgetful(3, 1), nn.MSELoss(), batch)).message)
    1 dropout is still on in eval mode
    """

    code = "CK16"
    name = "train-eval-difference"
    suggests = ("set-train-mode", "change-batch-size", "add-normalization")
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html",)

    steps: int = 60
    """Steps of the short training."""
    lost: float = 0.3
    """Share of the improvement that eval mode may lose."""
    momentum: float = 0.9
    """Momentum above which running statistics are little more than those of the last batch."""
    dropped: float = 0.9
    """Share dropped from which too little is left to learn from."""
    seconds: float = 8.0
    """Time limit in seconds; a third of the remaining time if that is less."""

    def run(self, subject: Subject) -> Outcome:
        """Check dropout in both modes, then momentum, then the losses of both modes."""
        wrong = self._drops_nearly_all(subject)
        if wrong is not None:
            return wrong
        subject.evaluate()
        with torch.no_grad(), Dice(_shapes(subject)) as dice:
            self._eval_loss(subject)
        if dice.dropouts:
            message = f"{dice.dropouts} dropout{'s are' if dice.dropouts > 1 else ' is'} still on in eval mode"
            advice = "Use nn.Dropout, or `F.dropout(x, p, training=self.training)`; for attention, "
            advice += "`dropout_p=self.p if self.training else 0.0`."
            return self.failed(message, advice, value=float(dice.dropouts), limit=0.0)
        if dice.disturbances and (changed := _by_seed(subject)) > SAME:
            message = f"in eval mode {dice.disturbances[0]}: the outputs for the same batch change by "
            message += f"{number_text(changed)} of their size from one pass to the next"
            advice = "Add noise and drop values only where `self.training` is true."
            return self.failed(message, advice, value=changed, limit=SAME, severity="warning")
        odd = [
            name
            for name, layer in subject.of_type(BatchNorm)
            if layer.track_running_stats and layer.momentum is not None and not 0 < layer.momentum <= self.momentum
        ]
        if odd:
            shown = subject.modules[odd[0]].momentum
            message = f"BatchNorm with a momentum of {number_text(float(shown))}: {names_text(odd)}"  # type: ignore[arg-type]
            advice = "In torch it is the weight of the new batch: use momentum=0.1 where other libraries use 0.9."
            return self.failed(message, advice, where=tuple(odd), severity="warning")
        return self._after_practice(subject)

    def _drops_nearly_all(self, subject: Subject) -> Outcome | None:
        found: list[str] = []

        def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p >= self.dropped:
                found.append(name)

        with subject.fresh(), torch.no_grad(), subject.watched(see), Dice() as dice:
            subject.model.train()
            subject.loss()
        most = max([dice.most, *(float(getattr(subject.modules[name], "p", 0.0)) for name in found)])
        if most < self.dropped:
            return None
        message = f"a dropout drops {share_text(most)} in train mode" + (f": {names_text(found)}" if found else "")
        advice = "torch's p is the share that is dropped, not the share that is kept: 0.1 to 0.5 is usual."
        return self.failed(message, advice, where=tuple(found), value=most, limit=self.dropped, severity="warning")

    def _eval_loss(self, subject: Subject) -> float:
        subject.evaluate()
        try:
            with torch.no_grad():
                return float(subject.loss())
        except Exception as error:  # the user's code may raise anything
            raise CannotTell("in eval mode the model returns something that the loss does not accept") from error

    def _after_practice(self, subject: Subject) -> Outcome:
        if not any(p.requires_grad for p in subject.parameters.values()) or len(subject.models) > 1:
            raise CannotTell("there are several models or nothing to train, so the two modes cannot be compared")
        end = time.monotonic() + min(self.seconds, subject.seconds_left / 3)
        losses = Practice(subject).go_on(self.steps, end)
        if not losses:
            raise CannotTell("no training step is possible: see initial-loss and gradient-flow")
        start = losses[0]
        settle(subject)
        with torch.no_grad():
            subject.model.train()
            practised = [float(subject.loss()) for _ in range(DRAWS)]
        settle(subject)
        resting = [self._eval_loss(subject) for _ in range(DRAWS)]
        train, rest = statistics.median(practised), statistics.median(resting)
        if not all(map(math.isfinite, practised)):
            raise CannotTell(f"the loss is not finite after {len(losses)} steps: see numerical-stability")
        finite = all(map(math.isfinite, resting))
        # of models that draw random numbers in both modes
        noise = max(statistics.stdev(practised), statistics.stdev(resting) if finite else 0.0)
        learnt = start - train
        message = (
            f"after {len(losses)} steps the loss is {number_text(train)} in train mode and {number_text(rest)} in "
        )
        message += f"eval mode, from {number_text(start)}"
        if not math.isfinite(train) or learnt <= 0.02 * abs(start):
            raise CannotTell(f"too little was learned in {len(losses)} steps to compare the two modes")
        limit = train + max(self.lost * learnt, 4 * noise)
        if rest > limit and rest - train > 0.05 * abs(start) or math.isnan(rest):
            advice = "Process inputs and outputs the same way in both modes; with small batches, use GroupNorm or "
            advice += "LayerNorm instead of BatchNorm."
            where = tuple(name for name, _ in subject.of_type(BatchNorm))[:3]
            return self.failed(message, advice, where=where, value=rest, limit=limit)
        return self.passed(message, value=rest, limit=limit)


@torch.no_grad()
def settle(subject: Subject) -> None:
    """Recompute the running statistics of BatchNorm as the mean over some passes of the batch."""
    layers = [layer for _, layer in subject.of_type(BatchNorm) if layer.track_running_stats]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    subject.model.train()
    for _ in range(SETTLING if layers else 0):
        subject.loss()


def _shapes(subject: Subject) -> set[tuple[int, ...]]:
    """Shapes of the floating-point inputs, for models that should give a single answer."""
    outputs = subject.outputs
    if outputs is None or subject.kind not in ("classification", "regression"):
        return set()
    found = {tuple(item.shape) for item in tensors(subject.inputs) if item.is_floating_point() and item.dim() > 1}
    return found if tuple(outputs.shape) not in found else set()


def _by_seed(subject: Subject) -> float:
    """How much outputs in eval mode change with the seed."""
    if whole_loss(subject) is not None:
        return 0.0
    return moved_by(answer(subject), answer(subject, number=1))


class Dice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the dropouts that run inside: masks drawn with a probability and divided by it.

    Given the shapes of inputs, it also records other random changes: noise of such a shape, and hand-made masks.
    """

    def __init__(self, shapes: Collection[tuple[int, ...]] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dropouts = 0
        self.disturbances: list[str] = []
        self._shapes = shapes
        self._drawn: list[Tensor] = []
        """Random tensors, recognized by their memory, because what is passed on may be another view."""
        self.most = 0.0
        """The largest share that a dropout drops."""
        self._kept: float | None = None
        """The probability of the mask just drawn."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Inspect the operation, then run it."""
        given = dict(zip((item.name for item in func._schema.arguments), args, strict=False)) | (kwargs or {})
        name, kept = func.__name__, self._kept
        self._kept = given.get("p", 0.5) if name == "bernoulli_.float" else None
        divided = name == "div_.Scalar" and kept is not None and given.get("other") == kept < 1
        fused = name.startswith("native_dropout") and given.get("train") is not False and given.get("p", 0) > 0
        attends = "backward" not in name and isinstance(p := given.get("dropout_p"), float) and p > 0
        self.dropouts += bool(divided or fused or attends)
        if divided and kept is not None:
            self.most = max(self.most, 1 - kept)
        elif fused or attends:
            self.most = max(self.most, given["p"] if fused else given["dropout_p"])
        result = func(*args, **(kwargs or {}))
        if self._shapes and isinstance(result, Tensor):
            self._note(name.partition(".")[0], args, result)
        return result

    def _note(self, name: str, args: Any, result: Tensor) -> None:
        if name in DRAWN:
            self._drawn.append(result)
            if tuple(result.shape) in self._shapes:
                self.disturbances.append("noise of the shape of the inputs is drawn")
        elif name in COMPARED and any(args[0].data_ptr() == item.data_ptr() for item in self._drawn):
            self.disturbances.append("a mask is drawn")
