"""Sealed: nothing is wrong, neither with ordinary recipes nor with those that look as if something were."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR

from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward, cosine, warmup
from torchdoctor.clinic.sealed_nets import BagOfPieces, Factors


def plain(loop: Loop) -> None:
    """An ordinary run, in whatever style the seed has drawn."""


def rectified(loop: Loop) -> None:
    """RAdam at a constant rate: it holds back by itself at first."""
    loop.make_optimizer = lambda parameters: torch.optim.RAdam(parameters, lr=loop.arena.adam)
    loop.constant()


def falls_with_the_square(loop: Loop) -> None:
    """SGD with a rate that falls to zero as the square of what is left."""
    loop.use("sgd")
    steps = loop.steps
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: (1 - min(step / steps, 1.0)) ** 2)


def decayed_hard(loop: Loop) -> None:
    """AdamW with a weight decay of 0.3 on matrices, nothing on the rest, a warm-up and a cosine."""
    loop.use("adamw", weight_decay=0.3)
    loop.schedule = cosine(loop.steps, 25, floor=0.1)

    def groups() -> list[dict[str, Any]]:
        matrices, others = ([p for p in loop.model.parameters() if (p.dim() > 1) is many] for many in (True, False))
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]

    loop.parameters = groups


class Orthogonal(Optimizer):
    """The momentum of each matrix is made orthogonal before it is applied; the rest moves by signs."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of all parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.mul_(0.9).add_(parameter.grad, alpha=0.1)
                if parameter.dim() < 2:
                    parameter.sub_(mean.sign(), alpha=0.1 * group["lr"])
                    continue
                flat = mean.flatten(1) / (mean.norm() + 1e-8)
                for _ in range(5):
                    square = flat @ flat.T
                    flat = 3.4445 * flat + (-4.775 * square + 2.0315 * square @ square) @ flat
                parameter.sub_(flat.view_as(parameter), alpha=group["lr"] * max(1.0, len(flat) / flat.shape[1]) ** 0.5)


def orthogonal_steps(loop: Loop) -> None:
    """Momentum made orthogonal by Newton and Schulz, written by hand, with a rate that falls in a line."""
    loop.make_optimizer = lambda parameters: Orthogonal(parameters, lr=0.02)
    steps = loop.steps
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: 1 - min(step / steps, 1.0))


def restarts_ever_longer(loop: Loop) -> None:
    """Adam with warm restarts, each cycle twice as long as the one before."""
    loop.use("adam")
    loop.schedule = lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=50, T_mult=2)


def scale_tries_its_ceiling(loop: Loop) -> None:
    """The scale is doubled every 25 steps until gradients in half precision overflow; that step is left out."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=25)
    loop.use("adam")
    loop.constant()

    def apply(optimizer: Optimizer) -> None:
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.half().float()
        scaler.step(optimizer)
        scaler.update()

    loop.backward, loop.apply = lambda loss: backward(scaler.scale(loss)), apply


def heavy_tails_clipped(loop: Loop) -> None:
    """Targets have errors with a heavy tail; the loss bears them, gradients are clipped, and the median is learnt."""
    tail = torch.distributions.StudentT(1.5).sample(loop.arena.y.shape).to(loop.arena.y.device)
    loop.arena.y = loop.arena.y + 0.3 * tail
    loop.loss_fn = nn.SmoothL1Loss()
    loop.use("sgd", 2.0)
    loop.schedule, loop.clip = warmup(20), 0.5


def frozen_from_below(loop: Loop) -> None:
    """Layers are frozen one after the other from the first on, as planned, when they have learnt what they will."""
    assert isinstance(loop.model, nn.Sequential)
    loop.use("adam")

    def freeze(module: nn.Module) -> None:
        for parameter in module.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None

    loop.events[int(0.6 * loop.steps)] = lambda: freeze(loop.model.get_submodule("0"))
    loop.events[int(0.75 * loop.steps)] = lambda: freeze(loop.model.get_submodule("1"))


def dropout_in_stages(loop: Loop) -> None:
    """Dropout is none at first, then 0.15, then 0.3: the training loss steps up, the validation's does not."""

    def use(share: float) -> None:
        for module in loop.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    loop.use("adam")
    loop.constant()
    use(0.0)
    loop.events[150], loop.events[275] = lambda: use(0.15), lambda: use(0.3)


