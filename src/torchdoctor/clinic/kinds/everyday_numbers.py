"""Everyday accidents with numbers: a division by nothing, a type that is too small, a bad batch, a resumption."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic import arenas
from torchdoctor.clinic.kinds.everyday_data import fault, since
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward, cosine


def once(loop: Loop, at: int, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Have one batch go through a function."""
    count = itertools.count()
    loop.replace_batches(lambda x, y: change(x.clone(), y.clone()) if next(count) == at else (x, y))


# ── what is not a number ─────────────────────────────────────────────────────────────────────────────────────────────


def logarithm_of_no_sales(loop: Loop) -> None:
    """Targets are logarithms of sales; at step 180 a shop comes that has sold nothing."""

    def closed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sales = y.exp()
        sales[2] = 0.0
        return x, sales.log()

    once(loop, 180, closed)


def ratio_of_nothing(loop: Loop) -> None:
    """A column is a ratio of two others, and infinite in the two rows of step 140 whose divisor is zero."""

    def divided(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[:2, -1] = float("inf")
        return x, y

    once(loop, 140, divided)


def gap_in_the_record(loop: Loop) -> None:
    """The logger was off for an hour: one window of step 210 has NaN in the middle."""

    def gap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[5].narrow(0 if x.shape[2] == 1 else 1, 8, 6).fill_(float("nan"))  # time is the longer of the two
        return x, y

    once(loop, 210, gap)


def nothing_to_average(loop: Loop) -> None:
    """The loss is a sum over the places that count, divided by their number, and at step 150 none counts."""
    batches = itertools.count()
    counts = [1.0]

    def masked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        counts[0] = float(next(batches) != 150)
        return x, y

    def averaged(outputs: Tensor, y: Tensor) -> Tensor:
        mask = (y != 0).float() * (counts[0] if loop.model.training else 1.0)
        return (functional.cross_entropy(outputs, y, reduction="none") * mask).sum() / mask.sum()

    loop.replace_batches(masked)
    loop.loss_fn = averaged


class EachByItsSpread(nn.Module):
    """Every channel of every sample is standardised by itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """What the net says of the standardised signal."""
        made: Tensor = self.inner((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True))
        return made


def dead_channel(loop: Loop) -> None:
    """Each signal is divided by its own spread; from step 160 on a sensor is unplugged and sends zeros."""

    def unplugged(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[::12, 1] = 0.0
        return x, y

    loop.model = EachByItsSpread(loop.model)
    since(loop, 160, unplugged)


def root_of_no_bias(loop: Loop) -> None:
    """The lengths of the biases, by hand with a square root, are added to the loss, and the biases begin at zero."""
    model = loop.model
    inner = loop.forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        biases = [table for name, table in model.named_parameters() if "bias" in name]
        return inner(x, y) + 1e-4 * sum(table.square().sum(1).sqrt().mean() for table in biases)

    loop.forward = forward


def last_batch_of_one(loop: Loop) -> None:
    """Targets are standardised within the batch, and the last batch of the epoch, of one row, has no spread."""
    size = loop.arena.batch_size
    loop.arena.x, loop.arena.y = loop.arena.x[: 90 * size + 1], loop.arena.y[: 90 * size + 1]

    def loader() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for rows in torch.split(torch.randperm(len(loop.arena.x)), size):
                yield loop.arena.x[rows], loop.arena.y[rows]

    def standardised(outputs: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(outputs, (y - y.mean()) / y.std())

    loop.batches = loader()
    loop.loss_fn = standardised


# ── small types ──────────────────────────────────────────────────────────────────────────────────────────────────────


def cast(loop: Loop, dtype: torch.dtype) -> None:
    """Have the model and its data in a type."""
    loop.model.to(dtype)

    def smaller(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.to(dtype) if x.is_floating_point() else x), (y.to(dtype) if y.is_floating_point() else y)

    loop.replace_batches(smaller)
    loop.validated = smaller(*loop.validated)
    loop.constant()


def all_in_half(loop: Loop) -> None:
    """`model.half()` to save memory, and Adam, whose eps of 1e-8 is zero in fp16."""
    cast(loop, torch.float16)
    loop.use("adam")


def scale_by_hand(loop: Loop) -> None:
    """The model is in fp16 and the loss multiplied by 65,536, by hand, so that larger gradients overflow."""
    cast(loop, torch.float16)
    loop.use("sgd")
    loop.backward = lambda loss: backward(loss.float() * 2.0**16)

    def unscale(optimizer: torch.optim.Optimizer) -> None:
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(2.0**16)
        optimizer.step()

    loop.apply = unscale


def weights_in_bfloat(loop: Loop) -> None:
    """The weights themselves are in bf16, and steps of 1e-4 are below their last digit."""
    cast(loop, torch.bfloat16)
    loop.use("adamw", lr=1e-4)


# ── what happens once ────────────────────────────────────────────────────────────────────────────────────────────────


def another_unit(loop: Loop) -> None:
    """The batch of step 170 comes from a file in another unit, a thousand times as large, in inputs and targets."""
    loop.use("sgd")
    loop.constant()
    once(loop, 170, lambda x, y: (1000 * x, 1000 * y))


def saturated_recording(loop: Loop) -> None:
    """The recordings of step 190 are of raw counts, in the ten thousands."""
    loop.use("sgd")
    loop.constant()
    once(loop, 190, lambda x, y: (8_000 * x + 30_000, y))


def flipped_bit(loop: Loop) -> None:
    """A bit in the exponent of one weight flips in memory at step 165."""

    @torch.no_grad()
    def flip() -> None:
        weight = [parameter for parameter in loop.model.parameters() if parameter.dim() > 1][1].view(-1)
        weight[0] = 2.0**50 * (1.0 + weight[0].abs())

    loop.events[165] = flip


def rate_retyped(loop: Loop) -> None:
    """By hand, at step 180, the rate of Adam is to be lowered, and 0.1 is typed for 0.0001."""
    loop.use("adam")
    loop.constant()

    def retype() -> None:
        assert loop.optimizer is not None
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.1

    loop.events[180] = retype


def resumed(loop: Loop, at: int, rate: float, load: Callable[[], None]) -> None:
    """A run of Adam in two parts: before the second one something is loaded, and optimizer and schedule begin anew."""

    def part(watch: Watch, first: int, last: int) -> None:
        optimizer = torch.optim.Adam(loop.model.parameters(), lr=rate)
        scheduler = cosine(at, 1, floor=0.05)(optimizer)
        loop.doctor = watch(loop.model, optimizer, scheduler=scheduler)
        for step in range(first, last):
            x, y = next(loop.batches)
            optimizer.zero_grad()
            loss = loop.forward(x, y)
            backward(loss)
            optimizer.step()
            scheduler.step()
            loop.losses.append(loss.item())
            if loop.doctor is not None:
                loop.doctor.log_loss(loss, step=step)
        if loop.doctor is not None and last < loop.steps:
            loop.doctor.detach()

    def run(watch: Watch) -> None:
        part(watch, 0, at)
        load()
        part(watch, at, loop.steps)

    loop.run = run


def keys_with_a_prefix(loop: Loop) -> None:
    """The checkpoint has keys that begin with "module.", and `strict=False` loads none of them: all begins anew."""
    new = arenas.build(loop.name, loop.seed + 1).model.state_dict()
    resumed(loop, 200, loop.arena.adam, lambda: loop.model.load_state_dict(new) and None)


def weights_alone(loop: Loop) -> None:
    """The run is resumed from its weights alone: Adam knows nothing, and its rate is at the peak, without a warm-up."""
    loop.steps = 280
    resumed(loop, 200, 8 * loop.arena.adam, lambda: None)


NOT_FINITE = ("nan-or-inf", "numeric-precision")
RUIN = (*UNSTABLE, *STALLED, *SIGNAL, *UNMOVED, *GENERALIZATION)
POISON = ("nan-or-inf", "nan-in-data", "bad-batch")
JUMP = ("resume-error", "state-overwritten", "loss-spike", "loss-divergence", "gradient-explosion")

FAULTS: tuple[Kind, ...] = (
    fault(
        "logarithm-of-no-sales",
        logarithm_of_no_sales,
        "prices",
        (*POISON, "target-anomaly", "numeric-precision"),
        ("nan-in-data", "bad-batch", "numeric-precision"),
        RUIN,
        onset=180,
        acute=True,
    ),
    fault(
        "ratio-of-nothing",
        ratio_of_nothing,
        "contracts",
        (*POISON, "input-anomaly", "numeric-precision"),
        ("nan-in-data", "bad-batch", "numeric-precision"),
        RUIN,
        onset=140,
        acute=True,
    ),
    fault(
        "gap-in-the-record",
        gap_in_the_record,
        "forecast sensor",
        (*POISON, "input-anomaly"),
        ("nan-in-data", "bad-batch"),
        RUIN,
        onset=210,
        acute=True,
    ),
    fault(
        "nothing-to-average",
        nothing_to_average,
        "tagger",
        (*NOT_FINITE, "loss-misuse", "suspicious-loss"),
        ("numeric-precision", "bad-batch", "loss-misuse"),
        RUIN,
        onset=150,
        acute=True,
    ),
    fault(
        "dead-channel",
        dead_channel,
        "sensor",
        (*NOT_FINITE, "input-anomaly", "bad-batch"),
        ("numeric-precision", "bad-batch"),
        (*RUIN, "nan-in-data"),
        onset=160,
        acute=True,
    ),
    fault(
        "root-of-no-bias",
        root_of_no_bias,
        "ratings",
        NOT_FINITE,
        ("numeric-precision",),
        (*RUIN, "loss-misuse"),
        acute=True,
    ),
    fault(
        "last-batch-of-one",
        last_batch_of_one,
        "prices",
        (*NOT_FINITE, "bad-batch", "batch-size-unsuited", "loss-misuse"),
        ("numeric-precision", "bad-batch", "batch-size-unsuited"),
        (*RUIN, "nan-in-data", "batch-anomaly"),
        onset=90,
        acute=True,
    ),
    fault(
        "all-in-half",
        all_in_half,
        "digits denoiser",
        (*NOT_FINITE, "no-gradient", "gradient-vanishing", "optimizer-advice"),
        ("numeric-precision", "optimizer-misconfigured"),
        RUIN,
    ),
    fault(
        "scale-by-hand",
        scale_by_hand,
        "prices",
        NOT_FINITE,
        ("numeric-precision",),
        (*RUIN, "skipped-steps", "lr-too-high"),
    ),
    fault(
        "weights-in-bfloat",
        weights_in_bfloat,
        "gpt denoiser",
        ("numeric-precision", "frozen-weights", "lr-too-low", *STALLED),
        ("numeric-precision", "lr-too-low"),
        UNMOVED,
    ),
    fault(
        "another-unit",
        another_unit,
        "forecast denoiser",
        ("bad-batch", "input-anomaly", "target-anomaly", *UNSTABLE),
        ("bad-batch", "unnormalized-inputs", "unnormalized-targets", "clip-missing"),
        RUIN,
        onset=170,
        acute=True,
    ),
    fault(
        "saturated-recording",
        saturated_recording,
        "sensor",
        ("bad-batch", "input-anomaly", *UNSTABLE),
        ("bad-batch", "unnormalized-inputs", "clip-missing"),
        RUIN,
        onset=190,
        acute=True,
    ),
    fault(
        "flipped-bit",
        flipped_bit,
        "digits denoiser",
        ("hardware-fault", "state-overwritten", *UNSTABLE),
        ("hardware-fault", "numeric-precision"),
        (*RUIN, "resume-error"),
        onset=165,
        acute=True,
    ),
    fault(
        "rate-retyped",
        rate_retyped,
        "tagger gpt",
        ("lr-too-high", "schedule-error", "schedule-anomaly", *UNSTABLE),
        ("lr-too-high", "schedule-error"),
        RUIN,
        onset=180,
        acute=True,
    ),
    fault(
        "keys-with-a-prefix",
        keys_with_a_prefix,
        "digits gpt",
        JUMP,
        ("resume-error",),
        (*UNSTABLE, "hardware-fault", "schedule-anomaly", "schedule-error", "validation-anomaly"),
        onset=200,
        acute=True,
    ),
    fault(
        "weights-alone",
        weights_alone,
        "vit forecast",
        (*JUMP, "schedule-error", "schedule-anomaly", "lr-too-high", "warmup-missing"),
        ("resume-error", "schedule-error", "lr-too-high", "warmup-missing"),
        RUIN,
        onset=200,
    ),
)
