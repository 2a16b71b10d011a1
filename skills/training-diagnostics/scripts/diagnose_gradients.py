#!/usr/bin/env python3
"""Diagnose gradient flow: norms by layer, vanishing or exploding gradients, zeros, NaN and Inf.

    python diagnose_gradients.py --model package.module:factory --checkpoint weights.pt --data sample.pt
    python diagnose_gradients.py --checkpoint model.pt --data loader.pt --trust-pickle
    python diagnose_gradients.py --checkpoint weights.pt --log-dir logs/

The same as `torchdoctor gradients`, with the same options. In your own script:

    from scripts.diagnose_gradients import compute_gradient_stats, diagnose_gradient_pathology

    diagnosis = diagnose_gradient_pathology(compute_gradient_stats(model, train_loader, criterion))
    if diagnosis["errors"]:
        print(*diagnosis["recommendations"], sep="\\n")
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchdoctor.checks.gradient_statistics import LayerGradient, gradient_statistics, judge
from torchdoctor.cli import main
from torchdoctor.reports.plots import can_draw_png, gradient_figure, save
from torchdoctor.symptoms.gradient_vanishing import NOT_MATRICES

Stats = Mapping[str, Mapping[str, Any]]


def compute_gradient_stats(model: Any, data_loader: Any, criterion: Any = None) -> dict[str, dict[str, Any]]:
    """For each parameter: mean, std, norm, max, min, zeros and size of its gradient. The model stays unchanged."""
    found = gradient_statistics(model, criterion, data_loader)
    return {
        layer.name: {
            "mean": layer.mean,
            "std": layer.std,
            "norm": layer.norm,
            "max": layer.max,
            "min": layer.min,
            "zeros": layer.zeros,
            "size": layer.size,
            "num_zeros": layer.zeros,
            "total_params": layer.size,
            "zero_pct": layer.zero_share,
        }
        for layer in found.layers
    }


def diagnose_gradients(model: Any, data_loader: Any, criterion: Any = None) -> dict[str, dict[str, Any]]:
    """The same as `compute_gradient_stats`, but prints what is wrong."""
    stats = compute_gradient_stats(model, data_loader, criterion)
    for issue in diagnose_gradient_pathology(stats)["errors"]:
        print(issue)
    return stats


def identify_issues(grad_stats: Stats) -> list[str]:
    """Problems by rules of thumb: a ratio of norms above 1000, a norm above 100, half of a layer at zero, NaN."""
    norms = {name: float(stats["norm"]) for name, stats in grad_stats.items()}
    known = [norm for norm in norms.values() if math.isfinite(norm)]
    issues = []
    if known and max(known) > 1000 * min(known):
        issues.append("VANISHING GRADIENTS: Ratio of max/min gradient norms > 1000")
    if any(norm > 100 for norm in norms.values()):
        issues.append("EXPLODING GRADIENTS: Some gradient norms > 100")
    for name, stats in grad_stats.items():
        share = _zeros(stats) / max(1, _size(stats))
        if share > 0.5:
            issues.append(f"DEAD NEURONS: {name} has {share:.1%} zero gradients")
    if any(not math.isfinite(float(stats.get("mean", stats["norm"]))) for stats in grad_stats.values()):
        issues.append("NaN/Inf GRADIENTS: Found NaN or Inf values")
    return issues


def diagnose_gradient_pathology(grad_stats: Stats) -> dict[str, list[str]]:
    """What is wrong (`errors`), what to look at (`warnings`), and what to do (`recommendations`).

    Fewer false alarms than `identify_issues`: it does not judge depth by biases, gains and embeddings.
    """
    layers = [_layer(name, stats) for name, stats in grad_stats.items()]
    remarks = judge(layers)
    told: dict[bool, list[str]] = {True: [], False: []}
    for remark in remarks:
        told[remark.severity != "info"].append(f"{remark.name}: {remark.message}")
    return {"errors": told[True], "warnings": told[False], "recommendations": [item.advice for item in remarks]}


def plot_gradient_flow(grad_stats: Stats, path: str | Path = "gradient_flow.png") -> Path:
    """Plot the norms by depth; an HTML page if matplotlib is not installed."""
    layers = [
        {"name": name, "norm": stats["norm"], "max": stats.get("max", math.nan), "min": stats.get("min", math.nan)}
        | {"zero_share": _zeros(stats) / max(1, _size(stats))}
        for name, stats in grad_stats.items()
    ]
    place = Path(path) if can_draw_png() else Path(path).with_suffix(".html")
    save(gradient_figure({"layers": layers, "verdict": "", "remarks": []}), place)
    print(f"Saved gradient flow plot to {place}")
    return place


def _zeros(stats: Mapping[str, Any]) -> int:
    return int(stats.get("num_zeros", stats.get("zeros", 0)))


def _size(stats: Mapping[str, Any]) -> int:
    return int(stats.get("total_params", stats.get("size", 0)))


def _layer(name: str, stats: Mapping[str, Any]) -> LayerGradient:
    norm, mean = float(stats["norm"]), float(stats.get("mean", 0.0))
    return LayerGradient(
        name,
        norm,
        mean,
        float(stats.get("std", 0.0)),
        float(stats.get("max", 0.0)),
        float(stats.get("min", 0.0)),
        _zeros(stats),
        _size(stats),
        nonfinite=int(not (math.isfinite(norm) and math.isfinite(mean))),
        is_matrix=not any(word in name.lower() for word in ("bias", *NOT_MATRICES)),
    )


if __name__ == "__main__":
    sys.argv[1:1] = ["gradients"]
    main()
