"""The range test: right on what can be known, silent where nothing can be, and without a trace."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchdoctor
from torchdoctor.checks.lr_curve import read_curve, smoothed
from torchdoctor.checks.lr_range import lr_range, optimizer_named
from torchdoctor.checks.lr_search import search
from torchdoctor.errors import PatientError
from torchdoctor.journal.lines import encode

LRS = np.geomspace(1e-7, 10, 200)


def curve(best: float, cliff: float, noise: float = 0.0, first: float = 2.0) -> Any:
    """A loss that falls around one rate and explodes from another on."""
    jitter = noise * np.random.default_rng(0).normal(size=LRS.size)
    return first - 1.5 / (1 + (best / LRS) ** 2) + (LRS / cliff) ** 3 + jitter


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("first", [2.0, 2000.0, -1.0])
def test_the_steepest_place_is_found_through_noise_and_offsets(noise: float, first: float) -> None:
    losses = curve(1e-3, 1e-1, noise, first) if first < 100 else first + 500 * (curve(1e-3, 1e-1, noise) - 2)
    found = read_curve(LRS, losses)
    assert found.steepest is not None and 3e-4 < found.steepest < 3e-3
    assert found.maximum is not None and found.steepest < found.maximum < 1e-1


NOTHING = {
    "flat": np.full(200, 2.0),
    "noise": 2 + 0.1 * np.random.default_rng(1).normal(size=200),
    "only rises": 2 + LRS,
    "not a number at once": np.full(200, math.nan),
    "two values": np.array([2.0, 1.0]),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_curve_that_does_not_fall_suggests_nothing(name: str) -> None:
    assert read_curve(LRS[: len(NOTHING[name])], NOTHING[name]).suggestion is None


def test_what_comes_after_a_nan_is_not_read() -> None:
    losses = curve(1e-3, 1e-1)
    losses[150:] = -100.0
    losses[149] = math.nan
    found = read_curve(LRS, losses)
    assert found.maximum is not None and found.maximum < LRS[149] and len(found.smoothed) == 149


def test_smoothing_does_not_lag() -> None:
    places = np.log10(LRS)
    bump = np.exp(-(((places + 3) / 0.3) ** 2))
    assert abs(places[int(np.argmax(smoothed(bump, places)))] + 3) < 0.05
    lonely = np.zeros(200)
    lonely[50] = 1e6
    assert smoothed(lonely, places).max() == 0


SURFACES = {
    "one valley": (lambda x: (x - 4.0) ** 2, 4.0, math.inf),
    "below the start": (lambda x: (x + 5.0) ** 2, -5.0, math.inf),
    "two valleys, the far one deeper": (lambda x: min((x - 0.0) ** 2 + 30, (x - 6.0) ** 2), 6.0, math.inf),
    "next to a cliff": (lambda x: -x, 3.0, 4.5),
}


@pytest.mark.parametrize("name", SURFACES)
def test_the_search_finds_the_best_rate(name: str) -> None:
    surface, best, cliff = SURFACES[name]
    found = search(lambda lr, _: math.inf if math.log2(lr) > cliff else surface(math.log2(lr)), 1.0, 10, 60.0)
    assert math.log2(found.suggestion) == pytest.approx(best, abs=1.01)
    assert found.suggestion <= found.maximum < 2.0**cliff


def test_trials_that_cannot_tell_are_repeated_for_longer() -> None:
    lengths = []

    def trial(lr: float, steps: int) -> float:
        lengths.append(steps)
        return 1.0 if steps < 30 else abs(math.log2(lr) - 5)

    found = search(trial, 1.0, 10, 50.0)
    assert max(lengths) == 30 and math.log2(found.suggestion) == pytest.approx(5, abs=1.01)


# On models


def problem(seed: int = 0) -> tuple[nn.Module, torch.utils.data.DataLoader[Any]]:
    torch.manual_seed(seed)
    x = torch.randn(256, 8)
    y = x[:, :4].sum(1, keepdim=True)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    generator = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(x, y)
    return net, torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, generator=generator)


def quick(*arguments: Any, **options: Any) -> Any:
    return lr_range(*arguments, **{"steps": 60, "trials": 20} | options)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_quadratic_is_solved(kind: str) -> None:
    """Of a quadratic with curvature 2 SGD diverges above a rate of 1: the suggestion must lie below, and train."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(10.0)
    x = torch.ones(4, 1)
    found = lr_range(model, nn.MSELoss(), (x, 0 * x), optimizer_named(kind, model), trials=30)
    assert found.suggestion is not None and found.suggestion <= found.maximum
    if kind == "SGD":
        assert 0.01 < found.suggestion < 1 and found.maximum < 1.01 and "diverged" in found.stopped


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> list[Any]:
    found: list[Any] = [item.clone() for item in model.state_dict().values()]
    found += [None if item.grad is None else item.grad.clone() for item in model.parameters()]
    found += [module.training for module in model.modules()]
    found += [value for state in optimizer.state.values() for value in state.values()]
    found += [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    found += [torch.get_rng_state(), str(np.random.get_state()), random.getstate(), loader.generator.get_state()]
    return [item.clone() if isinstance(item, Tensor) else item for item in found]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("ending", ["well", "error", "interrupt"])
def test_everything_is_put_back(warm: bool, ending: str) -> None:
    model, loader = problem()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if warm:
        for x, y in loader:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    model[3].eval()
    calls = 0

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if ending != "well" and calls > 40:
            raise KeyboardInterrupt if ending == "interrupt" else RuntimeError("no more")
        return nn.functional.mse_loss(output, target)

    before = everything(model, optimizer, loader)
    if ending == "well":
        assert quick(model, loss_fn, loader, optimizer).suggestion is not None
    else:
        with pytest.raises(KeyboardInterrupt if ending == "interrupt" else RuntimeError):
            quick(model, loss_fn, loader, optimizer)
    assert calls > 40 and same(before, everything(model, optimizer, loader))


def test_groups_keep_their_ratio_and_the_suggestion_is_that_of_the_highest() -> None:
    model, loader = problem()
    seen: list[tuple[float, float]] = []
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[4].parameters(), "lr": 0.1}]
    )
    optimizer.register_step_pre_hook(
        lambda used, *_: seen.append((used.param_groups[0]["lr"], used.param_groups[1]["lr"]))
    )
    found = quick(model, nn.MSELoss(), loader, optimizer, trials=0)
    assert all(low == pytest.approx(high / 10) for low, high in seen)
    assert [high for _, high in seen] == pytest.approx(list(found.lrs))


