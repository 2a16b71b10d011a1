"""The patient: a character-level GPT in the manner of nanoGPT, and the loop that trains it.

Everything that trains in the clinic (demo, benchmarks, tests) trains here, from one frozen `Recipe`.

>>> from dataclasses import replace
>>> patient = Patient(replace(RECIPES["tiny"], steps=3))
>>> [step for step, loss in patient.train()]
[0, 1, 2]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.data import Corpus, Split, load_text
from torchdoctor.errors import PatientError, did_you_mean

if TYPE_CHECKING:
    from torchdoctor.clinic.injection import Injector
    from torchdoctor.doctor import Doctor


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, on what, and how; the defaults are the paper's `shakespeare_char`."""

    data: str | None = None
    """A data set, the path of a text, or None: Python's documentation."""
    layers: int = 6
    heads: int = 6
    width: int = 384
    context: int = 256
    dropout: float = 0.2
    vocabulary: int | None = None
    """Rows of the embedding; None: as many as the text has characters."""
    batch_size: int = 64
    accumulation: int = 1
    """Batches whose gradients are added up before a step."""
    steps: int = 5000
    warmup: int = 100
    lr: float = 1e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float | None = 1.0
    validate_every: int = 250
    validation_batches: int = 20
    seed: int = 1337
    device: str = "auto"
    bf16: bool | None = None
    """Autocast to bfloat16; None: where the device computes it natively (CUDA)."""
    compile: bool = False

    @classmethod
    def named(cls, name: str) -> Recipe:
        """The recipe of that name.

        >>> Recipe.named("tini")
        Traceback (most recent call last):
        ...
        torchdoctor.errors.PatientError: unknown recipe 'tini'. Did you mean 'tiny'?
        """
        if name not in RECIPES:
            raise PatientError(f"unknown recipe {name!r}. {did_you_mean(name, RECIPES)}")
        return RECIPES[name]


