"""Which setting made runs diverge: what only the diverged runs have in common says more than each log."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchdoctor.comparing.design import Design

CHANCE = 0.05
"""Highest probability that chance alone makes the diverged runs coincide with levels of a setting."""


def blamed(design: Design, diverged: Sequence[bool]) -> list[str]:
    """For each diverged run, a setting's level at which all runs diverged, if no run of its other levels did.

    >>> from torchdoctor.comparing.design import Factor
    >>> rates = Factor(("lr",), ("0.1", "3"), np.repeat([0, 1], 4))
    >>> made = Design((rates,), (), (), (), np.repeat([0, 1], 4))
    >>> blamed(made, [False] * 4 + [True] * 4)[3:5], blamed(made, [False] * 5 + [True] * 3)[-1]
    (['', 'lr 3: all 4 diverged'], '')
    """
    lost = np.array(diverged, dtype=bool)
    for factor in design.factors:
        levels = np.unique(factor.codes[lost])
        if not np.array_equal(np.isin(factor.codes, levels), lost):
            continue
        ways = math.comb(len(np.unique(factor.codes)), len(levels)) * len(design.factors)
        if ways <= CHANCE * math.comb(len(lost), int(lost.sum())):
            runs = np.bincount(factor.codes)
            told = [f"{factor.name} {label}: all {runs[code]} diverged" for code, label in enumerate(factor.labels)]
            return [told[code] if out else "" for code, out in zip(factor.codes.tolist(), diverged, strict=True)]
    return [""] * len(diverged)
