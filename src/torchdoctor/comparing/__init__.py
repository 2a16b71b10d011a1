"""Compares runs: which settings differ, which run was best and fastest, where runs separate, and what explains it.

Each file answers one question; `compare` combines the answers as plain data for ``reports/comparison*.py``.
"""

from torchdoctor.comparing.comparison import Comparison, compare, compare_runs

__all__ = ["Comparison", "compare", "compare_runs"]