RECIPES: dict[str, Recipe] = {
    "tiny": Recipe(
        layers=2,
        heads=2,
        width=32,
        context=32,
        dropout=0.1,
        batch_size=8,
        lr=3e-3,
        steps=400,
        warmup=20,
        validate_every=50,
        validation_batches=4,
    ),
    "small": Recipe(
        layers=4,
        heads=4,
        width=128,
        context=64,
        dropout=0.1,
        batch_size=12,
        steps=2000,
        validate_every=200,
    ),
    "shakespeare_char": Recipe(data="shakespeare_char"),
    "gutenberg": Recipe(data="gutenberg", batch_size=48, steps=75_000, warmup=200, lr=6e-4, validate_every=1000),
    "enwik8": Recipe(data="enwik8", batch_size=32, steps=100_000, warmup=200, lr=5e-4, validate_every=1000),
    "text8": Recipe(data="text8", batch_size=32, steps=100_000, warmup=200, lr=5e-4, validate_every=1000),
    "gpt2": Recipe(
        layers=12,
        heads=12,
        width=768,
        context=1024,
        dropout=0.0,
        vocabulary=50_304,
        batch_size=12,
        lr=6e-4,
        betas=(0.9, 0.95),
        warmup=200,
        validate_every=1000,
    ),
}
"""The paper's four runs (section 5.2), two sizes for a CPU, and the shape of GPT-2 124M for benchmarks."""


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.heads = recipe.heads
        self.qkv = nn.Linear(recipe.width, 3 * recipe.width, bias=False)
        self.project = nn.Linear(recipe.width, recipe.width, bias=False)
        # A module although only its p is used: what sets or reads dropout by module then sees this one too.
        self.attention_dropout = nn.Dropout(recipe.dropout)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each position with those before it."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        p = self.attention_dropout.p if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        out: Tensor = self.dropout(self.project(mixed.transpose(1, 2).reshape(batch, length, width)))
        return out


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(recipe.width, bias=False)
        self.attention = Attention(recipe)
        self.norm_2 = nn.LayerNorm(recipe.width, bias=False)
        self.expand = nn.Linear(recipe.width, 4 * recipe.width, bias=False)
        self.project = nn.Linear(4 * recipe.width, recipe.width, bias=False)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then think."""
        x = x + self.attention(self.norm_1(x))
        out: Tensor = x + self.dropout(self.project(functional.gelu(self.expand(self.norm_2(x)))))
        return out


class GPT(nn.Module):
    """A decoder-only transformer whose head is its embedding."""

    def __init__(self, recipe: Recipe, vocabulary: int) -> None:
        super().__init__()
        if recipe.width % recipe.heads:
            raise PatientError(f"a width of {recipe.width} cannot be shared by {recipe.heads} heads; use a multiple.")
        self.token = nn.Embedding(vocabulary, recipe.width)
        self.position = nn.Embedding(recipe.context, recipe.width)
        self.dropout = nn.Dropout(recipe.dropout)
        self.blocks = nn.ModuleList(Block(recipe) for _ in range(recipe.layers))
        self.norm = nn.LayerNorm(recipe.width, bias=False)
        self.head = nn.Linear(recipe.width, vocabulary, bias=False)
        self.token.weight = self.head.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # GPT-2: residual branches are scaled so that the stream's variance does not grow with depth
                depth = math.sqrt(2 * recipe.layers) if name.endswith("project.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / depth)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits for every position, and their mean cross-entropy where targets are given."""
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Patient:
    """A model, its optimizer, schedule and data, built from a recipe and ready to train.

    Building seeds the global random state, as a training script does: initial weights and dropout come from it.
    Batches do not: they have generators of their own.
    """

    def __init__(self, recipe: Recipe, corpus: Corpus | None = None) -> None:
        self.recipe = recipe
        self.device = _device(recipe.device)
        self.corpus = corpus if corpus is not None else Corpus(load_text(recipe.data))
        vocabulary = recipe.vocabulary or self.corpus.vocabulary
        if vocabulary < self.corpus.vocabulary:
            raise PatientError(f"{self.corpus.vocabulary} characters do not fit a vocabulary of {vocabulary}.")
        torch.manual_seed(recipe.seed)
        self.model: Any = GPT(recipe, vocabulary).to(self.device)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self.parameters if p.dim() >= 2], "weight_decay": recipe.weight_decay},
                {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0},
            ],
            lr=recipe.lr,
            betas=recipe.betas,
            fused=self.device.startswith("cuda"),
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._lr_factor)
        if recipe.compile:
            self.model = torch.compile(self.model)
        self._draw = self._batches("train", recipe.seed)

    def _batches(self, split: Split, seed: int) -> Any:
        size, context = self.recipe.batch_size, self.recipe.context
        return self.corpus.batches(split, batch_size=size, context=context, seed=seed, device=self.device)

    def _lr_factor(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        recipe = self.recipe
        if step < recipe.warmup:
            return (step + 1) / (recipe.warmup + 1)
        progress = min(1.0, (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
        return 0.1 + 0.45 * (1.0 + math.cos(math.pi * progress))

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of a forward pass."""
        bf16 = self.recipe.bf16 if self.recipe.bf16 is not None else self.device.startswith("cuda")
        return torch.autocast(self.device.partition(":")[0], dtype=torch.bfloat16) if bf16 else nullcontext()

    @torch.no_grad()
    def validate(self) -> float:
        """The mean loss over the same validation batches every time."""
        draw = self._batches("validation", self.recipe.seed + 1)
        self.model.eval()
        total = torch.zeros((), device=self.device)
        for _ in range(self.recipe.validation_batches):
            x, y = draw()
            with self.autocast():
                total += self.model(x, y)[1]
        self.model.train()
        return total.item() / self.recipe.validation_batches

    def train(self, doctor: Doctor | None = None, injector: Injector | None = None) -> Iterator[tuple[int, Tensor]]:
        """Train by the recipe, yielding (step, loss) after each step; the loss stays on the device."""
        recipe, model, optimizer = self.recipe, self.model, self.optimizer
        model.train()
        for step in range(recipe.steps):
            mean = torch.zeros((), device=self.device)
            for _ in range(recipe.accumulation):
                x, y = self._draw()
                if injector is not None:
                    x, y = injector.batch(x, y)
                with self.autocast():
                    loss = model(x, y)[1]
                (loss / recipe.accumulation).backward()
                mean += loss.detach() / recipe.accumulation
                if doctor is not None:
                    doctor.log_loss(loss)
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters, recipe.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.scheduler.step()
            if (step + 1) % recipe.validate_every == 0:
                validation_loss = self.validate()
                if doctor is not None:
                    doctor.log_validation(validation_loss)
            yield step, mean


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"
