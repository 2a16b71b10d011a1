"""Self-contained pages: one file, no request, and a content policy that names the only script and style allowed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from xml.etree.ElementTree import Element

from torchdoctor.reports.markup import render
from torchdoctor.reports.wording import printable

SCRIPTS = ("steps.js", "curves.js", "heat_map.js", "report.js")
"""The parts of the script of a page, in the folder `script`."""


def page(title: str, body: Element, data: Mapping[str, Any] | None = None, *, styles: Sequence[str] = ()) -> str:
    """A whole page around one element; with data, the script that draws them comes with it."""
    style = "".join(asset(name) for name in ("page.css", "report.css", *styles))
    policy = f"default-src 'none'; style-src '{fingerprint(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    scripts = ""
    if data is not None:
        code = script()
        policy += f"; script-src '{fingerprint(code)}'"
        held = f'<script type="application/json" id="torchdoctor-data">{as_data(data)}</script>'
        scripts = f"{held}\n<script>{code}</script>\n"
    return Template(asset("report.html")).substitute(
        policy=policy, title=escape(printable(title)), style=style, body=render(body), scripts=scripts
    )


@cache
def script() -> str:
    """The whole script: its parts share one scope, and nothing of them is global."""
    parts = "\n".join(asset(f"script/{name}") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def fragment(body: Element, *, styles: Sequence[str] = ()) -> str:
    """The same element for a notebook's cell: no script, and every rule of its style holds inside the report only.

    A notebook has rules for tables, code and lists of its own, and a size of letters: the class named three times
    outranks the rules, and lengths are pixels.
    """
    style = "".join(asset(name) for name in ("report.css", *styles, "notebook.css"))
    style = re.sub(r"([\d.]+)rem\b", lambda found: f"{16 * float(found[1]):g}px", style)
    return f"<style>{style.replace('.torchdoctor', '.torchdoctor' * 3)}</style>{render(body)}"


@cache
def asset(name: str) -> str:
    """A file beside this one, as text."""
    return files("torchdoctor.reports").joinpath(name).read_text(encoding="utf-8")


def fingerprint(text: str) -> str:
    """What a content policy calls a script or a style by.

    >>> fingerprint("alert(1)")
    'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='
    """
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def as_data(value: Mapping[str, Any]) -> str:
    """JSON that no tag, comment or line separator can break out of.

    >>> as_data({"name": "</script><!--"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
