from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchdoctor.clinic import (
    RECIPES,
    Fault,
    FreezeLayer,
    Injector,
    JumpLearningRate,
    NanBatch,
    OutlierBatch,
    Patient,
    RemoveDropout,
    ScaleGradients,
    inject,
    paper_schedule,
)
from torchdoctor.clinic.data import Corpus, load_text
from torchdoctor.errors import PatientError

ALL_FAULTS: list[Fault] = [
    ScaleGradients(20, at=1),
    ScaleGradients(1e-8, at=1),
    NanBatch(at=1),
    OutlierBatch(at=1),
    JumpLearningRate(100, at=1),
    FreezeLayer("0", at=1),
    RemoveDropout(at=1),
]


class Loop:
    """A plain loop that keeps what each step saw."""

    def __init__(self, *, micro_batches: int = 1, scheduler: Callable[[Any], Any] | None = None) -> None:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        self.micro_batches = micro_batches
        self.gradients: list[Tensor] = []
        self.rates: list[float] = []
        self.batches: list[tuple[Tensor, ...]] = []

    def run(self, injector: Injector | None = None, steps: int = 4, *, pass_batches: bool = True) -> None:
        torch.manual_seed(2)
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            for _ in range(self.micro_batches):
                batch: tuple[Tensor, ...] = (torch.randn(3, 4, generator=generator), torch.ones(3, 1))
                if injector is not None and pass_batches:
                    batch = injector.batch(*batch)
                self.batches.append(batch)
                (self.model(batch[0]) - batch[1]).square().mean().backward()
            gradient = self.model[2].weight.grad
            assert gradient is not None
            self.gradients.append(gradient.clone())
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.scheduler is not None:
                self.scheduler.step()

    def injected(self, *faults: Fault, steps: int = 4) -> Injector:
        with inject(*faults, model=self.model, optimizer=self.optimizer) as injector:
            self.run(injector, steps)
        return injector


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("factor", [20, 1e-8])
def test_gradients_are_scaled_once_at_their_steps(factor: float, micro_batches: int) -> None:
    plain, sick = Loop(micro_batches=micro_batches), Loop(micro_batches=micro_batches)
    plain.run(steps=2)
    injector = sick.injected(ScaleGradients(factor, at=[1]), steps=2)
    assert torch.equal(sick.gradients[0], plain.gradients[0])
    torch.testing.assert_close(sick.gradients[1], plain.gradients[1] * factor)
    assert [str(entry) for entry in injector.log] == [f"step 1: gradients x {factor:g}"]


def test_the_papers_schedule() -> None:
    fault = ScaleGradients(20, at=paper_schedule())
    assert [step for step in range(10_000) if fault.active(step)] == [500, 2500]


def test_clipping_sees_the_scaled_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    clip: Callable[..., Tensor] = nn.utils.clip_grad_norm_

    def keep(*args: Any) -> Tensor:
        norms.append(clip(*args).item())
        return torch.tensor(norms[-1])

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", keep)
    patient = Patient(replace(RECIPES["tiny"], steps=2, dropout=0.0, lr=1e-9), Corpus(load_text()))
    with inject(ScaleGradients(20, at=1), model=patient.model, optimizer=patient.optimizer) as injector:
        list(patient.train(injector=injector))
    assert 10 < norms[1] / norms[0] < 40


