from __future__ import annotations

import hashlib
import lzma
import os
from pathlib import Path

import pytest
import torch

from torchdoctor.clinic import data
from torchdoctor.clinic.data import DATA_SETS, Corpus, DataSet, load_text
from torchdoctor.errors import PatientError

DATA = os.environ.get(data.FOLDER)
needs_data = pytest.mark.skipif(not DATA, reason=f"{data.FOLDER} does not name a folder of data sets")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(data.FOLDER, str(tmp_path))
    return tmp_path


def test_the_embedded_text_needs_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.FOLDER, raising=False)
    text = load_text()
    assert len(text) > 100_000
    assert 'The "assert" statement' in text
    assert load_text("python") == text


def test_any_text_file(tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("käse und ∑", encoding="utf-8")
    assert load_text(path) == load_text(str(path)) == "käse und ∑"


def test_unknown_names_get_the_nearest_match() -> None:
    with pytest.raises(PatientError, match="'shakespear_char' is neither .* Did you mean 'shakespeare_char'"):
        load_text("shakespear_char")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"ok\xff\xfe")
    with pytest.raises(PatientError, match=r"not UTF-8 text \(byte 2\)"):
        load_text(tmp_path / "model.bin")


def test_a_folder_is_not_a_text(tmp_path: Path) -> None:
    with pytest.raises(PatientError, match="cannot read the text"):
        load_text(tmp_path)


def test_a_data_set_without_the_variable_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.FOLDER, raising=False)
    with pytest.raises(PatientError, match="TORCHDOCTOR_DATA, which is not set. Put enwik8.xz there"):
        load_text("enwik8")


def test_a_data_set_that_is_not_there_says_where_it_was_looked_for(folder: Path) -> None:
    with pytest.raises(PatientError, match="gutenberg_28books.txt.xz or .*gutenberg_28books.txt; neither exists"):
        load_text("gutenberg")


@pytest.mark.parametrize("packed", [True, False])
def test_a_data_set_is_read_packed_or_plain(folder: Path, packed: bool) -> None:
    content = b"some words"
    if packed:
        (folder / "text8_first74MB.xz").write_bytes(lzma.compress(content))
    else:
        (folder / "text8_first74MB").write_bytes(content)
    assert load_text("text8") == "some words"


def test_a_damaged_archive(folder: Path) -> None:
    (folder / "text8_first74MB.xz").write_bytes(b"not xz")
    with pytest.raises(PatientError, match="cannot read the data set 'text8'"):
        load_text("text8")


def test_a_wrong_checksum_is_told(folder: Path) -> None:
    (folder / "tinyshakespeare.txt.xz").write_bytes(lzma.compress(b"To bee or not to bee"))
    with pytest.raises(PatientError, match="is not the published shakespeare_char: its sha256 is"):
        load_text("shakespeare_char")


def test_enwik8_is_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "naïve".encode()
    checksum = hashlib.md5(content, usedforsecurity=False).hexdigest()
    monkeypatch.setitem(DATA_SETS, "enwik8", DataSet("enwik8.xz", "md5", checksum))
    (folder / "enwik8.xz").write_bytes(lzma.compress(content))
    assert len(load_text("enwik8")) == 6


@needs_data
def test_the_real_shakespeare() -> None:
    corpus = Corpus(load_text("shakespeare_char"))
    assert corpus.vocabulary == 65
    assert len(corpus.tokens) == 1_115_394


@pytest.mark.parametrize("text", ["banana split", "käse ∑ und 猫" * 3, "".join(map(chr, range(0x100, 0x400)))])
def test_tokens_decode_to_the_text(text: str) -> None:
    corpus = Corpus(text)
    assert corpus.vocabulary == len(set(text))
    assert corpus.decode(corpus.tokens) == text


def test_the_split_is_nine_to_one_and_does_not_overlap() -> None:
    corpus = Corpus("abcdefghij" * 10)
    assert (len(corpus.train), len(corpus.validation)) == (90, 10)
    assert corpus.decode(torch.cat([corpus.train, corpus.validation])) == "abcdefghij" * 10


@pytest.mark.parametrize("text", ["", "a", "aaaa"])
def test_a_text_that_teaches_nothing(text: str) -> None:
    with pytest.raises(PatientError, match="teaches nothing"):
        Corpus(text)


def test_a_text_shorter_than_the_context() -> None:
    with pytest.raises(PatientError, match="validation part has 2 characters, too few for a context of 8"):
        Corpus("abcdefghijklmnop").batches("validation", batch_size=1, context=8, seed=0)


def test_batches_depend_on_their_seed_alone() -> None:
    corpus = Corpus("the quick brown fox " * 20)
    draw = corpus.batches("train", batch_size=4, context=8, seed=7)
    first, second = draw(), draw()
    torch.manual_seed(123)
    state = torch.get_rng_state()
    again = corpus.batches("train", batch_size=4, context=8, seed=7)()
    other = corpus.batches("train", batch_size=4, context=8, seed=8)()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], other[0])


def test_training_batches_never_show_validation_text() -> None:
    corpus = Corpus("a" * 45 + "b" * 45 + "c" * 10)
    draw = corpus.batches("train", batch_size=512, context=8, seed=0)
    x, y = draw()
    assert set(corpus.decode(torch.cat([x.flatten(), y.flatten()]))) == {"a", "b"}
