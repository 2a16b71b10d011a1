"""Mistakes that show in the graph behind a loss, and what looks like them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchdoctor.vitals.loss_graph import is_shared_out, read_graph
from torchdoctor.vitals.passes import content

LABELS = torch.arange(8) % 5
TOKENS = torch.zeros(3, 4, dtype=torch.long)


def scores():
    torch.manual_seed(0)
    return nn.Linear(4, 5)(torch.randn(8, 4))


def steps():
    torch.manual_seed(0)
    return nn.Linear(4, 7)(torch.randn(3, 4, 4))


def attended(dimension, dropout=0.0):
    torch.manual_seed(0)
    query = nn.Linear(4, 4)(torch.randn(2, 3, 6, 4))
    weights = (query @ query.transpose(-1, -2)).softmax(dimension)
    return (functional.dropout(weights, dropout) @ query).mean()


def by_hand(dimension):
    return functional.nll_loss((scores().softmax(dimension) + 1e-9).log(), LABELS)


def spelt(steps, letters, *, normalized=True):
    torch.manual_seed(0)
    heard = nn.Linear(4, 5)(torch.randn(max(steps, 12), 3, 4))
    heard = heard.log_softmax(2) if normalized else heard
    targets = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4]] * 3) if letters < 0 else torch.ones(3, letters, dtype=torch.long)
    asked = torch.full((3,), targets.shape[1])
    return functional.ctc_loss(heard, targets, torch.full((3,), steps), asked, zero_infinity=True)


def reshaped(*shapes, channels=6):
    torch.manual_seed(0)
    value = nn.Conv1d(2, channels, 1)(torch.randn(4, 2, 9))
    for shape in shapes:
        value = value.transpose(1, 2) if shape is None else value.reshape(shape)
    return nn.Linear(value.shape[-1], 1)(value).tanh().mean()


def heads(turn):
    torch.manual_seed(0)
    query = nn.Linear(4, 4)(torch.randn(2, 3, 6, 4))
    made = (query @ query.transpose(-1, -2)).softmax(-1) @ query
    return nn.Linear(12, 2)((made.transpose(1, 2) if turn else made).reshape(2, 6, 12)).tanh().mean()


def angles(scale):
    unit = functional.normalize
    return functional.cross_entropy(scale(unit(scores()) @ unit(nn.Linear(5, 9).weight).T), LABELS)


DROP = nn.Dropout(0.5)
SICK = {
    "norm of one output": (
        lambda: functional.mse_loss(nn.LayerNorm(1)(scores()[:, :1]), torch.ones(8, 1)),
        "norm-of-one",
    ),
    "a group for each value": (lambda: nn.Linear(5, 2)(nn.GroupNorm(5, 5)(scores())).tanh().mean(), "norm-of-one"),
    "cosines times one": (lambda: angles(lambda cosines: 1.0 * cosines), "cosines-without-scale"),
    "dropout on scores": (lambda: functional.cross_entropy(DROP(scores()), LABELS), "dropout-before-loss"),
    "dropout on values": (lambda: functional.mse_loss(DROP(scores()), torch.ones(8, 5)), "dropout-before-loss"),
    "one class": (lambda: functional.cross_entropy(scores()[:, :1], torch.ones(8, 1)), "one-class"),
    "sigmoid of a sigmoid": (lambda: -scores().sigmoid().sigmoid().log().mean(), "sigmoid-twice"),
    "softmax of a softmax": (lambda: -scores().softmax(1).softmax(1).log().mean(), "softmax-twice"),
    "softmax over samples, by hand": (lambda: by_hand(0), "softmax-over-the-batch"),
    "softmax over steps": (
        lambda: functional.nll_loss(steps().log_softmax(1).flatten(0, 1), TOKENS.flatten()),
        "softmax-over-places",
    ),
    "one output for all": (lambda: (scores()[:, :1] - torch.ones(8, 5)).pow(2).mean(), "one-for-all"),
    "each with each": (lambda: (scores()[:, None] - torch.ones(8, 5)[None]).abs().mean(), "broadcast"),
    "squared after the mean": (lambda: (scores() - torch.ones(8, 5)).mean().pow(2), "squared-after-the-mean"),
    "summed, then without its sign": (lambda: (torch.ones(8, 5) - scores()).sum().abs(), "squared-after-the-mean"),
    "a mean times itself": (
        lambda: (lambda mean: mean * mean)((scores() - LABELS[:, None]).mean()),
        "squared-after-the-mean",
    ),
    "squared after the mean over samples": (
        lambda: (scores() - torch.ones(8, 5)).mean(0).pow(2).sum(),
        "squared-after-the-mean",
    ),
    "attention over queries": (lambda: attended(-2), "attention-over-queries"),
    "attention over heads": (lambda: attended(1, 0.5), "attention-over-queries"),
    "exponential of an exponential": (
        lambda: functional.poisson_nll_loss(scores().exp(), torch.ones(8, 5)),
        "exp-twice",
    ),
    "weights shared out among samples": (
        lambda: functional.mse_loss(scores().softmax(0) * torch.ones(8, 5), torch.ones(8, 5)),
        "shared-among-samples",
    ),
    "fewer steps than letters": (lambda: spelt(6, -1), "too-short-to-spell"),
    "letters' scores as they are": (lambda: spelt(20, 3, normalized=False), "ctc-without-log-softmax"),
    "no step for the blanks": (lambda: spelt(6, 6), "too-short-to-spell"),
    "a view for a transpose": (lambda: reshaped((4, 9, 6)), "scrambled-inside"),
    "heads put together as they are": (lambda: heads(turn=False), "scrambled-inside"),
    "layers without activations": (
        lambda: functional.mse_loss(
            nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 5))(torch.randn(8, 4)), torch.ones(8, 5)
        ),
        "only-linear",
    ),
}
HEALTHY = {
    "norm of several outputs": lambda: functional.mse_loss(nn.LayerNorm(5)(scores()), torch.ones(8, 5)),
    "a group for each channel": lambda: nn.GroupNorm(5, 5)(scores()[:, :, None].expand(8, 5, 3)).tanh().mean(),
    "letters' log-probabilities": lambda: spelt(20, 3),
    "letters' log-probabilities, batch first": lambda: functional.ctc_loss(
        nn.Linear(4, 5)(torch.randn(3, 12, 4)).log_softmax(2).transpose(0, 1),
        torch.ones(3, 2, dtype=torch.long),
        torch.full((3,), 12),
        torch.full((3,), 2),
    ),
    "cosines over a temperature": lambda: angles(lambda cosines: cosines / 0.07),
    "cosines times sixteen": lambda: angles(lambda cosines: cosines * 16.0),
    "cosines with a learnt scale": lambda: angles(lambda cosines: cosines * nn.Parameter(torch.tensor(1.0))),
    "squared after the mean over a sample's outputs": lambda: (scores() - torch.ones(8, 5)).mean(1).pow(2).mean(),
    "a mean of samples beside the one wanted": lambda: (scores().mean(0) - torch.ones(5)).pow(2).sum(),
    "the sum of a sample's squares": lambda: (scores() - torch.ones(8, 5)).pow(2).sum(1).mean(0),
    "exponential in the loss": lambda: functional.poisson_nll_loss(scores(), torch.ones(8, 5)),
    "an extreme value's": lambda: (1 - (-scores().exp()).exp()).mean(),
    "weights of each sample": lambda: functional.mse_loss(scores().softmax(1) * torch.ones(8, 5), torch.ones(8, 5)),
    "samples of one bag": lambda: functional.mse_loss(
        nn.Linear(5, 2)((scores().softmax(0) * torch.ones(8, 5)).sum(0)), torch.ones(2)
    ),
    "steps for all letters": lambda: spelt(8, -1),
    "steps for letters and blanks": lambda: spelt(11, 6),
    "turned, then put together": lambda: reshaped(None, (36, 6)),
    "relative positions shifted": lambda: reshaped((4, 9, 8), channels=8),
    "samples and heads put together": lambda: reshaped((4, 9, 3), channels=3),
    "heads turned back": lambda: heads(turn=True),
    "one layer": lambda: functional.mse_loss(scores(), torch.ones(8, 5)),
    "an activation between": lambda: functional.mse_loss(nn.Linear(5, 5)(scores().relu()), torch.ones(8, 5)),
    "root of a mean square": lambda: (scores() - torch.ones(8, 5)).pow(2).mean().sqrt(),
    "squared, then averaged": lambda: (scores() - torch.ones(8, 5)).pow(2).mean(),
    "means beside each error": lambda: (scores() - 1.0).abs().mean() + (scores() - torch.ones(8, 5)).mean().pow(2),
    "what a whole bag is": lambda: (scores().mean() - 0.5).pow(2),
    "two outputs": lambda: (scores() - scores()).mean().pow(2),
    "dropout inside": lambda: functional.cross_entropy(nn.Linear(5, 5)(DROP(scores())), LABELS),
    "a temperature": lambda: functional.cross_entropy(scores() * 3.0, LABELS),
    "scaled by a tensor": lambda: functional.cross_entropy(scores() * torch.full((8, 5), 2.0), LABELS),
    "softmax over classes, by hand": lambda: by_hand(1),
    "over classes": lambda: functional.nll_loss(steps().log_softmax(-1).flatten(0, 1), TOKENS.flatten()),
    "a class more, cut off": lambda: functional.nll_loss(
        steps().log_softmax(-1)[..., :6].reshape(-1, 6), TOKENS.flatten()
    ),
    "classes second": lambda: functional.nll_loss(steps().transpose(1, 2).log_softmax(1), TOKENS),
    "nearest of all": lambda: (scores()[:, None] - torch.ones(8, 5)[None]).pow(2).sum(2).amin(1).mean(),
    "one target for all": lambda: (scores() - torch.ones(8, 1)).pow(2).mean(),
    "attention over keys": lambda: attended(-1, 0.5),
}


@pytest.mark.parametrize(("loss", "code"), SICK.values(), ids=SICK)
def test_is_seen(loss, code):
    assert code in read_graph(loss().grad_fn).lint


@pytest.mark.parametrize("loss", HEALTHY.values(), ids=HEALTHY)
def test_is_no_mistake(loss):
    assert read_graph(loss().grad_fn).lint == ()


def test_dropout_is_not_asked_for_where_backward_has_been():
    loss = functional.cross_entropy(DROP(scores()), LABELS)
    loss.backward()
    assert read_graph(loss.grad_fn).lint == ()


def test_content_is_that_of_the_samples_whatever_their_order():
    torch.manual_seed(0)
    batch, other = torch.randn(16, 3, 4), torch.randn(16, 3, 4)
    assert torch.isclose(content(batch), content(batch.flip(0)), rtol=1e-5)
    assert not torch.isclose(content(batch), content(other), rtol=1e-3)


def total(labels=LABELS):
    return functional.cross_entropy(scores(), labels, reduction="sum")


def of_texts(count):
    """A sum over the tokens of three texts."""
    scores = nn.Linear(4, 7)(torch.randn(3, 4, 4)).view(-1, 7)
    return functional.cross_entropy(scores, TOKENS.flatten(), reduction="sum") / count


SOME = torch.tensor([1, -100, -100, -100, -100, -100, -100, 2])
SHARED = {
    "by the samples": (lambda: total() / 8, True),
    "by a tensor": (lambda: total() / torch.tensor(8), True),
    "times one over the samples": (lambda: total() * (1 / 8), True),
    "by the labels that count": (lambda: total(SOME) / 2, True),
    "by those of several batches": (lambda: total() / 64, True),
    "by the number of texts": (lambda: of_texts(3), True),
    "by nothing": (lambda: total(torch.full((8,), -100)) / torch.tensor(0), True),
    "with another term": (lambda: total() / 8 + 0.1 * scores().mean(), True),
    "squares by hand": (lambda: scores().pow(2).sum() / 8, True),
    "for two processes": (lambda: total() / 16 * 2, True),
    "a sum": (total, False),
    "half a sum": (lambda: functional.mse_loss(scores(), torch.ones(8, 5), reduction="sum") / 2, False),
    "scaled": (lambda: total() * torch.tensor(65536.0), False),
    "a mean": (lambda: functional.cross_entropy(scores(), LABELS) / 8, None),
    "a mean by hand": (lambda: scores().pow(2).sum(1).mean(), None),
}


@pytest.mark.parametrize(("loss", "shared"), SHARED.values(), ids=SHARED)
def test_a_sum_divided_by_a_count_is_a_mean(loss, shared):
    assert is_shared_out(loss().grad_fn) is shared


def test_a_sum_is_asked_for_its_divisor_where_backward_has_been():
    loss = total() / 8
    loss.backward()
    assert is_shared_out(loss.grad_fn) is True
