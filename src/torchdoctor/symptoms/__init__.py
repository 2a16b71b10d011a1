"""Symptoms: what is seen. One file a pathology, one line in the table.

>>> from torchdoctor.settings import Settings
>>> [detector.name for detector in build(Settings(select=("GR",)))]
['gradient-explosion', 'gradient-vanishing', 'gradient-instability']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from torchdoctor.errors import SettingsError, did_you_mean
from torchdoctor.settings import Settings
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.gradient_explosion import GradientExplosion
from torchdoctor.symptoms.gradient_instability import GradientInstability
from torchdoctor.symptoms.gradient_vanishing import GradientVanishing
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.loss_plateau import LossPlateau
from torchdoctor.symptoms.loss_spike import LossSpike
from torchdoctor.symptoms.multiple_pathologies import MultiplePathologies
from torchdoctor.symptoms.nan_or_inf import NanOrInf
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.paper import PAPER_DETECTORS

__all__ = ["DETECTORS", "PAPER_DETECTORS", "Detector", "build"]

DETECTORS: tuple[type[Detector], ...] = (
    GradientExplosion,
    GradientVanishing,
    GradientInstability,
    LossSpike,
    LossDivergence,
    LossPlateau,
    NanOrInf,
    Overfitting,
    MultiplePathologies,
)


def build(settings: Settings) -> tuple[Detector, ...]:
    """The detectors that the settings ask for, with their thresholds; a name that does not exist is an error.

    >>> build(Settings(thresholds={"gradient-explosion": {"raito": 20}}))
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SettingsError: gradient-explosion has no threshold 'raito'. Did you mean 'ratio'?
    """
    table = PAPER_DETECTORS if settings.preset == "paper" else DETECTORS
    selected = _chosen(settings.select, table, "select") or {kind.name for kind in table}
    ignored = _chosen(settings.ignore, table, "ignore")
    thresholds = {_one(name, table): values for name, values in settings.thresholds.items()}
    built: list[Detector] = []
    for kind in table:
        values = dict(thresholds.get(kind.name, {}))
        known = {field.name: field for field in fields(kind)}
        for key, value in values.items():
            if key not in known:
                raise SettingsError(f"{kind.name} has no threshold {key!r}. {_nearest(key, known)}")
            values[key] = _checked(f"{kind.name}.{key}", value, known[key])
        if "rule" in known:
            values.setdefault("rule", settings.rule)
        if kind.name in selected and kind.name not in ignored:
            built.append(kind(**values))
    return tuple(built)


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    return did_you_mean(key, known) if known else "It has none."


def _chosen(tokens: Iterable[str], table: tuple[type[Detector], ...], setting: str) -> set[str]:
    """The names meant by names, codes or the letters of codes."""
    chosen: set[str] = set()
    for token in tokens:
        meant = {kind.name for kind in table if token in (kind.name, kind.code, kind.code[:2])}
        if not meant:
            known = [word for kind in table for word in (kind.name, kind.code, kind.code[:2])]
            raise SettingsError(f"{setting}: there is no finding {token!r}. {did_you_mean(str(token), set(known))}")
        chosen |= meant
    return chosen


def _one(name: str, table: tuple[type[Detector], ...]) -> str:
    for kind in table:
        if name in (kind.name, kind.code):
            return kind.name
    near = did_you_mean(str(name), [kind.name for kind in table])
    raise SettingsError(f"thresholds: there is no finding {name!r}. {near}")


def _checked(name: str, value: Any, field: Field[Any]) -> Any:
    """The value, if it is of the threshold's kind; whole numbers pass as floats."""
    default = field.default
    if isinstance(default, str):
        if value not in ("either", "fixed", "adaptive"):
            raise SettingsError(f"{name} must be 'either', 'fixed' or 'adaptive', not {value!r}.")
        return value
    expected = "a whole number" if isinstance(default, int) else "a number"
    right = isinstance(value, int) if isinstance(default, int) else isinstance(value, int | float)
    if isinstance(value, bool) or not right or not math.isfinite(value) or value <= 0:
        raise SettingsError(f"{name} must be {expected} above zero (its default is {default!r}), not {value!r}.")
    return value if isinstance(default, int) else float(value)
