"""Bugs of the loop: what is cleared, held, detached, switched and saved wrongly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.clinic.arenas import Convolutions, Sequences, Transformer
from torchdoctor.clinic.kinds.faults_steps import heavy_tailed
from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine


def missing_zero_grad(loop: Loop) -> None:
    """The loop never clears its gradients."""
    loop.zero_grad = False


def zero_grad_of_another(loop: Loop) -> None:
    """The loop clears the gradients of the other optimizer, one that is left over from an earlier phase."""
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    loop.zero_grad = False
    loop.after_micro = other.zero_grad


def head_only_in_optimizer(loop: Loop) -> None:
    """The optimizer was given the last layer's parameters only, although the rest is new and requires gradients."""
    loop.parameters = lambda: _last_layer(loop.model).parameters()


def layers_in_a_list(loop: Loop) -> None:
    """The hidden layers are kept in a plain Python list: `parameters()` does not know them."""

    class Hidden(nn.Module):
        def __init__(self, layers: nn.Sequential) -> None:
            super().__init__()
            self.layers = list(layers)[:-1]
            self.head = layers[-1]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            scores: Tensor = self.head(x)
            return scores

    assert isinstance(loop.model, nn.Sequential)
    loop.model = Hidden(loop.model)


def group_forgotten(loop: Loop) -> None:
    """Parameters are sorted into groups with and without decay, and those of one layer fall through."""
    forgotten = _middle(loop.model)

    def groups() -> list[dict[str, Any]]:
        named = [(name, p) for name, p in loop.model.named_parameters() if not name.startswith(forgotten)]
        decayed, others = ([p for _, p in named if (p.dim() > 1) is matrix] for matrix in (True, False))
        return [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]

    loop.use("adamw")
    loop.parameters = groups


def frozen_by_mistake(loop: Loop) -> None:
    """A layer in the middle was frozen while debugging, and stayed so; the layers around it are trained."""
    for parameter in loop.model.get_submodule(_middle(loop.model)).parameters():
        parameter.requires_grad_(False)


def frozen_on_the_way(loop: Loop) -> None:
    """After 150 steps a layer in the middle of the net is frozen, with the optimizer still holding it."""

    def freeze() -> None:
        for parameter in loop.model.get_submodule(_middle(loop.model)).parameters():
            parameter.requires_grad_(False)

    loop.events[150] = freeze


def head_replaced(loop: Loop) -> None:
    """The head is replaced after the optimizer was built: the new one is never trained."""

    def replace() -> None:
        old = _last_layer(loop.model)
        new = nn.Linear(old.in_features, old.out_features)
        if isinstance(loop.model, nn.Sequential):
            loop.model[-1] = new
        else:
            loop.model.head = new

    loop.built = replace


def weights_replaced(loop: Loop) -> None:
    """Early on the parameters of the first layer are replaced by new ones, as initialisation code may do."""

    def replace() -> None:
        first = next(m for m in loop.model.modules() if isinstance(m, nn.Linear | nn.Conv2d))
        first.weight = nn.Parameter(torch.randn_like(first.weight) * first.weight.std().item())

    loop.built = replace


def detached_trunk(loop: Loop) -> None:
    """The features are detached before the head: a leftover of a feature extractor."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        trunk, head = _halves(loop.model)
        return loop.loss_of(head(trunk(x).detach()), y)

    loop.forward = forward


def detached_loss(loop: Loop) -> None:
    """The loss is made into a new tensor that requires gradients: backward runs, and reaches nothing."""
    inner = loop.forward
    loop.forward = lambda x, y: torch.tensor(inner(x, y).item(), requires_grad=True)


def stale_loss(loop: Loop) -> None:
    """The output is computed once, before the loop, and its graph is used again and again."""
    loop.use("sgd")
    loop.constant()
    kept: list[tuple[Tensor, Tensor]] = []
    training = loop.loss_of

    def forward(x: Tensor, y: Tensor) -> Tensor:
        if not loop.model.training:
            return training(loop.model(x), y)
        if not kept:
            kept.append((loop.model(x), y))
        return training(*kept[0])

    loop.forward = forward
    loop.backward = lambda loss: backward(loss, retain_graph=True)


def accumulation_not_divided(loop: Loop) -> None:
    """Sixteen micro-batches are added up without dividing the loss: with SGD the step is sixteen times too long."""
    loop.use("sgd", 3.0)
    loop.constant()
    loop.micro, loop.divide = 16, False
    loop.steps = 200


def accumulation_cleared(loop: Loop) -> None:
    """Gradients are cleared after every micro-batch, so that a step sees only the last."""
    loop.micro, loop.zero_first = 4, True
    loop.steps = 200
    seen = [0]

    def after() -> None:
        seen[0] += 1
        if seen[0] % loop.micro:
            loop.model.zero_grad()

    loop.after_micro = after


def eval_after_validation(loop: Loop) -> None:
    """After the first validation the model stays in eval mode."""
    loop.stays_in_eval = True
    loop.validate_every = 50


def eval_from_the_start(loop: Loop) -> None:
    """`model.eval()` was called before the loop, and nothing takes it back."""
    loop.built = lambda: setattr(loop.model, "train", lambda mode=True: loop.model)
    loop.model.eval()


def forgotten_step(loop: Loop) -> None:
    """`optimizer.step()` is missing: gradients are computed and thrown away."""
    loop.apply = lambda optimizer: None


def clip_after_step(loop: Loop) -> None:
    """Gradients are clipped after the step, when it is too late, although the data's heavy tail would need it."""
    if loop.name == "rnn":
        loop.arena.x *= 3
        loop.use("plain-sgd", 4.0)
    else:
        heavy_tailed(loop)
        loop.use("sgd")
    loop.schedule = None
    loop.clip, loop.clip_late = 0.25, True
    loop.zero_first = True


