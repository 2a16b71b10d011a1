"""A check-up leaves no trace: every check, on models with state of many kinds, and whatever happens inside."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.checks.sound import SOUND, Case, classes
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torchdoctor import Doctor
from torchdoctor.checks import CHECKS
from torchdoctor.checks import checkup as module
from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.checkup import checkup
from torchdoctor.checks.nested import moved
from torchdoctor.checks.subject import Subject
from torchdoctor.checks.untouched import untouched


def fingerprint(*things: Any) -> list[Any]:
    """All that could have changed, in a form that can be compared."""
    seen: list[Any] = [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()]
    seen += [state.tolist() for state in torch.cuda.get_rng_state_all()]
    seen += [torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()]
    for thing in things:
        _add(thing, seen)
    return seen


def _add(thing: Any, seen: list[Any]) -> None:
    if isinstance(thing, nn.Module):
        for name, item in thing.named_modules():
            seen.append((name, id(item), item.training, sorted(vars(item))))
            seen += [(key, list(value.items())) for key, value in vars(item).items() if key.endswith("_hooks")]
            seen += [(key, value) for key, value in vars(item).items() if isinstance(value, int | float | str)]
            _add([*item._parameters.values(), *item._buffers.values()], seen)
    elif isinstance(thing, Tensor):
        seen.append((id(thing), thing.dtype, thing.requires_grad, thing.detach().cpu().numpy().tobytes()))
        _add(thing.grad if thing.is_leaf else None, seen)
    elif isinstance(thing, torch.optim.Optimizer):
        seen += [(key, list(value.items())) for key, value in vars(thing).items() if key.endswith("_hooks")]
        seen += [(key, value) for group in thing.param_groups for key, value in group.items() if key != "params"]
        _add([list(state.values()) for state in thing.state.values()], seen)
    elif isinstance(thing, torch.Generator):
        seen.append(thing.get_state().tolist())
    elif isinstance(thing, dict | list | tuple):
        for item in thing.values() if isinstance(thing, dict) else thing:
            _add(item, seen)
    else:
        seen.append(repr(thing.state_dict()) if hasattr(thing, "state_dict") else thing)


class Lively(nn.Module):
    """State of many kinds: counters, lists, a cached tensor, running statistics, frozen and half-trained parts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.history, self.cache = 0, [1.0], torch.zeros(3)
        self.norm, self.drop = nn.BatchNorm1d(12), nn.Dropout(0.3)
        self.body, self.frozen = nn.Linear(12, 16), nn.Linear(16, 16).requires_grad_(False)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.history.append(float(x.detach().mean()))
        self.cache[0] += 1
        random.random(), np.random.rand()
        x = functional.relu(self.frozen(functional.relu(self.body(self.drop(self.norm(x))))))
        return self.head(functional.relu(self.spectral(x)))


@dataclass
class Patient:
    """A run that has begun: a step was taken, gradients are there, hooks are on, one part rests in eval mode."""

    model: nn.Module
    loss_fn: Any
    batch: Any
    optimizer: Any
    scheduler: Any
    loader: Any
    generator: torch.Generator

    @property
    def everything(self) -> tuple[Any, ...]:
        own = (self.model.history[:], self.model.cache) if isinstance(self.model, Lively) else ()
        return self.model, self.optimizer, self.batch, self.scheduler, self.generator, own


