"""Hyper-parameters out of YAML, as far as they are plain: names, numbers, flags and words, nested by indentation.

A YAML library can build any object that a file names. Here nothing is built: lists, references and tags are left out.

>>> plain("lr: 1e-3\\noptimizer:\\n  name: 'adamw'  # why not\\n  betas: [0.9, 0.95]\\namp: true\\nwarmup: null\\n")
{'lr': 0.001, 'optimizer/name': 'adamw', 'amp': True}
"""

from __future__ import annotations

import re
from pathlib import Path

from torchdoctor.sources.cells import number

Plain = bool | int | float | str

SIZE_LIMIT = 2**20
LINE_LIMIT = 1000
TEXT_LIMIT = 200
NAMES = ("hparams.yaml", "args.yaml", "config.yaml")
"""Where Lightning, Ultralytics and others write the configuration of a run, beside its log."""
_ENTRY = re.compile(r"^( *)([A-Za-z_][\w./-]*):(?: +(.*?))?\s*$")
_COMMENT = re.compile(r"\s+#.*$")


def beside(folder: Path) -> dict[str, Plain]:
    """The configuration in a folder, empty where there is none."""
    for name in NAMES:
        file = folder / name
        if file.is_file() and not file.is_symlink():
            return read(file)
    return {}


def read(path: Path) -> dict[str, Plain]:
    """The plain entries of a file."""
    with path.open("rb") as file:
        return plain(file.read(SIZE_LIMIT).decode("utf-8", "replace"))


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
