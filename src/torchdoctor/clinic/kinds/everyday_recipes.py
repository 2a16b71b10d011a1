"""Ordinary recipes with which nothing is wrong: optimizers, schedules, precision, averaging, regularization, phases."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from torchdoctor.clinic.kinds.everyday_tasks import ordinary, sound
from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward, cosine, warmup

# ── optimizers and schedules ─────────────────────────────────────────────────────────────────────────────────────────


def paper_of_transformers(loop: Loop) -> None:
    """A post-norm transformer as in the paper: Adam with beta2 of 0.98, a long warm-up, then a slow decay, clipping."""
    loop.use("adam", betas=(0.9, 0.98), eps=1e-9)
    loop.schedule, loop.clip = cosine(loop.steps, 80, floor=0.2), 1.0


def one_cycle(loop: Loop) -> None:
    """One cycle of SGD, up and down again, as long as the run."""
    loop.use("sgd", weight_decay=5e-4)
    loop.clip = None
    peak = 1.5 * loop.arena.sgd
    loop.schedule = lambda optimizer: OneCycleLR(optimizer, max_lr=peak, total_steps=loop.steps + 1)


def cosine_to_zero(loop: Loop) -> None:
    """AdamW with a decay of 0.05, a warm-up and a cosine that ends at zero with the run."""
    loop.use("adamw", weight_decay=0.05)
    loop.schedule, loop.clip = cosine(loop.steps, 30), None


def restarts(loop: Loop) -> None:
    """A cosine with warm restarts, each twice as long as the one before."""
    loop.use("sgd")
    loop.clip = None
    loop.schedule = lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=60, T_mult=2)


def lower_on_plateau(loop: Loop) -> None:
    """ReduceLROnPlateau on the validation loss, with patience, called after each validation."""
    loop.use("adam", 2.0)
    loop.validate_every, loop.clip = 25, None
    loop.steps += 200
    loop.schedule = lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.3, patience=2)

    def advance(scheduler: ReduceLROnPlateau, step: int) -> None:
        if loop.validations and loop.validations[-1][0] == step - 1:
            scheduler.step(loop.validations[-1][1])

    loop.advance = advance


def step_decay_by_epoch(loop: Loop) -> None:
    """StepLR, stepped once in an epoch, at its end."""
    loop.use("sgd")
    loop.clip = None
    loop.schedule = lambda optimizer: StepLR(optimizer, step_size=2, gamma=0.5)
    loop.advance = lambda scheduler, step: scheduler.step() if (step + 1) % loop.arena.epoch == 0 else None


def classic_language_model(loop: Loop) -> None:
    """SGD at a large rate without momentum and with clipping at 0.25, as for LSTMs of old."""
    loop.make_optimizer = lambda parameters: torch.optim.SGD(parameters, lr=10.0)
    loop.constant()
    loop.clip = 0.25


def adagrad(loop: Loop) -> None:
    """Adagrad, whose steps grow shorter by themselves."""
    loop.make_optimizer = lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)
    loop.constant()


def rmsprop(loop: Loop) -> None:
    """RMSprop with clipping, for a plain recurrent net."""
    loop.use("rmsprop")
    loop.constant()
    loop.clip = 1.0


def nadam(loop: Loop) -> None:
    """NAdam with a short warm-up."""
    loop.make_optimizer = lambda parameters: torch.optim.NAdam(parameters, lr=loop.arena.adam)
    loop.schedule, loop.clip = warmup(20), None


def slower_body(loop: Loop) -> None:
    """The body learns at a fifth of the head's rate."""
    loop.use("adamw")
    loop.constant()

    def groups() -> list[dict[str, Any]]:
        parameters = list(loop.model.parameters())
        return [{"params": parameters[:-2], "lr": loop.arena.adam / 5}, {"params": parameters[-2:]}]

    loop.parameters = groups


def an_optimizer_each(loop: Loop) -> None:
    """The words learn with SGD, all else with Adam; both are stepped and cleared at each step."""
    model = loop.model

    def run(watch: Watch) -> None:
        words = [parameter for name, parameter in model.named_parameters() if name.startswith("embedding")]
        others = [parameter for name, parameter in model.named_parameters() if not name.startswith("embedding")]
        both = [torch.optim.SGD(words, lr=1.0), torch.optim.Adam(others, lr=loop.arena.adam)]
        loop.doctor = watch(model, both, loss_fn=loop.loss_fn)
        for step in range(loop.steps):
            for optimizer in both:
                optimizer.zero_grad()
            loss = loop.forward(*next(loop.batches))
            backward(loss)
            for optimizer in both:
                optimizer.step()
            loop.log(loss)
            if (step + 1) % 50 == 0:
                loop.log_validation(step, loop.validate())

    loop.run = run


# ── batches and precision ────────────────────────────────────────────────────────────────────────────────────────────


def accumulated(loop: Loop) -> None:
    """Four micro-batches to a step, the loss of each divided by four."""
    loop.micro, loop.steps = 4, 180


