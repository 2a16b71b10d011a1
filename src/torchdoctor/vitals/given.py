"""Numbers that the loop logs by name, as floats or single-element tensors; anything else causes one note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchdoctor.vitals.slot import OTHERS

OURS = """
    adam_eps_share adam_staleness answer_changed answer_moved applied_norm attention_ahead attention_fixed
    attention_logit batch_nonfinite binary_outside course criterion curvature data_seconds entry_absmax entry_ratio
    entry_rms entry_spread forward_seconds frozen_fresh grad_nonfinite gradient_samples gradient_snr guess_loss
    host_load host_memory idle_input_mean idle_input_std idle_known idle_output_high idle_output_low
    idle_target_mean idle_target_std idle_target_whole input_absmax input_again input_blank input_checksum
    input_constant input_content input_distinct input_mean input_nonfinite input_size input_std input_zero
    label_ignored label_in_another label_in_input last_position_loss logit_drift loss_scale loss_weight
    momentum_cosine other_position_loss output_absmax output_directions output_mean output_nonfinite output_rms
    output_spread output_std outside_cosine outside_scaled part_loss_ratio part_target_size passed_over
    prediction_top_share processor_seconds rank_apart rank_gradients_apart rank_lost rank_lost_at rank_slowest
    rank_slowness rank_waited rank_weights_apart resting_as_new side_entry_rms skipped state_same step_curvature
    target_absmax target_after_next target_beyond target_in_input target_is_before target_is_next target_masked
    target_mean target_nonfinite target_probability target_std target_top_share token_top_share update_away
    update_kept update_lost views_same weight_by_count weight_of_common weights_fresh
"""
RESERVED = OTHERS.union(OURS.split())
"""Names that the doctor uses for its own numbers: a loss with such a name would be mistaken for one, or be lost."""


class Given:
    """Converts logged values and names into what can be recorded.

    >>> said = []
    >>> given = Given(lambda key, text: said.append(text))
    >>> given.scalar(torch.tensor([2.0]), "loss")[0], given.scalar("high", "loss")[0], given.name(5)
    (2.0, None, '5')
    >>> said[0]
    'loss was given as str, expected a number or a tensor: not recorded.'
    >>> given.name("total"), given.is_fit("total_loss")
    ('total_loss', True)
    """

    longest_name = 200
    """Maximum length of a loss's name: a journal reader takes a much longer one for a damaged line."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note

    def is_fit(self, name: str) -> bool:
        """Whether a loss may have this name."""
        return name not in RESERVED and len(name) <= self.longest_name and not name.startswith("lr/")

    def name(self, name: object) -> str:
        """The replacement for a name that is not a string, is too long or is reserved."""
        text, why = str(name)[: self.longest_name], "a name must be a short string"
        if not self.is_fit(text):
            text, why = f"{text}_loss"[-self.longest_name :], "torchdoctor uses this name for a number of its own"
        self._note(f"name {text}", f"log_loss(name={name!r:.40}): {why}, so it is recorded as {text!r:.40}.")
        return text

    def scalar(self, value: Any, name: str) -> tuple[Any, Any]:
        """A number, or a detached scalar on a device; and the tensor whose graph shows its step."""
        if type(value) is float:
            return value, None
        if not isinstance(value, Tensor):
            try:
                return float(value), None
            except (TypeError, ValueError, OverflowError):
                return self._left_out(
                    "type", name, f"was given as {type(value).__name__}, expected a number or a tensor"
                )
        scalar = value.detach()
        if scalar.is_meta:
            return self._left_out("meta", name, "is a tensor on the meta device, which holds no number")
        if scalar.is_complex() or scalar.layout is not torch.strided:
            kind = "complex numbers" if scalar.is_complex() else str(scalar.layout).removeprefix("torch.")
            return self._left_out("type", name, f"is a tensor of {kind}, expected one real number")
        if scalar.dim():
            if not scalar.numel():
                return self._left_out("shape", name, "was given as an empty tensor, expected one number")
            if scalar.numel() > 1:
                shape = tuple(value.shape)
                self._note(f"shape {name}", f"{name} has shape {shape}, expected one number: its mean is recorded.")
                scalar = scalar.float().mean()
            scalar = scalar.reshape(())
        return (float(scalar.item()) if scalar.device.type == "cpu" else scalar), value

    def _left_out(self, key: str, name: str, why: str) -> tuple[None, None]:
        self._note(f"{key} {name}", f"{name} {why}: not recorded.")
        return None, None