def test_a_model_that_cannot_learn_gets_no_suggestion_but_a_reason() -> None:
    model = nn.Linear(2, 1)
    found = quick(model, lambda out, _: 0 * out.sum() + 3.0, (torch.zeros(4, 2), torch.zeros(4, 1)))
    assert found.suggestion is None and "did not fall" in found.stopped and "No learning rate" in str(found)


def test_models_with_their_own_loss_dict_batches_and_no_named_loss_work() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.layer(inputs)
            return {"logits": logits} | (
                {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
            )

    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = x.argmax(1) % 3
    assert quick(Own(), None, {"inputs": x, "labels": y}).suggestion is not None
    assert quick(nn.Linear(4, 3), None, [(x, y), (x, y)]).suggestion is not None


def test_wrong_use_is_one_sentence() -> None:
    model, loader = problem()
    for mistake, words in (
        (lambda: quick(model, nn.MSELoss(), None), "needs data"),
        (lambda: quick(model, nn.MSELoss(), loader, start=1.0, end=0.1), "above 0 and below end"),
        (lambda: quick(model, nn.MSELoss(), loader, steps=3), "at least"),
        (lambda: quick(model, nn.MSELoss(), (torch.zeros(4, 99), torch.zeros(4, 1))), "cannot be computed"),
        (lambda: quick(model.requires_grad_(False), nn.MSELoss(), loader), "nothing to train"),
        (
            lambda: quick(problem()[0], nn.MSELoss(), (torch.full((4, 8), math.nan), torch.zeros(4, 1))),
            "before the first",
        ),
    ):
        with pytest.raises(PatientError, match=words):
            mistake()


def test_it_is_public_plain_data_and_a_picture(tmp_path: Path) -> None:
    model, loader = problem()
    found = torchdoctor.lr_range(model, nn.MSELoss(), loader, steps=60, trials=20)
    json.loads(encode(found.to_dict()), parse_constant=pytest.fail)
    assert "AdamW was used" in found.notes[0] and "Suggested learning rate" in str(found)
    assert "suggestion" in found.save(tmp_path / "curve.html").read_text(encoding="utf-8")
