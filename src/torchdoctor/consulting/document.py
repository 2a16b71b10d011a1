"""Blocks of text, rendered as plain text or Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Literal, NamedTuple

from torchdoctor.reports.markdown import escaped, fenced
from torchdoctor.reports.wording import printable

WIDTH = 100
Style = Literal["title", "heading", "text", "item", "step", "code", "question", "answer"]


APART = ("title", "heading", "code", "question")
"""Styles with an empty line before them."""


class Block(NamedTuple):
    """One paragraph, heading, item or piece of code."""

    style: Style
    text: str
    language: str = ""
    """The language of a code block."""


def as_text(blocks: Iterable[Block], width: int = WIDTH) -> str:
    """Plain text, wrapped.

    >>> print(as_text([Block("title", "Diagnosis"), Block("item", "one")]))
    Diagnosis
    =========
    <BLANKLINE>
      - one
    """
    parts: list[str] = []
    before = ""
    for style, text, _ in blocks:
        if parts and (style in APART or before in ("title", "code")):
            parts.append("")
        parts.append(_plain(style, text, max(width, 40)))
        before = style
    return "\n".join(parts)


def _plain(style: Style, text: str, width: int) -> str:
    match style:
        case "title":
            words = printable(text)
            return f"{words}\n{'=' * len(words)}"
        case "heading":
            return _wrapped(text, width, "", "")
        case "code":
            return "\n".join(f"    {line}".rstrip() for line in printable(text, lines=True).splitlines())
        case "item":
            return _wrapped(text, width, "  - ", "    ")
        case "step":
            return _wrapped(text, width, "  ", "     ")
        case "question":
            return _wrapped(text, width, "? ", "  ")
        case "answer":
            return _wrapped(text, width, "  ", "  ")
    return _wrapped(text, width, "", "  ")


def _wrapped(text: str, width: int, first: str, others: str) -> str:
    return "\n".join(
        textwrap.wrap(
            printable(text),
            width,
            initial_indent=first,
            subsequent_indent=others,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def as_markdown(blocks: Iterable[Block]) -> str:
    """Markdown; untrusted strings are escaped."""
    parts: list[str] = []
    before = ""
    for style, text, language in blocks:
        if parts and not (style == before and style in ("item", "step")):
            parts.append("")
        match style:
            case "title":
                parts.append(f"## {escaped(text)}")
            case "heading":
                parts.append(f"**{escaped(text)}**")
            case "code":
                opening, *rest = fenced(text)
                parts += [opening.replace("python", language or "python"), *rest]
            case "item":
                parts.append(f"- {escaped(text)}")
            case "question":
                parts.append(f"**{escaped(text)}**")
            case "step":
                parts.append(escaped(text))
            case "answer":
                parts.append(f"> {escaped(text)}")
            case _:
                parts.append(escaped(text))
        before = style
    return "\n".join(parts) + "\n"
