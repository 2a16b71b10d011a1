#!/usr/bin/env python3
"""Learning rate range test: raise the learning rate until the loss rises, then try the best candidates.

    python lr_range_test.py --model package.module:factory --data package.module:loader --optimizer sgd

The same as `torchdoctor lr-range`, with the same options. In your own script:

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
    """(learning rate, loss) for each step of a sweep, which stops at four times the first loss; nothing is changed.

    `torchdoctor.lr_range` gives more: the learning rate to use, the highest safe one, a plot.
    """
    found = torchdoctor.lr_range(
        model, criterion, train_loader, optimizer, start=start_lr, end=end_lr, steps=steps, trials=0
    )
    return list(zip(found.lrs, found.losses, strict=True))


if __name__ == "__main__":
    sys.argv[1:1] = ["lr-range"]
    main()
