"""Hyper-parameters from YAML or JSON, if they are plain: names, numbers, flags and words, nested.

A YAML library can build any object that a file names. Here nothing is built: lists, references and tags are left out.

>>> plain("lr: 1e-3\\noptimizer:\\n  name: 'adamw'  # why not\\n  betas: [0.9, 0.95]\\namp: true\\nwarmup: null\\n")
{'lr': 0.001, 'optimizer/name': 'adamw', 'amp': True}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchdoctor.sources.cells import number

Plain = bool | int | float | str

SIZE_LIMIT = 2**20
LINE_LIMIT = 1000
TEXT_LIMIT = 200
NAMES = (
    *("hparams.yaml", "args.yaml", "config.yaml"),
    *("params.json", "args.json", "hparams.json", "config.json"),
)
"""File names under which Lightning, Ultralytics, Ray and others write a run's configuration next to its log."""
DEPTH = 6
_ENTRY = re.compile(r"^( *)([A-Za-z_][\w./-]*):(?: +(.*?))?\s*$")
_COMMENT = re.compile(r"\s+#.*$")


def beside(folder: Path) -> dict[str, Plain]:
    """The configuration in a folder, from the first file that has any; empty if there is none."""
    files = (folder / name for name in NAMES)
    return next((found for file in files if file.is_file() and not file.is_symlink() and (found := read(file))), {})


def read(path: Path) -> dict[str, Plain]:
    """The plain entries of a file."""
    with path.open("rb") as file:
        text = file.read(SIZE_LIMIT).decode("utf-8", "replace")
    return plain_json(text) if path.suffix == ".json" else plain(text)


def plain_json(text: str) -> dict[str, Plain]:
    """The plain entries of a JSON object, nested names joined.

    >>> plain_json('{"lr": 1e-3, "optimizer": {"name": "adamw", "betas": [0.9, 0.95]}, "amp": true, "clip": null}')
    {'lr': 0.001, 'optimizer/name': 'adamw', 'amp': True}
    """
    try:
        return dict(_leaves(json.loads(text), ""))
    except (ValueError, RecursionError):
        return {}


def _leaves(value: Any, name: str, depth: int = DEPTH) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}/{key}" if name else key, depth - 1)
    elif name and _is_plain(value):
        yield name, value


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= TEXT_LIMIT
    return isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**53)


def plain(text: str) -> dict[str, Plain]:
    """The plain entries of a text, nested names joined."""
    found: dict[str, Plain] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _ENTRY.match(line) if len(line) <= LINE_LIMIT else None
        if match is None:
            continue
        depth, key, rest = len(match[1]), match[2], _COMMENT.sub("", match[3] or "")
        while above and above[-1][0] >= depth:
            above.pop()
        value = _value(rest)
        if value is not None:
            found["/".join([*(name for _, name in above), key])] = value
        elif not rest:
            above.append((depth, key))
    return found


def _value(text: str) -> Plain | None:
    if not text or len(text) > TEXT_LIMIT or text[0] in "[{&*!|>%@`" or text in ("null", "~", "Null", "NULL", "None"):
        return None
    if text[0] in "'\"":
        return text[1:-1] if len(text) > 1 and text[-1] == text[0] else None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    given = number(text) if text[0] in "+-.0123456789" and text[-1].isdigit() else None
    if given is None:
        return text
    return int(given) if text.lstrip("+-").isdigit() and abs(given) < 2**53 else given
