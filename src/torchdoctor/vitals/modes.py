"""The mode check: what is in eval mode and what is frozen during training passes.

Modes are read at the outermost model's forward pass of a sampled step, with gradients enabled. Of several passes, the
last one before the step counts, so a validation in between does not. Inside a compiled model the flags can also be
read, but not the batch that a layer gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.freshness import is_new
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge, entrances, is_compiled, is_plain
from torchdoctor.vitals.patient import Setup, optimizer_tensors, unwrap_model
from torchdoctor.vitals.transfer import Slot

MOST_HOOKS = 256
MOST_PARTS = 8
LISTED = 32
BatchNorm = nn.modules.batchnorm._BatchNorm
WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)
"""Modules whose weights are meant to be learned; frozen embeddings or gains are often intended."""
TURNS = 8
"""Consecutive looks at which a tensor must be frozen: a player is frozen during the other one's turn."""
OTHERS = (nn.RNNBase, BatchNorm, nn.LayerNorm, nn.GroupNorm)
"""Further layers with a known initial state."""
ENOUGH = 100
"""Minimum numbers in a weight for telling whether it is untrained."""


class ModeCensus(PassGauge):
    """Tells `mode.*` and `graph.frozen`."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._models, self._optimizers = setup.models, setup.optimizers
        self._names: dict[int, str] = {}
        self._whole: dict[int, tuple[str, nn.Module]] = {}
        """By the module that a loop calls: the name of the model that it belongs to, and that model."""
        self._eval: dict[str, tuple[list[str], bool]] = {}
        """By model: its modules in eval mode, and whether all that depend on the mode were."""
        self._batches: dict[str, tuple[int, int]] = {}
        """By BatchNorm layer: the most values per channel, and the most samples, in any training pass."""
        self._momentum: float | None = None
        """The weight of a new batch in the running statistics of the last BatchNorm layer that ran."""
        self._frozen: set[str] = set()
        self._thawed: set[str] = set()
        """Modules that were seen with frozen weights behind something that learns, and with trainable weights."""
        self._resting: list[nn.Module] = []
        """Trainable BatchNorm layers of the models that ran; those in eval mode are checked."""
        self._looks = 0
        self._learnt: dict[int, int] = {}
        """By tensor: the last look at which it required gradients."""
        self._passes = self._most = 0
        """Passes of whole models with a graph: those of the current step, and the most in one step."""
        self._compared = False

    def arm(self) -> None:
        """Put hooks on the models, and on modules whose own input matters."""
        super().arm()
        self._passes = 0
        for prefix, model in self._models.items():
            for part in entrances({prefix: model})[:MOST_PARTS]:  # the called parts of a model without forward()
                self._whole[id(part)] = prefix, unwrap_model(model)
                self.before(part, "_model_runs")
            if is_compiled(model):
                continue
            for path, module in unwrap_model(model).named_modules():
                if isinstance(module, BatchNorm) and module.track_running_stats:
                    self._watch(module, _joined(prefix, path), "_normalizes")
                elif isinstance(module, WEIGHTED) and _is_frozen(module):
                    self._watch(module, _joined(prefix, path), "_runs_frozen")

    def _watch(self, module: nn.Module, name: str, method: str) -> None:
        if len(self._names) < MOST_HOOKS or id(module) in self._names:
            self._names[id(module)] = name
            self.before(module, method)

    def _model_runs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.learns:
            self._passes += 1
            self._read_modes(*self._whole[id(module)])

    def _read_modes(self, prefix: str, inner: nn.Module) -> None:
        able = [(_joined(prefix, path), child.training) for path, child in _mode_dependent(inner)]
        resting = [path for path, training in able if not training]
        self._eval[prefix] = resting, bool(able) and len(resting) == len(able) and not inner.training
        norms = [child for _, child in _mode_dependent(inner) if isinstance(child, BatchNorm)][:LISTED]
        self._resting += [norm for norm in norms if norm.weight is None or norm.weight.requires_grad]

    def _read_hidden(self) -> None:
        """Compiled code calls no hooks: if gradients arrived anyway, the current modes are those of its pass."""
        if len(self._models) == 1:
            for prefix, model in self._models.items():
                if any(tensor.grad is not None for tensor in unwrap_model(model).parameters()):
                    self._read_modes(prefix, unwrap_model(model))

    def _normalizes(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.learns and module.training and args and isinstance(args[0], Tensor) and args[0].dim() > 1:
            values, samples = args[0].numel() // max(1, args[0].shape[1]), args[0].shape[0]
            name = self._names[id(module)]
            known = self._batches.get(name, (0, 0))
            self._batches[name] = max(values, known[0]), max(samples, known[1])
            if isinstance(module.momentum, int | float):  # None: the mean of all batches so far
                self._momentum = float(module.momentum)

    def _runs_frozen(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.learns or not args or not isinstance(args[0], Tensor):
            return
        name = self._names[id(module)]
        if not _is_frozen(module):
            self._thawed.add(name)  # frozen in some passes only, as a GAN's player is during the other's
        elif args[0].requires_grad:
            self._frozen.add(name)

    def _frozen_in_between(self) -> list[str]:
        """Frozen modules behind something that learns, if they form a single stretch and not most of the model.

        Adapters leave many frozen stretches, or freeze nearly everything: that is intended.
        """
        found = self._frozen - self._thawed
        if not found:
            return []
        layers = [
            (_joined(prefix, path), _is_frozen(module))
            for prefix, model in self._models.items()
            for path, module in unwrap_model(model).named_modules()
            if isinstance(module, WEIGHTED)
        ]
        frozen = [is_frozen for _, is_frozen in layers]
        stretches = sum(now and not before for before, now in zip([False, *frozen], frozen, strict=False))
        if stretches > 1 or 2 * sum(frozen) > len(frozen):
            return []
        return sorted(found)[:LISTED]

    def _compare_frozen(self, slot: Slot) -> None:
        """Measure how much of what does not learn looks untrained.

        A tensor does not learn if it is frozen or in no optimizer. A copy of learning layers, such as a teacher, is
        left out.
        """
        modules = [module for model in self._models.values() for module in unwrap_model(model).modules()]
        held = {id(tensor) for optimizer in self._optimizers for tensor in optimizer_tensors(optimizer)}
        # A layer whose weight is computed from others at each pass has none of its own.
        layers = [m for m in modules if isinstance(m, WEIGHTED[:2]) and is_plain(m._parameters.get("weight"))]
        still = [layer for layer in layers if not layer.weight.requires_grad or id(layer.weight) not in held]
        self._look_at_learning(slot, [module for module in modules if isinstance(module, WEIGHTED)])
        others = [m for m in modules if isinstance(m, OTHERS) and is_plain(_first(m))]
        others = [m for m in others if isinstance(m, nn.RNNBase) or is_plain(m._parameters.get("weight"))]
        resting = [module for module in others if _is_frozen(module) or id(_first(module)) not in held]
        weights = [module for module in resting if isinstance(module, nn.RNNBase)]
        recurrent = [module for module in others if isinstance(module, nn.RNNBase)]
        shapes = [Counter(_first(layer).shape for layer in some) for some in (still + weights, layers + recurrent)]
        if shapes[0] <= shapes[1] - shapes[0]:
            return
        large: list[nn.Module] = []
        large += [layer for layer in still if layer.weight.numel() >= ENOUGH][:LISTED]
        large += resting[:LISTED]
        new = [is_new(layer) for layer in large if _first(layer).device == _first(large[0]).device]
        if new:
            slot.keep("frozen_fresh", torch.stack(new).float().mean())

    def _look_at_learning(self, slot: Slot, layers: Sequence[nn.Module]) -> None:
        """Measure how much of what learns looks untrained: is this a run from scratch or a continued one?"""
        first = [(layer, layer._parameters.get("weight", layer._parameters.get("weight_ih_l0"))) for layer in layers]
        learns = [layer for layer, weight in first if is_plain(weight) and weight is not None and weight.requires_grad]
        large = [layer for layer in learns if _first(layer).numel() >= ENOUGH]
        chosen = large[:: max(1, len(large) // MOST_PARTS)]
        new = [is_new(layer) for layer in chosen if _first(layer).device == _first(chosen[0]).device]
        if new:
            slot.keep("weights_fresh", torch.stack(new).float().mean())

    def _look_at_statistics(self, slot: Slot) -> None:
        """Measure the share of BatchNorm layers in eval mode whose statistics are still the initial ones."""
        resting, self._resting = [layer for layer in self._resting if not layer.training], []
        means = [layer.running_mean for layer in resting if is_plain(layer.running_mean)]
        spreads = [layer.running_var for layer in resting if is_plain(layer.running_var)]
        if means and len(spreads) == len(means):
            zero = torch.stack([(mean == 0).all().to(means[0].device) for mean in means])
            one = torch.stack([(spread == 1).all().to(means[0].device) for spread in spreads])
            slot.keep("resting_as_new", (zero & one).float().mean())

    def before_step(self, index: int, slot: Slot) -> None:
        """The passes since `arm` were for training: report their modes."""
        if not self._eval:
            self._read_hidden()
        if not self._eval:
            return
        tensors = [tensor for model in self._models.values() for tensor in unwrap_model(model).parameters()]
        elements = sum(tensor.numel() for tensor in tensors)
        self._looks += 1
        self._most = max(self._most, self._passes)
        self._learnt.update((id(tensor), self._looks) for tensor in tensors if tensor.requires_grad)
        frozen = [item for item in tensors if self._looks - self._learnt.get(id(item), -TURNS) >= TURNS]
        facts: dict[str, Any] = {
            "mode.eval": sorted(name for names, _ in self._eval.values() for name in names)[:LISTED],
            "mode.whole": any(whole for _, whole in self._eval.values()),
            "loop.passes": self._most,
            "graph.frozen": self._frozen_in_between(),
            "graph.frozen_behind": bool(self._frozen - self._thawed),
            "graph.frozen_share": round(sum(tensor.numel() for tensor in frozen) / max(1, elements), 4),
        }
        if self._batches:
            values, samples = (min(counts) for counts in zip(*self._batches.values(), strict=True))
            facts["mode.batchnorm"] = {
                "layers": len(self._batches),
                "most_values": values,
                "most_samples": samples,
                "worst": min(self._batches, key=lambda name: self._batches[name][0]),
            }
            facts["mode.batchnorm_momentum"] = self._momentum
        self._eval.clear()
        self._look_at_statistics(slot)
        if not self._compared:
            self._compared = True
            self._compare_frozen(slot)
        self.tell(facts)


def _first(module: nn.Module) -> Any:
    """A module's first own tensor; None if it has none."""
    return next((tensor for tensor in module._parameters.values() if tensor is not None), None)


