"""Reads text from any file, compressed or not and in any encoding, line by line, within limits.

>>> list(split_lines(["loss 1\\r", "loss 2\\r\\nloss 3"]))
[(1, 'loss 1'), (1, 'loss 2'), (2, 'loss 3')]
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO

from torchdoctor.sources.encodings import Decoder, is_binary
from torchdoctor.sources.pages import kind_of, text_of_notebook, text_of_page

LINE_LIMIT = 2**20
"""Characters of the longest line that is read."""
UNPACKED_LIMIT = 2**30
"""Most bytes read from a file, decompressed."""
LINES_LIMIT = 2_000_000
"""Most lines read from a file: each costs a few microseconds, however short it is."""
SMALL, RATIO = 32 * 2**20, 30
"""Bytes that any compressed file may expand to, and the most times its size for larger ones: logs shrink to a tenth."""
PAGE_LIMIT, NOTEBOOK_LIMIT = 8 * 2**20, 32 * 2**20
"""Most characters read from an HTML page and from a notebook."""
MARK = 64
"""Bytes at the beginning that may identify the kind of file."""
DAMAGED = (OSError, EOFError, zlib.error)
"""Errors of opening and decompressing a damaged file."""
CHUNK = 2**20
TOO_LONG = "\0"
"""Replaces a line beyond the limit."""
TORN, BROKEN, TOO_MUCH = "\0torn", "\0broken", "\0much"
"""Used as the last line: for a compressed file that is cut off, for one that is damaged, and for text beyond the limit.
"""
ZEROS = "\0zeros"
"""Marks zero bytes in text, with the number of the first line that holds some: a failed disk leaves them."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|\x1b.")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_PACKED = b"\x1f\x8b"
_MAGIC = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint is one)"),
    (b"\x80\x02", "a Python pickle, which is never opened"),
    (b"\x80\x04", "a Python pickle, which is never opened"),
    (b"\x80\x05", "a Python pickle, which is never opened"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"%PDF-", "a PDF"),
    (b"SQLite format 3\0", "an SQLite database that is not from MLflow or Trackio"),
    (b"PAR1", "a Parquet file (for these: pip install 'torchdoctor[parquet]')"),
    (b"BZh", "a file compressed with bzip2 (decompress it first)"),
    (b"\xfd7zXZ", "a file compressed with xz (decompress it first)"),
    (b"(\xb5/\xfd", "a file compressed with zstd (decompress it first)"),
    (b"\x93NUMPY", "a NumPy array"),
)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed if it is gzip."""
    with path.open("rb") as file:
        if file.read(2) == _PACKED:
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            file.seek(0)
            yield file


def chunks(path: Path, size: int) -> Iterator[bytes]:
    """The bytes of a file, decompressed if it is gzip, in pieces; a damaged one ends with an open brace."""
    with opened(path) as file:
        if not isinstance(file, gzip.GzipFile):
            while data := file.read(size):
                yield data
            return
        left = _limit(path)
        try:
            while left > 0 and (data := file.read1(size)):  # what can be read before a damaged end
                left -= len(data)
                yield data
        except (EOFError, zlib.error, gzip.BadGzipFile):  # damaged data; a failing disk still raises an error
            left = 0
        if left <= 0:
            yield b"{"


def beginning(path: Path, size: int = 2**16) -> str:
    """The first characters of a file; empty if it cannot be opened."""
    text = _start(path, size)
    return _shown(path)[:size] if kind_of(text[:200]) else text


def _start(path: Path, size: int) -> str:
    """The same without extracting pages and notebooks; of a damaged compressed file, what comes before the damage."""
    pieces, left = [], size
    try:
        with opened(path) as file:
            while left > 0 and (piece := file.read1(left)):  # type: ignore[attr-defined]
                pieces.append(piece)
                left -= len(piece)
    except DAMAGED:
        pass
    data = b"".join(pieces)
    return Decoder().decode(data, final=True).replace("\0", "").removeprefix("\ufeff")


def kind_by_mark(path: Path) -> str:
    """The kind of a file by the mark at its beginning, in words; empty if unknown.

    Text may begin with the letters of a short mark, so a file that begins with printable text has no mark.

    >>> kind_by_mark(Path(__file__))
    ''
    """
    try:
        with opened(path) as file:
            data = file.read(MARK)
    except DAMAGED:
        return ""
    return next((words for mark, words in _MAGIC if data.startswith(mark) and not _is_printed(data)), "")


def _is_printed(data: bytes) -> bool:
    return all(sign >= 0x20 or sign in b"\t\n\r" for sign in data) and not data.startswith(b"%PDF-")


def uncoloured(line: str) -> str:
    """A line without terminal colors.

    >>> uncoloured("\x1b[32mloss\x1b[0m 2")
    'loss 2'
    """
    return _ESCAPES.sub("", line) if "\x1b" in line else line


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines; lines that end in a carriage return share the number of the next one."""
    return split_lines(text_of(path))


