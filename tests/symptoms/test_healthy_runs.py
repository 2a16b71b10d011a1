"""Silence on healthy runs: simulated runs of many kinds, through the whole examination; and faults put into them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from torchdoctor.examination import Examination
from torchdoctor.records import Symptom
from torchdoctor.settings import Settings

Run = dict[str, np.ndarray]
Rng = np.random.Generator


def noise(rng: Rng, n: int, scale: float, memory: float = 0.0) -> np.ndarray:
    """Normal noise of a scale, with memory from step to step where asked for."""
    drawn = rng.standard_normal(n)
    for step in range(1, n if memory else 0):
        drawn[step] = memory * drawn[step - 1] + (1 - memory**2) ** 0.5 * drawn[step]
    return scale * drawn


def cosine(n: int, warmup: int, top: float = 1e-3) -> np.ndarray:
    step = np.arange(n)
    return top * np.where(
        step < warmup, (step + 1) / warmup, 0.5 + 0.5 * np.cos(np.pi * (step - warmup) / (n - warmup))
    )


def language_model(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = 3.0 + 7.8 * (1 + t / 30) ** -0.5 + noise(rng, n, 0.05)
    norm = (0.6 + 15 * np.exp(-t / 20) + 2 * np.exp(-(((t - 150) / 80) ** 2))) * np.exp(noise(rng, n, 0.15))
    return {"loss": loss, "grad_norm": norm, "lr": cosine(n, 200)}


def exponential_to_a_floor(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = 0.25 + 2 * np.exp(-t / rng.uniform(50, 400)) + noise(rng, n, 0.02)
    return {"loss": loss, "grad_norm": (0.05 + np.exp(-t / 150)) * np.exp(noise(rng, n, 0.3)), "lr": np.full(n, 0.1)}


def summed_loss(rng: Rng, n: int) -> Run:
    run = language_model(rng, n)
    return {**run, "loss": 32768 * run["loss"], "grad_norm": 1e4 * run["grad_norm"]}


def tiny_loss(rng: Rng, n: int) -> Run:
    run = exponential_to_a_floor(rng, n)
    return {**run, "loss": 1e-7 * run["loss"], "grad_norm": 1e-6 * run["grad_norm"]}


def regression_over_decades(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = 1e6 * np.exp(-t / (n / 12)) * np.exp(noise(rng, n, 0.3)) + 30
    return {"loss": loss, "grad_norm": 0.3 * loss**0.5 * np.exp(noise(rng, n, 0.3))}


def elbo(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = -1200 + 1700 * np.exp(-t / 120) + noise(rng, n, 15)
    return {"loss": loss, "grad_norm": (30 + 400 * np.exp(-t / 60)) * np.exp(noise(rng, n, 0.3))}


def density_through_zero(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    return {"loss": 4 - 2 * np.log1p(t / 20) + noise(rng, n, 0.3), "grad_norm": np.exp(noise(rng, n, 0.6, 0.5))}


def adversarial(rng: Rng, n: int) -> Run:
    return {
        "loss": 1.4 + np.abs(noise(rng, n, 0.5, 0.98)) + noise(rng, n, 0.15),
        "grad_norm": np.exp(noise(rng, n, 0.5, 0.8)),
        "lr": np.full(n, 2e-4),
    }


def reinforcement(rng: Rng, n: int) -> Run:
    loss = 0.02 * rng.standard_t(4, n) + noise(rng, n, 0.02, 0.95)
    return {"loss": loss, "grad_norm": np.exp(noise(rng, n, 0.8))}


def small_batches(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = (0.3 + 2 * np.exp(-t / 200)) * np.exp(noise(rng, n, 0.5))
    return {"loss": loss, "grad_norm": 3 * np.exp(noise(rng, n, 0.8))}


def memorized(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = 2.3 * np.exp(-t / (n / 14)) * np.exp(noise(rng, n, 0.9))
    return {"loss": loss, "grad_norm": loss**0.7 * np.exp(noise(rng, n, 0.5)), "lr": np.full(n, 1e-3)}


def hinge(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = np.maximum(0.0, 1.5 * np.exp(-t / (n / 6)) + noise(rng, n, 0.08) - 0.05)
    return {"loss": loss, "grad_norm": np.where(loss > 0, 0.2 + loss, 0.0) * np.exp(noise(rng, n, 0.2))}


def constant(rng: Rng, n: int) -> Run:
    return {"loss": np.full(n, 0.7), "grad_norm": np.full(n, 1.0)}


def curriculum(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    stage = t // (n // 3)
    loss = 0.4 * np.where(stage % 2, 3.0, 1.0) * np.exp(noise(rng, n, 0.05)) + 3 * np.exp(-t / 60)
    return {"loss": loss, "grad_norm": np.where(stage % 2, 3.0, 1.0) * np.exp(noise(rng, n, 0.2))}


def staircase(rng: Rng, n: int) -> Run:
    epoch = np.arange(n) // 200
    loss = 2.3 * 0.75**epoch + noise(rng, n, 0.04) * 0.75**epoch
    return {"loss": loss, "grad_norm": (1 + 0.2 * epoch) * np.exp(noise(rng, n, 0.25))}


def restarts(rng: Rng, n: int) -> Run:
    phase = np.arange(n) % 500 / 500
    lr = 0.05 * (1 + np.cos(np.pi * phase)) + 1e-5
    loss = 0.5 + 3 * np.exp(-np.arange(n) / 100) + 8 * lr * (1 - np.exp(-phase * 30)) + noise(rng, n, 0.04)
    return {"loss": loss, "grad_norm": (0.5 + 10 * lr) * np.exp(noise(rng, n, 0.25)), "lr": lr}


def step_decay(rng: Rng, n: int) -> Run:
    stage = np.arange(n) * 3 // n
    loss = np.array([1.0, 0.5, 0.4])[stage] + 2 * np.exp(-np.arange(n) / 150) + noise(rng, n, 0.05)
    return {"loss": loss, "grad_norm": np.exp(noise(rng, n, 0.3)), "lr": 0.1 * 0.1**stage}


def wandering_norm(rng: Rng, n: int) -> Run:
    return {
        "loss": 1 + 2 * np.exp(-np.arange(n) / 300) + noise(rng, n, 0.1),
        "grad_norm": np.exp(noise(rng, n, 0.6, 0.97)),
    }


def violent_start(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = 0.5 + 60 * np.exp(-t / 4) + 2 * np.exp(-t / 100) + noise(rng, n, 0.03)
    return {"loss": loss, "grad_norm": (1 + 200 * np.exp(-t / 5)) * np.exp(noise(rng, n, 0.2))}


def growing_norm(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    norm = 0.1 * (1 + 99 / (1 + np.exp(-(t - 300) / 40))) * np.exp(noise(rng, n, 0.15))
    return {"loss": 6 - 3 / (1 + np.exp(-(t - 320) / 60)) + noise(rng, n, 0.03), "grad_norm": norm}


def awakening(rng: Rng, n: int) -> Run:
    """A zero-initialized head: the norm rises a hundredfold within forty steps, from almost nothing."""
    t = np.arange(n)
    norm = np.minimum(1.0, 0.01 * np.exp(t / 9)) * np.exp(noise(rng, n, 0.15))
    return {"loss": 0.7 + 1.6 * np.exp(-np.maximum(t - 40, 0) / 100) + noise(rng, n, 0.01), "grad_norm": norm}


def epoch_waves(rng: Rng, n: int) -> Run:
    wave = np.sin(2 * np.pi * np.arange(n) / 97)
    return {
        "loss": 1 + 0.3 * wave + 2 * np.exp(-np.arange(n) / 200) + noise(rng, n, 0.05),
        "grad_norm": np.exp(0.7 * wave + noise(rng, n, 0.2)),
    }


def fine_tuning(rng: Rng, n: int) -> Run:
    loss = 1.2 - 0.1 * np.arange(n) / n + noise(rng, n, 0.3)
    return {"loss": np.maximum(loss, 0.02), "grad_norm": 2 * np.exp(noise(rng, n, 0.4)), "lr": np.full(n, 1e-6)}


def click_rates(rng: Rng, n: int) -> Run:
    loss = 0.60 + 0.093 * np.exp(-np.arange(n) / 80) + noise(rng, n, 0.02)
    return {"loss": loss, "grad_norm": 0.3 * np.exp(noise(rng, n, 0.3)), "lr": np.full(n, 1e-3)}


def hard_batches(rng: Rng, n: int) -> Run:
    hard = rng.random(n) < 0.03
    loss = (1 + 2 * np.exp(-np.arange(n) / 150)) * np.exp(noise(rng, n, 0.08)) * np.where(hard, 2.2, 1.0)
    return {"loss": loss, "grad_norm": np.where(hard, 3.0, 1.0) * np.exp(noise(rng, n, 0.25))}


def annealed_divergence_term(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = 100 + 400 * np.exp(-t / 80) + 60 * np.clip((t - 400) / 600, 0, 1) + noise(rng, n, 4)
    return {"loss": loss, "grad_norm": 20 * np.exp(noise(rng, n, 0.3))}


def mixed_precision(rng: Rng, n: int) -> Run:
    run = language_model(rng, n)
    skipped = (rng.random(n) < 0.004) | (np.arange(n) < 4)
    return {**run, "grad_norm": np.where(skipped, np.inf, run["grad_norm"]), "skipped": skipped.astype(float)}


def power_law(rng: Rng, n: int) -> Run:
    loss = 1.7 + 6 * (1 + np.arange(n)) ** -0.35 + noise(rng, n, 0.03)
    return {"loss": loss, "grad_norm": np.exp(noise(rng, n, 0.2)), "lr": np.full(n, 3e-4)}


def heavy_tailed_loss(rng: Rng, n: int) -> Run:
    return {"loss": 0.5 * np.exp(noise(rng, n, 0.8)), "grad_norm": np.exp(noise(rng, n, 0.8))}


def catapult(rng: Rng, n: int) -> Run:
    t = np.arange(n)
    loss = 0.3 + 2 * np.exp(-t / 150) + 3 * np.exp(-(((t - 8) / 4) ** 2)) + noise(rng, n, 0.03)
    return {"loss": loss, "grad_norm": (0.5 + 8 * np.exp(-(((t - 8) / 4) ** 2))) * np.exp(noise(rng, n, 0.2))}


KINDS: tuple[Callable[[Rng, int], Run], ...] = (
    language_model, exponential_to_a_floor, summed_loss, tiny_loss, regression_over_decades, elbo, density_through_zero,
    adversarial, reinforcement, small_batches, memorized, hinge, constant, curriculum, staircase, restarts, step_decay,
    wandering_norm, violent_start, growing_norm, awakening, epoch_waves, fine_tuning, click_rates, hard_batches,
    annealed_divergence_term, mixed_precision, power_law, heavy_tailed_loss, catapult,
)  # fmt: skip
CALM = (language_model, exponential_to_a_floor, summed_loss, tiny_loss, elbo, staircase, restarts, violent_start,
        click_rates, power_law)  # fmt: skip


def examine(run: Run, validation: dict[int, float] | None = None, every: int = 1) -> list[Symptom]:
    examination = Examination(Settings())
    count = len(run["loss"])
    for step in range(0, count * every, every):
        vitals = {name: float(values[step // every]) for name, values in run.items()}
        if not vitals.get("skipped", 1.0):
            vitals.pop("skipped")
        examination.take({"type": "vitals", "step": step, "vitals": vitals})
        if validation and step in validation:
            examination.take({"type": "validation", "step": step, "vitals": {"val_loss": validation[step]}})
    return list(examination.chart.episodes)


def alarms(symptoms: list[Symptom]) -> list[str]:
    return [str(item) for item in symptoms if item.severity != "info"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_healthy_runs_are_left_alone(kind: Callable[[Rng, int], Run], seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    assert alarms(examine(kind(rng, 1500 if seed else 3000))) == []


@pytest.mark.parametrize("kind", [language_model, small_batches, restarts], ids=lambda kind: kind.__name__)
def test_sparse_logging_changes_nothing(kind: Callable[[Rng, int], Run]) -> None:
    run = kind(np.random.default_rng(5), 3000)
    assert alarms(examine({name: values[::10] for name, values in run.items()}, every=10)) == []


@pytest.mark.parametrize("length", [1, 5, 12, 20, 40])
def test_short_runs_are_not_judged(length: int) -> None:
    for kind in KINDS:
        assert (
            alarms(examine({name: values[:length] for name, values in kind(np.random.default_rng(3), 600).items()}))
            == []
        )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", CALM, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("at", [60, 503, 1203])
def test_scaled_gradients_are_raised_at_the_step(kind: Callable[[Rng, int], Run], seed: int, at: int) -> None:
    for factor, name in ((20.0, "gradient-explosion"), (1e-8, "gradient-vanishing")):
        run = kind(np.random.default_rng(seed), 1400)
        run["grad_norm"][at] *= factor
        found = alarms(examine({key: values[: at + 1] for key, values in run.items()}))
        assert len(found) == 1, found
        assert f"step {at}: " in found[0]
        assert name in found[0]


@pytest.mark.parametrize("kind", CALM, ids=lambda kind: kind.__name__)
def test_a_batch_that_does_harm_is_raised_a_step_later(kind: Callable[[Rng, int], Run]) -> None:
    run = kind(np.random.default_rng(1), 1400)
    at = 700
    run["loss"][at : at + 2] = run["loss"][0] + abs(run["loss"][0])
    assert alarms(examine({key: values[: at + 1] for key, values in run.items()})) == []
    found = alarms(examine({key: values[: at + 2] for key, values in run.items()}))
    assert any(text.startswith(f"step {at}: LO01 loss-spike (warning)") for text in found), found


@pytest.mark.parametrize("kind", CALM, ids=lambda kind: kind.__name__)
def test_a_run_that_leaves_for_good_is_raised(kind: Callable[[Rng, int], Run]) -> None:
    run = kind(np.random.default_rng(2), 1400)
    height = abs(run["loss"][0]) + abs(run["loss"][0] - run["loss"][799])
    run["loss"][800:] = run["loss"][799] + height * (1 - np.exp(-np.arange(600) / 15))
    found = alarms(examine({key: values[:900] for key, values in run.items()}))
    assert any("loss-divergence" in text for text in found), found


def test_the_bloom_excerpt_is_raised_before_the_loss_peaks() -> None:
    run = language_model(np.random.default_rng(7), 2000)
    norms, losses = run["grad_norm"][-1], 1.0
    ratios = np.array([1, 3.9, 9.9, 66, 600, 3968])
    excerpt = np.array([1, 1.01, 1.18, 1.02, 1.07, 2.32])
    norms = np.concatenate([run["grad_norm"], np.median(run["grad_norm"][-50:]) * ratios])
    losses = np.concatenate([run["loss"], np.median(run["loss"][-50:]) * excerpt])
    found = alarms(examine({"loss": losses[:2003], "grad_norm": norms[:2003]}))
    assert [text.split(" ")[1] for text in found] == ["2002:"], found
    assert "gradient-explosion" in found[0]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_one_poisoned_step_neither_blinds_nor_wedges(poison: float) -> None:
    run = language_model(np.random.default_rng(11), 2200)
    for name in ("loss", "grad_norm"):
        run[name][800] = poison
    run["grad_norm"][1900] *= 100
    found = alarms(examine(run))
    assert [text.split(" (")[0] for text in found] == [
        "step 800: NU01 nan-or-inf",
        "step 1900: GR01 gradient-explosion",
    ]


VALIDATIONS = {
    "a constant gap": lambda rng, train: train + 0.5 + rng.normal(0, 0.01),
    "below training": lambda rng, train: 0.9 * train + rng.normal(0, 0.01),
    "noisy": lambda rng, train: train + 0.3 + rng.normal(0, 0.2),
}


@pytest.mark.parametrize("name", VALIDATIONS)
@pytest.mark.parametrize("kind", [language_model, exponential_to_a_floor, curriculum], ids=lambda kind: kind.__name__)
def test_healthy_validation_is_left_alone(name: str, kind: Callable[[Rng, int], Run]) -> None:
    for seed in range(3):
        rng = np.random.default_rng([seed, 2])
        run = kind(rng, 2000)
        validation = {
            step: VALIDATIONS[name](rng, float(np.median(run["loss"][max(0, step - 20) : step + 1])))
            for step in range(99, 2000, 100)
        }
        assert [text for text in alarms(examine(run, validation)) if "overfitting" in text] == []
