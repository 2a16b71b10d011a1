"""Nothing is wrong: optimizers, schedules, clipping and losses of every usual kind, and of some unusual ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
)

from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine, warmup
from torchdoctor.clinic.kinds.players import quasi_newton


def plain(loop: Loop) -> None:
    """An ordinary run, in whatever style the seed has drawn."""


def plain_more(loop: Loop) -> None:
    """An ordinary run of twice the length."""
    loop.steps *= 2


def sgd_without_momentum(loop: Loop) -> None:
    """Plain SGD at a constant rate."""
    loop.use("plain-sgd", 0.7)
    loop.constant()


def rmsprop(loop: Loop) -> None:
    """RMSprop at a constant rate."""
    loop.use("rmsprop")
    loop.constant()


def warmup_short(loop: Loop) -> None:
    """AdamW with a warm-up of 30 steps."""
    loop.use("adamw")
    loop.schedule = warmup(30)


def warmup_long(loop: Loop) -> None:
    """The rate rises from nothing over the first half of the run."""
    loop.use("adamw", 1.5)
    loop.schedule = warmup(loop.steps // 2)


def cosine_to_zero(loop: Loop) -> None:
    """A cosine that ends at zero with the run."""
    loop.schedule = cosine(loop.steps, 15)


def warm_restarts(loop: Loop) -> None:
    """A cosine with warm restarts: the rate jumps up several times, and the loss a little."""
    loop.use("sgd")
    loop.clip = None
    loop.schedule = lambda optimizer: CosineAnnealingWarmRestarts(optimizer, T_0=60)


def one_cycle(loop: Loop) -> None:
    """One cycle: up, and down to almost nothing."""
    loop.use("sgd")
    loop.schedule = lambda optimizer: OneCycleLR(
        optimizer, max_lr=2 * optimizer.param_groups[0]["lr"], total_steps=loop.steps + 1
    )


def cyclic(loop: Loop) -> None:
    """A triangular rate, with which the loss breathes."""
    loop.use("sgd")
    loop.clip = None
    rate = loop.arena.sgd
    loop.schedule = lambda optimizer: CyclicLR(optimizer, rate / 10, rate, step_size_up=40)


def step_decay(loop: Loop) -> None:
    """The rate falls tenfold at half and at three quarters of the run."""
    marks = [loop.steps // 2, 3 * loop.steps // 4]
    loop.schedule = lambda optimizer: MultiStepLR(optimizer, marks, gamma=0.1)


def inverse_root(loop: Loop) -> None:
    """Warm-up, then the inverse square root of the step."""
    loop.use("adam", 2.0)
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: min((step + 1) / 40, (40 / (step + 1)) ** 0.5))


def reduce_on_plateau(loop: Loop) -> None:
    """The rate is halved whenever validation has not improved for a while."""
    loop.use("adam", 2.0)
    loop.constant()
    loop.schedule = lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=2)

    def advance(scheduler: ReduceLROnPlateau, step: int) -> None:
        if loop.validations and loop.validations[-1][0] == step - 1:
            scheduler.step(loop.validations[-1][1])

    loop.advance = advance


def summed_loss(loop: Loop) -> None:
    """The loss is summed over the batch, and Adam does not mind."""
    summed: dict[type[nn.Module], nn.Module] = {
        nn.CrossEntropyLoss: nn.CrossEntropyLoss(reduction="sum"),
        nn.MSELoss: nn.MSELoss(reduction="sum"),
    }
    loop.loss_fn = summed[type(loop.arena.loss_fn)]
    x, y = (tensor[: loop.arena.batch_size] for tensor in loop.validated)
    loop.validated = (x, y)  # a sum over as many samples as in training
    loop.use("adam")


def tiny_loss(loop: Loop) -> None:
    """The loss is scaled down ten thousand times, and Adam does not mind."""
    inner = loop.forward
    loop.forward = lambda x, y: inner(x, y) * 1e-4
    loop.use("adam", eps=1e-12)
    loop.clip = None


def loss_in_millions(loop: Loop) -> None:
    """The net predicts standardised prices; the loss is that of the prices, in the millions."""
    loop.loss_fn = lambda outputs, y: ((outputs - y) * 4000).pow(2).mean()
    loop.use("adam")


def negative_loss(loop: Loop) -> None:
    """A Gaussian likelihood, whose logarithm crosses zero and goes on falling."""
    last = next(m for m in reversed(list(loop.model.modules())) if isinstance(m, nn.Linear))
    wide = nn.Linear(last.in_features, 2)
    assert isinstance(loop.model, nn.Sequential)
    loop.model[-1] = wide

    def likelihood(outputs: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = outputs[..., :1], outputs[..., 1:].clamp(min=-3)
        return (0.5 * (log_variance + (y - mean).pow(2) / log_variance.exp())).mean() - 0.5

    loop.loss_fn = likelihood
    loop.use("adam", 0.3)


def small_batches(loop: Loop) -> None:
    """Batches of four, a small rate, and all the noise that comes with them."""
    loop.arena.batch_size = 4
    loop.use("sgd", 0.12)
    loop.constant()
    loop.steps = 600


def accumulated(loop: Loop) -> None:
    """Four micro-batches to a step, each loss divided by four."""
    loop.micro = 4
    loop.steps = 200


def clipped_always(loop: Loop) -> None:
    """Adam, with every gradient clipped to a norm of 0.1: it sees directions only, and needs no more."""
    loop.use("adam")
    loop.clip = 0.1


def label_smoothing(loop: Loop) -> None:
    """Label smoothing of 0.1: the loss ends well above zero."""
    loop.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)


def decayed(loop: Loop) -> None:
    """AdamW with a weight decay of 0.1 on matrices only."""
    loop.use("adamw", weight_decay=0.1)

    def groups() -> list[dict[str, object]]:
        matrices, others = ([p for p in loop.model.parameters() if (p.dim() > 1) is many] for many in (True, False))
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]

    loop.parameters = groups


def cleared_by_the_model(loop: Loop) -> None:
    """Gradients are cleared with `model.zero_grad(set_to_none=False)`, not by the optimizer."""
    loop.zero_grad = False
    inner = loop.apply

    def apply(optimizer: torch.optim.Optimizer) -> None:
        inner(optimizer)
        loop.model.zero_grad(set_to_none=False)

    loop.apply = apply


def cleared_by_hand(loop: Loop) -> None:
    """Gradients are cleared with `parameter.grad = None`."""
    loop.zero_grad = False
    inner = loop.forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        if loop.model.training:
            for parameter in loop.model.parameters():
                parameter.grad = None
        return inner(x, y)

    loop.forward = forward


def bfloat_autocast(loop: Loop) -> None:
    """Autocast to bf16, with weights in fp32."""
    loop.autocast = torch.bfloat16


def scaler_settles(loop: Loop) -> None:
    """A gradient scaler that begins too high, skips a few steps and settles."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    loop.clip = None
    loop.use("adam")
    loop.constant()
    loop.schedule = warmup(30)

    def apply(optimizer: torch.optim.Optimizer) -> None:
        scaler.step(optimizer)
        scaler.update()

    loop.backward, loop.apply = lambda loss: backward(scaler.scale(loss)), apply


