"""Norms in two launches: the same numbers as torch's own, and silence where they cannot be had."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from torchdoctor.vitals.gradients import norms_of
from torchdoctor.vitals.reduction import FEWEST, Reduction

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or not hasattr(torch.cuda, "_compile_kernel"),
    reason="needs a CUDA device and torch 2.9 or newer: run it there",
)


def ready(tensors: list[Tensor]) -> Reduction:
    reduction = Reduction(tensors)
    for _ in range(600):
        if reduction._binary is not None:
            break
        time.sleep(0.1)
    return reduction


def test_says_nothing_on_the_host() -> None:
    tensors = [torch.ones(3) for _ in range(FEWEST)]
    assert Reduction(tensors)(tensors) is None


@needs_cuda
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_same_norms_as_torch(kind: torch.dtype) -> None:
    sizes = [(1,), (7,), (768,), (65536,), (65537,), (300, 1000)] * 5
    grads = [10.0 ** (index - 15) * torch.randn(*size, device="cuda").to(kind) for index, size in enumerate(sizes)]
    reduction = ready(grads)
    for batch in (grads, [grad.clone() for grad in grads]):  # at addresses that are known, and at others
        measured = reduction(batch)
        assert measured is not None
        norms, total = measured
        expected = torch.stack(norms_of(batch))
        torch.testing.assert_close(norms, expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(total, torch.linalg.vector_norm(expected.double()).float(), rtol=1e-5, atol=0)


@needs_cuda
def test_what_is_not_finite_shows() -> None:
    grads = [torch.ones(100, device="cuda") for _ in range(FEWEST)]
    grads[3][5], grads[7][9] = float("nan"), float("inf")
    measured = ready(grads)(grads)
    assert measured is not None
    finite = measured[0].isfinite().tolist()
    assert [index for index, well in enumerate(finite) if not well] == [3, 7]
    assert not measured[1].isfinite()


@needs_cuda
def test_a_gradient_with_holes_is_left_to_torch() -> None:
    grads = [torch.ones(100, device="cuda") for _ in range(FEWEST)]
    reduction = ready(grads)
    assert reduction(grads) is not None
    assert reduction([*grads[:-1], torch.ones(200, device="cuda")[::2]]) is None
    assert reduction([*grads[:-1], torch.ones(10, 10, device="cuda").t()]) is not None