def eight_at_a_time(loop: Loop) -> None:
    """Batches of eight with a rate to match."""
    loop.arena.batch_size = 8
    loop.use("adam", 0.3)
    loop.constant()
    loop.steps = 700


def mixed_precision(loop: Loop) -> None:
    """Autocast to bf16 around the forward pass, and weights in fp32."""
    loop.autocast = torch.bfloat16


def scaled(loop: Loop) -> None:
    """A gradient scaler with its usual first scale, unscaled before clipping."""
    scaler = torch.amp.GradScaler("cpu")
    loop.clip = None

    def apply(optimizer: torch.optim.Optimizer) -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    loop.backward, loop.apply = lambda loss: backward(scaler.scale(loss)), apply


def recomputed(loop: Loop) -> None:
    """The blocks are computed again in the backward pass, to save memory."""
    for block in loop.model.get_submodule("blocks").children():
        inner = block.forward
        block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)


# ── losses and regularization ────────────────────────────────────────────────────────────────────────────────────────


def smoothed(loop: Loop) -> None:
    """Label smoothing of 0.1: the loss ends well above zero."""
    loop.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)


def summed(loop: Loop) -> None:
    """The error is summed over the batch, and Adam does not mind."""
    loop.loss_fn = nn.MSELoss(reduction="sum")
    x, y = loop.validated
    loop.validated = (x[: loop.arena.batch_size], y[: loop.arena.batch_size])
    loop.use("adam")
    loop.clip = None


def weighed_classes(loop: Loop) -> None:
    """One class is rarer than the others, and the loss weighs it accordingly."""

    def thin(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = (y != 0) | (torch.rand(len(y)) < 0.25)
        return x[kept], y[kept]

    loop.arena.x, loop.arena.y = thin(loop.arena.x, loop.arena.y)
    loop.validated = thin(*loop.validated)
    counts = loop.arena.y.bincount(minlength=loop.arena.classes).float()
    loop.loss_fn = nn.CrossEntropyLoss(weight=counts.mean() / counts)


def careless_annotators(loop: Loop) -> None:
    """One label in eight is wrong, in training as in validation: the loss rests above what clean labels would give."""

    def annotate(y: Tensor) -> Tensor:
        return torch.where(torch.rand(len(y)) < 0.125, torch.randint(loop.arena.classes, y.shape), y)

    loop.arena.y = annotate(loop.arena.y)
    loop.validated = (loop.validated[0], annotate(loop.validated[1]))


def holes(loop: Loop) -> None:
    """A square of each training picture is blanked out."""

    def spoiled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        top, left = loop.dice.randrange(12), loop.dice.randrange(12)
        x[:, :, top : top + 4, left : left + 4] = 0
        return x, y

    loop.replace_batches(spoiled)


def second_task(loop: Loop) -> None:
    """The loss is that of the mask and a little of how much of the picture it covers."""
    inner = loop.loss_fn

    def both(scores: Tensor, y: Tensor) -> Tensor:
        covered = functional.mse_loss(scores.sigmoid().mean((1, 2, 3)), y.mean((1, 2, 3)))
        return inner(scores, y) + 0.3 * covered

    loop.loss_fn = both


def penalty_in_the_loss(loop: Loop) -> None:
    """A small L1 penalty on the weights is part of the loss."""
    inner = loop.forward
    weights = [parameter for parameter in loop.model.parameters() if parameter.dim() > 1]

    def forward(x: Tensor, y: Tensor) -> Tensor:
        penalty = torch.stack([weight.abs().sum() for weight in weights]).sum()
        return inner(x, y) + 1e-4 * penalty if loop.model.training else inner(x, y)

    loop.forward = forward


# ── phases and copies ────────────────────────────────────────────────────────────────────────────────────────────────


def pretrain(loop: Loop, steps: int) -> None:
    """Train the model on the same data beforehand, unwatched."""
    batches, ahead = copy.copy(loop.arena).batches(), torch.optim.Adam(loop.model.parameters(), lr=loop.arena.adam)
    for _ in range(steps):
        ahead.zero_grad()
        backward(loop.forward(*next(batches)))
        ahead.step()
    loop.model.zero_grad()


def averaged_weights(loop: Loop) -> None:
    """Validation looks at a moving average of the weights."""
    average = AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)  # type: ignore[no-untyped-call]
    inner = loop.apply

    def apply(optimizer: torch.optim.Optimizer) -> None:
        inner(optimizer)
        average.update_parameters(loop.model)

    @torch.no_grad()
    def validate() -> float:
        x, y = (tensor[:256] for tensor in loop.validated)
        average.eval()
        return float(loop.loss_of(average(x), y))

    loop.apply, loop.validate = apply, validate


def tied(loop: Loop) -> None:
    """The head shares its weights with the embedding."""
    model: Any = loop.model
    model.lm_head.weight = model.wte.weight


