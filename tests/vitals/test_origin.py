"""Where a value that is not finite began: in the data, in a weight, in a module, or between two of them."""

import pytest
import torch
from torch import nn

from torchdoctor import Doctor
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


def test_a_gauge_that_does_not_apply_starts_no_search():
    """Padding at the end of every text: of the last position nothing can be said, and all is well."""
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    doctor = Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True})
    seen = []
    doctor.subscribe(lambda record: seen.append(record.get("vitals", {}).get("last_position_loss", 0.0)))
    for _ in range(6):
        texts = torch.randint(1, 9, (32, 7))
        texts[:, -1] = 0
        loss = loss_fn(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
    doctor.diagnose()
    assert any(value != value for value in seen)
    assert doctor._monitor._origin_searches == 0
