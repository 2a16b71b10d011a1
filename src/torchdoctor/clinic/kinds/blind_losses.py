"""Losses gone wrong, never looked at: their axes, units and terms; and players who are paid for the wrong thing."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import perceptron
from torchdoctor.clinic.blind_arenas_b import AmongTheBatch, Margin
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward


def over_the_batch(loop: Loop) -> None:
    """`log_softmax(dim=0)`: probabilities add up to one over the batch, not over the classes."""
    loop.loss_fn = lambda scores, y: functional.nll_loss(functional.log_softmax(scores, dim=0), y)


def divergence_of_probabilities(loop: Loop) -> None:
    """`KLDivLoss` is given probabilities where it expects their logarithms."""

    wanted = torch.eye(loop.arena.classes)
    loop.loss_fn = lambda scores, y: functional.kl_div(scores.softmax(-1), wanted[y], reduction="sum") / scores.numel()


def raw_output_as_variance(loop: Loop) -> None:
    """A net is to give mean and variance; the variance is the raw output, cut off at a millionth."""
    assert isinstance(loop.model, nn.Sequential)
    last = loop.model[-1]
    assert isinstance(last, nn.Linear)
    loop.model[-1] = nn.Linear(last.in_features, 2)

    def likelihood(outputs: Tensor, y: Tensor) -> Tensor:
        mean, variance = outputs[:, :1], outputs[:, 1:].clamp(min=1e-6)
        return 0.5 * (variance.log() + (y - mean).pow(2) / variance).mean()

    loop.loss_fn = likelihood


def margin_out_of_reach(loop: Loop) -> None:
    """Codes have length one, so that none are further apart than two; the margin is a hundred."""
    loop.loss_fn = Margin(100.0)


def temperature_multiplied(loop: Loop) -> None:
    """Similarities are multiplied by the temperature of 0.05, which should divide them."""
    loop.loss_fn = AmongTheBatch(0.05)


def delta_of_another_unit(loop: Loop) -> None:
    """Huber's delta was meant for another unit: a ten-thousandth, and with it goes every gradient."""
    loop.loss_fn = nn.HuberLoss(delta=1e-4)
    loop.use("sgd")
    loop.constant()


def hinge_of_zeros_and_ones(loop: Loop) -> None:
    """A hinge loss, for labels of one and minus one, is given zeros and ones: who is zero does not count."""
    loop.loss_fn = lambda scores, y: functional.relu(1 - y * scores).mean()


def lasso_by_the_sum(loop: Loop) -> None:
    """A penalty on the weights' absolute values is summed over all of them, at a price that was meant for the mean."""
    inner = loop.forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        size = torch.stack([parameter.abs().sum() for parameter in loop.model.parameters()]).sum()
        return inner(x, y) + 0.1 * size

    loop.forward = forward


def weights_all_zero(loop: Loop) -> None:
    """Samples are weighted, and the mean is divided by the sum of the weights: in one batch that is zero."""
    count = iter(range(10**6))

    def forward(x: Tensor, y: Tensor) -> Tensor:
        worth = torch.rand(len(y), 1, device=y.device)
        if loop.model.training and next(count) == 220:
            worth = torch.zeros_like(worth)
        each = functional.smooth_l1_loss(loop.model(x), y, reduction="none")
        return (worth * each).sum() / worth.sum()

    loop.forward = forward


def penalty_switched_on(loop: Loop) -> None:
    """At step 160 a term joins that is to keep the scores small, a hundred thousand times too dear."""
    inner = loop.loss_fn
    dearer = partial(setattr, loop, "loss_fn", lambda scores, y: inner(scores, y) + 1e5 * scores.pow(2).mean())
    loop.events[160] = dearer


