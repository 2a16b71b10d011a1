"""Logs in other encodings, and in two of them."""

import math

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import read

LINES = [f"step {step} loss: {'nan' if step >= 800 else round(2 - step / 1000, 4)}" for step in range(1000)]


def losses(path):
    return [record["vitals"]["loss"] for record in read(path) if "loss" in record.get("vitals", ())]


def text(lines):
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("one", ["utf-16", "utf-16-le", "utf-8", "utf-8-sig"])
@pytest.mark.parametrize("other", ["utf-16-le", "utf-8"])
@pytest.mark.parametrize("border", [1, 500, 999])
def test_a_log_that_two_shells_wrote(tmp_path, one, other, border):
    path = tmp_path / "train.log"
    path.write_bytes(text(LINES[:border]).encode(one) + text(LINES[border:]).encode(other))
    found = losses(path)
    assert len(found) >= 998  # one line that is alone in its encoding may not tell which
    assert sum(map(math.isnan, found)) >= 199


def test_over_many_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("torchdoctor.sources.opening.CHUNK", 999)
    path = tmp_path / "train.log"
    path.write_bytes(text(LINES[:500]).encode("utf-16") + text(LINES[500:]).encode())
    assert len(losses(path)) >= 995


@pytest.mark.parametrize("stray", [b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\x80\x81 garbage\n"])
def test_a_stray_mark_makes_no_utf_16(tmp_path, stray):
    path = tmp_path / "train.log"
    path.write_bytes(stray + text(LINES).encode())
    assert len(losses(path)) == 1000


@pytest.mark.parametrize("words", ["轮次 步数 损失值", "第三轮开始训练模型"])
def test_letters_of_two_bytes_in_utf_16_stay(tmp_path, words):
    path = tmp_path / "train.log"
    path.write_text(text([*[words] * 9, *LINES]), encoding="utf-16")
    assert len(losses(path)) == 1000


@pytest.mark.parametrize(
    ("encoding", "names"),
    [("gb18030", "步数,损失,学习率"), ("cp932", "ステップ,損失,学習率"), ("gb2312", "步数,损失,学习率")],
)
def test_names_of_columns_in_two_bytes_a_letter(tmp_path, encoding, names):
    path = tmp_path / "log.csv"
    path.write_text(text([names, *(f"{n},{2 - n / 100},0.001" for n in range(100))]), encoding=encoding)
    with pytest.raises(SourceError, match=names.replace(",", ", ")):
        read(path)
    _, loss, _ = names.split(",")
    assert len([record for record in read(path, mapping={"loss": loss}) if record["type"] == "vitals"]) == 100


@pytest.mark.parametrize(
    "names",
    ["époque,loss,température", "Größe,loss,Übermaß", "año,loss,ÄÖÜ", "it\x92s,loss,\x93x\x94"],
)
def test_names_in_latin_1_stay(tmp_path, names):
    path = tmp_path / "log.csv"
    path.write_bytes(text([names, *(f"{n},{2 - n / 100},{3 + n % 7}" for n in range(100))]).encode("latin-1"))
    run = read(path, mapping={"val_loss": names.split(",")[2]})
    assert run.header["context"]["columns"]["val_loss"] == names.split(",")[2]
