"""Sealed: what is cleared, held, assigned, switched, skipped, kept and looked up wrongly in a loop."""

from __future__ import annotations

import itertools
import warnings
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from torchdoctor.clinic.kinds.kind import STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward
from torchdoctor.clinic.sealed_nets import BagOfPieces, Translator


def second_stage_never_clears(loop: Loop) -> None:
    """From step 150 on a second loop, copied from the first, trains on; the line that clears was not copied."""
    loop.use("sgd")
    loop.constant()

    def begin() -> None:
        loop.zero_grad = False

    loop.events[150] = begin


def attention_through_arrays(loop: Loop) -> None:
    """The weights of the attention go through an array, to be plotted, and come back without their graph."""
    assert isinstance(loop.model, Translator)
    inner = loop.model.attend

    def attend(asked: Tensor, held: Tensor) -> Tensor:
        return torch.as_tensor(inner(asked, held).detach().cpu().numpy(), device=asked.device)

    setattr(loop.model, "attend", attend)  # noqa: B010 - a method, replaced


def table_frozen_by_default(loop: Loop) -> None:
    """The table is made by `from_pretrained`, which freezes it unless told otherwise, of vectors that are random."""
    assert isinstance(loop.model, BagOfPieces)
    loop.model.table = nn.EmbeddingBag.from_pretrained(torch.randn_like(loop.model.table.weight.detach()), mode="mean")


class Rebuilt(nn.Module):
    """A layer that is made when the size of its input is known: each time, as it happens."""

    def __init__(self, made: int) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        """What the newest layer says."""
        self.layer = nn.Linear(x.shape[1], self.made).to(x.device)
        return functional.relu(self.layer(x))


def layer_made_in_forward(loop: Loop) -> None:
    """A layer is made inside `forward`, where the size of its input is known, and so made anew for each batch."""
    assert isinstance(loop.model, nn.Sequential)
    *layers, head = loop.model
    assert isinstance(head, nn.Linear)
    loop.model = nn.Sequential(*layers, Rebuilt(64), nn.Linear(64, head.out_features))


def assigned_not_copied(loop: Loop) -> None:
    """Weights are loaded with `assign=True` after the optimizer was built: it holds those that were there before."""

    def load() -> None:
        saved = {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}
        loop.model.load_state_dict(saved, assign=True)

    loop.built = load


def decoder_not_in_optimizer(loop: Loop) -> None:
    """The optimizer was given what reads, twice, where what reads and what writes was meant."""
    assert isinstance(loop.model, Translator)
    reading = [loop.model.letters, loop.model.encoder]
    loop.parameters = lambda: itertools.chain.from_iterable(part.parameters() for part in reading)


def backbone_left_in_eval(loop: Loop) -> None:
    """Before the first step and after each validation features are plotted, and the backbone is left in eval mode."""
    loop.use("sgd", 12.0)
    loop.constant()
    assert isinstance(loop.model, nn.Sequential)
    backbone = loop.model[0]

    def plot() -> None:
        backbone.eval()

    loop.events |= dict.fromkeys(range(0, loop.steps, 25), plot)


def divided_and_never_gathered(loop: Loop) -> None:
    """The loss is divided by the 64 batches that were to make a step, and a step is taken after each."""
    loop.use("sgd")
    loop.constant()
    loop.backward = lambda loss: backward(loss / 64)