def test_compiled_models_are_reached_as_well() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    compiled: Any = torch.compile(model, backend="aot_eager")
    seen = []
    with inject(ScaleGradients(20, at=1), model=compiled, optimizer=optimizer):
        for _ in range(3):
            compiled(torch.ones(2, 4)).mean().backward()
            assert model.bias.grad is not None
            seen.append(model.bias.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    assert seen == [1.0, 20.0, 1.0]


def test_nan_enters_one_number_of_one_batch() -> None:
    loop = Loop(micro_batches=2)
    loop.injected(NanBatch(at=1), steps=2)
    assert [int(x.isnan().sum()) for x, _ in loop.batches] == [0, 0, 1, 0]


def test_nan_enters_tokens_at_the_embedding() -> None:
    patient = Patient(replace(RECIPES["tiny"], steps=3), Corpus(load_text()))
    with inject(NanBatch(at=1), model=patient.model, optimizer=patient.optimizer) as injector:
        losses = [loss.item() for _, loss in patient.train(injector=injector)]
    assert [math.isnan(loss) for loss in losses] == [False, True, True]
    assert not patient.model.token._forward_hooks


def test_a_nan_that_did_not_arrive_is_an_error() -> None:
    model = nn.ModuleDict({"unused": nn.Embedding(4, 2), "linear": nn.Linear(2, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inject(NanBatch(at=0), model=model, optimizer=optimizer) as injector:
        injector.batch(torch.tensor([1, 2]))
        model["linear"](torch.ones(1, 2)).sum().backward()
        with pytest.raises(PatientError, match="did not reach"):
            optimizer.step()


def test_an_outlier_is_a_hundred_times_too_large() -> None:
    plain, sick = Loop(), Loop()
    plain.run()
    sick.injected(OutlierBatch(at=2))
    torch.testing.assert_close(sick.batches[2][0], plain.batches[2][0] * 100)
    assert torch.equal(sick.batches[2][1], plain.batches[2][1])


def test_an_outlier_of_tokens_is_one_rare_token() -> None:
    model = nn.Embedding(5, 2)
    injector = inject(OutlierBatch(at=0), model=model, optimizer=torch.optim.SGD(model.parameters()))
    x, y = injector.batch(torch.tensor([[0, 1, 1, 3]]), torch.tensor([[1, 1, 3, 0]]))
    assert x.tolist() == y.tolist() == [[2, 2, 2, 2]]


def test_a_loader_can_be_wrapped() -> None:
    loop = Loop()
    loader = [(torch.ones(2, 4), torch.ones(2, 1))] * 3
    with inject(NanBatch(at=1), model=loop.model, optimizer=loop.optimizer) as injector:
        seen = []
        for x, y in injector.batches(loader):
            seen.append(bool(x.isnan().any()))
            (loop.model(x) - y).square().mean().backward()
            loop.optimizer.step()
    assert seen == [False, True, False]


def test_batch_faults_insist_on_the_batches() -> None:
    loop = Loop()
    with (
        inject(NanBatch(at=1), model=loop.model, optimizer=loop.optimizer) as injector,
        pytest.raises(PatientError, match=r"due at step 1, but .* write `x, y = injector.batch\(x, y\)`"),
    ):
        loop.run(injector, pass_batches=False)


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    ],
    ids=["closed form", "recursive"],
)
def test_a_learning_rate_jump_rides_on_any_schedule(scheduler: Callable[[Any], Any]) -> None:
    loop = Loop(scheduler=scheduler)
    loop.injected(JumpLearningRate(100, at=1, steps=2))
    assert loop.rates == pytest.approx([0.01, 0.5, 0.25, 0.00125])
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.000625)


def test_a_learning_rate_jump_moves_the_weights() -> None:
    plain, sick = Loop(), Loop()
    plain.run(steps=1)
    sick.injected(JumpLearningRate(100, at=0), steps=1)
    start = Loop().model[2].weight
    expected = start + 100 * (plain.model[2].weight - start)
    torch.testing.assert_close(sick.model[2].weight, expected, rtol=1e-4, atol=1e-5)


def test_a_frozen_layer_stops_moving_and_thaws() -> None:
    loop = Loop()
    with inject(FreezeLayer("0", at=1, steps=2), model=loop.model, optimizer=loop.optimizer) as injector:
        weights = []
        for _ in range(4):
            weights.append(loop.model[0].weight.clone())
            loop.run(injector, steps=1)
    moved = [not torch.equal(a, b) for a, b in zip(weights, [*weights[1:], loop.model[0].weight], strict=True)]
    assert moved == [True, False, False, True]


def test_dropout_is_removed_everywhere() -> None:
    dropouts = nn.Dropout(0.5), nn.MultiheadAttention(4, 2, dropout=0.2), nn.GRU(4, 4, 2, dropout=0.1)
    model: Any = nn.ModuleList(dropouts)
    optimizer = torch.optim.SGD(model.parameters())
    with inject(RemoveDropout(at=0), model=model, optimizer=optimizer):
        assert (model[0].p, model[1].dropout, model[2].dropout) == (0.0, 0.0, 0.0)
    assert (model[0].p, model[1].dropout, model[2].dropout) == (0.5, 0.2, 0.1)


def test_two_at_once() -> None:
    plain, sick = Loop(), Loop()
    plain.run(steps=1)
    injector = sick.injected(ScaleGradients(20, at=0), JumpLearningRate(10, at=0), steps=1)
    assert sick.rates == [pytest.approx(0.1)]
    torch.testing.assert_close(sick.gradients[0], plain.gradients[0] * 20)
    assert len(injector.log) == 2


@pytest.mark.parametrize("fault", ALL_FAULTS, ids=str)
@pytest.mark.parametrize("failing", [False, True], ids=["in peace", "by an exception"])
def test_no_trace_is_left(fault: Fault, failing: bool) -> None:
    loop = Loop()
    loop.run(steps=1)
    state = torch.get_rng_state()
    try:
        with inject(fault, model=loop.model, optimizer=loop.optimizer) as injector:
            for _ in range(2):
                rng = torch.get_rng_state()
                batch = injector.batch(torch.ones(3, 4))
                assert torch.equal(torch.get_rng_state(), rng)
                loop.model(*batch).mean().backward()
                if failing and injector.step == 1:
                    raise KeyboardInterrupt
                loop.optimizer.step()
    except KeyboardInterrupt:
        assert failing
    assert not torch.equal(torch.get_rng_state(), state), "dropout draws from it, or the check above checks nothing"
    assert all(p.requires_grad for p in loop.model.parameters())
    assert not any(p._backward_hooks for p in loop.model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loop.model.modules())
    assert not loop.optimizer._optimizer_step_post_hooks
    assert loop.optimizer.param_groups[0]["lr"] == 0.01
    assert loop.model[1].p == 0.3


@pytest.mark.parametrize("fault", ALL_FAULTS, ids=str)
def test_before_its_step_a_fault_changes_nothing(fault: Fault) -> None:
    plain, waiting = Loop(), Loop()
    plain.run(steps=3)
    injector = waiting.injected(replace(fault, at=3), steps=3)
    assert injector.log == []
    for a, b in zip(plain.model.parameters(), waiting.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("fault", ALL_FAULTS, ids=str)
def test_every_fault_says_what_finds_it(fault: Fault) -> None:
    assert fault.found_as
    assert str(fault)
    assert fault.acute or fault.steps is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ScaleGradients(20, at=-1), "whole number from 0, not -1"),
        (lambda: ScaleGradients(20, at=True), "whole number from 0, not True"),
        (lambda: ScaleGradients(20, at=[1, 2.5]), "not 2.5"),  # type: ignore[list-item]
        (lambda: ScaleGradients(20, at=[]), "at least one step"),
        (lambda: ScaleGradients(20, at=1, steps=0), "from 1, or None for good, not 0"),
        (lambda: ScaleGradients(float("nan"), at=1), "finite number from 0 other than 1, not nan"),
        (lambda: ScaleGradients(1, at=1), "other than 1"),
        (lambda: JumpLearningRate(-2, at=1), "not -2"),
        (lambda: OutlierBatch(math.inf, at=1), "not inf"),
    ],
)
def test_nonsense_is_refused(build: Callable[[], Fault], message: str) -> None:
    with pytest.raises(PatientError, match=message):
        build()


