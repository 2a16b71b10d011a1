import pytest
import torch
from torch import nn
from torch.nn import functional

from torchdoctor import Doctor
from torchdoctor.vitals.attention_fixed import share_of_fixed


class ByHand(nn.Module):
    """Causal self-attention in a few lines, whose scores are multiplied by a factor."""

    def __init__(self, factor, *, fused=False, dropout=0.0):
        super().__init__()
        self.enter, self.qkv, self.leave = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 20)
        self.factor, self.fused, self.dropout = factor, fused, dropout

    def forward(self, tokens):
        query, key, value = (
            part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.enter(tokens)).chunk(3, -1)
        )
        if self.fused:
            made = functional.scaled_dot_product_attention(query * self.factor, key, value, is_causal=True)
        else:
            scores = self.factor * query @ key.transpose(-2, -1) / 8**0.5
            hidden = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            made = functional.dropout(weights, self.dropout) @ value
        return self.leave(made.transpose(1, 2).flatten(2))


def share(model, length=24):
    torch.manual_seed(0)
    tokens = torch.randint(20, (4, length))
    return share_of_fixed(functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))


@pytest.mark.parametrize(("fused", "dropout"), [(False, 0.0), (False, 0.1), (True, 0.0)])
def test_scores_that_are_far_too_large_are_told_from_ordinary_ones(fused, dropout):
    torch.manual_seed(0)
    assert share(ByHand(1.0, fused=fused, dropout=dropout)) < 0.1
    assert share(ByHand(1000.0, fused=fused, dropout=dropout)) > 0.6


def test_so_they_are_under_autocast():
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert share(ByHand(1.0)) < 0.1 < 0.6 < share(ByHand(1000.0))


def test_short_sequences_and_other_softmaxes_are_left_out():
    torch.manual_seed(0)
    assert share(ByHand(1000.0), length=4) is None
    scores = torch.randn(8, 10, requires_grad=True)
    assert share_of_fixed(((1e4 * scores).softmax(-1) @ torch.randn(10, 3)).sum()) is None
    assert share_of_fixed(functional.cross_entropy(1e4 * scores, torch.zeros(8, dtype=torch.long))) is None


@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (8.0, False), (1000.0, True)])
def test_a_run_with_one_hot_attention_is_reported_from_the_start(factor, found):
    torch.manual_seed(0)
    model = ByHand(factor)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(12):
            tokens = torch.randint(20, (8, 24))
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss.item())
    names = {item.name: item for item in doctor.diagnose().symptoms}
    assert ("saturated-activations" in names) == found
    if found:
        assert names["saturated-activations"].severity == "warning"
        assert names["saturated-activations"].first_step == 0
