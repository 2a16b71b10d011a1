"""Text out of any file: packed or not, whatever its encoding, line by line, never more at once than a limit.

>>> list(split_lines(["loss 1\\r", "loss 2\\r\\nloss 3"]))
[(1, 'loss 1'), (1, 'loss 2'), (2, 'loss 3')]
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LINE_LIMIT = 2**20
"""Characters of the longest line that is read."""
UNPACKED_LIMIT = 2**30
"""Bytes that are taken out of a packed file."""
CHUNK = 2**20
TOO_LONG = "\0"
"""Stands for a line beyond the limit."""
_NEWLINE = re.compile(r"\r\n|\r|\n")
_PACKED = b"\x1f\x8b"
_MAGIC = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint is one)"),
    (b"\x80\x02", "a Python pickle, which is never opened"),
    (b"\x80\x04", "a Python pickle, which is never opened"),
    (b"\x80\x05", "a Python pickle, which is never opened"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"%PDF", "a PDF"),
    (b"SQLite format 3", "an SQLite database of another kind than MLflow's and Trackio's"),
    (b"PAR1", "a Parquet file (for these: pip install 'torchdoctor[parquet]')"),
    (b"BZh", "a file packed with bzip2 (unpack it first)"),
    (b"\xfd7zXZ", "a file packed with xz (unpack it first)"),
    (b"(\xb5/\xfd", "a file packed with zstd (unpack it first)"),
    (b"\x93NUMPY", "a NumPy array"),
)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where it is gzip."""
    with path.open("rb") as file:
        if file.read(2) == _PACKED:
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            file.seek(0)
            yield file


def beginning(path: Path, size: int = 2**16) -> str:
    """The first characters of a file, empty where it is none that can be opened."""
    try:
        with opened(path) as file:
            data = file.read(size)
    except (OSError, EOFError, zlib.error):
        return ""
    return data.decode(encoding_of(data), errors="replace").replace("\0", "").removeprefix("\ufeff")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines; those that end in a carriage return count as one line of the file with what follows."""
    return split_lines(text_of(path))


def text_of(path: Path) -> Iterator[str]:
    """The text of a file in pieces; what is torn off at the end of a packed file ends it."""
    with opened(path) as file:
        decoder: codecs.IncrementalDecoder | None = None
        read = 0
        while read < UNPACKED_LIMIT:
            try:
                data = file.read1(CHUNK)  # type: ignore[attr-defined]  # what is there, before an end that is torn
            except (EOFError, zlib.error, gzip.BadGzipFile):
                break
            if decoder is None:
                encoding = encoding_of(data)
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            read += len(data)
            text = decoder.decode(data, final=not data)
            if text:
                yield text.replace("\0", "").replace("\ufeff", "")
            if not data:
                return


def split_lines(pieces: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines out of pieces of text, numbered by their line feeds; one beyond the limit is `TOO_LONG`."""
    number, rest, lost = 1, "", False
    for piece in pieces:
        text = rest + piece
        held = text.endswith("\r")  # its line feed may be in the next piece
        found = _NEWLINE.split(text[:-1] if held else text)
        ends = _NEWLINE.findall(text[:-1] if held else text)
        for line, end in zip(found, ends, strict=False):
            yield number, TOO_LONG if lost or len(line) > LINE_LIMIT else line
            lost = False
            number += end != "\r"
        rest = found[-1] + ("\r" if held else "")
        if len(rest) > LINE_LIMIT:
            rest, lost = rest[-1:] if held else "", True
    last = rest.rstrip("\r")
    if last or lost:
        yield number, TOO_LONG if lost else last


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
        return "utf-8" if error.reason == "unexpected end of data" else "latin-1"
    return "utf-8"


def ends_cleanly(path: Path) -> bool:
    """Whether the file's last line is whole; of a packed file it is not known and taken for true."""
    with path.open("rb") as file:
        if file.read(2) == _PACKED:
            return True
        file.seek(max(0, path.stat().st_size - 4))
        return file.read().rstrip(b"\0").endswith((b"\n", b"\r"))


def looks_like(path: Path) -> str:
    """What a file that is no log seems to be, in words."""
    with path.open("rb") as file:
        data = file.read(4096)
    for magic, words in _MAGIC:
        if data.startswith(magic):
            return words
    text = beginning(path, 4096)
    if not text:
        return "a damaged gzip file" if data.startswith(_PACKED) else "nothing but zero bytes"
    odd = sum(1 for letter in text if letter == "\ufffd" or (ord(letter) < 32 and letter not in "\t\r\n\x1b"))
    if odd > 0.1 * len(text):
        return "binary data"
    start = text.lstrip()[:1]
    if start in "{[":
        return "JSON without series of numbers"
    if start == "<":
        return "a page of HTML or XML"
    return "text without a line that gives a loss or another number by name"