def gathered_from_pairs(loop: Loop) -> None:
    """Memory holds two samples at a time: twelve such batches make a step, each loss divided by twelve."""
    loop.arena.batch_size, loop.micro = 2, 12
    loop.steps = 200


def summed_and_divided(loop: Loop) -> None:
    """The loss is a sum over all places, in the thousands, and SGD's rate is divided accordingly."""
    terms = loop.arena.batch_size * loop.arena.y[0].numel()
    inner = loop.forward
    loop.forward = lambda x, y: terms * inner(x, y)
    loop.use("sgd", 1 / terms)
    loop.clip = None


def tail_at_a_hundredth(loop: Loop) -> None:
    """The cosine ends after seven tenths of the run, at a hundredth of the rate, and the run goes on, as planned."""
    loop.use("adamw", 1.5)
    loop.schedule = cosine(int(0.7 * loop.steps), 15, floor=0.01)


def prior_in_the_bias(loop: Loop) -> None:
    """One in fourteen is positive, and the last bias begins at their share: the first loss is low, and falls slowly."""
    assert isinstance(loop.model, Factors)

    def thinned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = (y[:, 0] == 0) | (torch.rand(len(y), device=y.device) < 0.2)
        return x[kept], y[kept]

    loop.arena.x, loop.arena.y = thinned(loop.arena.x, loop.arena.y)
    loop.validated = thinned(*loop.validated)
    share = loop.arena.y.mean()
    nn.init.constant_(loop.model.inner.get_submodule("2").bias, float((share / (1 - share)).log()))  # type: ignore[arg-type]
    loop.use("adamw", 0.5)
    loop.steps = 300


def sparse_table(loop: Loop) -> None:
    """The table's gradients are sparse and have an optimizer made for them; the head has another."""
    assert isinstance(loop.model, BagOfPieces)
    model = loop.model
    model.table.sparse = True

    def run(watch: Watch) -> None:
        rows = torch.optim.SparseAdam(list(model.table.parameters()), lr=loop.arena.adam)
        head = torch.optim.AdamW(model.head.parameters(), lr=loop.arena.adam)
        loop.doctor = watch(model, [rows, head], loss_fn=loop.loss_fn)
        for step in range(loop.steps):
            loss = loop.forward(*next(loop.batches))
            backward(loss)
            loop.log(loss)
            for optimizer in (rows, head):
                optimizer.step()  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
            if (step + 1) % 50 == 0:
                loop.log_validation(step, loop.validate())

    loop.run = run