def resumed_without_state(loop: Loop) -> None:
    """Half-way the run is resumed from its weights alone: optimizer and schedule begin anew, at the peak rate."""
    loop.validate_every = 25
    half = 150

    def run(watch: Any) -> None:
        for part, steps in enumerate((half, loop.steps - half)):
            optimizer = torch.optim.Adam(loop.model.parameters(), lr=8 * loop.arena.adam)
            scheduler = cosine(half)(optimizer)
            loop.doctor = watch(loop.model, optimizer, scheduler=scheduler)
            for step in range(part * half, part * half + steps):
                x, y = next(loop.batches)
                optimizer.zero_grad()
                loss = loop.forward(x, y)
                backward(loss)
                optimizer.step()
                scheduler.step()
                loop.losses.append(loss.item())
                if loop.doctor is not None:
                    loop.doctor.log_loss(loss, step=step)
            if loop.doctor is not None and part == 0:
                loop.doctor.detach()

    loop.run = run


def copied_model(loop: Loop) -> None:
    """After some steps training goes on with a copy of the model, while the optimizer updates the original."""

    def copied() -> None:
        original, twin = loop.model, copy.deepcopy(loop.model)
        loop.forward = lambda x, y: loop.loss_of((twin if original.training else original)(x), y)

    loop.events[100] = copied


# ── parts of a model ─────────────────────────────────────────────────────────────────────────────────────────────


def _last_layer(model: nn.Module) -> nn.Linear:
    last = model[-1] if isinstance(model, nn.Sequential) else model.get_submodule("head")
    assert isinstance(last, nn.Linear)
    return last


def _middle(model: nn.Module) -> str:
    """The name of a layer that has trainable ones before and after it."""
    if isinstance(model, Convolutions):
        return "trunk.3"
    if isinstance(model, Transformer):
        return "blocks.layers.1.linear1"
    return "2"