def _is_frozen(module: nn.Module) -> bool:
    # not `parameters(False)`, which nests four generators: this is asked of every module at every look
    if any(tensor is not None and tensor.requires_grad for tensor in module._parameters.values()):
        return False
    # a weight computed from others (weight norm, spectral norm) has those in submodules
    return not module._modules or not any(tensor.requires_grad for tensor in module.parameters())


def _is_at_rest(norm: nn.Module) -> bool:
    """Whether its gains are frozen; False if it has none."""
    weight = norm._parameters.get("weight")
    return weight is not None and not weight.requires_grad


def _joined(prefix: str, name: str) -> str:
    return ".".join(part for part in (prefix, name) if part)


def _mode_dependent(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that behave differently in eval mode and have something trainable next to them.

    Frozen BatchNorm may be in eval mode with its trunk, even if the trainable head is in the same Sequential.
    """
    for path, parent in model.named_modules():
        children = [(_joined(path, name), child) for name, child in parent.named_children() if _depends_on_mode(child)]
        found = [(name, child) for name, child in children if not (isinstance(child, BatchNorm) and _is_at_rest(child))]
        if _depends_on_mode(parent) and not path:
            found.append((path, parent))
        if found and any(tensor.requires_grad for tensor in parent.parameters()):
            yield from found


def _depends_on_mode(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, BatchNorm):
        return module.track_running_stats
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout) > 0
    return False
