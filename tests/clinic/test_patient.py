from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from torchdoctor.clinic.data import Corpus, load_text
from torchdoctor.clinic.patient import GPT, RECIPES, Patient, Recipe
from torchdoctor.errors import PatientError

TINY = RECIPES["tiny"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(load_text())


def losses(patient: Patient) -> list[float]:
    return [loss.item() for _, loss in patient.train()]


def parameters(recipe: Recipe, vocabulary: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in GPT(recipe, vocabulary).parameters())


def test_the_papers_patient_has_ten_million_parameters() -> None:
    assert 10.6e6 < parameters(RECIPES["shakespeare_char"], 65) < 10.8e6


def test_the_benchmark_patient_is_of_the_size_of_gpt2() -> None:
    recipe = RECIPES["gpt2"]
    assert recipe.vocabulary is not None
    assert 123e6 < parameters(recipe, recipe.vocabulary) < 126e6


@pytest.mark.parametrize(
    ("name", "lr", "steps", "batch_size"),
    [
        ("shakespeare_char", 1e-3, 5_000, 64),
        ("gutenberg", 6e-4, 75_000, 48),
        ("enwik8", 5e-4, 100_000, 32),
        ("text8", 5e-4, 100_000, 32),
    ],
)
def test_the_papers_recipes(name: str, lr: float, steps: int, batch_size: int) -> None:
    recipe = Recipe.named(name)
    assert (recipe.lr, recipe.steps, recipe.batch_size) == (lr, steps, batch_size)
    assert (recipe.layers, recipe.heads, recipe.width, recipe.context, recipe.dropout) == (6, 6, 384, 256, 0.2)
    assert (recipe.weight_decay, recipe.betas, recipe.clip) == (0.1, (0.9, 0.99), 1.0)
    assert 100 <= recipe.warmup <= 200


def test_it_starts_at_chance_and_learns(corpus: Corpus) -> None:
    seen = losses(Patient(replace(TINY, steps=120), corpus))
    assert seen[0] == pytest.approx(torch.tensor(float(corpus.vocabulary)).log().item(), rel=0.05)
    assert sum(seen[-10:]) / 10 < seen[0] - 1.0


def test_the_same_recipe_gives_the_same_run(corpus: Corpus) -> None:
    recipe = replace(TINY, steps=5)
    assert losses(Patient(recipe, corpus)) == losses(Patient(recipe, corpus))
    assert losses(Patient(recipe, corpus)) != losses(Patient(replace(recipe, seed=1), corpus))


def test_validation_does_not_change_the_run(corpus: Corpus) -> None:
    often = Patient(replace(TINY, steps=4, validate_every=1), corpus)
    seen = losses(often)
    assert seen == losses(Patient(replace(TINY, steps=4, validate_every=1000), corpus))
    assert often.model.training
    assert often.validate() == often.validate()


def test_attention_is_causal(corpus: Corpus) -> None:
    model = Patient(TINY, corpus).model.eval()
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, 10] = 50
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[0, :10], after[0, :10])
    assert not torch.equal(before[0, 10:], after[0, 10:])


def test_the_head_is_the_embedding_and_only_matrices_decay(corpus: Corpus) -> None:
    patient = Patient(TINY, corpus)
    assert patient.model.head.weight is patient.model.token.weight
    matrices, vectors = patient.optimizer.param_groups
    assert {p.dim() for p in matrices["params"]} == {2}
    assert {p.dim() for p in vectors["params"]} == {1}
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert all("bias" not in name for name, _ in patient.model.named_parameters())


def test_the_schedule_warms_up_and_ends_at_a_tenth(corpus: Corpus) -> None:
    patient = Patient(replace(TINY, steps=60, warmup=10, lr=1.0), corpus)
    factors = [patient.scheduler.get_last_lr()[0]]
    for _ in range(60):
        patient.optimizer.step()
        patient.scheduler.step()
        factors.append(patient.scheduler.get_last_lr()[0])
    assert factors[0] < 0.1
    assert max(factors) == factors[10] == 1.0
    assert factors[60] == pytest.approx(0.1)


def test_accumulating_is_the_mean_over_micro_batches(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    clip: Callable[..., torch.Tensor] = torch.nn.utils.clip_grad_norm_

    def keep(*args: Any) -> torch.Tensor:
        norms.append(clip(*args).item())
        return torch.tensor(norms[-1])

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", keep)
    recipe = replace(TINY, steps=1, dropout=0.0)
    whole = Patient(replace(recipe, batch_size=16), corpus)
    parts = Patient(replace(recipe, batch_size=8, accumulation=2), corpus)
    assert losses(whole) == pytest.approx(losses(parts), rel=1e-5)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_bfloat16_trains_on_a_cpu_too(corpus: Corpus) -> None:
    assert all(0 < loss < 6 for loss in losses(Patient(replace(TINY, steps=3, bf16=True), corpus)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # raised inside torch's compiler
def test_compiling_wraps_the_model(corpus: Corpus) -> None:
    patient = Patient(replace(TINY, compile=True), corpus)
    assert isinstance(patient.model._orig_mod, GPT)


def test_bad_recipes(corpus: Corpus) -> None:
    with pytest.raises(PatientError, match="width of 32 cannot be shared by 3 heads"):
        Patient(replace(TINY, heads=3), corpus)
    with pytest.raises(PatientError, match="do not fit a vocabulary of 10"):
        Patient(replace(TINY, vocabulary=10), corpus)
    with pytest.raises(PatientError, match="Did you mean 'gutenberg'"):
        Recipe.named("gutenber")
