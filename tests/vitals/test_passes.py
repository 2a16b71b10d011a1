"""Numbers about a tensor: exact where they must be, and the same under autocast."""

import pytest
import torch

from torchdoctor.vitals.passes import PassGauge, deviation, largest, share_of_zeros


def test_deviation_is_that_of_the_variance():
    values = 100 + torch.randn(12, 3, 5, generator=torch.Generator().manual_seed(0))
    assert deviation(values).item() == pytest.approx(values.var(0, correction=0).mean().sqrt().item(), rel=1e-4)


def test_samples_that_are_the_same_do_not_deviate():
    assert deviation(torch.full((7, 3), 0.1)).item() == 0


@pytest.mark.parametrize(
    ("values", "size"),
    [([1.0, -3.0], 3.0), ([2.0, 0.5], 2.0), ([0.0, -torch.inf], torch.inf), ([1.0, torch.nan], None)],
)
def test_largest(values, size):
    found = largest(torch.tensor(values)).item()
    assert found != found if size is None else found == size


def test_share_of_zeros():
    assert share_of_zeros(torch.tensor([[0.0, 1.0], [-2.0, 0.0]])).item() == 0.5


class Multiplies(PassGauge):
    made = None

    def multiply(self, matrix):
        self.made = (matrix @ matrix).dtype


def test_sums_are_not_made_in_half_precision_under_autocast():
    gauge = Multiplies(lambda facts: None)
    gauge.arm()
    with torch.autocast("cpu", torch.bfloat16):
        gauge.see("multiply", (torch.eye(3),))
        assert (torch.eye(3) @ torch.eye(3)).dtype == torch.bfloat16
    assert gauge.made == torch.float32
