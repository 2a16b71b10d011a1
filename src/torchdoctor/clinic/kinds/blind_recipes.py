"""Sealed: nothing is wrong. Ordinary recipes, and sound ones that look odd from outside."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from torchdoctor.clinic.blind_nets import Rounded
from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine, warmup


def plain(loop: Loop) -> None:
    """An ordinary run, in whatever style the seed has drawn."""


def decoder_recipe(loop: Loop) -> None:
    """AdamW with betas 0.9 and 0.95, decay on matrices only, clipping at 1, warm-up and a cosine to a tenth."""
    loop.use("adamw", betas=(0.9, 0.95), weight_decay=0.1)
    loop.clip = 1.0
    loop.schedule = cosine(loop.steps, 30, floor=0.1)

    def groups() -> list[dict[str, object]]:
        matrices, others = ([p for p in loop.model.parameters() if (p.dim() > 1) is many] for many in (True, False))
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]

    loop.parameters = groups


def adagrad(loop: Loop) -> None:
    """Adagrad for a table of many rare rows, whose own rates fall as they are met."""
    rate = 8 * loop.arena.adam
    loop.make_optimizer = lambda parameters: torch.optim.Adagrad(parameters, lr=rate)
    loop.constant()


def nesterov(loop: Loop) -> None:
    """SGD with Nesterov's momentum, a light penalty, a warm-up and a line to zero."""
    loop.use("sgd", 0.7, nesterov=True, weight_decay=5e-4)
    loop.schedule = lambda optimizer: LambdaLR(
        optimizer, lambda step: min((step + 1) / 25, max(loop.steps - step, 0) / (loop.steps - 25))
    )


def by_closure(loop: Loop) -> None:
    """The optimizer is given a closure that clears, computes and goes back, and calls it itself."""

    def run(watch: object) -> None:
        optimizer = torch.optim.AdamW(loop.model.parameters(), lr=loop.arena.adam / 2)
        doctor = loop.doctor = watch(loop.model, optimizer, loss_fn=loop.loss_fn)  # type: ignore[operator]
        loop.model.train()
        for step in range(loop.steps):
            x, y = next(loop.batches)

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = loop.forward(x, y)
                backward(loss)
                return loss

            loss = optimizer.step(closure)
            assert isinstance(loss, Tensor)
            loop.losses.append(loss.item())
            if doctor is not None:
                doctor.log_loss(loss)
            if (step + 1) % 50 == 0:
                loop.log_validation(step, loop.validate())

    loop.run = run


def lengths_staged(loop: Loop) -> None:
    """Texts are short at first and longer in two stages: steps take longer each time, as they must."""
    seen = 0

    def cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal seen
        seen += 1
        length = x.shape[1] // (4 if seen < 80 else 2 if seen < 160 else 1)
        return x[:, :length], y[:, :length]

    loop.replace_batches(cut)


def rounded_from_the_middle(loop: Loop) -> None:
    """From the middle on weights are rounded to eight levels a side in the forward pass, with a gradient through it."""
    loop.use("adam", 0.6)
    loop.constant()
    layers = [m for m in loop.model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)]

    rounding = [Rounded() for _ in layers]
    for layer, part in zip(layers, rounding, strict=True):
        nn.utils.parametrize.register_parametrization(layer, "weight", part)

    def switch() -> None:
        for part in rounding:
            part.on = True

    loop.events[loop.steps // 2] = switch


def pruned_gradually(loop: Loop) -> None:
    """Every 40 steps the smallest weights are pruned for good, up to half of them; the others make up for it."""
    masks: dict[nn.Parameter, Tensor] = {}
    loop.use("adam", 0.7)

    def prune(share: float) -> None:
        for parameter in loop.model.parameters():
            if parameter.dim() > 1:
                size = parameter.detach().abs()
                masks[parameter] = size > size.flatten().quantile(share)

    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        with torch.no_grad():
            for parameter, mask in masks.items():
                parameter.mul_(mask)

    loop.apply = apply
    for index, step in enumerate(range(40, 241, 40)):
        loop.events[step] = lambda share=0.5 * (index + 1) / 6: prune(share)  # type: ignore[misc]


def _learn(loop: Loop, steps: int = 200) -> None:
    """Train the model beforehand, as somebody else has."""
    optimizer = torch.optim.Adam(loop.model.parameters(), lr=loop.arena.adam)
    before = loop.arena.batches()
    loop.model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        backward(loop.forward(*next(before)))
        optimizer.step()
    optimizer.zero_grad()


def trunk_borrowed(loop: Loop) -> None:
    """A net trained before: its trunk is frozen, and a new head learns on it."""
    _learn(loop)
    head = loop.model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    loop.model.requires_grad_(False)
    loop.model.add_module("head", nn.Linear(head.in_features, head.out_features))
    loop.use("adam")
    loop.parameters = loop.model.get_submodule("head").parameters


def biases_only(loop: Loop) -> None:
    """A trained net meets a sensor with an offset; everything but its biases and gains is frozen, on purpose."""
    _learn(loop)
    shift = 1.0 + 0.5 * loop.dice.random()
    loop.replace_batches(lambda x, y: (x + shift, y))
    x, y = loop.validated
    loop.validated = (x + shift, y)
    for parameter in loop.model.parameters():
        parameter.requires_grad_(parameter.dim() < 2)
    loop.use("adam", 1.0)
    loop.parameters = lambda: (p for p in loop.model.parameters() if p.requires_grad)


def in_decibels(loop: Loop) -> None:
    """The loss is the error in decibels: it goes below zero, and falls in a straight line where others flatten."""
    loop.loss_fn = lambda outputs, y: 10 * torch.log10((outputs - y).pow(2).mean())
    loop.use("adam", 0.5)
    loop.schedule = cosine(loop.steps, 20)


def in_metres(loop: Loop) -> None:
    """Targets are micrometres given in metres, and the net multiplies its output by 1e-6: a loss of 1e-12."""
    loop.arena.y = loop.arena.y * 1e-6
    x, y = loop.validated
    loop.validated = (x, y * 1e-6)
    loop.model.register_forward_hook(lambda module, given, made: made * 1e-6)
    loop.loss_fn = nn.MSELoss()
    loop.use("adam", 0.7, eps=1e-20)
    loop.schedule = warmup(20)
    loop.clip = None


def falls_by_orders(loop: Loop) -> None:
    """Data without noise and a cosine to zero: the loss falls by orders of magnitude up to the last step."""
    loop.use("adam", 0.7)
    loop.schedule = cosine(loop.steps, 20)


def accumulation_grows(loop: Loop) -> None:
    """A step is made of two batches at first, later of three and four, and always of their mean."""
    loop.schedule = None
    loop.use("adamw", 0.8)
    loop.micro = 2
    loop.steps = 180
    loop.events[60] = lambda: setattr(loop, "micro", 3)
    loop.events[120] = lambda: setattr(loop, "micro", 4)


def recomputed(loop: Loop) -> None:
    """Blocks are computed a second time on the way back, to save memory."""
    blocks = loop.model.get_submodule("blocks")
    for block in blocks.children():
        inner = block.forward
        block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)


