"""The output gauge: what enters the loss, at sampled steps.

If `loss_fn` is a module, outputs are seen together with their targets; else the model's own output is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.batch_numbers import (
    BINARY,
    ELEMENTWISE,
    IGNORED,
    MOST_CLASSES,
    class_counts,
    class_dimension,
    is_whole,
    output_and_target,
)
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.loss_inputs import difference_of, is_attraction, what_is_compared
from torchdoctor.vitals.passes import LARGEST, PassGauge, deviation, is_compiled, largest, part_of, plain_tensors, rms
from torchdoctor.vitals.transfer import Slot

SHORTEST = 6
"""Minimum length of a series for comparing its last position with others."""
FEWEST = 8
"""Minimum samples, and values per sample, for measuring directions."""


class OutputGauge(PassGauge):
    """Scale of the outputs, how much they depend on the input, and what they predict."""

    def __init__(self, models: Mapping[str, nn.Module], loss_fn: Any, tell: Tell) -> None:
        super().__init__(tell)
        self._models = {
            model: name for name, model in models.items() if getattr(model, "_compiled_call_impl", None) is None
        }
        self._loss_fn = loss_fn if isinstance(loss_fn, nn.Module) and not is_compiled(loss_fn) else None
        self._asked = False
        """Whether the loss was called in this sample."""
        self._trusted = self._loss_fn is not None
        """Whether the loss is called at all: if not, the model's output is used."""
        self._returned: set[nn.Module] = set()
        self._tokens: Tensor | None = None
        """The token sequences of this step, if inputs are tokens."""
        self._series: Tensor | None = None
        """The inputs of this step, if they are numeric series."""
        self._made: Tensor | None = None
        """The model's output for them."""

    def arm(self) -> None:
        """Put hooks on the loss and on the models."""
        super().arm()
        if self._loss_fn is not None:
            self.before(self._loss_fn, "_compares")
            self.after(self._loss_fn, "_judged")
        for model in self._models:
            self.before(model, "begins")
        for model in self._models:  # from the first sample on: a later hook makes a compiler start over
            self.after(model, "_returns")
        self.at_backward()

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A batch enters a model: keep tokens or series for this step, to compare positions."""
        super().begins(module, args, kwargs)
        tensor = next((item for item in plain_tensors((args, kwargs)) if item.dim()), None)
        if self.learns and tensor is not None:
            self._tokens = tensor if is_whole(tensor) and tensor.dim() == 2 and tensor.shape[1] > 3 else None
            self._series = tensor if tensor.is_floating_point() and tensor.dim() in (2, 3) else None

    def _returns(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._series is not None and self.learns:
            self._made = next((item.detach() for item in plain_tensors(output) if item.is_floating_point()), None)
        several = len(self._models) > 1
        if module in self._returned or not self.learns or (self._trusted and not several):
            return
        tensor = next((item for item in plain_tensors(output) if item.is_floating_point() and item.dim()), None)
        if tensor is None:
            return
        self._returned.add(module)
        if several and tensor.shape[0] > 1:  # the last state of an RNN has its layers first
            value = part_of(tensor).float()
            self._scalars[f"output_spread/{self._models[module]}"] = deviation(value) / rms(value).clamp_min(1e-30)
        if not self._trusted and len(self._returned) == 1:
            self._measure(tensor)
            self._measure_directions(tensor)
            if 2 <= tensor.dim() <= 3 and tensor.shape[-1] > 1:
                self.tell({"outputs.classes": tensor.shape[-1]})
                self._measure_predictions(tensor.movedim(-1, 1))

    def _compares(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        if self._asked or not self.learns:
            return
        output, target = output_and_target(args, kwargs)
        if output is None:
            return
        self._asked = self._trusted = True
        self._measure(output)
        if target is None:
            return
        if isinstance(module, ELEMENTWISE) and output.shape[1:] != target.shape[1:]:
            self.tell({"loss.shapes": [list(output.shape), list(target.shape)]})
        dimension = class_dimension(module, output, target)
        if dimension:
            self._measure_predictions(output.movedim(dimension, 1), target, getattr(module, "ignore_index", IGNORED))
        else:
            self._measure_sides(module, output)
            self._measure_errors(output, target)
        self.tell(_chance(module, output, target))

    def _backward(self, loss: Tensor) -> None:
        """A loss that is not a module shows what it compares when backward begins."""
        compared = None if self._asked or "criterion" in self._scalars else what_is_compared(loss)
        if compared is None:
            self._measure_difference(loss)
            if not self._asked and is_attraction(loss):
                self.tell({"loss.between_outputs": True})
            return
        module, output, target, between, *_ = compared
        if between:
            self.tell({"loss.between_outputs": True})
        if between or len(self._models) > 1:
            return
        dimension = class_dimension(module, output, target)
        if dimension:  # these are log-probabilities: the returned output shows the scale better
            self._measure_predictions(output.movedim(dimension, 1), target, getattr(module, "ignore_index", IGNORED))
            self._scalars.pop("logit_drift", None)
        elif isinstance(module, ELEMENTWISE):
            self._measure(output)
            self._measure_sides(module, output)
            self._measure_errors(output, target)
        value = module.forward(output, target)
        if value.numel() == 1:  # with one value per sample, the loop reduces them itself
            self._scalars["criterion"] = value
        self.tell(_chance(module, output, target))

    def _measure_sides(self, module: nn.Module, output: Tensor) -> None:
        """On which side of the decision threshold the outputs of a binary loss are."""
        if isinstance(module, BINARY) and len(self._models) == 1:
            value = part_of(output)
            share = (value > (0.5 if isinstance(module, nn.BCELoss) else 0.0)).float().mean()
            self._scalars["prediction_top_share"] = torch.maximum(share, 1 - share)

    def _judged(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if "criterion" not in self._scalars and self.learns:
            value = next(plain_tensors(output), None)
            if value is not None and value.numel() == 1:
                self._scalars["criterion"] = value.detach().clone()

    def _measure(self, output: Tensor) -> None:
        value = part_of(output).float()
        size = rms(value)
        self._scalars["output_rms"] = size
        self._scalars["output_absmax"] = largest(value)
        if value.shape[0] > 1:
            self._scalars["output_std"] = deviation(value)
            self._scalars["output_spread"] = self._scalars["output_std"] / size.clamp_min(1e-30)

    def _measure_directions(self, output: Tensor) -> None:
        """How much directions of outputs differ: 0 if they differ in length only, as collapsed embeddings may."""
        rows = part_of(output).float().flatten(1) if output.dim() > 1 else output[:, None]
        if rows.shape[0] >= FEWEST and rows.shape[1] >= FEWEST:
            mean = nn.functional.normalize(rows, dim=1).mean(0)
            self._scalars["output_directions"] = 1 - mean.square().sum()

    def _measure_predictions(self, output: Tensor, target: Tensor | None = None, ignored: int = IGNORED) -> None:
        """Measure class scores, in dimension 1; the loss leaves out labels that are `ignored`."""
        classes = output.shape[1]
        rows = output.detach().movedim(1, -1).reshape(-1, classes)[: max(1, LARGEST // classes)].float()
        if classes <= MOST_CLASSES:
            counts = class_counts(rows.argmax(1), classes)
            self._scalars["prediction_top_share"] = counts.amax() / counts.sum().clamp_min(1)
        if target is None:
            return
        sums = torch.logsumexp(rows, 1)
        self._scalars["logit_drift"] = sums.mean()
        labels = target.detach().flatten()[: rows.shape[0]]
        known = (labels >= 0) & (labels < classes) & (labels != ignored)
        chosen = rows.gather(1, labels.clamp(0, classes - 1)[:, None].long())[:, 0]
        likelihood = chosen - sums
        self._scalars["target_probability"] = (likelihood.exp() * known).sum() / known.sum().clamp_min(1)
        tokens = self._tokens
        if tokens is not None and tokens.numel() == target.numel() and rows.shape[0] >= 4 * tokens.shape[1]:
            tokens = tokens[: rows.shape[0] // tokens.shape[1]]
            parts = (part[: tokens.numel()].view(tokens.shape) for part in (likelihood, labels, known))
            self._measure_positions(tokens, *parts)
        probable = (rows >= 0).all() & ((rows.sum(1) - 1).abs() < 1e-3).all()
        self._scalars["output_probability"] = probable.float()

    def _measure_positions(self, tokens: Tensor, likelihood: Tensor, labels: Tensor, known: Tensor) -> None:
        """The loss at the last position, whose answer is in no input, and at all positions before it.

        Only for next-token tasks whose last position is not mostly padding, which the loss may ignore.
        """
        follows = (tokens[:, 1:] == labels[:, :-1]) | ~known[:, :-1]
        ends = labels[:, -1]
        known = known & (follows.float().mean() > 0.9) & ((ends == ends.roll(1)).float().mean() < 0.25)
        for vital, part in (("last_position_loss", slice(-1, None)), ("other_position_loss", slice(0, -1))):
            counted = known[:, part]
            self._scalars[vital] = -(likelihood[:, part] * counted).sum() / counted.sum()

    def _measure_difference(self, loss: Tensor) -> None:
        """A loss of the size of a difference: the difference and the output give the target."""
        made = self._made
        if made is None or self._asked or len(self._models) > 1:
            return
        difference = difference_of(loss)
        if difference is not None and difference.shape == made.shape:
            self._measure_errors(made, made - difference)
            self._measure_errors(made, made + difference)

    def _measure_errors(self, output: Tensor, target: Tensor) -> None:
        """The error at the last position of a series whose next values are the targets, and in the rest's later half.

        The answer of the last position is in no input, but it has the longest past: a causal model is not worse there.
        """
        given, series = self._series, target.detach().squeeze()
        if given is None or output.shape != target.shape or given.shape[0] != target.shape[0]:
            return
        given, made = given.squeeze(), output.detach().squeeze()
        if given.shape != series.shape or series.dim() not in (2, 3) or series.shape[0] < 2:
            return
        for time in range(1, series.dim()):
            length = series.shape[time]
            if length < SHORTEST or series.numel() < FEWEST * length:
                continue
            apart = (given.narrow(time, 1, length - 1) - series.narrow(time, 0, length - 1)).abs()
            known = apart < 1e-4 * series.abs().amax()
            follows = torch.where(known.float().mean() > 0.99, 1.0, torch.nan)  # else there is nothing to compare
            errors, later = (made - series).float().square(), length // 2
            parts = errors.narrow(time, length - 1, 1), errors.narrow(time, later, length - 1 - later)
            for vital, part in zip(("last_position_error", "other_position_error"), parts, strict=True):
                found = part.mean() * follows
                before = self._scalars.get(vital, found)
                self._scalars[vital] = torch.where(before.isnan(), found, before)

    def forget(self) -> None:
        """Drop what was measured in this step."""
        super().forget()
        self._asked, self._returned, self._tokens = False, set(), None
        self._series = self._made = None

    def before_step(self, index: int, slot: Slot) -> None:
        """Hand over; a loss that was not called in a whole sample is not the loop's loss."""
        super().before_step(index, slot)
        self._trusted = self._trusted and (self._asked or len(self._models) > 1)


def _chance(module: nn.Module, output: Tensor, target: Tensor) -> dict[str, Any]:
    """The chance level of the loss, if the kind of loss determines it, and facts about the loss function."""
    facts: dict[str, Any] = {"loss.function": type(module).__name__}
    reduction = getattr(module, "reduction", None)
    if reduction in ("mean", "sum"):
        facts["loss.reduction"] = reduction
    if smoothing := getattr(module, "label_smoothing", 0.0):
        facts["loss.label_smoothing"] = smoothing
    dimension = class_dimension(module, output, target)
    if dimension:
        facts["loss.classes"] = output.shape[dimension]
        if isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss) and reduction == "mean":
            facts["loss.chance"] = math.log(output.shape[dimension])
    elif isinstance(module, nn.BCEWithLogitsLoss) and reduction == "mean" and module.pos_weight is None:
        facts["loss.chance"] = math.log(2)
    return facts