def test_a_fault_that_does_not_fit_the_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(PatientError, match="no layer 'weihgt'"):
        inject(FreezeLayer("weihgt", at=0), model=model, optimizer=optimizer)
    with pytest.raises(PatientError, match=r"Did you mean '0\.weight'"):
        inject(FreezeLayer("0.weigth", at=0), model=model, optimizer=optimizer)
    with pytest.raises(PatientError, match="'1' has no trainable parameter"):
        inject(FreezeLayer("1", at=0), model=model, optimizer=optimizer)
    with pytest.raises(PatientError, match="no dropout above zero"):
        inject(RemoveDropout(at=0), model=model, optimizer=optimizer)
    with pytest.raises(PatientError, match="without an embedding"):
        inject(NanBatch(at=0), model=model, optimizer=optimizer).batch(torch.tensor([1]))
    with pytest.raises(PatientError, match="one fault or more"):
        inject(model=model, optimizer=optimizer)
    with pytest.raises(PatientError, match="trainable parameters, not ReLU"):
        inject(RemoveDropout(at=0), model=nn.ReLU(), optimizer=optimizer)
    with pytest.raises(PatientError, match="torch optimizer, not of str"):
        inject(ScaleGradients(2, at=0), model=model, optimizer="sgd")  # type: ignore[arg-type]
