"""The file of a journal: where it is, that it is a journal, and that no other process is writing it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from torchdoctor.errors import JournalError

NAME = "journal.jsonl"
"""File name of the journal in its folder; other ranks write ``journal.rank3.jsonl``."""
MOST_BESIDE = 1000
"""Maximum number of journals beside each other that different processes write at once."""


def place_of(path: Path, rank: int) -> Path:
    """The journal file of a rank: in the given folder, or next to the given .jsonl file."""
    if path.suffix != ".jsonl" and path.is_file():
        raise OSError(errno.ENOTDIR, "it is a file whose name does not end in .jsonl")
    if path.suffix != ".jsonl" or path.is_dir():
        path = path / NAME
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}.jsonl")


def is_journal(path: Path) -> bool:
    """Whether a file is a journal by its name; it may still be empty."""
    return path.name == NAME or path.match("journal.rank*.jsonl")


def unwritable(place: Path, error: OSError) -> JournalError:
    """What a user is told if a journal cannot be written."""
    why = error.strerror or error
    return JournalError(f"cannot write the journal {place}: {why}. Give a writable folder or .jsonl file.")


def open_apart(path: Path) -> tuple[Path, int]:
    """A journal that no other process is writing, and its file descriptor: this one, or one in a numbered place.

    A folder holds one run, so that of another process gets a folder beside it.
    """
    in_folder = is_journal(path) and bool(path.parent.name)
    for number in range(1, MOST_BESIDE):
        place = path
        if number > 1 and in_folder:
            place = path.parent.with_name(f"{path.parent.name}-{number}") / path.name
        elif number > 1:
            place = path.with_name(f"{path.stem}.{number}{path.suffix}")
        file = open_file(place)
        if _lock(file):
            return place, file
        os.close(file)
    return path, open_file(path)


def _lock(file: int) -> bool:
    """Lock a file until this process closes it; False if another process has locked it.

    Journals of the same process are not kept apart: in a notebook, a Doctor may be left over from the cell's last run.
    """
    try:
        import fcntl  # not on Windows, where all write to one file

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):  # not every file system has locks
        return True
    return True


def open_file(path: Path) -> int:
    """The journal's file descriptor, at the start of a line; unbuffered, so that a fork cannot write twice."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0), 0o600)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if found.st_size:
            _check_journal(file)
            os.lseek(file, -1, os.SEEK_END)
            if os.read(file, 1) != b"\n":
                write_all(file, b"\n")
    except OSError:
        os.close(file)
        raise
    return file


def _check_journal(file: int) -> None:
    """Raise an error unless the file begins like a journal: other .jsonl files, such as data sets, stay untouched."""
    if not os.read(file, 64).startswith(b'{"type": "header"'):
        raise OSError(errno.EEXIST, "the file exists and is not a journal")


def write_all(file: int, data: bytes) -> None:
    """Write bytes, however many calls it takes."""
    while data:
        data = data[os.write(file, data) :]


def identity(found: os.stat_result) -> tuple[int, int]:
    """What tells a file from another one that has taken its path."""
    return found.st_dev, found.st_ino
