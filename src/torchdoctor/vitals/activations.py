"""The activation gauge: statistics of each module's output at sampled steps.

Modules are numbered in the order in which the first sampled pass ran them, so a row reads from input to output. Some
things cannot be seen, and the gauge says so: a compiled module hides its children, a recurrent layer its gates, and an
activation that is called as a function (`F.relu`, `torch.tanh`) is visible only as the input of the next layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.graph_nodes import SHAPING, node_name, parents_of
from torchdoctor.vitals.layer_statistics import (
    Units,
    attention_logits,
    relative_entropy,
    rows_are_equal,
    saturated_gates,
    share_at_extremes,
)
from torchdoctor.vitals.passes import (
    PassGauge,
    entrances,
    is_compiled,
    is_plain,
    largest,
    part_of,
    plain_tensors,
    rms,
    share_of_zeros,
    spread,
)
from torchdoctor.vitals.transfer import Part, Slot

MOST_MODULES = 256
SILENT = (nn.Identity, nn.Flatten, nn.Unflatten, nn.modules.dropout._DropoutNd, nn.modules.loss._Loss)
"""Leaf modules whose output adds no information."""
ZEROING = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardshrink, nn.Softshrink)
WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear)
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
SQUASHING = ("Tanh", "Sigmoid")
"""Functions with two extremes, by their autograd names."""
SHAPED = 4
"""Maximum number of reshaping nodes between a layer, such a function and the next layer."""
ENTRIES = 256
"""Rows of an embedding table in which its columns are compared."""
LOOKS_AT_WEIGHTS = 16
"""Samples of a run at which rows of weights are compared: symmetry is there from the start or never."""
DROWNED = 10.0
"""Multiple of every layer's output that a concatenated input must exceed to count as mostly raw values."""


