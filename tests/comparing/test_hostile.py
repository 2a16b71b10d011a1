"""Any numbers at all: empty, constant, infinite, negative, missing; nothing is raised and the JSON stays strict."""

from __future__ import annotations

import json

import numpy as np
import pytest

from torchdoctor.comparing import compare_runs
from torchdoctor.comparing.summary import Curve, Summary
from torchdoctor.reports.comparison_formats import BY_SUFFIX, FORMATS

SETTINGS = {
    "lr": (0.1, 0.0, -1.0, 1e300, 1e-300, "x", None, float("inf"), float("nan")),
    "batch_size": (0, 1, 2, 4),
    "parameters": (1, 5, 9, 70, 100, 1000),
    "seed": (0, 1, 2),
    "flag": (True, False),
}


def values(generator, count):
    plain = generator.standard_normal(count)
    return (
        plain,
        np.exp(plain),
        1e99 * plain,
        np.full(count, np.nan),
        np.full(count, np.inf),
        np.zeros(count),
        -np.exp(50 * plain),
        np.where(generator.random(count) < 0.3, np.nan, plain),
    )[generator.integers(8)]


def some_run(generator, name):
    steps = int(generator.choice([0, 1, 2, 13, 60, 300]))
    curves = {}
    for vital in ("loss", "val_loss", "lr", "grad_norm", "seconds", "val_accuracy"):
        if generator.random() < 0.7:
            count = int(generator.choice([0, 1, steps])) if steps else 0
            at = np.sort(generator.integers(0, max(1, 3 * steps), count))
            curves[vital] = Curve(at, values(generator, count))
    chosen = {key: options[generator.integers(len(options))] for key, options in SETTINGS.items()}
    settings = {key: value for key, value in chosen.items() if generator.random() < 0.8}
    return Summary(name, name, steps, settings, curves)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_is_compared(seed):
    generator = np.random.default_rng(seed)
    runs = [some_run(generator, f"r{number}") for number in range(generator.integers(2, 14))]
    comparison = compare_runs(runs)
    assert len(comparison.found["runs"]) == len(runs)
    for form in FORMATS.values():
        form(comparison.to_dict())
    json.loads(FORMATS["json"](comparison.to_dict()), parse_constant=pytest.fail)
    BY_SUFFIX[".html"](comparison.to_dict(), comparison.curves)
