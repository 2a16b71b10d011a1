"""The targets of all batches that were looked at: how common each class is, how numbers are distributed.

A constant guess needs only this, so it gives a baseline for the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdoctor.vitals.batch_numbers import ELEMENTWISE, FEW_CLASSES, slope_by_count
from torchdoctor.vitals.passes import is_plain, largest, part_of


class TargetsSoFar:
    """Counts of classes, or sums of numbers, on the device."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None
        """How often each class was seen in all samples so far."""
        self.now: Tensor | None = None
        """How often in the current one."""
        self._moments: Tensor | None = None
        """Number of batches with float targets so far, and the sums of their means and mean squares."""

    def add_labels(self, counts: Tensor) -> dict[str, Tensor]:
        """Measure how classes are distributed in this batch and in all so far."""
        if self._counts is None or self._counts.shape != counts.shape or self._counts.device != counts.device:
            self._counts = torch.zeros_like(counts)
        self._counts = self._counts + counts
        vitals = {}
        for prefix, numbers in (("target", counts), ("pooled", self._counts)):
            total = numbers.sum().clamp_min(1)
            shares = numbers / total
            vitals[f"{prefix}_classes"] = (numbers > 0).sum()
            vitals[f"{prefix}_top_share"] = shares.amax()
            vitals[f"{prefix}_entropy"] = -(shares * shares.clamp_min(1e-30).log()).sum()
            # The chance that two of them have the same class: unlike entropy, unbiased in a small batch.
            vitals[f"{prefix}_collision"] = (numbers * (numbers - 1)).sum() / (total * (total - 1)).clamp_min(1)
        return vitals

    def add_numbers(self, target: Tensor) -> dict[str, Tensor]:
        """Measure the scale of this batch's targets, and the standard deviation over all so far."""
        value = part_of(target).float()
        low, high = value.aminmax()
        vitals = {
            "target_mean": value.mean(),
            "target_std": value.std(correction=0),
            "target_min": low,
            "target_max": high,
            "target_two_valued": ((value == low) | (value == high)).all().float(),
            "target_whole": (value == value.round()).all().float(),
            "target_absmax": largest(value),
            "target_nonfinite": (~torch.isfinite(value)).sum(),
        }
        here = torch.stack([torch.ones_like(value.flatten()[0]), value.mean(), value.square().mean()])
        self._moments = here if self._moments is None else self._moments + here
        number, total, squares = self._moments.unbind()
        return vitals | {"pooled_std": (squares / number - (total / number).square()).clamp_min(0).sqrt()}

    def guess(self, module: nn.Module, target: Tensor, classes: int) -> dict[str, Tensor]:
        """The loss of a constant guess, based on all targets so far, on this batch."""
        if getattr(module, "reduction", "") != "mean" or getattr(module, "label_smoothing", 0):
            return {}
        if isinstance(module, ELEMENTWISE) and target.is_floating_point() and self._moments is not None:
            if getattr(module, "weight", None) is not None or getattr(module, "pos_weight", None) is not None:
                return {}
            mean = self._moments[1] / self._moments[0]
            if isinstance(module, nn.BCEWithLogitsLoss):
                mean = torch.logit(mean, 1e-6)
            known = part_of(target).float()
            return {"guess_loss": module.forward(mean.expand_as(known), known)}
        if self._counts is None or self.now is None or classes < 2:
            return {}
        if not isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss) or module.weight is not None:
            return {}
        counts, now = self._counts[:classes], self.now[:classes]
        shares = (counts + 1) / (counts + 1).sum()
        return {"guess_loss": -(now * shares.log()).sum() / now.sum().clamp_min(1)}

    def weights(self, module: nn.Module, classes: int) -> dict[str, Tensor]:
        """The weight of the most common class relative to the mean weight of the others."""
        counts, weights = self._counts, getattr(module, "weight", None)
        if isinstance(module, nn.BCEWithLogitsLoss):
            weights = getattr(module, "pos_weight", None)
            weights = None if weights is None else torch.stack([weights.new_ones(()), weights.mean()])
        if counts is None or weights is None or not is_plain(weights) or weights.dim() != 1:
            return {}
        counts = counts[: max(classes, 2)]
        if counts.shape != weights.shape or counts.device != weights.device:
            return {}
        most = counts.argmax().reshape(1)
        rest = counts.scatter(0, most, 0.0)
        others = (rest * weights).sum() / rest.sum()
        vitals = {"weight_of_common": weights.gather(0, most)[0] / others}
        if counts.numel() >= FEW_CLASSES:
            vitals["weight_by_count"] = slope_by_count(counts, weights)
        return vitals