class ActivationGauge(PassGauge):
    """Root mean square, largest value, zeros, dead units, saturation and dependence on the input, by module."""

    def __init__(self, models: Mapping[str, nn.Module], tell: Tell) -> None:
        super().__init__(tell)
        self._entrances = entrances(models)
        self._parts = set(self._entrances) - set(models.values())
        """What the loop calls instead of a model without a forward pass of its own."""
        self._watched: dict[nn.Module, str] = {}
        self._left_out = 0
        self._hidden: list[str] = []
        for prefix, model in models.items():
            self._walk(prefix, model)
        self._order: dict[nn.Module, int] = {}
        self._seen: dict[nn.Module, dict[str, Tensor]] = {}
        self._places: dict[nn.Module, int] = {}
        self._makers: dict[int, nn.Module] = {}
        """Modules of this pass by the sequence number of their output's node: numbers keep no graph alive."""
        self._squashed: dict[nn.Module, str] = {}
        self._widths: dict[nn.Module, int] = {}
        self._outputs = {model for model in models.values() if model in self._watched}
        self._units: dict[nn.Module, Units] = {}
        self._functional = not any(isinstance(module, ZEROING) for module in self._watched)
        self._runs: dict[nn.Module, int] = {}
        self._samples = 0
        self._inside = 0
        self._models = tuple(models.values())
        self._all_learn = False
        """Whether no parameter is frozen: after frozen layers, a tensor without gradient may not be a raw input."""
        self._beside: Tensor | None = None
        """RMS of the last layer's input, if that was a raw input."""

    def _walk(self, name: str, module: nn.Module) -> None:
        if is_compiled(module):
            self._hidden.append(name or type(module).__name__)
            return
        children = list(module.named_children())
        if children and not isinstance(module, nn.MultiheadAttention):
            wrapped = type(module).__name__ in ("DistributedDataParallel", "DataParallel")
            for child_name, child in children:
                self._walk(name if wrapped else ".".join(part for part in (name, child_name) if part), child)
        elif module in self._watched or isinstance(module, SILENT):
            return
        elif len(self._watched) >= MOST_MODULES:
            self._left_out += 1
        else:
            self._watched[module] = name or type(module).__name__

    def arm(self) -> None:
        """Put hooks on the watched modules, and on the models to know when a training pass begins and ends."""
        super().arm()
        if self._samples == 0:
            hidden = {"activations.hidden": self._hidden} if self._hidden else {}
            missing = {"activations.left_out": self._left_out} if self._left_out else {}
            if hidden or missing:
                self.tell(hidden | missing)
        self._inside = 0
        self._all_learn = all(item.requires_grad for model in self._models for item in model.parameters())
        for module in self._watched:
            self.after(module, "_passed")
        for model in self._entrances:
            if (model not in self._watched or model in self._parts) and not is_compiled(model):
                self.before(model, "begins")
                self.after(model, "_ends")

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A model's forward pass begins."""
        super().begins(module, args, kwargs)
        self._inside += self.learns
        if self._samples == 0 and module in self._parts:  # what enters the next part is not a final output
            entering = {tensor.data_ptr() for tensor in plain_tensors(args)}
            self._outputs -= {known for known, place in self._places.items() if place in entering}

    def _ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self.learns:
            return
        self._inside = max(0, self._inside - 1)
        if self._samples == 0:
            places = {place: module for module, place in self._places.items()}
            results = [places.get(tensor.data_ptr()) for tensor in plain_tensors(output)]
            self._outputs |= {result for result in results if result is not None}

    def _passed(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._samples == 0 and (self._inside or self.learns):
            self._runs[module] = self._runs.get(module, 0) + 1
        # A checkpointed block runs its first forward without gradients: the enclosing pass decides.
        if module in self._seen or not (self._inside or self.learns):
            return
        tensor = next((item for item in plain_tensors(output) if item.is_floating_point() and item.dim() > 1), None)
        if tensor is None:
            return
        value = part_of(tensor).float()
        size = rms(value)
        measured = {"act_rms": size, "act_absmax": largest(value)}
        if value.shape[0] > 1:
            measured["act_spread"] = spread(value, size)
        self._measure_kind(module, inputs, output, value, measured)
        if self._samples < LOOKS_AT_WEIGHTS:
            self._measure_weights(module, measured)
        if not self._seen:
            self._measure_entry(inputs)
        else:
            self._measure_side_entry(module, inputs)
            self._measure_squashed(inputs)
        self._seen[module] = measured
        if tensor.grad_fn is not None:
            self._makers[tensor.grad_fn._sequence_nr()] = module
        self._widths[module] = value.shape[1 if value.dim() > 3 else -1]
        self._places[module] = tensor.data_ptr()

    def _measure_weights(self, module: nn.Module, measured: dict[str, Tensor]) -> None:
        # Accessing a parametrized weight recomputes it, which may draw random numbers or change counters.
        weight = module._parameters.get("weight_hh_l0" if isinstance(module, nn.RNNBase) else "weight")
        if weight is None or not weight.requires_grad:
            return
        same = None
        if isinstance(module, (*WEIGHTED, nn.RNNBase)):
            same = rows_are_equal(weight)
        elif isinstance(module, nn.Embedding):
            same = rows_are_equal(weight[:ENTRIES].T)  # the units of an embedding are its columns
        if same is not None:
            measured["weight_same"] = same

    def _measure_squashed(self, inputs: Any) -> None:
        """Share of an earlier layer's values that a tanh or sigmoid called as a function puts at its extremes."""
        tensor = next(plain_tensors(inputs), None)
        node = None if tensor is None else self._past_shapes(tensor.grad_fn)
        kind = node_name(node)
        if node is None or kind not in SQUASHING or node._sequence_nr() in self._makers:  # modules see their own
            return
        maker = self._past_shapes(next(parents_of(node), None))
        layer = None if maker is None else self._makers.get(maker._sequence_nr())
        if tensor is None or layer is None or "act_saturated" in self._seen[layer]:
            return
        value = part_of(tensor).float()
        self._seen[layer]["act_saturated"] = share_at_extremes(value, kind)
        self._squashed.setdefault(layer, kind)

    def _past_shapes(self, node: Any) -> Any:
        """Follow reshaping nodes back to the node that computed the values, or to the last node of a watched layer."""
        for _ in range(SHAPED):
            if node is None or node_name(node) not in SHAPING or node._sequence_nr() in self._makers:
                break
            node = next(parents_of(node), None)
        return node

    def _measure_kind(
        self, module: nn.Module, inputs: Any, output: Any, value: Tensor, measured: dict[str, Tensor]
    ) -> None:
        if isinstance(module, nn.Tanh | nn.Sigmoid):
            measured["act_saturated"] = share_at_extremes(value, "Tanh" if isinstance(module, nn.Tanh) else "Sigmoid")
        elif isinstance(module, nn.Softmax):
            measured["attention_entropy"] = relative_entropy(value, module.dim)
            if inputs and is_plain(inputs[0]):
                self._keep_logit(part_of(inputs[0]).float().amax())
        elif isinstance(module, nn.MultiheadAttention):
            logits = attention_logits(module, inputs)
            if logits is not None:
                measured["attention_entropy"] = relative_entropy(logits.softmax(-1), -1)
                self._keep_logit(logits.abs().amax())
        elif isinstance(module, nn.RNNBase) and (gates := saturated_gates(module, inputs, output)) is not None:
            measured["act_saturated"] = gates
        elif isinstance(module, ZEROING):
            # channels of images, features of everything else
            self._count_dead(module, value, 1 if value.dim() > 3 else value.dim() - 1, measured)
        elif self._functional and isinstance(module, WEIGHTED) and self._seen and inputs and is_plain(inputs[0]):
            entering = part_of(inputs[0]).float()
            # Values that no layer computed, such as the zeros of an initial recurrent state, are not units.
            if entering.dim() > 1 and (inputs[0].requires_grad or not self._all_learn):
                dimension = entering.dim() - 1 if isinstance(module, nn.Linear) else 1
                self._count_dead(module, entering, dimension, measured)

    def _keep_logit(self, largest: Tensor) -> None:
        known = self._scalars.get("attention_logit")
        self._scalars["attention_logit"] = largest if known is None else torch.maximum(largest, known)

    def _count_dead(self, module: nn.Module, value: Tensor, dimension: int, measured: dict[str, Tensor]) -> None:
        others = [index for index in range(value.dim()) if index != dimension]
        measured["act_zero"] = share_of_zeros(value)
        units = self._units.setdefault(module, Units())
        dead = units.dead(value.abs().amax(others), value.numel() // value.shape[dimension])
        if dead is not None:
            measured["act_dead"] = dead

    def _measure_entry(self, inputs: Any) -> None:
        """Measure the input of the model's first layer, including whatever the model does to it before."""
        tensor = next(plain_tensors(inputs), None)
        if tensor is None or not tensor.is_floating_point() or "entry_rms" in self._scalars:
            return
        value = part_of(tensor).float()
        self._scalars["entry_rms"] = rms(value)
        self._scalars["entry_absmax"] = largest(value)
        if value.dim() > 1 and value.shape[0] >= 8:
            self._scalars["entry_spread"] = spread(value, self._scalars["entry_rms"])
        if value.dim() == 2 and value.shape[1] > 1 and value.shape[0] > 1:
            features = value.square().mean(0).sqrt()
            self._scalars["entry_ratio"] = features.amax() / features.median().clamp_min(1e-30)

    def _measure_side_entry(self, module: nn.Module, inputs: Any) -> None:
        """Measure later layers' inputs that no trainable layer has processed: a time, a second input.

        The largest of them is kept; one that is followed by a normalization does not count. If raw numbers are
        concatenated with learned ones, such as embeddings, they count if they are far larger than every layer's output.
        """
        if self._beside is not None and isinstance(module, NORMS):
            self._beside = None
        elif self._beside is not None:
            known = self._scalars.get("side_entry_rms", self._beside)
            self._scalars["side_entry_rms"] = torch.maximum(known, self._beside)
            self._beside = None
        tensor = next(plain_tensors(inputs), None)
        if not (isinstance(module, WEIGHTED) and self.learns and self._all_learn) or tensor is None:
            return
        if tensor.is_floating_point() and not tensor.requires_grad:
            self._beside = rms(part_of(tensor).float())
        elif _is_joined(tensor):
            size, made = rms(part_of(tensor).float()), [measured["act_rms"] for measured in self._seen.values()]
            made = [other for other in made if other.device == size.device]
            if made:
                self._beside = torch.where(size > DROWNED * torch.stack(made).amax(), size, torch.zeros_like(size))

    def before_step(self, index: int, slot: Slot) -> None:
        """Hand over the rows; the first sample fixes the order of the modules."""
        if self._seen:
            if not self._order:
                self._settle()
            vitals = {vital for measured in self._seen.values() for vital in measured}
            for vital in sorted(vitals):
                having = [module for module, measured in self._seen.items() if vital in measured]
                indices = np.array([self._order[module] for module in having], dtype=np.intp)
                scalars = [self._seen[module][vital] for module in having]
                slot.parts.append(Part(vital, scalars, indices, modules=len(self._order)))
            self._samples += 1
        elif self._samples == 0 and index == 0 and self._watched:
            self.tell({"activations.hidden": [*self._hidden, "everything inside a compiled function"]})
        super().before_step(index, slot)
        self.forget()

    def _settle(self) -> None:
        order = [*self._seen, *(module for module in self._watched if module not in self._seen)]
        self._order = {module: index for index, module in enumerate(order)}
        first = [module for module in self._seen if isinstance(module, (*WEIGHTED, *NORMS, nn.RNNBase))][:2]
        if self._squashed:
            self.tell({"modules.squashed": {self._watched[module]: kind for module, kind in self._squashed.items()}})
        self.tell(
            {
                "modules.names": [self._watched[module] for module in order],
                "modules.kinds": [type(module).__name__ for module in order],
                "modules.widths": [self._widths.get(module, 0) for module in order],
                "modules.entering": [_entering(module) for module in order],
                "modules.outputs": [self._watched[module] for module in order if module in self._outputs],
                "modules.repeated": {self._watched[module]: runs for module, runs in self._runs.items() if runs > 1},
                "modules.normalized": sum(isinstance(module, NORMS) for module in self._seen),
                "data.normalized_first": any(isinstance(module, NORMS) for module in first),
            }
        )

    def forget(self) -> None:
        """Drop what was measured in this step."""
        super().forget()
        self._seen = {}
        self._places = {}
        self._makers = {}
        self._beside = None


def _is_joined(tensor: Tensor) -> bool:
    """Whether a raw input was concatenated with something learned into this tensor."""
    node = tensor.grad_fn
    if node is None or not type(node).__name__.startswith("CatBackward"):
        return False
    return any(parent is None for parent, _ in node.next_functions)


def _entering(module: nn.Module) -> int:
    sizes = (getattr(module, name, None) for name in ("in_features", "in_channels", "input_size", "embed_dim"))
    return next((size for size in sizes if isinstance(size, int)), 0)