def two_optimizers(loop: Loop) -> None:
    """The embedding learns with SGD and everything else with AdamW, one step each at a time."""

    def run(watch: object) -> None:
        table = [p for name, p in loop.model.named_parameters() if name.startswith("embed")]
        others = [p for name, p in loop.model.named_parameters() if not name.startswith("embed")]
        first = torch.optim.SGD(table, lr=0.5)
        second = torch.optim.AdamW(others, lr=loop.arena.adam)
        doctor = watch(loop.model, [first, second], loss_fn=loop.loss_fn)  # type: ignore[operator]
        for _ in range(loop.steps):
            loss = loop.forward(*next(loop.batches))
            backward(loss)
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
            loop.losses.append(loss.item())
            if doctor is not None:
                doctor.log_loss(loss)

    loop.run = run


def full_batch(loop: Loop) -> None:
    """The whole of a small data set at every step: the batch repeats because it is all there is."""
    loop.arena.x, loop.arena.y = loop.arena.x[:256], loop.arena.y[:256]
    loop.arena.batch_size = 256
    loop.constant()
    loop.steps = 200
    loop.validate_every = 0
    loop.use("adam", 0.5)


def batch_grows(loop: Loop) -> None:
    """Half-way the batch is made four times as large: less noise, other norms."""
    sizes = iter(range(100_000))
    pairs = loop.batches

    def grown() -> object:
        while True:
            if next(sizes) < loop.steps // 2:
                yield next(pairs)
            else:
                several = [next(pairs) for _ in range(4)]
                yield torch.cat([x for x, _ in several]), torch.cat([y for _, y in several])

    loop.batches = grown()  # type: ignore[assignment]


