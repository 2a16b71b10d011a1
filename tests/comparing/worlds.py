"""Runs with known effects, made of numbers: as summaries, and as journals on disk."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np

from torchdoctor.comparing.summary import Curve, Summary
from torchdoctor.journal import Journal


def run(name, settings, score, steps=50, **curves):
    """A run whose validation ends at a score; a score of NaN has diverged."""
    at = np.arange(steps)
    loss = score * (1 + 2 * np.exp(-at / 10.0))
    found = {"loss": Curve(at, loss), "val_loss": Curve(at[::5], loss[::5]), **curves}
    return Summary(name, f"/runs/{name}", steps, settings, found)


def grid(score, seeds=3, noise=0.02, generator=None, **settings):
    """Every combination of settings, with several seeds each; `score` is a function of the settings."""
    generator = generator or np.random.default_rng(0)
    made = []
    for values in product(*settings.values()):
        chosen = dict(zip(settings, values, strict=True))
        for seed in range(seeds):
            level = score(**chosen) * math.exp(noise * generator.standard_normal())
            name = "_".join(f"{key}{value}" for key, value in chosen.items()) + f"_s{seed}"
            made.append(run(name, {**chosen, "seed": seed, "model": "MLP"}, level))
    return made


def write(folder: Path, loss, *, context=None, lr=0.1, validation=(), seconds=0.01):
    """A journal of a run with these losses."""
    header = {"type": "header", "step": -1, "schema": 1, "tensors": [], "context": context or {}}
    values = dict(validation)
    with Journal(folder, header) as journal:
        for step, value in enumerate(loss):
            vitals = {"loss": float(value), "lr": lr, "grad_norm": 1.0, "seconds": seconds}
            journal.write({"type": "vitals", "step": step, "vitals": vitals})
            if step in values:
                journal.write({"type": "validation", "step": step, "vitals": {"val_loss": float(values[step])}})
        journal.write({"type": "end", "step": len(loss) - 1})
    return folder