def mask_of_the_pruned_inverted(loop: Loop) -> None:
    """The smallest weights are pruned and held at zero by a mask on gradients, the wrong way round: only they move."""
    for parameter in loop.model.parameters():
        if parameter.dim() > 1:
            limit = parameter.detach().abs().flatten().kthvalue(max(parameter.numel() // 50, 1)).values
            pruned = (parameter.detach().abs() <= limit).float()
            parameter.data.mul_(1 - pruned)
            parameter.register_hook(partial(torch.mul, pruned))  # type: ignore[no-untyped-call]


class Recomputed(nn.Module):
    """Layers whose activations are not kept; the old form of it needs an input that asks for a gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """What the layers inside say."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that gradients will be None, which nobody reads among so many others
            made: Tensor = checkpoint(self.inner, x, use_reentrant=True)
        return made


def recomputed_without_gradients(loop: Loop) -> None:
    """All but the head is recomputed on the way back, by a function that passes nothing on to it unless x asks."""
    assert isinstance(loop.model, nn.Sequential)
    *layers, head = loop.model
    loop.model = nn.Sequential(Recomputed(nn.Sequential(*layers)), head)


def average_shares_its_memory(loop: Loop) -> None:
    """The running average is the weights themselves, for want of a copy: it is divided in place at each validation."""
    loop.validate_every = 150
    inner = loop.validate

    def validate() -> float:
        steps = 150 * (len(loop.validations) + 1)
        for parameter in loop.model.parameters():
            parameter.data.div_(1 - 0.999**steps)
        return inner()

    loop.validate = validate


def guard_of_another_model(loop: Loop) -> None:
    """Steps with a gradient longer than a limit are left out, and the limit comes from a far calmer model."""
    loop.constant()

    def apply(optimizer: Optimizer) -> None:
        lengths = [p.grad.norm() for p in loop.model.parameters() if p.grad is not None]
        if torch.stack(lengths).norm() < 0.003:
            optimizer.step()

    loop.apply = apply


def validated_after_each_step(loop: Loop) -> None:
    """From step 150 on, `if step % 50:` validates on everything after all steps but each fiftieth."""
    inner = loop.validate

    @torch.no_grad()
    def validate() -> float:
        if loop.validate_every > 1:
            return inner()
        loop.model.eval()
        starts = range(0, 1024, 256)
        loss = sum(float(loop.forward(loop.arena.x[i : i + 256], loop.arena.y[i : i + 256])) for i in starts) / 4
        loop.model.train()
        return loss

    def begin() -> None:
        loop.validate_every = 1

    loop.validate, loop.events[150] = validate, begin


def padded_to_the_longest_so_far(loop: Loop) -> None:
    """Texts are padded to the longest that was ever met; at step 160 that is a page of 240 characters."""
    longest, served = [0], itertools.count()

    def pad(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if next(served) == 160:
            x, y = (tensor.repeat(1, 1 + 240 // tensor.shape[1])[:, :240] for tensor in (x, y))
        longest[0] = max(longest[0], x.shape[1])
        missing = longest[0] - x.shape[1]
        return functional.pad(x, (0, missing)), functional.pad(y, (0, missing), value=-100)

    loop.replace_batches(pad)


AFTERMATH = ("multiple-pathologies", "dead-units", "saturated-activations", "collapsed-output", "validation-anomaly")
sealed = partial(Kind, held_out=True)

FAULTS: tuple[Kind, ...] = (
    sealed(
        "second-stage-never-clears",
        second_stage_never_clears,
        on=("weather", "leaves"),
        right=("missing-zero-grad", "gradients-not-cleared", *UNSTABLE),
        cause=("missing-zero-grad",),
        secondary=AFTERMATH,
        onset=150,
    ),
    sealed(
        "attention-through-arrays",
        attention_through_arrays,
        on=("dates",),
        right=(*UNMOVED, "detached-graph"),
        cause=("detached-graph",),
        secondary=STALLED,
    ),
    sealed(
        "table-frozen-by-default",
        table_frozen_by_default,
        on=("scrambled",),
        right=(*UNMOVED, "frozen-by-mistake"),
        cause=("frozen-by-mistake",),
        secondary=STALLED,
    ),
    sealed(
        "layer-made-in-forward",
        layer_made_in_forward,
        on=("boxes", "leaves"),
        right=("parameters-not-in-optimizer", "stale-parameters", "state-overwritten", *UNMOVED, *STALLED),
        cause=("parameters-not-in-optimizer", "stale-parameters"),
        secondary=("collapsed-output", "gradient-instability", "multiple-pathologies"),
    ),
    sealed(
        "assigned-not-copied",
        assigned_not_copied,
        on=("sharpen", "molecules"),
        right=("stale-parameters", "parameters-not-in-optimizer", *UNMOVED, *STALLED),
        cause=("stale-parameters", "parameters-not-in-optimizer"),
        secondary=("gradients-not-cleared", "gradient-explosion", "gradient-instability", "multiple-pathologies"),
    ),
    sealed(
        "decoder-not-in-optimizer",
        decoder_not_in_optimizer,
        on=("dates",),
        right=("parameters-not-in-optimizer", "frozen-weights"),
        cause=("parameters-not-in-optimizer",),
        secondary=("gradients-not-cleared", "gradient-explosion", *STALLED, "multiple-pathologies"),
    ),
    sealed(
        "backbone-left-in-eval",
        backbone_left_in_eval,
        on=("heartbeats",),
        right=("wrong-mode", "eval-mode-in-training", "batchnorm-misuse", *UNSTABLE),
        cause=("eval-mode-in-training", "batchnorm-misuse"),
        secondary=(*AFTERMATH, *STALLED),
    ),
    sealed(
        "divided-and-never-gathered",
        divided_and_never_gathered,
        on=("weather", "leaves"),
        right=("accumulation-error", "gradients-not-cleared", "lr-too-low", *STALLED),
        cause=("accumulation-error", "lr-too-low"),
    ),
    sealed(
        "mask-of-the-pruned-inverted",
        mask_of_the_pruned_inverted,
        on=("boxes",),
        right=("frozen-by-mistake", *UNMOVED, *STALLED),
        cause=("frozen-by-mistake",),
    ),
    sealed(
        "recomputed-without-gradients",
        recomputed_without_gradients,
        on=("leaves",),
        right=("detached-graph", "frozen-by-mistake", *UNMOVED),
        cause=("detached-graph", "frozen-by-mistake"),
        secondary=("collapsed-output", *STALLED),
    ),
    sealed(
        "average-shares-its-memory",
        average_shares_its_memory,
        on=("glu-text",),
        right=("state-overwritten", *UNSTABLE),
        secondary=AFTERMATH,
        onset=150,
        acute=True,
    ),
    sealed(
        "guard-of-another-model",
        guard_of_another_model,
        on=("dates",),
        right=("frozen-weights", "skipped-steps", *STALLED),
    ),
    sealed(
        "validated-after-each-step",
        validated_after_each_step,
        on=("heartbeats",),
        right=("step-time-regression",),
        onset=150,
    ),
    sealed(
        "padded-to-the-longest-so-far",
        padded_to_the_longest_so_far,
        on=("glu-text",),
        right=("step-time-regression", "target-anomaly"),
        secondary=("memory-growth", "input-anomaly", "batch-anomaly"),
        onset=160,
    ),
)
