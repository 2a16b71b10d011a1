"""Norms in one launch: the same numbers as torch's own, and silence where they cannot be had."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from torchdoctor.vitals.gradients import norms_of
from torchdoctor.vitals.reduction import FEWEST, GLANCES, MOST, ROWS, Reduction, _form_of

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or not hasattr(torch.cuda, "_compile_kernel"),
    reason="needs a CUDA device and torch 2.9 or newer: run it there",
)


def parameters(grads: list[Tensor]) -> list[Tensor]:
    tensors: list[Tensor] = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    give(tensors, grads)
    return tensors


def give(tensors: list[Tensor], grads: list[Tensor]) -> None:
    for tensor, grad in zip(tensors, grads, strict=True):
        tensor.grad = grad


def ready(tensors: list[Tensor]) -> Reduction:
    reduction = Reduction(tensors)
    for _ in range(600):
        if reduction._binary is not None:
            break
        time.sleep(0.1)
    return reduction


def test_says_nothing_on_the_host() -> None:
    assert Reduction(parameters([torch.ones(3) for _ in range(FEWEST)]))() is None


def test_a_form_is_type_sizes_and_strides() -> None:
    given = [torch.ones(2, 3), torch.ones(4, 4)]
    is_known = _form_of(given)
    assert is_known is not None
    assert is_known(torch.zeros(2, 3), torch.zeros(4, 4))
    other_type, other_size = torch.ones(4, 4).double(), torch.ones(4, 5)
    with_holes, transposed = torch.ones(4, 8)[:, ::2], torch.ones(4, 4).t()
    repeated, sparse = torch.ones(1, 1).expand(4, 4), torch.ones(4, 4).to_sparse()
    for other in (other_type, other_size, with_holes, transposed, repeated, sparse, torch.ones(4, 4, device="meta")):
        assert not is_known(given[0], other)


@needs_cuda
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_same_norms_as_torch(kind: torch.dtype) -> None:
    sizes = [(1,), (7,), (768,), (65536,), (65537,), (300, 1000)] * 5
    grads = [10.0 ** (index - 15) * torch.randn(*size, device="cuda").to(kind) for index, size in enumerate(sizes)]
    tensors = parameters(grads)
    reduction = ready(tensors)
    earlier = []
    for batch in (grads, [2 * grad for grad in grads]):  # at addresses that are known, and at others
        give(tensors, batch)
        measured = reduction()
        assert measured is not None
        earlier.append((measured, batch))
    for measured, batch in earlier:  # the later one has not been written over the earlier
        norms, total = measured
        expected = torch.stack(norms_of(batch))
        torch.testing.assert_close(norms, expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(total, torch.linalg.vector_norm(expected.double()).float(), rtol=1e-5, atol=0)


@needs_cuda
def test_what_is_not_finite_shows() -> None:
    grads = [torch.ones(100, device="cuda") for _ in range(FEWEST)]
    grads[3][5], grads[7][9] = float("nan"), float("inf")
    measured = ready(parameters(grads))()
    assert measured is not None
    finite = measured[0].isfinite().tolist()
    assert [index for index, well in enumerate(finite) if not well] == [3, 7]
    assert not measured[1].isfinite()


@needs_cuda
def test_many_steps_have_room_of_their_own() -> None:
    tensors = parameters([torch.ones(10, device="cuda") for _ in range(FEWEST)])
    reduction = ready(tensors)
    totals = []
    for number in range(3 * ROWS):
        give(tensors, [torch.full((10,), float(number), device="cuda") for _ in tensors])
        measured = reduction()
        assert measured is not None
        totals.append(measured[1])
    expected = torch.arange(3 * ROWS, device="cuda") * (10.0 * FEWEST) ** 0.5
    torch.testing.assert_close(torch.stack(totals), expected, rtol=1e-5, atol=0)


@needs_cuda
def test_more_tensors_than_a_launch_takes() -> None:
    grads = [torch.full((3,), float(number), device="cuda") for number in range(2 * MOST + 5)]
    tensors = parameters(grads)
    reduction = ready(tensors)
    for factor in (1.0, 2.0):
        give(tensors, [factor * grad for grad in grads])
        measured = reduction()
        assert measured is not None
        expected = factor * 3**0.5 * torch.arange(len(grads), device="cuda")
        torch.testing.assert_close(measured[0], expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(measured[1], torch.linalg.vector_norm(expected), rtol=1e-5, atol=0)


@needs_cuda
def test_gradients_of_another_type_are_left_to_torch() -> None:
    tensors = parameters([torch.ones(10, device="cuda") for _ in range(FEWEST)])
    reduction = ready(tensors)
    assert reduction() is not None
    for tensor in tensors:
        tensor.grad, tensor.data = None, tensor.data.bfloat16()
        tensor.grad = torch.ones(10, device="cuda", dtype=torch.bfloat16)
    assert reduction() is None


@needs_cuda
def test_a_gradient_with_holes_is_left_to_torch() -> None:
    tensors = parameters([torch.ones(10, 10, device="cuda") for _ in range(FEWEST)])
    reduction = ready(tensors)
    assert reduction() is not None
    tensors[-1].grad = torch.ones(10, 20, device="cuda")[:, ::2]
    assert reduction() is None
    tensors[-1].grad = torch.ones(10, 10, device="cuda").t()
    assert reduction() is not None


@needs_cuda
def test_a_form_that_always_changes_is_measured_all_the_same() -> None:
    tensors = parameters([torch.ones(10, 10, device="cuda") for _ in range(FEWEST)])
    reduction = ready(tensors)
    for number in range(3 * GLANCES):
        grad = torch.full((10, 10), float(number), device="cuda")
        give(tensors, [grad.t() if number % 2 else grad] * FEWEST)
        measured = reduction()
        assert measured is not None
        torch.testing.assert_close(measured[0], torch.full((FEWEST,), 10.0 * number, device="cuda"))
