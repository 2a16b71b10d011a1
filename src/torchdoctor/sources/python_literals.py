"""Documents that Python printed: ``str(history.history)`` instead of ``json.dumps``.

>>> as_json("{'loss': [np.float64(2.5), tensor(1.), nan], 'lr': None, 'betas': (0.9, 0.99)}")
'{"loss": [2.5, 1.0, NaN], "lr": null, "betas": [0.9, 0.99]}'
"""

from __future__ import annotations

import json
import re

_PRINTED = re.compile(r"\s*(\{|\[\s*\{)\s*'")
_TOKEN = re.compile(
    r"""'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<double>"(?:[^"\\]|\\.)*")"""
    r"""|\b(?:\w+\.)?(?:\w*float\d*|\w*int\d*|tensor|array)\((?P<inner>[^()]*?)(?:,\s*(?:dtype|device|grad_fn)=[^()]*)?\)"""
    r"""|\b(?P<word>None|True|False|nan|inf)\b"""
    r"""|(?P<dot>\d\.)(?!\d)"""
    r"""|(?P<bracket>[()])""",
    re.DOTALL,
)
_WORDS = {"None": "null", "True": "true", "False": "false", "nan": "NaN", "inf": "Infinity", "(": "[", ")": "]"}


def is_printed(text: str) -> bool:
    """Whether a document begins with a name in single quotes, as Python prints it.

    >>> is_printed("{'loss': [1.0]}"), is_printed('{"loss": [1.0]}')
    (True, False)
    """
    return bool(_PRINTED.match(text))


def as_json(text: str) -> str:
    """The same document as JSON; numbers and arrays of NumPy and PyTorch become plain ones."""
    return _TOKEN.sub(_translated, text)


def _translated(match: re.Match[str]) -> str:
    if (single := match["single"]) is not None:
        return json.dumps(single.replace("\\'", "'"), ensure_ascii=False)
    if (inner := match["inner"]) is not None:
        return as_json(inner)
    if match["dot"]:
        return match["dot"] + "0"
    return match["double"] or _WORDS[match["word"] or match["bracket"]]
