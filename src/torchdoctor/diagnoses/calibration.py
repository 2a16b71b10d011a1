"""What makes a claim of 80 % right 80 % of the time: constants fitted on the clinic's development runs.

    torchdoctor clinic bench --results RESULTS.jsonl
    python benchmarks/calibrate.py RESULTS.jsonl --write

Problems with a certain cause are left alone: a definite fact needs no calibration.
"""

from __future__ import annotations

from collections.abc import Mapping

TEMPERATURE: float = 0.8
"""Scores are divided by it: above 1 the ranking becomes less sure of itself, below 1 surer."""
SHIFTS: Mapping[str, float] = {}
"""By cause, what its score gains before that: how much commoner it is than its prior says."""