def fine_tuned(loop: Loop) -> None:
    """A net that knows the digits learns them upside down, at half of the rate."""
    pretrain(loop, 250)
    loop.arena.x = loop.arena.x.flip(2)
    loop.validated = (loop.validated[0].flip(2), loop.validated[1])
    loop.use("adam", 0.5)
    loop.clip = None


def head_first(loop: Loop) -> None:
    """With a pretrained trunk, the new head is trained alone for 100 steps, and then everything."""
    pretrain(loop, 150)
    model: Any = loop.model
    model.fc = nn.Linear(model.fc.in_features, loop.arena.classes)

    def set_trunk(learns: bool) -> None:
        for name, parameter in model.named_parameters():
            if not name.startswith("fc"):
                parameter.requires_grad_(learns)

    set_trunk(False)
    loop.events[100] = lambda: set_trunk(True)
    loop.use("adam", 0.5)
    loop.constant()


def taught(loop: Loop) -> None:
    """A net learns from the softened answers of another one that was trained before."""
    teacher = Loop(loop.name, loop.seed)
    pretrain(teacher, 300)
    teacher.model.eval().requires_grad_(False)

    def forward(x: Tensor, y: Tensor) -> Tensor:
        scores = loop.model(x)
        told = functional.log_softmax(teacher.model(x) / 2, 1)
        distance = functional.kl_div(
            functional.log_softmax(scores / 2, 1), told, reduction="batchmean", log_target=True
        )
        return 0.7 * 4 * distance + 0.3 * loop.loss_fn(scores, y)

    loop.forward = forward


def stopped_in_time(loop: Loop) -> None:
    """Few rows: the run ends when validation has not improved for three times."""
    loop.arena.x, loop.arena.y = loop.arena.x[:1500], loop.arena.y[:1500]
    loop.use("adam", 0.5, weight_decay=1e-4)

    def run(watch: Watch) -> None:
        optimizer = loop.make_optimizer(loop.model.parameters())
        loop.doctor = watch(loop.model, optimizer, loss_fn=loop.loss_fn)
        best, waited, step = float("inf"), 0, 0
        while waited < 3 and step < loop.steps:
            optimizer.zero_grad()
            loss = loop.forward(*next(loop.batches))
            backward(loss)
            optimizer.step()
            loop.log(loss)
            step += 1
            if step % 20 == 0:
                value = loop.validate()
                loop.log_validation(step - 1, value)
                best, waited = (value, 0) if value < best else (best, waited + 1)

    loop.run = run


def done_long_ago(loop: Loop) -> None:
    """Three times as many steps as are needed, with a cosine over all of them."""
    loop.steps *= 3
    loop.use("adamw")
    loop.schedule, loop.clip = cosine(loop.steps, 20, floor=0.01), 1.0


HEALTHY: tuple[Kind, ...] = (
    sound("plain-tables", ordinary, "contracts prices ratings"),
    sound("plain-pictures", ordinary, "digits resnet vit tissue denoiser"),
    sound("plain-texts", ordinary, "gpt char-lstm opinions topics tagger"),
    sound("plain-series", ordinary, "forecast elman sensor"),
    sound("paper-of-transformers", paper_of_transformers, "post-norm"),
    sound("one-cycle", one_cycle, "resnet sensor"),
    sound("cosine-to-zero", cosine_to_zero, "vit digits"),
    sound("restarts", restarts, "digits"),
    sound("lower-on-plateau", lower_on_plateau, "prices forecast"),
    sound("step-decay-by-epoch", step_decay_by_epoch, "sensor"),
    sound("classic-language-model", classic_language_model, "char-lstm"),
    sound("adagrad", adagrad, "ratings"),
    sound("rmsprop", rmsprop, "elman"),
    sound("nadam", nadam, "opinions"),
    sound("slower-body", slower_body, "vit char-lstm"),
    sound("an-optimizer-each", an_optimizer_each, "topics"),
    sound("accumulated", accumulated, "gpt tissue"),
    sound("eight-at-a-time", eight_at_a_time, "digits prices"),
    sound("mixed-precision", mixed_precision, "gpt digits"),
    sound("scaled", scaled, "sensor"),
    sound("recomputed", recomputed, "gpt"),
    sound("smoothed", smoothed, "topics vit"),
    sound("summed", summed, "denoiser prices"),
    sound("weighed-classes", weighed_classes, "contracts"),
    sound("careless-annotators", careless_annotators, "digits"),
    sound("holes", holes, "resnet"),
    sound("second-task", second_task, "tissue"),
    sound("penalty-in-the-loss", penalty_in_the_loss, "prices"),
    sound("averaged-weights", averaged_weights, "resnet"),
    sound("tied", tied, "gpt"),
    sound("fine-tuned", fine_tuned, "digits"),
    sound("head-first", head_first, "resnet"),
    sound("taught", taught, "digits"),
    sound("stopped-in-time", stopped_in_time, "contracts"),
    sound("done-long-ago", done_long_ago, "forecast sensor"),
)
