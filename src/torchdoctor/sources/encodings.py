"""Which letters the bytes of a file stand for: a log says nothing of its encoding, and may change it half way.

PowerShell writes UTF-16 where other shells write UTF-8, and both may write to one file. Text in UTF-16 is known by its
zero bytes: where letters follow each other without any, it is UTF-8 from there on, whatever the file began with.
"""

from __future__ import annotations

import codecs
import re

BINARY_PROBE = 2**16
EASTERN = {"cp932": frozenset(range(0x81, 0x98)), "gb18030": frozenset({*range(0xA1, 0xA4), *range(0xB0, 0xD8)})}
"""Encodings that are tried where UTF-8 it is not, and the first bytes of the signs that are common in them."""
COMMON = 0.9
"""Share of the letters beyond ASCII that must be common ones, where the text might as well be Latin-1."""
_CONTROLS = re.compile("[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd]")
_LETTERS = re.compile(rb"[\t\n\r\x20-\x7e]{48,}")
"""So many letters of one byte in a row are no UTF-16: they would be signs of Chinese, none of a plain line break."""
_WORDS = re.compile(r"[^\x00-\xff]{2,}")


class Decoder:
    """Turns the bytes of a file into text, some at a time.

    >>> Decoder().decode("loss".encode("utf-16") + b" 2.5 of a run that goes on in the encoding of another shell", True)
    'loss 2.5 of a run that goes on in the encoding of another shell'
    """

    def __init__(self) -> None:
        self._encoding = ""
        self._decoder: codecs.IncrementalDecoder | None = None

    def decode(self, data: bytes, final: bool = False) -> str:
        """The text of what comes next; its encoding is that of the first bytes that came."""
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
    """The encoding of a file by its first bytes.

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
    """An encoding of two bytes a letter in which this is text, where it is none in Latin-1; empty where there is none.

    Where Latin-1 would do as well, as in a table of which only the names are Chinese, words of common signs decide.

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
    """Whether the letters beyond ASCII are words of common signs."""
    letters = [letter for letter in text if letter > "\x7f"]
    common = sum(letter.encode(encoding)[0] in EASTERN[encoding] for letter in letters)
    return bool(_WORDS.search(text)) and common >= COMMON * len(letters)


def is_binary(text: str) -> bool:
    """Whether text was never meant to be read: signs that control something, or that stand for none.

    >>> is_binary("loss 2.5"), is_binary("\x03\x80\x91L\x02\x1f")
    (False, True)
    """
    start = text[:BINARY_PROBE]
    return len(_CONTROLS.findall(start)) > 0.1 * len(start)
