"""Where a value that is not finite began: in the data, in a weight, in a module, or between two of them."""

import pytest
import torch
from torch import nn

from torchdoctor.vitals.origin import OriginSearch


class Divides(nn.Module):
    def __init__(self, by=1.0):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))
        self.inner = nn.Linear(3, 2)
        self.by = by

    def forward(self, x):
        return self.inner((x + self.shift) / self.by)


def broken(shift=0.0):
    model = Divides()
    with torch.no_grad():
        model.shift += shift
    return model


BATCH, SPOILT = torch.zeros(4, 3), torch.full((4, 3), torch.nan)


@pytest.mark.parametrize(
    ("model", "batch", "kind"),
    [
        pytest.param(Divides(by=0.0), BATCH, "between", id="zero by zero"),
        pytest.param(Divides(), SPOILT, "input", id="data"),
        pytest.param(broken(torch.nan), BATCH, "weights", id="a weight beside the layers"),
    ],
)
def test_kind(model, batch, kind):
    search = OriginSearch({"": model})
    search.arm()
    model(batch)
    assert search.disarm()["kind"] == kind


def test_all_is_finite():
    search = OriginSearch({"": (model := Divides())})
    search.arm()
    model(BATCH)
    assert search.disarm() is None
