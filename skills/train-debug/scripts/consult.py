#!/usr/bin/env python3
"""Go from the symptoms of a training run to one change and a test of it.

    python consult.py runs/today --answers answers.json --format json
    python consult.py --questions

The same as `torchdoctor consult`, with the same options.
"""

from __future__ import annotations

import sys

from torchdoctor.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["consult"]
    main()
