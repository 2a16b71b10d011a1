#!/usr/bin/env python3
"""Analyze activations: distribution by module, dead ReLUs, saturated sigmoids and tanhs, scale by depth.

    python analyze_activations.py --model package.module:factory --checkpoint weights.pt --data sample.pt
    python analyze_activations.py --model model.pt --data sample.pt --trust-pickle

The same as `torchdoctor activations`, with the same options. In your own script:

    from scripts.analyze_activations import analyze_activations

    for name, stats in analyze_activations(model, val_loader).items():
        print(name, stats["zeros"], stats["dead"])
"""

from __future__ import annotations

import sys
from typing import Any

from torchdoctor.checks.activation_statistics import activation_statistics
from torchdoctor.cli import main


def analyze_activations(model: Any, data_loader: Any) -> dict[str, dict[str, Any]]:
    """For each module: mean, std, rms, quantiles, and the shares of zero, dead and saturated values."""
    return {layer["name"]: layer for layer in activation_statistics(model, data_loader).to_dict()["layers"]}


def identify_issues(model: Any, data_loader: Any) -> list[str]:
    """Problems of the activations, worst first."""
    return [remark.message for remark in activation_statistics(model, data_loader).remarks]


if __name__ == "__main__":
    sys.argv[1:1] = ["activations"]
    main()
