"""Sealed: what is loaded in mid-run, what becomes of numbers that are stored, scaled and sent, and what is kept."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.clinic.arenas import Arena
from torchdoctor.clinic.kinds.kind import STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine
from torchdoctor.clinic.sealed_nets import Forecaster, Scanner


def _trained_elsewhere(loop: Loop, classes: int) -> dict[str, Tensor]:
    """Weights of the same architecture after a short training with other names for the classes."""
    arena: Arena = loop.arena
    other = copy.deepcopy(loop.model)
    for module in other.modules():
        again = getattr(module, "reset_parameters", None)
        if callable(again):
            again()
    optimizer = torch.optim.Adam(other.parameters(), lr=arena.adam)
    for _, (x, y) in zip(range(150), arena.batches(), strict=False):
        optimizer.zero_grad()
        backward(loop.loss_of(other(x.flip(-1)), (3 * y + 1) % classes))
        optimizer.step()
    return {name: 1.5 * tensor if tensor.is_floating_point() else tensor for name, tensor in other.state_dict().items()}


def another_experiment_loaded(loop: Loop) -> None:
    """At step 290 the newest file of the folder is loaded; it is that of another experiment, with other classes."""
    weights = _trained_elsewhere(loop, loop.arena.classes)
    loop.use("adam")
    loop.schedule = cosine(loop.steps, 10)
    loop.events[290] = lambda: loop.model.load_state_dict(weights) and None


def vocabulary_in_another_order(loop: Loop) -> None:
    """At step 300 the run is resumed, and the vocabulary made anew from a set: characters have other numbers."""
    order = torch.randperm(
        loop.arena.classes, generator=torch.Generator("cpu").manual_seed(loop.seed + 1), device="cpu"
    )
    order = order.to(loop.arena.x.device)
    loop.use("adam")
    loop.schedule = cosine(loop.steps, 10)
    served = itertools.count()
    loop.replace_batches(lambda x, y: (order[x], order[y]) if next(served) >= 300 else (x, y))

    def renumber() -> None:
        loop.validated = (order[loop.validated[0]], order[loop.validated[1]])

    loop.events[300] = renumber


def gates_in_another_order(loop: Loop) -> None:
    """At step 260 the weights come back from a format that has an LSTM's gates in another order."""
    assert isinstance(loop.model, Forecaster)
    rnn = loop.model.rnn
    loop.use("sgd")
    loop.schedule, loop.clip = cosine(loop.steps, 10), None

    @torch.no_grad()
    def load() -> None:
        for parameter in rnn.parameters():
            given, forgotten, cell, out = parameter.chunk(4)
            parameter.copy_(torch.cat([given, out, forgotten, cell]))

    loop.events[260] = load


def moments_stored_in_half(loop: Loop) -> None:
    """At step 200 Adam's memory comes back from a checkpoint in half precision, in which small squares are zero."""
    loop.use("adam", 1.5, betas=(0.9, 0.9999))
    loop.constant()

    def load() -> None:
        assert loop.optimizer is not None
        for state in loop.optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].half())

    loop.events[200] = load


def rows_brought_to_length_one(loop: Loop) -> None:
    """At step 150 the rows of the table are divided by their lengths, among them that of the padding, which is zero."""
    assert isinstance(loop.model, Scanner)
    table = loop.model.embed
    table.padding_idx = 0
    for texts in (loop.arena.x, loop.validated[0]):
        texts[:, -8:] = 0
    with torch.no_grad():
        table.weight[0] = 0

    def divide() -> None:
        table.weight.data.div_(table.weight.data.norm(dim=1, keepdim=True))

    loop.events[150] = divide


def scale_of_another_run(loop: Loop) -> None:
    """Losses are scaled by hand for gradients in half precision; at step 210 a checkpoint brings a scale of 2**40."""
    scale = [256.0]
    loop.use("adam")
    loop.constant()

    def load() -> None:
        scale[0] = 2.0**40

    def apply(optimizer: Optimizer) -> None:
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.half().float() / scale[0]
        optimizer.step()

    loop.events[210] = load
    loop.backward, loop.apply = lambda loss: backward(scale[0] * loss), apply


def divided_by_a_length_of_zero(loop: Loop) -> None:
    """Each gradient is divided by its length; at step 170 no sample of the batch counts, and there is none."""
    loop.use("plain-sgd", lr=0.03)
    loop.schedule, loop.clip = cosine(loop.steps, 1), None
    inner = loop.forward
    counted = [1.0]
    loop.forward = lambda x, y: counted[0] * inner(x, y)

    def apply(optimizer: Optimizer) -> None:
        gradients = [p.grad for p in loop.model.parameters() if p.grad is not None]
        length = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.div_(length)
        optimizer.step()
        counted[0] = 1.0

    def leave_out() -> None:
        counted[0] = 0.0

    loop.apply, loop.events[170] = apply, leave_out


def garbage_in_one_output(loop: Loop) -> None:
    """At step 230 one processor returns garbage for one layer's output, once."""
    loop.use("sgd")
    loop.constant()
    layer = [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]

    spoilt = [1.0]
    layer.register_forward_hook(lambda module, given, made: made * spoilt[0] if spoilt[0] > 1 else made)
    loop.events[230] = lambda: spoilt.__setitem__(0, 3e3)
    loop.events[231] = lambda: spoilt.__setitem__(0, 1.0)


