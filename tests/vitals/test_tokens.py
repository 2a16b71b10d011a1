"""What is read of tokens, labels and attention."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchdoctor.vitals.answers import along_a_sequence
from torchdoctor.vitals.attention_ahead import look_ahead
from torchdoctor.vitals.batch_numbers import agreement
from torchdoctor.vitals.loss_inputs import skipped

TOKENS = 8
LOWER = torch.ones(TOKENS, TOKENS).tril().bool()


def fused(**settings):
    def attend(x):
        return functional.scaled_dot_product_attention(x, x, x, **settings)

    return attend


def by_hand(mask):
    def attend(x):
        return (x @ x.transpose(-2, -1)).masked_fill(~mask, -torch.inf).softmax(-1) @ x

    return attend


@pytest.mark.parametrize(
    ("layers", "looks"),
    [
        ([fused()], True),
        ([fused(is_causal=True)], False),
        ([fused(attn_mask=LOWER)], False),
        ([fused(attn_mask=torch.zeros(TOKENS, TOKENS))], True),
        ([fused(dropout_p=0.1)], True),
        ([fused(dropout_p=0.1, is_causal=True)], False),
        ([by_hand(LOWER)], False),
        ([by_hand(LOWER.T)], True),
        ([fused(), fused(is_causal=True)], False),  # of an encoder, and of a decoder
    ],
)
def test_attention_that_looks_ahead_is_seen(layers, looks):
    x = torch.randn(2, 4, TOKENS, 6, requires_grad=True)
    for attend in layers:
        x = attend(x)
    assert (float(look_ahead(x.sum(), TOKENS)) > 0.01) == looks


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(("decoded", "told"), [(TOKENS - 1, False), (TOKENS, True)])
def test_tokens_that_something_else_reads_are_those_of_an_encoder(decoded, told, by_hand):
    source, made = (torch.randn(2, 4, length, 6, requires_grad=True) for length in (TOKENS, decoded))
    memory = fused()(source)
    if by_hand:
        read = (made @ memory.transpose(-2, -1)).softmax(-1) @ memory
    else:
        read = functional.scaled_dot_product_attention(made, memory, memory)
    assert (look_ahead(read.sum(), TOKENS) is not None) == told


def test_attention_over_other_things_than_the_tokens_is_not_looked_at():
    x = torch.randn(2, 4, TOKENS, 6, requires_grad=True)
    assert look_ahead(fused()(x).sum(), TOKENS + 1) is None
    assert look_ahead(nn.Linear(6, 2)(x).sum(), TOKENS) is None


def test_where_the_compared_outputs_begin():
    scores = torch.zeros(2, TOKENS, 5, requires_grad=True) * 1
    assert skipped(scores.flatten(0, 1).grad_fn) == 0
    assert skipped(scores[:, :-1].reshape(-1, 5).grad_fn) == 0
    assert skipped(scores[:, 3:].reshape(-1, 5).log_softmax(-1).grad_fn) == 3
    assert skipped(scores[torch.ones(2, TOKENS, dtype=torch.bool)].grad_fn) is None


@pytest.mark.parametrize(("also", "shifted"), [(None, 1.0), (0, 1.0), (1, 0.0)])
def test_labels_that_follow_a_second_input_were_not_shifted_twice(also, shifted):
    tokens = torch.arange(400).reshape(4, 100) * 7 % 31
    second = None if also is None else tokens[:, also : also + 98]
    measured = along_a_sequence(tokens[:, :98], tokens[:, 2:], -100, 0, second)
    assert float(measured["target_after_next"]) == shifted


def test_labels_that_the_loss_leaves_out_are_not_compared():
    tokens, labels = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, -100, 9]])
    assert float(agreement(tokens, labels, -100)) == 0.5
    assert float(agreement(tokens, torch.full((1, 3), -100), -100)) == 0
