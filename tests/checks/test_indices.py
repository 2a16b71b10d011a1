"""What would end a process on a GPU is an IndexError, as on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torchdoctor import checkup
from torchdoctor.checks.indices import IndicesInRange, unlooked

TABLE = torch.randn(4, 3)
SCORES = torch.randn(2, 3)
FOUR, TWO, NEGATIVE = torch.tensor([0, 4]), torch.tensor([0, 2]), torch.tensor([0, -1])

OUT_OF_RANGE = {
    "a module": lambda: nn.Embedding(4, 2)(FOUR),
    "a function": lambda: F.embedding(FOUR, TABLE),
    "below zero": lambda: F.embedding(NEGATIVE, TABLE),
    "a class": lambda: F.cross_entropy(SCORES, torch.tensor([0, 3])),
    "a class of a module": lambda: nn.CrossEntropyLoss()(SCORES, NEGATIVE),
    "a class of log-probabilities": lambda: nn.NLLLoss()(SCORES, torch.tensor([0, 3])),
    "rows": lambda: TABLE[FOUR],
    "columns": lambda: TABLE[:, torch.tensor([3])],
    "gathered": lambda: TABLE.gather(1, torch.full((4, 1), 3)),
    "selected": lambda: torch.index_select(TABLE, 0, FOUR),
    "one hot": lambda: F.one_hot(FOUR, 4),
}
IN_RANGE = {
    "a module": lambda: nn.Embedding(4, 2, padding_idx=0)(TWO),
    "ignored": lambda: F.cross_entropy(SCORES, torch.tensor([0, -100])),
    "ignored by name": lambda: F.cross_entropy(SCORES, torch.tensor([0, 9]), ignore_index=9),
    "all ignored": lambda: F.cross_entropy(SCORES, torch.tensor([-100, -100])),
    "probabilities": lambda: F.cross_entropy(SCORES, SCORES.softmax(1)),
    "images": lambda: F.cross_entropy(torch.randn(2, 5, 3, 3), torch.full((2, 3, 3), 4)),
    "a mask": lambda: TABLE[TABLE > 0],
    "from the end": lambda: TABLE[NEGATIVE],
    "a slice and an ellipsis": lambda: TABLE[..., torch.tensor([2])][:2],
    "gathered": lambda: TABLE.gather(1, torch.full((4, 1), 2)),
    "one hot": lambda: F.one_hot(TWO),
}


@pytest.mark.parametrize("call", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE.keys())
def test_an_index_out_of_range_is_refused(call):
    with IndicesInRange(), pytest.raises(IndexError, match="out of range"):
        call()


@pytest.mark.parametrize("call", IN_RANGE.values(), ids=IN_RANGE.keys())
def test_the_rest_is_left_alone(call):
    torch.manual_seed(0)
    plain = call()
    torch.manual_seed(0)
    with IndicesInRange():
        assert torch.equal(call(), plain) or plain.isnan().any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_device_outlives_a_check_up_of_wrong_labels():
    model = nn.Linear(4, 3).cuda()
    batch = torch.randn(8, 4, device="cuda"), torch.full((8,), 7, device="cuda")
    result = checkup(model, nn.CrossEntropyLoss(), batch)
    assert result["labels-in-range"].status == "failed"
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_what_is_compiled_is_not_looked_at():
    with IndicesInRange(), unlooked():
        assert torch.overrides._get_current_function_mode() is None
    with unlooked():
        pass
