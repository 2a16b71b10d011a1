#!/usr/bin/env python3
"""Compare runs: which is best and fastest, where they separate, and which setting explains it.

python compare_training_runs.py --runs exp1/ exp2/ exp3/
python compare_training_runs.py --runs exp1/ exp2/ --format json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torchdoctor
from torchdoctor.comparing import compare
from torchdoctor.reports.comparison_formats import FORMATS


def compare_training_runs(paths: Sequence[str]) -> dict[str, Any]:
    """The runs, best first, and what explains the ranking, as plain data."""
    return compare(paths).to_dict()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, metavar="RUN", help="journals, logs, or folders of them")
    parser.add_argument("--format", choices=sorted(FORMATS), default="full")
    given = parser.parse_args()
    try:
        found = compare_training_runs(given.runs)
    except torchdoctor.TorchDoctorError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    print(FORMATS[given.format](found))


if __name__ == "__main__":
    main()
