"""The batch gauge: what the model is fed and what it is asked for, at sampled steps, as a handful of numbers.

Inputs are seen at the model's own door, targets where `loss_fn` is called or where the loop logs its batch. Where
neither is shown, the loss that backward begins with tells what it compares. Scale, constant features,
values that are not finite, class balance, order, and a checksum that shows a batch coming back.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals import answers
from torchdoctor.vitals.attention_ahead import look_ahead
from torchdoctor.vitals.batch_numbers import (
    BINARY,
    ELEMENTWISE,
    FEW_CLASSES,
    IGNORED,
    MOST_CLASSES,
    binary_counts,
    class_counts,
    class_dimension,
    different_rows,
    is_whole,
    output_and_target,
    slope_by_count,
)
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.loss_inputs import Compared, looked_up, parts_compared, sides_of, skipped, what_is_compared
from torchdoctor.vitals.moment import Moment
from torchdoctor.vitals.passes import (
    LARGEST,
    PassGauge,
    checksum,
    content,
    entrances,
    is_compiled,
    is_plain,
    largest,
    part_of,
    plain_tensors,
    rms,
    share_of_zeros,
)
from torchdoctor.vitals.transfer import Slot

LOOKS = 3
"""Samples in which it is asked whether attention looks ahead."""
LEAST_VALUES = 8
"""Values of a sample that are not all the same by chance."""
MOST_CALLS = 4
"""Passes of a step whose inputs are looked at."""
BEYOND = 0.1
"""How far under 0 or above 1 the targets of a binary loss may be: a picture that was resized swings over by less."""
LABELS = ("labels", "label", "targets", "target", "y")


class BatchGauge(PassGauge):
    """Statistics of inputs and targets."""

    def __init__(self, models: Mapping[str, nn.Module], loss_fn: Any, tell: Tell) -> None:
        super().__init__(tell)
        self._models = [model for model in models.values() if getattr(model, "_compiled_call_impl", None) is None]
        self._doors = [door for door in entrances(models) if getattr(door, "_compiled_call_impl", None) is None]
        self._loss_fn = loss_fn if isinstance(loss_fn, nn.Module) and not is_compiled(loss_fn) else None
        self._inputs: weakref.ref[Tensor] | None = None
        self._owner: weakref.ref[Tensor] | None = None
        """The tensor that the inputs are a view of, with all of its rows; else the inputs."""
        self._decoded: weakref.ref[Tensor] | None = None
        """Tokens that a model was given besides its inputs: those that a decoder goes on from."""
        self._saw_inputs = self._saw_targets = False
        self._shown = False
        """Whether the inputs are those that the loop showed, and no model was entered since."""
        self._shown_targets = 0
        """How many targets the loop showed, where the loss was not looked at since."""
        self._blank: Tensor | None = None
        """Which samples of this batch have no content."""
        self._distinct: Tensor | None = None
        """How many samples of this batch are no copies of others."""
        self._unshifted: Tensor | None = None
        """Share of a decoder's tokens that are the labels at their own places."""
        self._looked = 0
        self._size = 0
        """Numbers in the inputs of this batch: how much work it is."""
        self._door = self._calls = 0
        """Which module the inputs entered, and how many different tensors entered it since."""
        self._cuda = any(tensor.is_cuda for model in models.values() for tensor in model.parameters())
        self._entered: Moment | None = None
        """When the batch was there."""
        self._told = False
        """Whether an optimizer has heard of it: what comes before another one's step is no wait."""
        self._counts: Tensor | None = None
        """How often each class was seen at all samples so far."""
        self._now: Tensor | None = None
        """How often in this one."""
        self._moments: Tensor | None = None
        """Number, sum and sum of squares of the float targets of all samples so far, on the device."""

    def arm(self) -> None:
        """Hooks on the models' doors and on the loss."""
        super().arm()
        self._entered, self._told = None, False
        for door in self._doors:
            self.before(door, "begins")
        if self._loss_fn is not None:
            self.before(self._loss_fn, "_asked")
        if len(self._models) == 1:
            self.at_backward()

    def batch_logged(self, tensors: tuple[Tensor, ...]) -> None:
        """The loop shows its batch: inputs first, targets last."""
        self._entered = self._entered or Moment(cuda=self._cuda)  # it is here: what this look takes is no wait
        self.see("_logged", (tensors,))

    def _logged(self, tensors: tuple[Tensor, ...]) -> None:
        if not self._practising:  # what is logged is the training batch, whatever passed before it
            self._practising = True
            self.forget()
        plain = [tensor for tensor in tensors if is_plain(tensor)]
        if plain and not self._saw_inputs:
            self._measure_inputs(plain[0])
            self._shown = True
        if len(plain) > 1 and not self._saw_targets:
            self._measure_targets(plain[-1])
            self._shown_targets = plain[-1].numel()
            if is_whole(plain[-1]) and plain[-1].dim() == 1:
                self._measure_columns(plain[-1])

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A batch enters a model."""
        super().begins(module, args, kwargs)
        self._entered = self._entered or Moment(cuda=self._cuda)
        if not self.learns:
            return
        given = [item for item in plain_tensors((args, kwargs)) if item.dim()]
        if given and not self._saw_inputs:
            self._measure_inputs(given[0])
            if len(given) > 1:  # a condition that is left out, nodes without features: the others say the rest
                for name in ("input_blank", "input_constant", "input_distinct"):
                    self._scalars.pop(name, None)
            others = [item for item in given[1:] if is_whole(item) and item.dim() == 2 and item.shape[1] > 1]
            self._decoded = weakref.ref(others[0]) if others else None
            self._door, self._calls = id(module), 1
        elif given and self._shown:
            self._compare_with(given)
        elif given and id(module) == self._door and len(self._models) == 1:
            self._measure_more(given[0])
        labels = next((kwargs[name] for name in LABELS if is_plain(kwargs.get(name))), None)
        if labels is not None and not self._saw_targets:
            self._measure_targets(labels)
            # The model makes the loss itself: what it compares is seen at backward.
            self._shown_targets = labels.numel()

    def _compare_with(self, given: list[Tensor]) -> None:
        """Targets may be a part of what the loop showed, and are compared with what the model is given of it."""
        self._shown = False
        shown = self._inputs() if self._inputs is not None else None
        if shown is not None and any(item.numel() == shown.numel() for item in given):
            return
        self._inputs = weakref.ref(given[0])
        for name in ("label_in_input", "label_in_another", "target_in_input"):
            self._scalars.pop(name, None)

    def _backward(self, loss: Tensor) -> None:
        self._read_loss(loss)
        decoded = self._decoded() if self._decoded is not None else None
        if decoded is None or self._unshifted is None or "target_is_input" not in self._scalars:
            return
        for tokens in looked_up(loss):  # a model may shift what it is given before it looks at it
            if tokens.shape == decoded.shape:
                told = self._unshifted * (tokens == decoded).all()
                self._scalars["target_is_input"] = torch.maximum(self._scalars["target_is_input"], told)

    def _read_loss(self, loss: Tensor) -> None:
        """A loss that is no module shows what it compares when backward begins, and any where its model looked."""
        inputs = self._inputs() if self._inputs is not None else None
        if self._looked < LOOKS and inputs is not None and is_whole(inputs) and inputs.dim() == 2:
            self._looked += 1
            ahead = look_ahead(loss, inputs.shape[1])
            if ahead is not None:
                self._scalars["attention_ahead"] = ahead
        compared = what_is_compared(loss)
        if compared is not None and isinstance(compared.module, BINARY) and compared.module.weight is None:
            asked = part_of(compared.target)
            self._scalars["binary_outside"] = ((asked < -BEYOND) | (asked > 1 + BEYOND)).float().mean()
        if (sides := sides_of(loss)) is not None and sides[0].numel() <= LARGEST:
            self._scalars["views_same"] = torch.isclose(*sides, rtol=1e-4, atol=1e-6).all()
        if (self._saw_targets and not self._shown_targets) or "guess_loss" in self._scalars:
            return
        self._measure_parts(parts_compared(loss))
        if compared is None or compared.between_outputs:
            return
        if not self._saw_targets or compared.target.numel() == self._shown_targets:
            self._asked(compared.module, (compared.output, compared.target), {}, compared.skipped)

    def _measure_parts(self, parts: list[Compared]) -> None:
        """Of a loss that is a sum of several: the size of the largest targets, and how unequal the parts are."""
        sizes = [rms(part_of(part.target).float()) for part in parts if part.target.is_floating_point()]
        if not sizes or any(getattr(part.module, "reduction", "") != "mean" for part in parts):
            return
        losses = torch.stack([part.module.forward(part.output, part.target).float() for part in parts])
        self._scalars["part_target_size"] = torch.stack(sizes).amax()
        self._scalars["part_loss_ratio"] = losses.amax() / losses.amin().clamp_min(1e-12)

    def _measure_tokens(self, target: Tensor, ignored: int, first: int | None) -> None:
        """Labels of tokens: are they the tokens themselves, padding, the next tokens, or those after the next?"""
        inputs = self._inputs() if self._inputs is not None else None
        if inputs is None or not is_whole(target) or not is_whole(inputs):
            return
        if inputs.numel() == target.numel():
            self._scalars |= answers.in_place(inputs, target, ignored)
            decoded = self._decoded() if self._decoded is not None else None
            if decoded is not None and decoded.numel() == target.numel():  # the inputs have to pass through a code
                labels = target.reshape(decoded.shape)
                forced = decoded[:, 1:] == labels[:, :-1]
                self._scalars["target_is_input"] = self._scalars["target_is_input"] * (forced.float().mean() < 0.99)
                self._unshifted = (decoded == labels).float().mean()
        self._scalars |= answers.along_a_sequence(inputs, target, ignored, first)

    def _measure_columns(self, target: Tensor) -> None:
        """How closely one column of a table, or one place of a picture, follows the label."""
        inputs = self._inputs() if self._inputs is not None else None
        if inputs is not None:
            self._scalars |= answers.in_a_column(inputs, target, self._distinct)

    def _measure_copies(self, target: Tensor) -> None:
        """In how many samples one place of the input holds the very number that is asked for."""
        inputs = self._inputs() if self._inputs is not None else None
        share = None if inputs is None else answers.copied_share(inputs, target)
        if share is not None:
            self._scalars["target_in_input"] = share

    def _asked(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any], first: int | None = None) -> None:
        output, target = output_and_target(args, kwargs)
        if target is None or not self.learns:
            return
        dimension = class_dimension(module, output, target)
        classes = output.shape[dimension] if output is not None and dimension else 0
        if not self._saw_targets:
            self._measure_targets(target, classes, getattr(module, "ignore_index", IGNORED))
        counted = self._shown_targets > 0 and self._now is not None
        self._shown_targets = 0
        if isinstance(module, BINARY) and target.is_floating_point() and len(self._models) == 1 and not counted:
            self._measure_labels(binary_counts(target))  # of each call: one may be of what is true, one of what is not
        if "guess_loss" not in self._scalars:
            self._measure_guess(module, target, classes)
        self._measure_weights(module, classes)
        if output is not None and output.grad_fn is not None:
            first = skipped(output.grad_fn)
        self._measure_tokens(target, getattr(module, "ignore_index", IGNORED), first)
        if classes or isinstance(module, BINARY):
            self._measure_columns(target)
        elif isinstance(module, ELEMENTWISE):
            self._measure_copies(target)

    def _measure_inputs(self, tensor: Tensor) -> None:
        self._saw_inputs = True
        if self._owner is not None:
            self.tell({"data.same_tensor": self._owner() is _owner_of(tensor)})
        if tensor.requires_grad and tensor.is_leaf:
            self.tell({"data.differentiated": True})
        self._inputs, self._owner = weakref.ref(tensor), weakref.ref(_owner_of(tensor))
        self._size = tensor.numel()
        value = part_of(tensor)
        self._scalars["input_checksum"] = checksum(value)
        if value.dim() > 1 and value.shape[0] > 1 and value.shape[0] == tensor.shape[0]:
            self._scalars["input_content"] = content(value)
        if tensor.is_floating_point():
            value = value.float()
            self._scalars["input_mean"] = value.mean()
            self._scalars["input_std"] = value.std(correction=0)
            self._scalars["input_zero"] = share_of_zeros(value)
            self._scalars["input_absmax"] = largest(value)
            self._scalars["input_nonfinite"] = (~torch.isfinite(value)).sum()
            if value.dim() > 1 and value.shape[0] >= 8:
                self._scalars["input_constant"] = (value.amax(0) == value.amin(0)).float().mean()
                rows = value.flatten(1)
                self._distinct = different_rows(rows)
                self._scalars["input_distinct"] = self._distinct / len(rows)
                if rows.shape[1] >= LEAST_VALUES:
                    self._blank = rows.amax(1) == rows.amin(1)
                    self._scalars["input_blank"] = self._blank.float().mean()
        elif is_whole(tensor):
            if value.dim() > 1 and value.shape[0] >= 8 and value[0].numel() >= LEAST_VALUES:
                self._scalars["input_constant"] = (value.amax(0) == value.amin(0)).float().mean()
            counts = class_counts(value, 0)
            self._scalars["token_top_share"] = counts.amax() / counts.sum().clamp_min(1)

    def _measure_more(self, tensor: Tensor) -> None:
        """What a model is given besides in the same step: samples without labels, the next state of a game.

        The inputs are the same again, or all alike, only where these are too.
        """
        seen = self._inputs() if self._inputs is not None else None
        if tensor is seen or tensor.grad_fn is not None or "input_checksum" not in self._scalars:
            return
        self._calls += 1
        if self._calls > MOST_CALLS:
            return
        value = part_of(tensor)
        self._scalars["input_checksum"] = self._scalars["input_checksum"] + checksum(value)
        for name in ("input_content", "input_distinct"):
            self._scalars.pop(name, None)
        if "input_constant" in self._scalars and value.dim() > 1:
            same = (value.amax(0) == value.amin(0)).float().mean()
            self._scalars["input_constant"] = torch.minimum(self._scalars["input_constant"], same)

    def _measure_guess(self, module: nn.Module, target: Tensor, classes: int) -> None:
        """What a guess by all that was seen so far would have cost on this very batch, to compare the loss with."""
        if getattr(module, "reduction", "") != "mean" or getattr(module, "label_smoothing", 0):
            return
        if isinstance(module, ELEMENTWISE) and target.is_floating_point() and self._moments is not None:
            if getattr(module, "weight", None) is not None or getattr(module, "pos_weight", None) is not None:
                return
            mean = self._moments[1] / self._moments[0]
            if isinstance(module, nn.BCEWithLogitsLoss):
                mean = torch.logit(mean, 1e-6)
            known = part_of(target).float()
            self._scalars["guess_loss"] = module.forward(mean.expand_as(known), known)
            return
        if self._counts is None or self._now is None or classes < 2:
            return
        if isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss) and module.weight is None:
            counts, now = self._counts[:classes], self._now[:classes]
            shares = (counts + 1) / (counts + 1).sum()
            self._scalars["guess_loss"] = -(now * shares.log()).sum() / now.sum().clamp_min(1)

    def _measure_weights(self, module: nn.Module, classes: int) -> None:
        """The weight that the loss gives the most common class, against the mean of what it gives the others."""
        counts, weights = self._counts, getattr(module, "weight", None)
        if isinstance(module, nn.BCEWithLogitsLoss):
            weights = getattr(module, "pos_weight", None)
            weights = None if weights is None else torch.stack([weights.new_ones(()), weights.mean()])
        if counts is None or weights is None or not is_plain(weights) or weights.dim() != 1:
            return
        counts = counts[: max(classes, 2)]
        if counts.shape == weights.shape and counts.device == weights.device:
            most = counts.argmax().reshape(1)
            rest = counts.scatter(0, most, 0.0)
            others = (rest * weights).sum() / rest.sum()
            self._scalars["weight_of_common"] = weights.gather(0, most)[0] / others
            if counts.numel() >= FEW_CLASSES:
                self._scalars["weight_by_count"] = slope_by_count(counts, weights)

    def _measure_targets(self, tensor: Tensor, classes: int = 0, ignored: int = IGNORED) -> None:
        self._saw_targets = True
        self._now = None
        self._compare_blanks(tensor)
        if is_whole(tensor):
            if classes <= MOST_CLASSES:
                counts = class_counts(tensor, classes)
                if 0 <= ignored < counts.numel():
                    inputs = self._inputs() if self._inputs is not None else None
                    if inputs is not None and inputs.dim() > 1 and inputs.shape[:1] == tensor.shape:  # one a sample
                        self._scalars["label_ignored"] = counts[ignored] / counts.sum().clamp_min(1)
                    counts[ignored] = 0
                self._now = counts
                self._measure_labels(counts)
        elif tensor.is_floating_point():
            value = part_of(tensor).float()
            self._scalars["target_mean"] = value.mean()
            self._scalars["target_std"] = value.std(correction=0)
            low, high = value.aminmax()
            self._scalars["target_min"], self._scalars["target_max"] = low, high
            self._scalars["target_two_valued"] = ((value == low) | (value == high)).all().float()
            self._scalars["target_whole"] = (value == value.round()).all().float()
            self._scalars["target_absmax"] = largest(value)
            self._scalars["target_nonfinite"] = (~torch.isfinite(value)).sum()
            here = torch.stack([torch.ones_like(value.flatten()[0]), value.mean(), value.square().mean()])
            self._moments = here if self._moments is None else self._moments + here
            number, total, squares = self._moments.unbind()
            self._scalars["pooled_std"] = (squares / number - (total / number).square()).clamp_min(0).sqrt()

    def _compare_blanks(self, target: Tensor) -> None:
        """Blank samples that all ask for the same answer are meant: a slice outside the body, a message of no word."""
        blank, share = self._blank, self._scalars.get("input_blank")
        if blank is None or share is None or target.shape[:1] != blank.shape or target.numel() > LARGEST:
            return
        asked, mask = target.detach().reshape(blank.numel(), -1).float(), blank.unsqueeze(1)
        lowest, highest = asked.masked_fill(~mask, math.inf).amin(0), asked.masked_fill(~mask, -math.inf).amax(0)
        self._scalars["input_blank"] = share * (highest > lowest).any()

    def _measure_labels(self, counts: Tensor) -> None:
        if self._counts is None or self._counts.shape != counts.shape or self._counts.device != counts.device:
            self._counts = torch.zeros_like(counts)
        self._counts = self._counts + counts
        for prefix, numbers in (("target", counts), ("pooled", self._counts)):
            total = numbers.sum().clamp_min(1)
            shares = numbers / total
            self._scalars[f"{prefix}_classes"] = (numbers > 0).sum()
            self._scalars[f"{prefix}_top_share"] = shares.amax()
            self._scalars[f"{prefix}_entropy"] = -(shares * shares.clamp_min(1e-30).log()).sum()
            # The chance that two of them are of one class: unlike an entropy, unbiased in a small batch.
            self._scalars[f"{prefix}_collision"] = (numbers * (numbers - 1)).sum() / (total * (total - 1)).clamp_min(1)

    def forget(self) -> None:
        """Drop what was measured in this step."""
        super().forget()
        self._saw_inputs = self._saw_targets = self._shown = False
        self._shown_targets = 0
        self._blank = self._distinct = self._unshifted = None

    def before_step(self, index: int, slot: Slot) -> None:
        """Hand over, and say when the batch arrived: the monitor knows when the step before had ended."""
        super().before_step(index, slot)
        if self._size:
            slot.add("input_size", self._size)
            self._size = 0
        if self._entered is not None and not self._told:
            slot.facts["entered"], self._told = self._entered, True


def _owner_of(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of, with all of its rows: the loop keeps it, and reads nothing anew."""
    base = tensor._base
    return base if base is not None and base.shape[:1] == tensor.shape[:1] else tensor
