#!/usr/bin/env python3
"""Be led from the symptoms of a training run to one change and the test of it.

    python consult.py runs/today --answers answers.json --format json
    python consult.py --questions

All of it is `torchdoctor consult`, whose options are these.
"""

from __future__ import annotations

import sys

from torchdoctor.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["consult"]
    main()
