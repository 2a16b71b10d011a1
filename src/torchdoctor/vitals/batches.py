"""The batch gauge: a few numbers about inputs and targets at sampled steps.

Inputs are seen when they enter the model, targets when `loss_fn` is called or when the loop logs its batch. If neither
happens, the loss that backward starts from shows what it compares. The numbers cover scale, constant features,
non-finite values, class balance, order, and a checksum that recognizes a repeated batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals import answers
from torchdoctor.vitals.attention_ahead import look_ahead
from torchdoctor.vitals.attention_fixed import share_of_fixed
from torchdoctor.vitals.batch_numbers import (
    BINARY,
    ELEMENTWISE,
    IGNORED,
    MOST_CLASSES,
    binary_counts,
    class_counts,
    class_dimension,
    is_whole,
    output_and_target,
)
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.input_numbers import blanks_that_matter, constant_share, input_numbers
from torchdoctor.vitals.loss_inputs import looked_up, part_numbers, parts_compared, sides_of, skipped, what_is_compared
from torchdoctor.vitals.moment import Moment
from torchdoctor.vitals.passes import (
    LARGEST,
    PassGauge,
    checksum,
    entrances,
    is_compiled,
    is_plain,
    part_of,
    plain_tensors,
)
from torchdoctor.vitals.targets_so_far import TargetsSoFar
from torchdoctor.vitals.transfer import Slot

LOOKS = 3
"""Samples in which attention is read from the graph of the loss; sharpness is read after findings too."""
MOST_CALLS = 4
"""Passes of a step whose inputs are looked at."""
BEYOND = 0.1
"""How far below 0 or above 1 the targets of a binary loss may be: resizing an image overshoots by less."""
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
        """The tensor that the inputs are a view of, if that has all of its rows; else the inputs."""
        self._decoded: weakref.ref[Tensor] | None = None
        """Tokens that a model gets besides its inputs, such as those of a decoder."""
        self._saw_inputs = self._saw_targets = False
        self._shown = False
        """Whether the loop showed these inputs and no model was entered since."""
        self._shown_targets = 0
        """Number of targets that the loop showed, until the loss is looked at."""
        self._blank: Tensor | None = None
        """Which samples of this batch have no content."""
        self._distinct: Tensor | None = None
        """Number of distinct samples in this batch."""
        self._unshifted: Tensor | None = None
        """Share of a decoder's tokens that equal the labels at their own positions."""
        self._looked = self._judged = 0
        self._size = 0
        """Numbers in the inputs of this batch: a measure of its work."""
        self._door = self._calls = 0
        """The module that the inputs entered, and how many different tensors entered it since."""
        self._cuda = any(tensor.is_cuda for model in models.values() for tensor in model.parameters())
        self._entered: Moment | None = None
        """When the batch arrived."""
        self._told = False
        """Whether an optimizer has got this time: time before another optimizer's step is not waiting."""
        self._asked_so_far = TargetsSoFar()

    def arm(self) -> None:
        """Put hooks on the models' entrances and on the loss."""
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
        self._entered = self._entered or Moment(cuda=self._cuda)  # the time this look takes is not waiting
        self.see("_logged", (tensors,))

    def _logged(self, tensors: tuple[Tensor, ...]) -> None:
        if not self._practising:  # the logged batch is the training batch, whatever passes came before
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
            if len(given) > 1:  # one of several inputs may well be blank or constant
                for name in ("input_blank", "input_constant", "input_distinct"):
                    self._scalars.pop(name, None)
            answers_given = [id(item) for name, item in kwargs.items() if name.startswith(("label", "target"))]
            others = [item for item in given[1:] if is_whole(item) and item.dim() == 2 and item.shape[1] > 1]
            others = [item for item in others if id(item) not in answers_given]
            self._decoded = weakref.ref(others[0]) if others else None
            self._door, self._calls = id(module), 1
        elif given and self._shown:
            self._compare_with(given)
        elif given and id(module) == self._door and len(self._models) == 1:
            self._measure_more(given[0])
        labels = next((kwargs[name] for name in LABELS if is_plain(kwargs.get(name))), None)
        if labels is not None and not self._saw_targets:
            self._measure_targets(labels)
            # The model computes the loss itself: backward shows what it compares.
            self._shown_targets = labels.numel()

    def _compare_with(self, given: list[Tensor]) -> None:
        """Targets may be part of the shown batch: compare them with what the model gets of it."""
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
        for tokens in looked_up(loss):  # a model may shift its tokens before looking them up
            if tokens.shape == decoded.shape:
                told = self._unshifted * (tokens == decoded).all()
                self._scalars["target_is_input"] = torch.maximum(self._scalars["target_is_input"], told)

    def _read_loss(self, loss: Tensor) -> None:
        """When backward begins, read from the loss what it compares and how attention looks."""
        inputs = self._inputs() if self._inputs is not None else None
        if self._looked < LOOKS and inputs is not None and is_whole(inputs) and inputs.dim() == 2:
            self._looked += 1
            ahead = look_ahead(loss, inputs.shape[1])
            if ahead is not None:
                self._scalars["attention_ahead"] = ahead
        if self._judged < LOOKS or self.hastened:
            self._judged += 1
            fixed = share_of_fixed(loss)
            if fixed is not None:
                self._scalars["attention_fixed"] = fixed
        compared = what_is_compared(loss)
        if compared is not None and isinstance(compared.module, BINARY) and compared.module.weight is None:
            asked = part_of(compared.target)
            self._scalars["binary_outside"] = ((asked < -BEYOND) | (asked > 1 + BEYOND)).float().mean()
        if (sides := sides_of(loss)) is not None and sides[0].numel() <= LARGEST:
            self._scalars["views_same"] = torch.isclose(*sides, rtol=1e-4, atol=1e-6).all()
        if (self._saw_targets and not self._shown_targets) or "guess_loss" in self._scalars:
            return
        self._scalars |= part_numbers(parts_compared(loss))
        if compared is None or compared.between_outputs:
            return
        if not self._saw_targets or compared.target.numel() == self._shown_targets:
            self._asked(compared.module, (compared.output, compared.target), {}, compared.skipped)

    def _measure_tokens(self, target: Tensor, ignored: int, first: int | None) -> None:
        """Token labels: are they the tokens themselves, padding, the next tokens, or those after the next?"""
        inputs = self._inputs() if self._inputs is not None else None
        if inputs is None or not is_whole(target) or not is_whole(inputs):
            return
        decoded = self._decoded() if self._decoded is not None else None
        if inputs.numel() == target.numel():
            self._scalars |= answers.in_place(inputs, target, ignored)
            if decoded is not None and decoded.numel() == target.numel():  # an autoencoder: inputs pass through a code
                labels = target.reshape(decoded.shape)
                forced = decoded[:, 1:] == labels[:, :-1]
                self._scalars["target_is_input"] = self._scalars["target_is_input"] * (forced.float().mean() < 0.99)
                self._unshifted = (decoded == labels).float().mean()
        self._scalars |= answers.along_a_sequence(inputs, target, ignored, first, decoded)

    def _measure_columns(self, target: Tensor) -> None:
        """Measure how closely one column of a table, or one place of an image, follows the label."""
        inputs = self._inputs() if self._inputs is not None else None
        if inputs is not None:
            self._scalars |= answers.in_a_column(inputs, target, self._distinct)

    def _measure_copies(self, target: Tensor) -> None:
        """Measure in how many samples one place of the input holds exactly the target number."""
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
        counted = self._shown_targets > 0 and self._asked_so_far.now is not None
        self._shown_targets = 0
        if isinstance(module, BINARY) and target.is_floating_point() and len(self._models) == 1 and not counted:
            # Count each call: one may have the real samples, another the fake ones.
            self._scalars |= self._asked_so_far.add_labels(binary_counts(target))
        if "guess_loss" not in self._scalars:
            self._scalars |= self._asked_so_far.guess(module, target, classes)
        self._scalars |= self._asked_so_far.weights(module, classes)
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
        numbers = input_numbers(tensor)
        self._scalars |= numbers.vitals
        self._distinct = self._distinct if numbers.distinct is None else numbers.distinct
        self._blank = self._blank if numbers.blank is None else numbers.blank

    def _measure_more(self, tensor: Tensor) -> None:
        """Include further inputs of the same step: unlabeled samples, the next state of a game.

        The inputs repeat, or are all equal, only if these do and are too.
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
            same = constant_share(value)
            self._scalars["input_constant"] = torch.minimum(self._scalars["input_constant"], same)

    def _measure_targets(self, tensor: Tensor, classes: int = 0, ignored: int = IGNORED) -> None:
        self._saw_targets = True
        self._asked_so_far.now = None
        if self._blank is not None and "input_blank" in self._scalars:
            self._scalars["input_blank"] = blanks_that_matter(self._scalars["input_blank"], self._blank, tensor)
        if is_whole(tensor):
            if classes <= MOST_CLASSES:
                counts = class_counts(tensor, classes)
                if 0 <= ignored < counts.numel():
                    inputs = self._inputs() if self._inputs is not None else None
                    if inputs is not None and inputs.dim() > 1 and inputs.shape[:1] == tensor.shape:  # one per sample
                        self._scalars["label_ignored"] = counts[ignored] / counts.sum().clamp_min(1)
                    counts[ignored] = 0
                self._asked_so_far.now = counts
                self._scalars |= self._asked_so_far.add_labels(counts)
        elif tensor.is_floating_point():
            self._scalars |= self._asked_so_far.add_numbers(tensor)

    def forget(self) -> None:
        """Drop what was measured in this step."""
        super().forget()
        self._saw_inputs = self._saw_targets = self._shown = False
        self._shown_targets = 0
        self._blank = self._distinct = self._unshifted = None

    def before_step(self, index: int, slot: Slot) -> None:
        """Hand over the numbers and the batch's arrival time: the monitor knows when the step before ended."""
        super().before_step(index, slot)
        if self._size:
            slot.add("input_size", self._size)
            self._size = 0
        if self._entered is not None and not self._told:
            slot.facts["entered"], self._told = self._entered, True


def _owner_of(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of, if it has all of its rows: the loop keeps it and loads no new data."""
    base = tensor._base
    return base if base is not None and base.shape[:1] == tensor.shape[:1] else tensor