def pixels_averaged(loop: Loop) -> None:
    """The pixels' cross-entropy is averaged while the distance of the code is summed: the code says nothing."""

    def bound(made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        scores, mean, log_variance = made
        distance = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return functional.binary_cross_entropy_with_logits(scores, x) + distance

    loop.loss_fn = bound


# ── players ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def duel(loop: Loop, *, detached: bool = False, wanted: float = 1.0) -> None:
    """A forger of points and a critic of them, in turns."""

    def run(watch: Watch) -> None:
        forger, critic = perceptron([4, 64, 64, 2]), perceptron([2, 64, 64, 1], nn.LeakyReLU)
        first, second = (torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.9)) for net in (forger, critic))
        loop.doctor = watch(nn.ModuleDict({"forger": forger, "critic": critic}), [first, second])
        bce = functional.binary_cross_entropy_with_logits
        for _ in range(loop.steps):
            real, _ = next(loop.batches)
            forged = forger(torch.randn(len(real), 4, device=real.device))
            told, fooled = critic(real), critic(forged.detach())
            judged = bce(told, torch.full_like(told, 0.9)) + bce(fooled, torch.zeros_like(fooled))
            second.zero_grad()
            backward(judged)
            second.step()
            made = bce(critic(forged.detach() if detached else forged), torch.full((len(real), 1), wanted))
            first.zero_grad()
            backward(made)
            first.step()
            loop.losses.append(float(made.detach()))
            loop.log(judged, name="critic")
            loop.log(made, name="forger")

    loop.run = run


def forgery_detached(loop: Loop) -> None:
    """The forger's samples are detached for its own step as well as for the critic's: it never learns."""
    duel(loop, detached=True)


def paid_for_being_caught(loop: Loop) -> None:
    """The forger's step has the critic's labels: it is paid when its samples are called forged."""
    duel(loop, wanted=0.0)


def guess(loop: Loop, *, fixed: float = 0.0, baseline: bool = True, alone: int = -1, rate: float = 3e-3) -> None:
    """A policy is to say which of four numbers is the largest, and is paid for it."""

    def run(watch: Watch) -> None:
        policy = perceptron([loop.arena.x.shape[1], 64, 4], nn.Tanh)
        optimizer = torch.optim.Adam(policy.parameters(), lr=rate)
        loop.doctor = watch(policy, optimizer)
        for step in range(loop.steps):
            x, _ = next(loop.batches)
            x = x[:1] if step == alone else x
            scores = policy(x).log_softmax(1)
            chosen = (scores - torch.empty_like(scores).exponential_().log()).argmax(1)
            reward = (chosen == x[:, :4].argmax(1)).float() + fixed
            spread = ((reward - reward.mean()).pow(2).sum() / (len(reward) - 1)).sqrt()
            worth = (reward - reward.mean()) / (spread + 1e-6) if baseline else reward
            entropy = -(scores.exp() * scores).sum(1).mean()
            loss = -(scores.gather(1, chosen.unsqueeze(1)).squeeze(1) * worth).mean() - 0.01 * entropy
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            loop.log(loss)
            loop.log(entropy.detach(), name="entropy")
            if (step + 1) % 25 == 0:
                with torch.no_grad():
                    held, _ = loop.validated
                    loop.log_validation(step, -(policy(held).argmax(1) == held[:, :4].argmax(1)).float().mean().item())

    loop.run = run


def paid_whatever_is_done(loop: Loop) -> None:
    """Every answer is paid a hundred, the right one a hundred and one, and no mean is taken off: chance decides."""
    guess(loop, fixed=100.0, baseline=False, rate=2e-2)


def advantage_of_one(loop: Loop) -> None:
    """Rewards are divided by their spread over the batch, and the rest of the buffer is a batch of one."""
    guess(loop, alone=180)


