"""What begins as a file of another kind is never read as text, whatever words are in it."""

import sqlite3
from contextlib import closing

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import locate, read, read_all

LOG = "".join(f"step {step} loss {3 - step / 100:.4f}\n" for step in range(200))


def database(path, rows=3000):
    with closing(sqlite3.connect(path)) as store:
        store.execute("CREATE TABLE metrics (run_name TEXT, timestamp TEXT, step INTEGER, metrics TEXT)")
        lines = [(f"r{row % 2}", f"{row}", row, f"step: {row} loss: {2.5 - row / 9999:.4f}\n") for row in range(rows)]
        store.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", lines)
        store.commit()
    return path


def cut(path, share=0.9):
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    return path


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_database_that_is_cut_off_is_damaged_and_no_log(tmp_path, share):
    path = cut(database(tmp_path / "t.db"), share)
    with pytest.raises(SourceError, match="t.db is damaged or cut off"):
        read_all(path)
    with pytest.raises(SourceError, match="t.db is damaged or cut off"):
        read_all(tmp_path)


def test_beside_a_log_it_is_named(tmp_path):
    cut(database(tmp_path / "t.db"))
    (tmp_path / "train.log").write_text(LOG)
    run = read(tmp_path)
    assert (run.path.name, run.step) == ("train.log", 199)
    assert run.notes == ("also here, not read: t.db",)


@pytest.mark.parametrize(
    "mark",
    [b"SQLite format 3\0", b"PK\x03\x04", b"\x80\x04\x95", b"\x89HDF\r\n\x1a\n", b"\x93NUMPY\x01", b"%PDF-1.4\n"],
)
def test_a_log_behind_a_mark_is_not_read(tmp_path, mark):
    path = tmp_path / "some"
    path.write_bytes(mark + LOG.encode())
    with pytest.raises(SourceError, match="some"):
        read(path)
    assert locate(tmp_path) in ([], [path])


@pytest.mark.parametrize("word", ["BZh", "SQLite format 3", "PK", "%PDF"])
def test_text_may_begin_with_the_letters_of_a_mark(tmp_path, word):
    path = tmp_path / "train.log"
    path.write_text(f"{word} is where it began\n{LOG}")
    assert read(path).step == 199