def masters_kept_apart(loop: Loop) -> None:
    """The net computes in bf16; the optimizer holds copies in full precision, which are copied back after each step."""
    loop.model.bfloat16()
    masters = [parameter.detach().float().requires_grad_() for parameter in loop.model.parameters()]
    loop.use("adam")
    loop.constant()
    loop.parameters = lambda: masters
    loop.forward = lambda x, y: loop.loss_of(loop.model(x.bfloat16()).float(), y)

    @torch.no_grad()
    def apply(optimizer: Optimizer) -> None:
        for master, parameter in zip(masters, loop.model.parameters(), strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        for master, parameter in zip(masters, loop.model.parameters(), strict=True):
            parameter.copy_(master)
        loop.model.zero_grad()

    loop.apply = apply


def each_batch_three_times(loop: Loop) -> None:
    """Reading is slow, so that each batch is used three times in a row before the next."""
    pairs = loop.batches

    def echoed() -> Iterator[tuple[Tensor, Tensor]]:
        for pair in pairs:
            for _ in range(3):
                yield pair

    loop.batches = echoed()
    loop.use("adam", 0.7)


def saved_every_fortieth(loop: Loop) -> None:
    """Every 40 steps all is saved, and the held-out samples are gone through one by one: that step takes far longer."""

    @torch.no_grad()
    def save() -> None:
        torch.save(loop.model.state_dict(), io.BytesIO())
        loop.model.eval()
        for index in range(48):
            loop.model(loop.validated[0][index : index + 1])
        loop.model.train()

    for step in range(40, loop.steps, 40):
        loop.events[step] = save


def kept_in_memory(loop: Loop) -> None:
    """In the first epoch each picture is read in full size and kept: memory grows, and then no more."""
    kept: dict[float, Tensor] = {}

    def read(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for picture in x:
            key = float(picture.flatten()[0])
            if key not in kept:
                kept[key] = functional.interpolate(picture.unsqueeze(0), scale_factor=4.0)
        return torch.cat([kept[float(picture.flatten()[0])][..., ::4, ::4] for picture in x]), y

    loop.replace_batches(read)


def head_from_zero(loop: Loop) -> None:
    """The head begins at zero, so that all classes are equally likely and the trunk has no gradient at first."""
    head = [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    loop.use("adamw")


def pixels_at_their_floor(loop: Loop) -> None:
    """What can be learnt is learnt in a third of the run; the rest goes by at a twentieth of the rate."""
    loop.steps = 1000
    loop.use("adam")
    loop.schedule = cosine(400, 10, floor=0.05)


HEALTHY: tuple[Kind, ...] = (
    Kind("sealed-texts", plain, on=("glu-text", "gated-scan", "parallel-text"), held_out=True),
    Kind("sealed-pieces", plain, on=("scrambled", "passages"), held_out=True),
    Kind("sealed-readers", plain, on=("dates", "promoters"), held_out=True),
    Kind("sealed-signals", plain, on=("heartbeats", "weather"), held_out=True),
    Kind("sealed-pictures", plain, on=("leaves", "boxes", "sharpen"), held_out=True),
    Kind("sealed-tables", plain, on=("trips", "fraud"), held_out=True),
    Kind("sealed-fields", plain, on=("molecules", "burgers"), held_out=True),
    Kind("rectified", rectified, on=("glu-text",), held_out=True),
    Kind("falls-with-the-square", falls_with_the_square, on=("heartbeats",), held_out=True),
    Kind("decayed-hard", decayed_hard, on=("parallel-text",), held_out=True),
    Kind("orthogonal-steps", orthogonal_steps, on=("boxes", "gated-scan"), held_out=True),
    Kind("restarts-ever-longer", restarts_ever_longer, on=("boxes", "glu-text"), held_out=True),
    Kind("scale-tries-its-ceiling", scale_tries_its_ceiling, on=("sharpen", "trips"), held_out=True),
    Kind("heavy-tails-clipped", heavy_tails_clipped, on=("trips",), held_out=True),
    Kind("frozen-from-below", frozen_from_below, on=("leaves",), held_out=True),
    Kind("dropout-in-stages", dropout_in_stages, on=("passages",), held_out=True),
    Kind("gathered-from-pairs", gathered_from_pairs, on=("boxes",), held_out=True),
    Kind("summed-and-divided", summed_and_divided, on=("burgers", "weather"), held_out=True),
    Kind("tail-at-a-hundredth", tail_at_a_hundredth, on=("dates",), held_out=True),
    Kind("prior-in-the-bias", prior_in_the_bias, on=("fraud",), held_out=True),
    Kind("sparse-table", sparse_table, on=("scrambled",), held_out=True),
    Kind("masters-kept-apart", masters_kept_apart, on=("boxes",), held_out=True),
    Kind("each-batch-three-times", each_batch_three_times, on=("sharpen",), held_out=True),
    Kind("saved-every-fortieth", saved_every_fortieth, on=("heartbeats",), held_out=True),
    Kind("kept-in-memory", kept_in_memory, on=("boxes",), held_out=True),
    Kind("head-from-zero", head_from_zero, on=("leaves",), held_out=True),
    Kind("pixels-at-their-floor", pixels_at_their_floor, on=("sharpen",), held_out=True),
)
