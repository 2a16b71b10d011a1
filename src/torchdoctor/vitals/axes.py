"""The axes check: does a layer mistake the samples of the batch for the steps of a sequence?

`nn.LSTM`, `nn.GRU`, `nn.MultiheadAttention` and `nn.TransformerEncoder` read (steps, batch, features) unless they are
built with `batch_first=True`. Given (batch, steps, features), they run without an error, but each sample's output
depends on the other samples of its batch. Shapes show this if the model returns one output per sample: the output has
as many rows as the layer has steps, and no dimension of the size that the layer takes as its batch. Only the first
samples are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge, is_compiled, plain_tensors
from torchdoctor.vitals.patient import unwrap_model

LOOKS = 4
"""Samples that are checked."""
MOST_LAYERS = 64


class AxesCensus(PassGauge):
    """Tells `modules.batch_as_time`, if one model is watched."""

    def __init__(self, models: Mapping[str, nn.Module], tell: Tell) -> None:
        super().__init__(tell)
        model = next(iter(models.values()))
        layers = [] if len(models) > 1 or is_compiled(model) else list(unwrap_model(model).named_modules())
        kinds = (nn.RNNBase, nn.MultiheadAttention)
        self._layers: dict[nn.Module, str] = {}
        self._layers |= {layer: path for path, layer in layers if isinstance(layer, kinds) and not layer.batch_first}
        self._model = model
        self._left = LOOKS if 0 < len(self._layers) <= MOST_LAYERS else 0
        self._entered: dict[str, tuple[int, int]] = {}
        """Steps and batch size of each layer in this pass, as the layer interprets them."""
        self._times = 0

    def arm(self) -> None:
        """Put hooks on layers that take the second axis as the batch, and on the model's input and output."""
        super().arm()
        if self._left > 0:
            self._left -= 1
            self.before(self._model, "begins")
            for layer in self._layers:
                self.before(layer, "_reads")
            self.after(self._model, "_returns")

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A pass begins."""
        super().begins(module, args, kwargs)
        self._entered = {}

    def _reads(self, layer: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        tensor = next(plain_tensors((args, kwargs)), None)
        if tensor is not None and tensor.dim() == 3:
            self._entered[self._layers[layer]] = tensor.shape[0], tensor.shape[1]

    def _returns(self, module: nn.Module, inputs: Any, output: Any) -> None:
        given = next((item for item in plain_tensors(inputs) if item.dim()), None)
        result = next((item for item in plain_tensors(output) if item.is_floating_point()), None)
        if not self.learns or given is None or result is None or not result.dim():
            return
        mixed = [path for path, sizes in self._entered.items() if _is_turned(given.shape, *sizes, result.shape)]
        self._times += bool(mixed)
        if mixed and self._times > 1:  # twice, so that no size matches by chance
            self.tell({"modules.batch_as_time": mixed})


def _is_turned(given: Any, steps: int, batch: int, result: Any) -> bool:
    """Whether a layer takes the model's batch as its steps, and the result has no dimension for the layer's batch.

    >>> _is_turned((32, 48, 1), 32, 48, (32, 10)), _is_turned((32, 48, 1), 48, 32, (32, 10))
    (True, False)
    >>> _is_turned((48, 32), 48, 32, (48, 32, 10)), _is_turned((90, 1, 4), 90, 1, (90, 2))
    (False, False)
    """
    apart = min(steps, batch) > 1 and steps != batch
    return apart and given[0] == result[0] == steps and batch not in result
