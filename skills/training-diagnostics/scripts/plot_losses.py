#!/usr/bin/env python3
"""Plot a run: loss raw and over 100 steps, learning rate, gradient norm, and what was found, marked.

    python plot_losses.py --log-dir logs/
    python plot_losses.py --log-dir logs/ --output curves.html

Writes `loss_curve.png` and `lr_loss_correlation.png`. All of it is `torchdoctor plot RUN`.
"""

from __future__ import annotations

import sys

from torchdoctor.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["plot", *(word.removeprefix("--log-dir=") for word in sys.argv[1:] if word != "--log-dir")]
    main()