def text_of(path: Path) -> Iterator[str]:
    """The text of a file in pieces; of a notebook or a page, the text that it shows."""
    return iter([_shown(path)]) if kind_of(_start(path, 800)) else plain_text(path)


def _shown(path: Path) -> str:
    state = path.stat()
    return _taken_out(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1)
def _taken_out(path: Path, size: int, changed: int) -> str:
    """The text that a notebook or a page shows, cached until the file changes, because every format needs it."""
    limit = PAGE_LIMIT if kind_of(_start(path, 800)) == "page" else NOTEBOOK_LIMIT
    pieces, left = [], limit
    for piece in plain_text(path):
        if piece.startswith(f"\n{ZEROS}"):
            continue
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            break
    text = "".join(pieces)[:limit].replace("\0", "")
    found = text_of_page(text) if limit == PAGE_LIMIT else text_of_notebook(text)
    return found if left >= 0 else f"{found}\n{TOO_MUCH}"


def plain_text(path: Path) -> Iterator[str]:
    """The text of a file in pieces; only the markers of damage at its end contain NUL."""
    with opened(path) as file:
        decoder = Decoder()
        read = lines = zeros = 0
        limit = _limit(path) if isinstance(file, gzip.GzipFile) else UNPACKED_LIMIT
        while read < limit and lines < LINES_LIMIT:
            try:
                data = file.read1(CHUNK)  # type: ignore[attr-defined]  # what can be read before a damaged end
            except EOFError:
                yield f"\n{TORN}"
                return
            except (zlib.error, gzip.BadGzipFile):  # damaged data; a failing disk still raises an error
                yield f"\n{BROKEN}"
                return
            text = decoder.decode(data, final=not data)
            if not zeros and "\0" in text:
                zeros = 1 + lines + text.partition("\0")[0].count("\n")
            read += len(data)
            lines += data.count(b"\n")
            if text:
                yield text.replace("\0", "").replace("\ufeff", "")
            if not data:
                break
        if zeros:
            yield f"\n{ZEROS}{zeros}"
        if not data:
            return
        yield f"\n{TOO_MUCH}"


def _limit(path: Path) -> int:
    """How much is read from a compressed file: not all, if it was made to expand enormously."""
    return min(UNPACKED_LIMIT, max(SMALL, RATIO * path.stat().st_size))


def split_lines(pieces: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines from pieces of text, numbered by their line feeds; one beyond the limit is `TOO_LONG`."""
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


def ends_cleanly(path: Path) -> bool:
    """Whether the file's last line is complete; assumed for a compressed file."""
    with path.open("rb") as file:
        if file.read(2) == _PACKED:
            return True
        file.seek(max(0, path.stat().st_size - 4))
        return file.read().rstrip(b"\0").endswith((b"\n", b"\r"))


def _unpacks(path: Path) -> bool:
    try:
        with opened(path) as file:
            return bool(file.read(1))
    except DAMAGED:
        return False


def looks_like(path: Path) -> str:
    """The apparent kind of a file that is not a log, in words."""
    if mark := kind_by_mark(path):
        return mark
    with path.open("rb") as file:
        data = file.read(len(_PACKED))
    kind = kind_of(_start(path, 800))
    if kind:
        return "an HTML page without a table of losses" if kind == "page" else "a notebook that printed no loss"
    text = beginning(path, 4096)
    if not text:
        return "a damaged gzip file" if data.startswith(_PACKED) and not _unpacks(path) else "nothing but zero bytes"
    if is_binary(text):
        return "binary data"
    start = text.lstrip()[:1]
    if start and start in "{[":
        return "JSON without series of numbers"
    if start == "<":
        return "a page of HTML or XML"
    if re.fullmatch(r"[^\W\d][^\s,;]*(?:[,;\t][^\W\d][^\s,;]*)+", text.strip()):
        return "a table heading without rows"
    return "text in which no line gives a loss or a metric by name"
