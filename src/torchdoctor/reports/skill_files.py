"""The skills that are shipped: where their files are, how they are copied, and what of them is generated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torchdoctor.errors import TorchDoctorError
from torchdoctor.reports.catalogue import Entry, entries

NAME = "training-diagnostics"
NAMES = (NAME, "train-debug")
"""The skills: one on measuring, one that leads from symptoms to one change."""
REFERENCES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "gradient-pathologies-reference.md": (
        "Gradient pathologies",
        "What can be wrong with gradients, activations, updates and weights: what it means, how to tell it from "
        "similar faults, what to do, and how to see that it is cured.",
        (
            "gradient-vanishing",
            "gradient-explosion",
            "gradient-instability",
            "no-gradient",
            "nan-or-inf",
            "dead-units",
            "saturated-activations",
            "activation-explosion",
            "update-ratio-abnormal",
            "frozen-weights",
            "weight-growth",
        ),
    ),
    "loss-curve-interpretation.md": (
        "Loss-curve interpretation",
        "What the curves of training and validation say: what each shape means, how to tell it from similar shapes, "
        "what to do, and how to see that it is cured.",
        (
            "unexpected-initial-loss",
            "not-learning",
            "slow-learning",
            "loss-plateau",
            "loss-spike",
            "loss-divergence",
            "loss-oscillation",
            "suspiciously-low-loss",
            "overfitting",
            "underfitting",
            "double-descent",
            "validation-anomaly",
            "lr-too-high",
            "lr-too-low",
        ),
    ),
}
"""By file: title, introduction, and the entries of the catalogue that it consists of."""


def skill_folder(name: str = NAME) -> Path:
    """Where a skill is: beside the modules in an installed package, at the root of a checkout."""
    package = Path(__file__).parents[1]
    for place in (package / "skills" / name, package.parents[1] / "skills" / name):
        if (place / "SKILL.md").is_file():
            return place
    raise TorchDoctorError(f"the skill {name} is not part of this installation. Install torchdoctor from its wheel.")


def copy_skills(folder: Path, *, force: bool = False) -> list[tuple[Path, int]]:
    """Copy the skills into a folder, all or none; files there that differ are replaced only with `force`."""
    files = {folder / name: _files(skill_folder(name)) for name in NAMES}
    places = [(target / part, file) for target, parts in files.items() for part, file in parts.items()]
    changed = [place for place, file in places if place.exists() and not _same(place, file)]
    if changed and not force:
        raise TorchDoctorError(
            f"{changed[0]} exists and is different ({len(changed)} of {len(places)} files). "
            "Use --force to replace them."
        )
    for place in (*files, *(place for place, _ in places)):
        if place.is_symlink():
            raise TorchDoctorError(f"{place} is a link. Remove it, or give another folder.")
    try:
        for place, file in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    except OSError as error:
        raise TorchDoctorError(f"cannot write into {folder}: {error.strerror or error}.") from error
    return [(target, len(parts)) for target, parts in files.items()]


def _files(source: Path) -> dict[Path, Path]:
    return {file.relative_to(source): file for file in sorted(source.rglob("*")) if _is_ours(file)}


def _is_ours(file: Path) -> bool:
    return file.is_file() and file.suffix in (".md", ".py") and "__pycache__" not in file.parts


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and one.read_bytes() == other.read_bytes()


def references() -> dict[str, str]:
    """The pages under ``references/`` by file name, made of the catalogue."""
    known = {entry.name: entry for entry in entries()}
    return {
        file: "\n\n".join([f"# {title}", introduction, *(_chapter(known[name]) for name in names)]) + "\n"
        for file, (title, introduction, names) in REFERENCES.items()
    }


def _chapter(entry: Entry) -> str:
    """A page of the catalogue as a chapter: headings one level down, without its examples and thresholds."""
    kept = [part for part in re.split(r"(?m)^(?=## )", entry.page) if not re.match(r"## (Example|Thresholds)", part)]
    return re.sub(r"(?m)^#", "##", "".join(kept)).strip()