def sent_in_half(loop: Loop) -> None:
    """Gradients are sent to other workers in half precision; of a loss divided by all its terms nothing is left."""
    loop.use("adam")
    loop.constant()
    terms = 100 * loop.arena.y.numel()

    def apply(optimizer: Optimizer) -> None:
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.half().float()
        optimizer.step()

    loop.backward, loop.apply = lambda loss: backward(loss / terms), apply


def scale_held_too_high(loop: Loop) -> None:
    """The scaler is told at each step what its scale is to be, 2**28, typed for 2**18: all steps are left out."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
    loop.constant()

    def apply(optimizer: Optimizer) -> None:
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.half().float()
        scaler.step(optimizer)
        scaler.update(2.0**28)

    loop.backward, loop.apply = lambda loss: backward(scaler.scale(loss)), apply


def film_of_the_weights(loop: Loop) -> None:
    """Weights and gradients of every step are kept, for a film that somebody wants to make of them."""
    frames: list[list[Tensor]] = []
    inner = loop.apply

    def apply(optimizer: Optimizer) -> None:
        frames.append([p.detach().clone() for p in loop.model.parameters()])
        frames.append([p.grad.clone() for p in loop.model.parameters() if p.grad is not None])
        inner(optimizer)

    loop.apply = apply


def looked_up_in_a_list(loop: Loop) -> None:
    """Each sample is looked for by its name in a list of all names, from its beginning."""
    names = [f"recording-{index:07d}.npy" for index in range(5 * len(loop.arena.x))]

    def found() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            wanted = [
                f"recording-{5 * loop.dice.randrange(len(loop.arena.x)):07d}.npy" for _ in range(loop.arena.batch_size)
            ]
            chosen = torch.tensor([names.index(name) // 5 for name in wanted])
            yield loop.arena.x[chosen], loop.arena.y[chosen]

    loop.batches = found()


AFTERMATH = ("multiple-pathologies", "dead-units", "saturated-activations", "collapsed-output", "validation-anomaly")
OVERWRITTEN = ("resume-error", "state-overwritten", *UNSTABLE)
sealed = partial(Kind, held_out=True)
acute = partial(sealed, acute=True, secondary=AFTERMATH)

FAULTS: tuple[Kind, ...] = (
    acute(
        "another-experiment-loaded",
        another_experiment_loaded,
        on=("leaves", "promoters"),
        right=OVERWRITTEN,
        cause=("resume-error",),
        onset=290,
    ),
    acute(
        "vocabulary-in-another-order",
        vocabulary_in_another_order,
        on=("glu-text",),
        right=("resume-error", "label-noise-or-misalignment", "input-anomaly", "batch-anomaly", *UNSTABLE),
        cause=("resume-error", "label-noise-or-misalignment"),
        onset=300,
    ),
    acute(
        "gates-in-another-order",
        gates_in_another_order,
        on=("weather",),
        right=OVERWRITTEN,
        cause=("resume-error",),
        onset=260,
    ),
    acute(
        "moments-stored-in-half",
        moments_stored_in_half,
        on=("glu-text",),
        right=("numeric-precision", *OVERWRITTEN),
        cause=("resume-error", "numeric-precision"),
        onset=200,
    ),
    acute(
        "rows-brought-to-length-one",
        rows_brought_to_length_one,
        on=("passages",),
        right=("nan-or-inf", "numeric-precision", "state-overwritten"),
        cause=("numeric-precision",),
        onset=150,
    ),
    acute(
        "scale-of-another-run",
        scale_of_another_run,
        on=("molecules",),
        right=("nan-or-inf", "numeric-precision", "resume-error", "gradient-explosion"),
        cause=("numeric-precision", "resume-error"),
        onset=210,
    ),
    acute(
        "divided-by-a-length-of-zero",
        divided_by_a_length_of_zero,
        on=("trips", "boxes"),
        right=("nan-or-inf", "numeric-precision", "bad-batch"),
        cause=("numeric-precision", "bad-batch"),
        onset=170,
    ),
    acute(
        "garbage-in-one-output",
        garbage_in_one_output,
        on=("boxes", "weather"),
        right=("hardware-fault", *UNSTABLE),
        cause=("hardware-fault",),
        onset=230,
    ),
    sealed(
        "sent-in-half",
        sent_in_half,
        on=("sharpen",),
        right=("numeric-precision", "gradient-vanishing", *UNMOVED, *STALLED),
        cause=("numeric-precision",),
    ),
    sealed(
        "scale-held-too-high",
        scale_held_too_high,
        on=("trips",),
        right=("skipped-steps", "numeric-precision", "nan-or-inf", "frozen-weights", *STALLED),
        cause=("numeric-precision",),
        secondary=("gradient-explosion",),
    ),
    sealed(
        "film-of-the-weights",
        film_of_the_weights,
        on=("parallel-text",),
        right=("memory-growth",),
        secondary=("step-time-regression",),
    ),
    sealed("looked-up-in-a-list", looked_up_in_a_list, on=("boxes",), right=("data-starvation",)),
)
