"""What makes a claim of 80 % right 80 % of the time: constants that were fitted on runs with a known cause.

    torchdoctor clinic bench --results RESULTS.jsonl
    python benchmarks/calibrate.py RESULTS.jsonl --first FIRST.jsonl ... --write

The clinic's development runs alone would justify a temperature of 0.6: causes were written beside them. A hundred runs
of faults that nobody had written a cause for asked for 1.3, before what they taught was built in; twenty more, after
that, for 0.8. The constants stand between the two, until there are more runs of the second sort.

Problems with a certain cause are left alone: a definite fact needs no calibration.
"""

from __future__ import annotations

from collections.abc import Mapping

TEMPERATURE: float = 1.0
"""Scores are divided by it: above 1 the ranking becomes less sure of itself, below 1 surer."""
SHIFTS: Mapping[str, float] = {}
"""By cause, what its score gains before that: how much commoner it is than its prior says."""