def lengths_vary(loop: Loop) -> None:
    """Texts of different lengths, from batch to batch."""

    def cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        length = loop.dice.randint(4, x.shape[1])
        return x[:, :length], y[:, :length]

    loop.replace_batches(cut)


EVERYWHERE = ("mlp", "cnn", "transformer")

HEALTHY = (
    Kind("plain-nets", plain, on=("mlp", "binary", "resnet", "dropout-mlp")),
    Kind("plain-images", plain, on=("cnn", "batchnorm", "autoencoder")),
    Kind("plain-texts", plain, on=("transformer", "gru-text", "post-norm")),
    Kind("plain-sequences", plain, on=("lstm", "rnn")),
    Kind("plain-regression", plain, on=("regression", "vae", "linear")),
    Kind("plain-deep", plain, on=("deep-tanh",)),
    Kind("plain-for-longer", plain_more, on=("mlp", "transformer", "regression")),
    Kind("sgd-without-momentum", sgd_without_momentum, on=("mlp", "cnn", "regression")),
    Kind("rmsprop", rmsprop, on=("mlp", "lstm")),
    Kind("warmup-short", warmup_short, on=EVERYWHERE),
    Kind("warmup-long", warmup_long, on=EVERYWHERE),
    Kind("cosine-to-zero", cosine_to_zero, on=EVERYWHERE),
    Kind("warm-restarts", warm_restarts, on=("mlp", "cnn")),
    Kind("one-cycle", one_cycle, on=("mlp", "resnet", "batchnorm")),
    Kind("cyclic-rate", cyclic, on=("mlp", "cnn")),
    Kind("step-decay", step_decay, on=EVERYWHERE),
    Kind("inverse-root", inverse_root, on=("transformer", "mlp")),
    Kind("reduce-on-plateau", reduce_on_plateau, on=("mlp", "regression")),
    Kind("summed-loss", summed_loss, on=("mlp", "regression", "autoencoder")),
    Kind("tiny-loss", tiny_loss, on=("mlp", "regression")),
    Kind("loss-in-millions", loss_in_millions, on=("regression",)),
    Kind("negative-loss", negative_loss, on=("regression",)),
    Kind("small-batches", small_batches, on=("mlp", "cnn", "regression")),
    Kind("accumulated", accumulated, on=("mlp", "transformer")),
    Kind("clipped-always", clipped_always, on=("transformer", "lstm", "gru-text")),
    Kind("label-smoothing", label_smoothing, on=("mlp", "cnn")),
    Kind("decayed", decayed, on=("transformer", "mlp")),
    Kind("cleared-by-the-model", cleared_by_the_model, on=("mlp", "cnn")),
    Kind("cleared-by-hand", cleared_by_hand, on=("mlp", "lstm")),
    Kind("bfloat-autocast", bfloat_autocast, on=("mlp", "transformer")),
    Kind("scaler-settles", scaler_settles, on=("mlp", "cnn")),
    Kind("two-optimizers", two_optimizers, on=("transformer", "gru-text")),
    Kind("full-batch", full_batch, on=("linear", "regression")),
    Kind("batch-grows", batch_grows, on=("mlp", "cnn")),
    Kind("lengths-vary", lengths_vary, on=("transformer", "gru-text")),
    Kind("quasi-newton", quasi_newton, on=("regression", "linear")),
)