def _halves(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    if isinstance(model, Convolutions):
        return nn.Sequential(model.trunk, nn.Flatten()), model.head
    if isinstance(model, Sequences):
        return _LastState(model.rnn), model.head
    assert isinstance(model, nn.Sequential)
    return model[:-1], model[-1]


class _LastState(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor = self.rnn(x)[0][:, -1]
        return state


FAULTS = (
    Kind(
        "missing-zero-grad",
        missing_zero_grad,
        on=("mlp", "cnn", "lstm"),
        right=(
            "gradients-not-cleared",
            "missing-zero-grad",
        ),
        cause=("missing-zero-grad",),
        secondary=(*UNSTABLE, *STALLED, "dead-units", "collapsed-output", "validation-anomaly"),
    ),
    Kind(
        "zero-grad-of-another",
        zero_grad_of_another,
        on=("regression", "resnet"),
        right=(
            "gradients-not-cleared",
            "missing-zero-grad",
        ),
        cause=("missing-zero-grad",),
        # weights that grow a millionfold drive every tanh to its ends: true, and a consequence
        secondary=(
            *UNSTABLE,
            *STALLED,
            "dead-units",
            "saturated-activations",
            "collapsed-output",
            "validation-anomaly",
        ),
    ),
    Kind(
        "head-only-in-optimizer",
        head_only_in_optimizer,
        on=("mlp", "cnn", "transformer"),
        right=("parameters-not-in-optimizer", "frozen-weights"),
        cause=("parameters-not-in-optimizer",),
        secondary=(*STALLED, *UNMOVED),
    ),
    Kind(
        "layers-in-a-list",
        layers_in_a_list,
        on=("mlp", "regression"),
        right=("parameters-not-in-optimizer", "frozen-weights"),
        cause=("parameters-not-in-optimizer",),
        secondary=(*STALLED, *UNMOVED),
    ),
    Kind(
        "group-forgotten",
        group_forgotten,
        on=("mlp", "cnn", "transformer"),
        right=("parameters-not-in-optimizer", "frozen-weights"),
        cause=("parameters-not-in-optimizer",),
        secondary=(*STALLED, *UNMOVED),
    ),
    Kind(
        "frozen-by-mistake",
        frozen_by_mistake,
        on=("mlp", "cnn", "transformer"),
        right=("frozen-by-mistake", *UNMOVED),
        cause=("frozen-by-mistake",),
        secondary=STALLED,
    ),
    Kind(
        "frozen-on-the-way",
        frozen_on_the_way,
        on=("mlp", "cnn"),
        right=("frozen-by-mistake", *UNMOVED),
        cause=("frozen-by-mistake",),
        secondary=STALLED,
        onset=150,
    ),
    Kind(
        "head-replaced",
        head_replaced,
        on=("mlp", "cnn", "transformer"),
        right=("stale-parameters", "parameters-not-in-optimizer", *UNMOVED),
        cause=("stale-parameters", "parameters-not-in-optimizer"),
        secondary=STALLED,
    ),
    Kind(
        "weights-replaced",
        weights_replaced,
        on=("mlp", "autoencoder"),
        right=("stale-parameters", "parameters-not-in-optimizer", *UNMOVED),
        cause=("stale-parameters", "parameters-not-in-optimizer"),
        secondary=STALLED,
    ),
    Kind(
        "detached-trunk",
        detached_trunk,
        on=("mlp", "cnn", "lstm"),
        right=("detached-graph", *UNMOVED),
        cause=("detached-graph",),
        secondary=STALLED,
    ),
    Kind(
        "detached-loss",
        detached_loss,
        on=("mlp", "regression"),
        right=("suspicious-loss", "detached-graph", *UNMOVED),
        cause=("detached-graph",),
        secondary=(*STALLED, "gradient-vanishing", "validation-anomaly"),
    ),
    Kind(
        "stale-loss",
        stale_loss,
        on=("linear",),
        right=(
            "suspicious-loss",
            "stale-loss",
        ),
        cause=("stale-loss",),
        secondary=(
            "batch-anomaly",
            *STALLED,
            *UNSTABLE,
            *GENERALIZATION,
            "repeated-batch",
            "collapsed-output",
            "suspiciously-low-loss",
        ),
    ),
    Kind(
        "accumulation-not-divided",
        accumulation_not_divided,
        on=("mlp", "regression", "lstm"),
        right=("gradients-not-cleared", "accumulation-error", "lr-too-high", *UNSTABLE),
        cause=("accumulation-error", "lr-too-high"),
        secondary=(*STALLED, "dead-units", "validation-anomaly", "collapsed-output", "gradient-vanishing"),
    ),
    Kind(
        "accumulation-cleared",
        accumulation_cleared,
        on=("mlp", "transformer"),
        right=(
            "gradients-not-cleared",
            "accumulation-error",
        ),
        cause=("accumulation-error",),
    ),
    Kind(
        "eval-after-validation",
        eval_after_validation,
        on=("batchnorm", "dropout-mlp"),
        right=(
            "wrong-mode",
            "eval-mode-in-training",
        ),
        cause=("eval-mode-in-training",),
        secondary=(*UNSTABLE, *GENERALIZATION, *STALLED),
        onset=50,
    ),
    Kind(
        "eval-from-the-start",
        eval_from_the_start,
        on=("batchnorm", "dropout-mlp"),
        right=(
            "wrong-mode",
            "eval-mode-in-training",
        ),
        cause=("eval-mode-in-training",),
        secondary=(*UNSTABLE, *GENERALIZATION, *STALLED),
    ),
    Kind(
        "forgotten-step",
        forgotten_step,
        on=("mlp", "cnn"),
        right=("frozen-weights", "not-learning"),
        secondary=(*STALLED, "validation-anomaly", "no-gradient"),
    ),
    Kind(
        "clip-after-step",
        clip_after_step,
        on=("rnn", "regression"),
        right=("clipping-anomaly", "clip-missing", *UNSTABLE),
        cause=("clip-missing",),
        secondary=(
            "target-anomaly",
            *STALLED,
            *GENERALIZATION,
            "gradient-vanishing",
            "saturated-activations",
            "unnormalized-inputs",
        ),
    ),
    Kind(
        "resumed-without-state",
        resumed_without_state,
        on=("mlp", "transformer"),
        right=("resume-error", "state-overwritten", "loss-spike", "schedule-error", "gradient-explosion"),
        cause=("resume-error", "schedule-error"),
        secondary=(
            "schedule-anomaly",
            *UNSTABLE,
        ),
        onset=150,
    ),
    Kind(
        "copied-model",
        copied_model,
        on=("mlp", "cnn"),
        right=("detached-graph", "stale-parameters", *UNMOVED),
        cause=("detached-graph", "stale-parameters", "parameters-not-in-optimizer"),
        secondary=(*STALLED, "validation-anomaly"),
        onset=100,
    ),
)
