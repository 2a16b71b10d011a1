#!/usr/bin/env python3
"""Plot a run: raw loss and its average over 100 steps, learning rate, gradient norm, and marked findings.

    python plot_losses.py --log-dir logs/
    python plot_losses.py --log-dir logs/ --output curves.html

Writes `loss_curve.png` and `lr_loss_correlation.png`. The same as `torchdoctor plot RUN`.
"""

from __future__ import annotations

import sys

from torchdoctor.cli import main

if __name__ == "__main__":
    sys.argv[1:] = ["plot", *(word.removeprefix("--log-dir=") for word in sys.argv[1:] if word != "--log-dir")]
    main()
