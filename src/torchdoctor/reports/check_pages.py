"""The checks of a check-up as their files describe them, without importing them: checks need torch, a page does not."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class CheckPage:
    """What a check's file says of it."""

    code: str
    name: str
    doc: str
    quick: bool
    """Whether a quick check-up does it."""
    suggests: tuple[str, ...]
    references: tuple[str, ...]
    thresholds: dict[str, Any]


@cache
def check_pages() -> tuple[CheckPage, ...]:
    """All of them, by code.

    >>> check_pages()[0].code, check_pages()[0].name
    ('CK01', 'parameter-initialization')
    """
    folder = files("torchdoctor") / "checks"
    sources = [item.read_text(encoding="utf-8") for item in folder.iterdir() if item.name.endswith(".py")]
    return tuple(sorted((page for source in sources for page in _in(source)), key=lambda page: page.code))


def _in(source: str) -> Iterator[CheckPage]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and any(
            isinstance(base, ast.Name) and base.id == "Check" for base in node.bases
        ):
            facts = {
                item.targets[0].id: _value(item.value)
                for item in node.body
                if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
            }
            thresholds = {
                item.target.id: _value(item.value)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
            }
            doc = inspect.cleandoc(ast.get_docstring(node) or "")
            more = {key: tuple(facts.get(key) or ()) for key in ("suggests", "references")}
            yield CheckPage(facts["code"], facts["name"], doc, bool(facts.get("quick")), **more, thresholds=thresholds)


class Written(str):
    """An expression as it is written, such as a constant's name."""

    def __repr__(self) -> str:
        return str(self)


def _value(node: ast.expr) -> Any:
    """A literal, or the expression as it is written."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Written(ast.unparse(node))
