"""The census of axes: does a layer take the samples of the batch for the steps of a sequence?

`nn.LSTM`, `nn.GRU`, `nn.MultiheadAttention` and `nn.TransformerEncoder` read (steps, batch, features) unless they are
told `batch_first=True`. Fed with (batch, steps, features) they run without an error, and each sample's output depends
on the other samples of its batch. Shapes tell it where the model gives one output for each sample: as many rows as the
layer has steps, and none for what it takes for its batch. Looked at in the first samples only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge, is_compiled, plain_tensors
from torchdoctor.vitals.patient import unwrap_model

LOOKS = 4
"""Samples that are looked at."""
MOST_LAYERS = 64


class AxesCensus(PassGauge):
    """Tells `modules.batch_as_time`, where one model is watched."""

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
        """Of this pass: steps and batch of each layer, as the layer takes them."""
        self._times = 0

    def arm(self) -> None:
        """Hooks on the layers that take the second axis for the batch, and on the model's two ends."""
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
        if mixed and self._times > 1:  # twice, so that no size is what it is by chance
            self.tell({"modules.batch_as_time": mixed})


def _is_turned(given: Any, steps: int, batch: int, result: Any) -> bool:
    """Whether what a layer takes for its steps is the batch of the model, whose result knows nothing of the rest.

    >>> _is_turned((32, 48, 1), 32, 48, (32, 10)), _is_turned((32, 48, 1), 48, 32, (32, 10))
    (True, False)
    >>> _is_turned((48, 32), 48, 32, (48, 32, 10)), _is_turned((90, 1, 4), 90, 1, (90, 2))
    (False, False)
    """
    apart = min(steps, batch) > 1 and steps != batch
    return apart and given[0] == result[0] == steps and batch not in result
