"""Reads SQLite databases of other programs, read-only and without trusting their content.

A training program may be writing to the database. Locks are taken like any reader's and held no longer than one query;
a write-ahead log next to the file is read too. As a format this stands for a database that cannot be read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, NoReturn
from urllib.parse import quote

from torchdoctor.errors import SourceError

CELL_LIMIT = 2**20
"""Bytes of the longest value that is read."""
ERRORS = (sqlite3.Error, OverflowError, UnicodeError)
"""Errors that SQLite raises: its messages may quote damaged text that no encoding fits."""
ROWS_LIMIT = 30_000_000
"""Most rows that one query may return."""
COPY_LIMIT = 2**30
"""Bytes of the largest database that is copied."""
_STEPS_LIMIT = 20_000
"""Most times that a query may run for a hundred thousand instructions: some minutes of work."""
_BEGINNING = b"SQLite format 3\x00"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"


def is_one(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def columns(path: Path, table: str) -> frozenset[str]:
    """The columns of a real table of a database; empty if there is no such table or database."""
    if not path.is_file() or not is_one(path):
        return frozenset()
    try:
        with opened(path) as store:
            return store.columns(table)
    except SourceError:
        return frozenset()


def damage_of(path: Path) -> str:
    """Why a database cannot be read at all; empty if it can be, or if the file is not a database."""
    if not is_one(path):
        return ""
    try:
        with opened(path):
            return ""
    except SourceError as error:
        return str(error)


def recognises(path: Path) -> bool:
    """Whether a file is a damaged or incomplete database, whose content cannot be identified."""
    return path.is_file() and bool(damage_of(path))


def read(path: Path) -> NoReturn:
    """Raise an error that says what is wrong with it.

    >>> read(Path(__file__))
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SourceError: ...sqlite_store.py is not a damaged database.
    """
    raise SourceError(damage_of(path) or f"{path} is not a damaged database.")


class Store:
    """A database that is open for reading."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.damage = ""
        """Why not everything could be read."""
        self._connection = connection
        self._tables = {name for (name,) in self.rows(_TABLES)}

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; views and virtual tables, which could run anything, are not queried."""
        if table not in self._tables:
            return frozenset()
        return frozenset(name for (name,) in self.rows("SELECT name FROM pragma_table_info(?)", (table,)))

    def rows(self, query: str, values: Sequence[Any] = (), order: str = "") -> list[tuple[Any, ...]]:
        """All rows of a query; of a damaged database the rows before the damage, then unordered."""
        found: list[tuple[Any, ...]] = []
        for text in (f"{query} ORDER BY {order}", query) if order else (query,):
            try:
                with closing(self._connection.execute(text, tuple(values))) as cursor:
                    for row in islice(cursor, ROWS_LIMIT):
                        found.append(row)
                return found
            except ERRORS as error:
                self.damage = str(error)
            if found:
                return found
        raise SourceError(f"the database {self.path} cannot be read: {self.damage}.")


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    """Open a database for reading; if it cannot be locked (a read-only disk), without locks."""
    with ExitStack() as stack:
        place = _beside_nothing(path, stack)
        try:
            connection = _connected(place, "mode=ro")
        except ERRORS:
            try:
                connection = _connected(place, "mode=ro&immutable=1")
            except ERRORS as error:
                busy = isinstance(error, sqlite3.OperationalError)  # busy, or no permission
                what = "cannot be opened" if busy else "is damaged or cut off"
                raise SourceError(f"the database {path} {what}: {error}.") from error
        stack.enter_context(closing(connection))
        yield Store(path, connection)


def _beside_nothing(path: Path, stack: ExitStack) -> Path:
    """Where to open a database: a copy, if SQLite would create a file next to a log that nobody is writing to."""
    log, index = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if index.exists() or not log.is_file() or path.stat().st_size + log.stat().st_size > COPY_LIMIT:
        return path
    folder = Path(stack.enter_context(TemporaryDirectory()))
    for file in (path, log):
        copyfile(file, folder / file.name)
    return folder / path.name


def _connected(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, timeout=5.0)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CELL_LIMIT)
        connection.text_factory = _text
        left = iter(range(_STEPS_LIMIT))
        connection.set_progress_handler(lambda: next(left, None) is None, 100_000)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except ERRORS:
        connection.close()
        raise
    return connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