MISTAKEN = ("loss-misuse", "suspicious-loss")
FAULTS = (
    Kind(
        "log-softmax-over-the-batch",
        over_the_batch,
        on=("gaps",),
        right=(*MISTAKEN, "unexpected-initial-loss", *STALLED, "validation-anomaly"),
        cause=("loss-misuse",),
        secondary=("overfitting", "train-val-mismatch"),
    ),
    Kind(
        "divergence-of-probabilities",
        divergence_of_probabilities,
        on=("gaps",),
        right=(*MISTAKEN, *STALLED, "suspiciously-low-loss"),
        cause=("loss-misuse",),
        secondary=(*SIGNAL, "lr-too-low"),
    ),
    Kind(
        "raw-output-as-variance",
        raw_output_as_variance,
        on=("demand",),
        right=(*MISTAKEN, *UNSTABLE, *STALLED, "unexpected-initial-loss", "numeric-precision"),
        cause=("loss-misuse", "numeric-precision"),
        secondary=(*SIGNAL, "clip-missing", "lr-too-high", "validation-anomaly"),
    ),
    Kind(
        "margin-out-of-reach",
        margin_out_of_reach,
        on=("pairs",),
        right=(*MISTAKEN, *STALLED, "collapsed-output"),
        cause=("loss-misuse",),
        secondary=(*SIGNAL, "unexpected-initial-loss", "target-anomaly", "gradient-explosion"),
    ),
    Kind(
        "temperature-multiplied",
        temperature_multiplied,
        on=("towers",),
        right=(*MISTAKEN, *STALLED, "gradient-vanishing", "collapsed-output"),
        cause=("loss-misuse",),
        secondary=("lr-too-low", "representation-collapse"),
    ),
    Kind(
        "delta-of-another-unit",
        delta_of_another_unit,
        on=("coordinates",),
        right=(*MISTAKEN, *STALLED, "gradient-vanishing", "lr-too-low"),
        cause=("loss-misuse", "lr-too-low"),
        secondary=("suspiciously-low-loss", "frozen-weights"),
    ),
    Kind(
        "hinge-of-zeros-and-ones",
        hinge_of_zeros_and_ones,
        on=("loans",),
        right=(*MISTAKEN, "target-anomaly", "collapsed-output", *STALLED),
        cause=("loss-misuse",),
        secondary=(*SIGNAL, "class-imbalance"),
    ),
    Kind(
        "lasso-by-the-sum",
        lasso_by_the_sum,
        on=("demand",),
        right=("over-regularized", "collapsed-output", *STALLED, "gradient-vanishing", *MISTAKEN),
        cause=("over-regularized", "loss-misuse"),
        secondary=(*SIGNAL, "loss-oscillation", "unexpected-initial-loss"),
    ),
    Kind(
        "weights-all-zero",
        weights_all_zero,
        on=("sensors",),
        right=("nan-or-inf", "numeric-precision", "bad-batch", *MISTAKEN),
        cause=("numeric-precision", "bad-batch", "loss-misuse"),
        secondary=("validation-anomaly", "nan-in-data"),
        onset=220,
        acute=True,
    ),
    Kind(
        "penalty-switched-on",
        penalty_switched_on,
        on=("points", "gaps"),
        right=(*UNSTABLE, *MISTAKEN, "over-regularized", "collapsed-output"),
        cause=("loss-misuse", "over-regularized"),
        secondary=(*SIGNAL, *STALLED, *GENERALIZATION),
        onset=160,
        acute=True,
    ),
    Kind(
        "pixels-averaged",
        pixels_averaged,
        on=("ink",),
        right=("collapsed-output", "representation-collapse", "over-regularized", *MISTAKEN, *STALLED),
        cause=("loss-misuse", "over-regularized", "representation-collapse"),
        secondary=("gradient-vanishing", "mode-collapse"),
    ),
    Kind(
        "forgery-detached",
        forgery_detached,
        on=("flow",),
        right=(*UNMOVED, "detached-graph", "lopsided-losses", "adversarial-imbalance"),
        cause=("detached-graph",),
        secondary=("loss-divergence", "gradients-not-cleared"),
    ),
    Kind(
        "paid-for-being-caught",
        paid_for_being_caught,
        on=("flow",),
        right=("adversarial-imbalance", "lopsided-losses", *MISTAKEN, "suspiciously-low-loss", "mode-collapse"),
        cause=("loss-misuse", "adversarial-imbalance"),
        secondary=(*SIGNAL, *UNSTABLE, "loss-plateau"),
    ),
    Kind(
        "paid-whatever-is-done",
        paid_whatever_is_done,
        on=("loans",),
        right=("entropy-collapse", "policy-collapse", "collapsed-output", "saturated-activations", *UNSTABLE),
        cause=("policy-collapse", "lr-too-high", "unnormalized-targets"),
        secondary=(*SIGNAL, *STALLED, "suspiciously-low-loss"),
    ),
    Kind(
        "advantage-of-one",
        advantage_of_one,
        on=("loans",),
        right=("nan-or-inf", "numeric-precision", "bad-batch"),
        cause=("numeric-precision", "bad-batch"),
        secondary=("batch-size-unsuited",),
        onset=180,
        acute=True,
    ),
)