def lively(device: str = "cpu") -> Patient:
    torch.manual_seed(0)
    model, loss_fn, batch = Lively().to(device), nn.CrossEntropyLoss(), moved(classes((12,), 4), torch.device(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model.body.register_forward_hook(lambda *args: None)
    model.drop.eval()
    for _ in range(2):
        optimizer.zero_grad()
        loss_fn(model(batch[0]), batch[1]).backward()
        optimizer.step()
        scheduler.step()
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(64, 12), torch.arange(64) % 4)
    loader = DataLoader(data, 8, shuffle=True, generator=generator)
    return Patient(model, loss_fn, batch, optimizer, scheduler, loader, generator)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_no_check_leaves_a_trace_on_a_run_that_has_begun(check, device):
    run, validation = lively(device), classes((12,), 4)
    before = fingerprint(*run.everything)
    history = list(run.model.history)
    result = checkup(
        run.model,
        run.loss_fn,
        run.batch,
        run.optimizer,
        scheduler=run.scheduler,
        loader=run.loader,
        validation=validation,
        select=(check.name,),
        budget=5,
    )
    assert len(result.results) == 1
    assert run.model.history == history
    assert fingerprint(*run.everything) == before


STATEFUL = ("nanoGPT", "hugging face, labels shifted by the model", "resnet, label smoothing", "lstm language model")


@pytest.mark.parametrize("name", [*STATEFUL, "vae", "gan", "loss with a parameter", "stochastic depth"])
def test_a_whole_quick_check_up_leaves_no_trace(name):
    torch.manual_seed(0)
    case: Case = SOUND[name]()
    things = (case.model, case.batch, case.optimizer, case.loss_fn if isinstance(case.loss_fn, nn.Module) else None)
    before = fingerprint(*things)
    checkup(case.model, case.loss_fn, case.batch, case.optimizer, quick=True, **(case.more or {}))
    assert fingerprint(*things) == before


@gpu
@pytest.mark.parametrize("name", ["nanoGPT", "resnet, label smoothing"])
def test_a_whole_check_up_leaves_no_trace_on_a_gpu(name):
    torch.manual_seed(0)
    case: Case = SOUND[name]()
    case.model.cuda()  # in place: the optimizer holds the same parameters
    batch = moved(case.batch, torch.device("cuda"))
    before = fingerprint(case.model, batch, case.optimizer)
    result = checkup(case.model, case.loss_fn, batch, case.optimizer, **(case.more or {}))
    assert result.passed
    assert fingerprint(case.model, batch, case.optimizer) == before


class Vandal(Check):
    """Does all that a check must not do, and ends in some way."""

    code, name, quick = "CK99", "vandal", True
    ending: type[BaseException] | None = None

    def run(self, subject: Subject) -> Outcome:
        subject.gradients()
        for parameter in subject.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        subject.optimizers[0].param_groups[0]["lr"] = 77.0
        subject.optimizers[0].step()
        subject.optimizers[0].state.clear()
        subject.scheduler.step()
        model = subject.model
        model.eval().double().requires_grad_(False)
        for parameter in model.parameters():
            parameter.data = torch.zeros_like(parameter)
            parameter.grad = torch.ones_like(parameter)
            parameter.requires_grad_(True).register_hook(lambda gradient: gradient)
        model.head = nn.Linear(1, 1)
        model.extra = nn.Linear(2, 2)
        model.register_forward_hook(lambda *args: None)
        model.history.clear()
        model.cache.fill_(9)
        subject.inputs.zero_()
        torch.manual_seed(99), random.seed(99), np.random.seed(99)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        if self.ending is not None:
            raise self.ending("on purpose")
        return self.passed("done")


@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt])
def test_the_worst_check_leaves_no_trace(ending, monkeypatch):
    run = lively()
    kind: Callable[..., Check] = type("Ending", (Vandal,), {"ending": ending})
    monkeypatch.setattr(module, "build", lambda **options: (kind(),))
    before, history = fingerprint(*run.everything), list(run.model.history)
    given = (run.model, run.loss_fn, run.batch, run.optimizer)
    if ending is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            checkup(*given, scheduler=run.scheduler)
    else:
        result = checkup(*given, scheduler=run.scheduler)
        assert result.results[0].status == ("passed" if ending is None else "skipped")
    assert fingerprint(*run.everything) == before
    assert run.model.history == history


def test_warning_filters_are_as_they_were():
    filters = list(warnings.filters)
    run = lively()
    checkup(run.model, run.loss_fn, run.batch, quick=True, select=("gradient-flow",))
    assert warnings.filters == filters


def test_untouched_puts_back_what_was_replaced_and_what_was_written():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = fingerprint(model)
    with pytest.raises(KeyError), untouched(model):
        model[0] = nn.Linear(3, 3)
        model[1].running_mean.fill_(7)
        model[1].weight = nn.Parameter(torch.zeros(2))
        raise KeyError
    assert fingerprint(model) == before


def test_a_nan_in_the_weights_is_kept_as_it_is():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    before = fingerprint(model)
    with untouched(model), torch.no_grad():
        model.weight[0, 1] = 5.0
    assert fingerprint(model) == before


def test_a_doctor_that_watches_does_not_take_a_check_up_for_training():
    def train(run: Patient, *, checked: bool) -> tuple[list[Any], list[Any]]:
        records: list[Any] = []
        doctor = Doctor(run.model, run.optimizer, run.loss_fn, settings={"quiet": True})
        doctor.subscribe(records.append)
        if checked:
            checkup(run.model, run.loss_fn, run.batch, run.optimizer, quick=True)
        for _ in range(6):
            run.optimizer.zero_grad()
            loss = run.loss_fn(run.model(run.batch[0]), run.batch[1])
            loss.backward()
            nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            run.optimizer.step()
            doctor.log_loss(loss)
        doctor.diagnose()
        doctor.detach()
        kinds = [(item["type"], item["step"], item.get("facts")) for item in records if item["type"] != "note"]
        losses = [item["vitals"]["loss"] for item in records if item["type"] == "vitals"]
        return kinds, losses

    plain, checked = train(lively(), checked=False), train(lively(), checked=True)
    assert checked == plain
