"""Healthy tasks whose losses have an odd scale, sign, noise or shape, and sensible ways to train them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.apart_nets import PatchTransformer, Ratings, Triplet, TwoHeads
from torchdoctor.clinic.arenas import perceptron
from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward


def _relabel(loop: Loop, change: Any) -> None:
    """Have the targets of training and validation go through a function of inputs and targets."""
    loop.arena.y = change(loop.arena.x, loop.arena.y)
    x, y = loop.validated
    loop.validated = (x, change(x, y))


def density_below_zero(loop: Loop) -> None:
    """A mixture of normals about two sharp branches: the loss falls through zero and goes on."""


def labels_one_in_thirty(loop: Loop) -> None:
    """Several labels that hold for few samples each: the loss is low at once, and no for all is nearly right."""
    _relabel(loop, lambda x, y: y * y.roll(1, 1))
    loop.steps = 500


def counts_mostly_zero(loop: Loop) -> None:
    """Counts of rare events: most are none, and the loss moves little and noisily."""
    generator = torch.Generator().manual_seed(loop.seed)
    _relabel(loop, lambda x, y: torch.binomial(y, torch.full_like(y, 0.15), generator=generator))


def few_are_seen_to_fail(loop: Loop) -> None:
    """Times of failure, most of them cut off by the end of the study; the loss is small and of either sign."""


def masks_to_guess(loop: Loop) -> None:
    """Hidden characters are guessed: frequencies are learnt at once, and then little for long."""
    loop.steps = 400


def parity(loop: Loop) -> None:
    """The parity of three of sixteen signs: nothing for many steps, then all at once."""
    arena = loop.arena
    _relabel(loop, lambda x, y: (x[:, :3].prod(1, keepdim=True) > 0).float())
    arena.x, loop.validated = arena.x.sign(), (loop.validated[0].sign(), loop.validated[1])
    loop.model = perceptron([16, 128, 1])
    loop.constant()
    loop.use("adam", 1.5)
    loop.steps = 600


def overlap_of_rare_pixels(loop: Loop) -> None:
    """One pixel in ten is to be found, by the loss of overlap, which begins near one and is noisy."""
    _relabel(loop, lambda x, y: (y == 1).long())

    def forward(x: Tensor, y: Tensor) -> Tensor:
        share: Tensor = loop.model(x).softmax(1)[:, 1]
        return 1 - (2 * (share * y).sum() + 1) / (share.sum() + y.sum() + 1)

    loop.forward, loop.shows_loss_fn = forward, False


def triplets_mostly_satisfied(loop: Loop) -> None:
    """With a small margin nearly all triplets are soon right: many batches have little or no loss left."""
    loop.loss_fn = Triplet(0.2)
    loop.steps = 500


def heavy_tails(loop: Loop) -> None:
    """Targets with a few enormous errors, and quantiles, which bear them: the loss leaps and comes back."""
    generator = torch.Generator().manual_seed(loop.seed)

    def tailed(x: Tensor, y: Tensor) -> Tensor:
        noise = torch.randn(y.shape, generator=generator) / torch.rand(y.shape, generator=generator).sqrt()
        return y + 0.15 * noise

    _relabel(loop, tailed)


def classes_by_rank(loop: Loop) -> None:
    """Some classes are ten times as frequent as others, in training as in validation."""
    generator = torch.Generator().manual_seed(loop.seed)

    def kept(y: Tensor) -> Tensor:
        return torch.rand(len(y), generator=generator) < 1 / (1 + y.float()) ** 1.6

    arena = loop.arena
    chosen = kept(arena.y)
    arena.x, arena.y = arena.x[chosen], arena.y[chosen]
    x, y = loop.validated
    chosen = kept(y)
    loop.validated = (x[chosen], y[chosen])


def harder_in_stages(loop: Loop) -> None:
    """Training begins with clear pictures, and noise is added in stages; the loss steps up each time."""
    noise = {"now": 0.0}
    loop.replace_batches(lambda x, y: (x + noise["now"] * torch.randn_like(x), y))
    loop.events[80] = lambda: noise.update(now=0.5)
    loop.events[160] = lambda: noise.update(now=1.0)


def blended_and_dropped(loop: Loop) -> None:
    """Blended samples, soft labels and dropout make the training loss far worse than the validation's."""
    loop.steps = 400
    classes = loop.arena.classes
    if isinstance(loop.model, PatchTransformer):
        loop.model.drop.p = 0.4

    def blend(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        share, order = 0.5 + 0.5 * torch.rand(1), torch.randperm(len(x))
        hot = functional.one_hot(y, classes).float() * 0.85 + 0.15 / classes
        return share * x + (1 - share) * x[order], share * hot + (1 - share) * hot[order]

    loop.replace_batches(blend)


def stopped_at_the_best(loop: Loop) -> None:
    """A small set is watched closely and training stops when the validation has not gained three times running."""
    arena = loop.arena
    arena.x, arena.y, arena.batch_size = arena.x[:800], arena.y[:800], 20

    def run(watch: Watch) -> None:
        optimizer = torch.optim.AdamW(loop.model.parameters(), lr=arena.adam, weight_decay=0.1)
        loop.doctor = watch(loop.model, optimizer, loss_fn=loop.loss_fn)
        best, since, kept = math.inf, 0, copy.deepcopy(loop.model.state_dict())
        for step in range(400):
            x, y = next(loop.batches)
            loss = loop.forward(x, y)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            loop.log(loss)
            if (step + 1) % 20:
                continue
            found = loop.validate()
            loop.log_validation(step, found)
            best, since = (found, 0) if found < best else (best, since + 1)
            if since == 0:
                kept = copy.deepcopy(loop.model.state_dict())
            if since == 3:
                break
        loop.model.load_state_dict(kept)

    loop.run = run


class _Weighted(nn.Module):
    """Two heads, and how sure each is, which is learnt as well."""

    def __init__(self, heads: TwoHeads) -> None:
        super().__init__()
        self.heads = heads
        self.doubt = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """What the heads say."""
        made: Tensor = self.heads(x)
        return made


def doubts_learnt(loop: Loop) -> None:
    """Two losses are weighted by doubts that are learnt with the rest; the sum goes below zero."""
    assert isinstance(loop.model, TwoHeads)
    model = _Weighted(loop.model)
    loop.model, loop.shows_loss_fn, loop.steps = model, False, 500
    _relabel(loop, lambda x, y: torch.stack([(x[:, 0] > 0).float(), y[:, 1]], 1))

    def forward(x: Tensor, y: Tensor) -> Tensor:
        made = model(x)
        first = functional.cross_entropy(made[:, :-1], y[:, 0].long())
        second = functional.mse_loss(made[:, -1], y[:, 1])
        return ((-model.doubt).exp() * torch.stack([first, second]) + model.doubt).sum()

    loop.forward = forward


def pairs_ranked(loop: Loop) -> None:
    """Of two films a user is to prefer the better; most rows of the tables have no gradient at most steps."""
    loop.use("adam")
    loop.model = Ratings(150, 100, 8)
    loop.arena.batch_size, loop.shows_loss_fn = 48, False

    def forward(x: Tensor, y: Tensor) -> Tensor:
        other = x.clone()
        other[:, 1] = torch.randint(100, (len(x),))
        gap = loop.model(x) - loop.model(other)
        return -(functional.logsigmoid(gap) * (y > 0.5) + functional.logsigmoid(-gap) * (y < -0.5)).mean()

    loop.forward = forward


def faint_signal(loop: Loop) -> None:
    """Most of the target is noise that nothing explains: the loss falls by an eighth, and that is all there is."""
    generator = torch.Generator().manual_seed(loop.seed)
    _relabel(loop, lambda x, y: 0.45 * y + torch.randn(y.shape, generator=generator))
    loop.model = perceptron([8, 24, 3])
    loop.use("adamw", 0.5)


def noise_to_predict(loop: Loop) -> None:
    """A denoiser is to give the noise, at a level drawn for each sample: batches differ, and the floor is high."""

    def noised(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        level, noise = torch.rand(len(y), 1), torch.randn_like(y)
        return (1 - level).sqrt() * y + level.sqrt() * noise, noise

    loop.model = perceptron([144, 192, 192, 144], nn.SiLU)
    loop.replace_batches(noised)
    loop.validated = noised(*loop.validated)


def few_nodes_labelled(loop: Loop) -> None:
    """One node in twelve has a label, and the others are left out of the loss."""
    generator = torch.Generator().manual_seed(loop.seed)
    _relabel(loop, lambda x, y: torch.where(torch.rand(y.shape, generator=generator) < 1 / 12, y, -100))


def margin_loss(loop: Loop) -> None:
    """A hinge loss: most samples are right by the margin and give no gradient."""

    class Hinge(nn.Module):
        """What is missing to the margin, squared."""

        def forward(self, made: Tensor, y: Tensor) -> Tensor:
            """The mean over batch."""
            return functional.relu(1 - (2 * y - 1) * made).pow(2).mean()

    loop.loss_fn = Hinge()


def sparse_code(loop: Loop) -> None:
    """An overcomplete code with a small penalty: most of its units are zero for most inputs, and that is meant."""
    encoder, decoder = perceptron([144, 128]), perceptron([128, 144])
    loop.model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    loop.shows_loss_fn = False

    def forward(x: Tensor, y: Tensor) -> Tensor:
        code = functional.relu(encoder(x))
        return functional.mse_loss(decoder(code), y) + 0.02 * code.abs().mean()

    loop.forward = forward


def floor_of_noise(loop: Loop) -> None:
    """What can be learnt is learnt early; the rest of the loss is noise in the data, and training goes on."""


def summed_over_pixels(loop: Loop) -> None:
    """The loss of a picture is the sum over its pixels: it starts in the hundreds, and so do gradients."""

    class Summed(nn.Module):
        """Cross-entropy, by picture."""

        def forward(self, made: Tensor, y: Tensor) -> Tensor:
            """The mean over the batch."""
            return functional.cross_entropy(made, y, reduction="sum") / len(y)

    loop.loss_fn = Summed()
    loop.use("adam")


HEALTHY = (
    Kind("density-below-zero", density_below_zero, on=("branches",)),
    Kind("labels-one-in-thirty", labels_one_in_thirty, on=("keywords",)),
    Kind("counts-mostly-zero", counts_mostly_zero, on=("visits",), learns=False),
    Kind("few-are-seen-to-fail", few_are_seen_to_fail, on=("censored-times",)),
    Kind("masks-to-guess", masks_to_guess, on=("masked-text",)),
    Kind("parity-at-last", parity, on=("keywords",)),
    Kind("overlap-of-rare-pixels", overlap_of_rare_pixels, on=("cells",)),
    Kind("triplets-mostly-satisfied", triplets_mostly_satisfied, on=("metric",)),
    Kind("heavy-tails", heavy_tails, on=("bands",)),
    Kind("classes-by-rank", classes_by_rank, on=("shapes-vit", "members")),
    Kind("harder-in-stages", harder_in_stages, on=("cells", "shapes-vit"), learns=False),
    Kind("blended-and-dropped", blended_and_dropped, on=("shapes-vit", "members"), learns=False),
    Kind("stopped-at-the-best", stopped_at_the_best, on=("members", "customers")),
    Kind("doubts-learnt", doubts_learnt, on=("class-and-number",)),
    Kind("pairs-ranked", pairs_ranked, on=("films",)),
    Kind("faint-signal", faint_signal, on=("bands",), learns=False),
    Kind("noise-to-predict", noise_to_predict, on=("denoiser",)),
    Kind("few-nodes-labelled", few_nodes_labelled, on=("communities",)),
    Kind("margin-loss", margin_loss, on=("customers",)),
    Kind("sparse-code", sparse_code, on=("denoiser",)),
    Kind("floor-of-noise", floor_of_noise, on=("cells", "backwards", "dilated-series")),
    Kind("summed-over-pixels", summed_over_pixels, on=("cells",)),
)
