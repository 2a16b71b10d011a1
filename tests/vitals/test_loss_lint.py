"""Mistakes that show in the graph behind a loss, and what looks like them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchdoctor.vitals.loss_graph import read_graph
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


DROP = nn.Dropout(0.5)
SICK = {
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
    "attention over queries": (lambda: attended(-2), "attention-over-queries"),
    "attention over heads": (lambda: attended(1, 0.5), "attention-over-queries"),
}
HEALTHY = {
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
