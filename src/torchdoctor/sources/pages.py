"""Text from notebooks and saved web pages: printed output, and the cells of tables.

>>> text_of_page("<table><tr><th>Step</th><th>Loss</th></tr><tr><td>10</td><td>2.5</td></tr></table>")
'Step\\tLoss\\n10\\t2.5\\n'
>>> text_of_notebook('{"nbformat": 4, "cells": [{"outputs": [{"text": ["step 1 loss 2.5\\\\n"]}]}]}')
'step 1 loss 2.5\\n'
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

NOT_JSON = (ValueError, RecursionError)
_PAGE = re.compile(r"(?i)\s*<(?:!doctype html|html|head|body|div|table|style|script|progress)\b")
_NOTEBOOK = re.compile(r'\s*\{\s*"(?:cells|metadata|nbformat|nbformat_minor)"')
_UNSEEN = frozenset({"script", "style", "head"})
_BREAKS = frozenset({"p", "div", "br", "tr", "table", "li", "pre", "h1", "h2", "h3", "h4", "thead", "tbody"})


def kind_of(start: str) -> str:
    """Whether a file that begins like this is a page or a notebook; empty for plain text.

    >>> kind_of("<!DOCTYPE html>"), kind_of('{"cells": ['), kind_of("<unk> loss 2.5")
    ('page', 'notebook', '')
    """
    if _PAGE.match(start):
        return "page"
    return "notebook" if _NOTEBOOK.match(start) else ""


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unseen = 0
        self._cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen += 1
        elif tag in ("td", "th"):
            if self.pieces and not self.pieces[-1].endswith("\n"):
                self.pieces.append("\t")
            self._cell = True
        elif tag in _BREAKS and not self._cell:
            self._end_line()

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        elif tag in ("td", "th"):
            self._cell = False
        elif tag in _BREAKS and not self._cell:
            self._end_line()

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            text = " ".join(data.split()) if self._cell else data
            if text.strip() or not self._cell:
                self.pieces.append(text if self._cell else text.strip("\r\n") if text.strip() else "")

    def _end_line(self) -> None:
        if self.pieces and not self.pieces[-1].endswith("\n"):
            self.pieces.append("\n")


def text_of_page(page: str) -> str:
    """The text of an HTML page, with one line for each table row."""
    reader = _Text()
    try:
        reader.feed(page)
        reader.close()
    except (AssertionError, ValueError):  # the parser gives up on some malformed declarations
        pass
    text = "".join(reader.pieces)
    return text if text.endswith("\n") else text + "\n"


def text_of_notebook(document: str) -> str:
    """The printed output of a notebook; the text itself if it is not a notebook."""
    try:
        notebook = json.loads(document)
    except NOT_JSON:
        return document
    if not isinstance(notebook, dict) or "nbformat" not in notebook:
        return document
    cells = notebook.get("cells")
    outputs = [
        output
        for cell in (cells if isinstance(cells, list) else [])
        if isinstance(cell, dict) and isinstance(cell.get("outputs"), list)
        for output in cell["outputs"]
        if isinstance(output, dict)
    ]
    return "".join(text if text.endswith("\n") else text + "\n" for text in map(_printed, outputs) if text)


def _printed(output: dict[str, Any]) -> str:
    data = output.get("data")
    if isinstance(data, dict):
        page = _joined(data.get("text/html"))
        return text_of_page(page) if "<t" in page else _joined(data.get("text/plain"))
    return _joined(output.get("text"))


def _joined(text: object) -> str:
    if isinstance(text, list):
        return "".join(piece for piece in text if isinstance(piece, str))
    return text if isinstance(text, str) else ""
