"""Writes docs/catalogue/ (the pages that `torchdoctor explain` prints, and an index) and the references of the skill.

Pages are never edited: `make docs` writes them from the docstrings, and a test tells when they are out of date.
"""

from __future__ import annotations

import re
from pathlib import Path

from torchdoctor.reports.catalogue import Entry, entries
from torchdoctor.reports.skill_files import references, skill_folder

FOLDER = Path(__file__).parent / "catalogue"
INTRODUCTION = "`torchdoctor explain NAME` prints any of these pages; `torchdoctor rules` lists the findings."
SECTIONS = {
    "finding": "Findings: what is seen",
    "cause": "Causes: why",
    "action": "Actions: what to change",
    "check": "Checks: what is looked at before training",
}


def pages() -> dict[str, str]:
    """Every page by its file name."""
    listed = entries()
    names = {entry.name for entry in listed if entry.kind != "check"}
    return {"index.md": index(listed)} | {place(entry): linked(entry, names) + "\n" for entry in listed}


def place(entry: Entry) -> str:
    """The file of a page; a check may be called like the cause that it looks for."""
    return f"check-{entry.name}.md" if entry.kind == "check" else f"{entry.name}.md"


def linked(entry: Entry, names: set[str]) -> str:
    """The page, in which every other name of the catalogue leads to its own page; code blocks are left alone."""

    def link(found: re.Match[str]) -> str:
        known = found[1] in names and found[1] != entry.name
        return f"[`{found[1]}`]({found[1]}.md)" if known else found[0]

    parts = entry.page.strip().split("```")
    return "```".join(part if place % 2 else re.sub(r"`([a-z-]+)`", link, part) for place, part in enumerate(parts))


def index(listed: tuple[Entry, ...]) -> str:
    """All names, by kind, each with its sentence."""
    lines = ["# Catalogue", "", INTRODUCTION]
    for kind, title in SECTIONS.items():
        lines += ["", f"## {title}", "", "| name | what it is |", "|---|---|"]
        for entry in listed:
            if entry.kind == kind:
                name = f"{entry.code} {entry.name}".strip()
                lines.append(f"| [{name}]({place(entry)}) | {entry.summary} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write every page, and remove those of entries that are gone."""
    FOLDER.mkdir(exist_ok=True)
    current = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in current:
            path.unlink()
    for name, text in current.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(current)} pages in {FOLDER}")
    folder = skill_folder() / "references"
    folder.mkdir(exist_ok=True)
    for name, text in references().items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(references())} pages in {folder}")


if __name__ == "__main__":
    main()