def looks_between(loop: Loop) -> None:
    """Every ten steps the model is put in eval mode and writes a few characters, for somebody to read."""
    loop.schedule = cosine(loop.steps, 20, floor=0.1)

    @torch.no_grad()
    def write() -> None:
        loop.model.eval()
        text = loop.validated[0][:1, :8]
        for _ in range(6):
            text = torch.cat([text, loop.model(text)[:, -1:].argmax(-1)], 1)
        loop.model.train()

    for step in range(10, loop.steps, 10):
        loop.events[step] = write


def block_added(loop: Loop) -> None:
    """Half-way the net grows by a block that adds nothing at first; the optimizer is told of it."""
    loop.use("adamw", 0.7)
    loop.constant()

    def grow() -> None:
        blocks = loop.model.get_submodule("blocks")
        assert isinstance(blocks, nn.ModuleList)
        block = copy.deepcopy(blocks[-1])
        last = [m for m in block.modules() if isinstance(m, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        blocks.append(block)
        assert loop.optimizer is not None
        loop.optimizer.add_param_group({"params": list(block.parameters())})

    loop.events[loop.steps // 2] = grow


def resumed_rightly(loop: Loop) -> None:
    """Half-way everything is saved and loaded again: weights, the optimizer's memory, and the rate."""

    def resume() -> None:
        assert loop.optimizer is not None
        weights, memory = copy.deepcopy((loop.model.state_dict(), loop.optimizer.state_dict()))
        loop.model.load_state_dict(weights)
        loop.optimizer.load_state_dict(memory)

    loop.events[loop.steps // 2] = resume


def rate_breathes(loop: Loop) -> None:
    """The rate goes up and down three times along a sine, between a tenth and one, by design."""
    loop.use("adam")
    loop.schedule = lambda optimizer: LambdaLR(
        optimizer, lambda step: 0.55 - 0.45 * math.cos(6 * math.pi * step / loop.steps)
    )


KINDS = (
    Kind("blind-decoders", plain, on=("rms-text", "word-text")),
    Kind("blind-pictures", plain, on=("strokes", "textures")),
    Kind("blind-signals", plain, on=("chirps", "vitals")),
    Kind("blind-tables", plain, on=("flats", "clicks")),
    Kind("blind-shapes", plain, on=("solids", "pendulum")),
    Kind("blind-boards", plain, on=("moves", "game-of-life")),
    Kind("blind-fields", plain, on=("heights", "repaint")),
    Kind("blind-encoders", plain, on=("tallies",)),
    Kind("decoder-recipe", decoder_recipe, on=("broad-text",)),
    Kind("adagrad-for-rare-rows", adagrad, on=("clicks",)),
    Kind("nesterov-to-zero", nesterov, on=("textures",)),
    Kind("by-closure", by_closure, on=("solids",)),
    Kind("lengths-staged", lengths_staged, on=("rms-text",)),
    Kind("rounded-from-the-middle", rounded_from_the_middle, on=("moves", "pendulum")),
    Kind("pruned-gradually", pruned_gradually, on=("strokes",)),
    Kind("trunk-borrowed", trunk_borrowed, on=("moves",)),
    Kind("biases-only", biases_only, on=("pendulum", "vitals")),
    Kind("in-decibels", in_decibels, on=("repaint", "pendulum")),
    Kind("in-metres", in_metres, on=("flats",)),
    Kind("falls-by-orders", falls_by_orders, on=("heights",)),
    Kind("accumulation-grows", accumulation_grows, on=("tallies",)),
    Kind("recomputed", recomputed, on=("rms-text",)),
    Kind("looks-between", looks_between, on=("word-text",)),
    Kind("block-added", block_added, on=("flats",)),
    Kind("resumed-rightly", resumed_rightly, on=("strokes", "word-text")),
    Kind("rate-breathes", rate_breathes, on=("chirps",)),
)
HEALTHY: tuple[Kind, ...] = tuple(replace(kind) for kind in KINDS)
