"""Finds the text encoding of a file: a log does not state it, and may change it halfway.

PowerShell writes UTF-16 where other shells write UTF-8, and both may write to one file. UTF-16 text is recognized by
its zero bytes: where many letters follow each other without any, it is UTF-8 from there on.
"""

from __future__ import annotations

import codecs
import re

BINARY_PROBE = 2**16
EASTERN = {"cp932": frozenset(range(0x81, 0x98)), "gb18030": frozenset({*range(0xA1, 0xA4), *range(0xB0, 0xD8)})}
"""Encodings that are tried if a file is not UTF-8, and the first bytes of their common characters."""
COMMON = 0.9
"""Share of the non-ASCII characters that must be common ones if the text could also be Latin-1."""
_CONTROLS = re.compile("[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd]")
_LETTERS = re.compile(rb"[\t\n\r\x20-\x7e]{48,}")
"""This many one-byte letters in a row are not UTF-16: they would be Chinese characters without a line break."""
_WORDS = re.compile(r"[^\x00-\xff]{2,}")


class Decoder:
    """Turns the bytes of a file into text, piece by piece.

    >>> Decoder().decode("loss".encode("utf-16") + b" 2.5 of a run that goes on in the encoding of another shell", True)
    'loss 2.5 of a run that goes on in the encoding of another shell'
    """

    def __init__(self) -> None:
        self._encoding = ""
        self._decoder: codecs.IncrementalDecoder | None = None

    def decode(self, data: bytes, final: bool = False) -> str:
        """The text of the next bytes; the encoding is found from the first ones."""
        if self._decoder is None:
            self._begin(encoding_of(data))
        assert self._decoder is not None
        if not self._encoding.startswith("utf-16") or not (other := _LETTERS.search(data)):
            return self._decoder.decode(data, final)
        before = self._decoder.decode(data[: other.start()], True) if other.start() > 2 else ""
        self._begin("utf-8")
        return before.rstrip("\ufffd") + self._decoder.decode(data[other.start() :], final)

    def _begin(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")


def encoding_of(data: bytes) -> str:
    """The encoding of a file, judging by its first bytes.

    >>> encoding_of("loss".encode("utf-16")), encoding_of("Größe".encode("latin-1")), encoding_of(b"loss")
    ('utf-16', 'latin-1', 'utf-8')
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if data.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    head = data[:4096].strip(b"\0")
    odd, even = data[1 : len(head) : 2].count(0), data[0 : len(head) : 2].count(0)
    if max(odd, even) > 0.4 * len(head) > 3 and min(odd, even) < 0.1 * len(head):
        return "utf-16-le" if odd > even else "utf-16-be"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return "utf-8" if error.reason == "unexpected end of data" else _eastern(data) or "latin-1"
    return "utf-8"


def _eastern(data: bytes) -> str:
    """A two-byte encoding in which this is text, if it is not text in Latin-1; empty if there is none.

    If Latin-1 is possible too, as in a table whose names alone are Chinese, words of common characters decide.

    >>> _eastern("\u30a8\u30dd\u30c3\u30af step: 3 loss: 2.5".encode("cp932")), _eastern(bytes(range(128, 256)))
    ('cp932', '')
    >>> _eastern("步数,损失\\n1,2.5".encode("gb18030")), _eastern("Größe (µm), 20 °C, naïve".encode("latin-1"))
    ('gb18030', '')
    """
    start = data[:BINARY_PROBE]
    controlled = is_binary(start.decode("latin-1"))
    for name in EASTERN:
        try:
            text = codecs.getincrementaldecoder(name)().decode(start)  # the last letter may be cut
        except UnicodeDecodeError:
            continue
        if not is_binary(text) and (controlled or _is_written(text, name)):
            return name
    return ""


def _is_written(text: str, encoding: str) -> bool:
    """Whether the non-ASCII characters form words of common characters."""
    letters = [letter for letter in text if letter > "\x7f"]
    common = sum(letter.encode(encoding)[0] in EASTERN[encoding] for letter in letters)
    return bool(_WORDS.search(text)) and common >= COMMON * len(letters)


def is_binary(text: str) -> bool:
    """Whether text is binary: it has many control or replacement characters.

    >>> is_binary("loss 2.5"), is_binary("\x03\x80\x91L\x02\x1f")
    (False, True)
    """
    start = text[:BINARY_PROBE]
    return len(_CONTROLS.findall(start)) > 0.1 * len(start)
