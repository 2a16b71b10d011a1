"""The validation gauge: what the loop feeds the model between steps, without gradients, and in which mode.

Its hook stays on, because a validation may come at any time; in a training pass it only checks one flag. Between two
steps, the first such pass is measured, and handed over with the next sampled step. Whether it was a validation is
decided by code that knows when one was logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.batch_numbers import output_and_target
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge, PassHook, is_compiled, part_of, plain_tensors
from torchdoctor.vitals.transfer import Slot

OF_SCORES = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)
"""Losses that convert their input to probabilities themselves."""
COUNTED = 5
"""Passes in either mode that are counted; more add nothing."""


class IdleHook(PassHook):
    """Fires only in passes without gradients."""

    def __call__(self, *args: Any) -> None:
        """What torch calls."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            return
        super().__call__(*args)


class ValidationGauge(PassGauge):
    """Scale of inputs and targets, mode, and outputs given to a loss of scores, in passes that no step follows."""

    def __init__(self, models: Mapping[str, nn.Module], tell: Tell, loss_fn: Any = None) -> None:
        super().__init__(tell)
        self._loss_fn = loss_fn if isinstance(loss_fn, nn.Module) and not is_compiled(loss_fn) else None
        known = list(models.values())
        self._model = known[0] if len(known) == 1 and not is_compiled(known[0]) else None
        self._modes = {"train": 0, "eval": 0}
        self._waiting: dict[str, Tensor] = {}
        """What was measured since the last sampled step."""
        self._measured = self._judged = False
        self._judgements = 0

    def arm(self) -> None:
        """Put the hook on at the first sampled step; it stays."""
        super().arm()
        self._measured = self._judged = False
        evaluates = any(self._modes.values())  # else there is nothing to wait for
        if evaluates and self._loss_fn is not None and (1, "_judges") not in self._on:
            hook = IdleHook(self, "_judges")
            self._on[1, "_judges"] = hook, self._loss_fn.register_forward_pre_hook(hook, with_kwargs=True)
        if self._judgements == COUNTED and self._loss_fn is not None:
            self._on.pop((1, "_judges"))[1].remove()
            self._loss_fn = None
        if self._model is not None and (0, "_idles") not in self._on:
            hook = IdleHook(self, "_idles")
            self._on[0, "_idles"] = hook, self._model.register_forward_pre_hook(hook, with_kwargs=True)

    def see(self, method: str, args: tuple[Any, ...]) -> None:
        """Passes are also seen between sampled steps."""
        self._armed, armed = True, self._armed
        super().see(method, args)
        self._armed = armed

    def _idles(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        mode = "train" if module.training else "eval"
        if self._modes[mode] < COUNTED:
            self._modes[mode] += 1
            self.tell({"mode.idle": dict(self._modes), "mode.depends": depends_on_mode(module)})
        if self._measured:
            return
        self._measured = True
        tensor = next((item for item in plain_tensors((args, kwargs)) if item.dim()), None)
        if tensor is not None and tensor.is_floating_point():
            value = part_of(tensor).float()
            self._waiting |= {"idle_input_mean": value.mean(), "idle_input_std": value.std(correction=0)}

    def _judges(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        output, target = output_and_target(args, kwargs)
        if self._judged or output is None or not output.numel():
            return
        self._judged = True
        self._judgements += 1
        if isinstance(module, OF_SCORES):
            value = torch.nan_to_num(part_of(output).float())
            self._waiting |= {"idle_output_low": value.amin(), "idle_output_high": value.amax()}
        if target is not None and target.is_floating_point() and target.numel():
            value = torch.nan_to_num(part_of(target).float())
            self._waiting |= {
                "idle_target_mean": value.mean(),
                "idle_target_std": value.std(correction=0),
                "idle_target_whole": (value == value.round()).all().float(),
            }

    def before_step(self, index: int, slot: Slot) -> None:
        """Hand over what was measured since the last sampled step."""
        self._scalars, self._waiting = self._waiting, {}
        super().before_step(index, slot)

    def disarm(self) -> None:
        """The hooks stay on."""
        self._armed = False


def depends_on_mode(model: nn.Module) -> bool:
    """Whether a model computes something different in training mode: dropout, or batch statistics."""
    return any(
        (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        or (isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats)
        for module in model.modules()
    )
