"""Comparing runs: settings that differ, who was best and fastest, where runs part, and which setting explains it.

One question a file; `compare` asks them all and its answer is plain data, which ``reports/comparison*.py`` tell.
"""

from torchdoctor.comparing.comparison import Comparison, compare, compare_runs

__all__ = ["Comparison", "compare", "compare_runs"]
