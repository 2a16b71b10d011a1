#!/usr/bin/env python3
"""Compare runs: final loss, best validation loss, learning rate, health and likeliest cause, best first.

python compare_training_runs.py --runs exp1/ exp2/ exp3/
python compare_training_runs.py --runs exp1/ exp2/ --format json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torchdoctor
from torchdoctor.journal import encode
from torchdoctor.reports.comparison import comparison, comparison_text, row
from torchdoctor.sources.vital_series import vital_series


def compare_training_runs(paths: Sequence[str]) -> dict[str, Any]:
    """The runs, best first, as plain data."""
    rows = []
    for path in paths:
        run = torchdoctor.read(path)
        rows.append(row(path, vital_series(run), torchdoctor.diagnose(run)))
    return comparison(rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, metavar="RUN", help="journal folders or files")
    parser.add_argument("--format", choices=["full", "json"], default="full")
    given = parser.parse_args()
    try:
        found = compare_training_runs(given.runs)
    except torchdoctor.TorchDoctorError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(json.loads(encode(found)), indent=2) if given.format == "json" else comparison_text(found))


if __name__ == "__main__":
    main()
