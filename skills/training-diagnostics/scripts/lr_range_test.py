#!/usr/bin/env python3
"""Learning-rate range test: raise the rate until the loss turns up, then try what the curve offers.

    python lr_range_test.py --model package.module:factory --data package.module:loader --optimizer sgd

All of it is `torchdoctor lr-range`, whose options are these. In a script of your own:

    from scripts.lr_range_test import lr_range_test

    for lr, loss in lr_range_test(model, train_loader, criterion=criterion, optimizer=optimizer):
        print(lr, loss)
"""

from __future__ import annotations

import sys
from typing import Any

import torchdoctor
from torchdoctor.cli import main


def lr_range_test(
    model: Any,
    train_loader: Any,
    start_lr: float = 1e-7,
    end_lr: float = 10,
    criterion: Any = None,
    optimizer: Any = None,
    steps: int = 200,
) -> list[tuple[float, float]]:
    """(rate, loss) of each step of a sweep, which ends where the loss is four times the first; nothing is changed.

    `torchdoctor.lr_range` gives more: the rate to use, the highest safe one, a picture.
    """
    found = torchdoctor.lr_range(
        model, criterion, train_loader, optimizer, start=start_lr, end=end_lr, steps=steps, trials=0
    )
    return list(zip(found.lrs, found.losses, strict=True))


if __name__ == "__main__":
    sys.argv[1:1] = ["lr-range"]
    main()
