"""Formats for machines and for saving."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.reports.samples import BROKEN, HEALTHY, SICK, XSS, poisoned

from torchdoctor.errors import TorchDoctorError
from torchdoctor.records import Symptom
from torchdoctor.reports import formats, markdown
from torchdoctor.reports.report import Report


def strict(text: str) -> object:
    return json.loads(text, parse_constant=lambda token: pytest.fail(f"not JSON: {token}"))


def test_json_is_to_dict_and_a_list_of_several():
    assert strict(formats.as_json([("a", SICK)])) == SICK.to_dict()
    assert strict(formats.as_json([("a", SICK), ("b", HEALTHY)])) == [SICK.to_dict(), HEALTHY.to_dict()]


def test_json_stays_strict_with_numbers_that_json_lacks():
    odd = replace(SICK, symptoms=(replace(BROKEN, value=math.nan, limit=math.inf),))
    found = strict(formats.as_json([("a", odd)]))
    assert isinstance(found, dict)
    assert (found["symptoms"][0]["value"], found["symptoms"][0]["limit"]) == ("NaN", "Infinity")


def test_jsonl_is_one_object_a_line_that_names_its_run():
    rows = [strict(line) for line in formats.jsonl([("a", SICK), ("b", HEALTHY)]).splitlines()]
    assert [row["type"] for row in rows] == [
        "report",
        *["symptom"] * 3,
        *["diagnosis"] * 4,
        *["suggestion"] * 2,
        "report",
    ]
    told = {"type": "report", "run": "a", "health": "critical", "step": 1999, "notes": list(SICK.notes)}
    assert rows[0] == told and rows[-1]["run"] == "b"


def test_concise_is_one_line_a_finding():
    lines = formats.concise([("runs/a", SICK)]).splitlines()
    assert len(lines) == 4
    assert lines[1] == "runs/a:1730: LO02 loss-divergence (critical): loss 7.4 is 5.2 times its best 1.42"
    assert lines[3].startswith("runs/a: Critical since step 1730")


def test_github_annotations_cannot_be_broken_out_of():
    nasty = Report(step=1, symptoms=(Symptom("a,b:c", "X1", "critical", 1, 1, 1, message="50 %\n::warning::fake"),))
    lines = formats.github([("run", nasty)]).splitlines()
    assert lines[0] == "::error title=X1 a%2Cb%3Ac::run, step 1: 50 %25 ::warning::fake"
    assert len(lines) == 2 and all(line.startswith("::") for line in lines)


def test_several_texts_are_headed_by_their_names():
    told = formats.full([("runs/a", SICK), ("runs/b", HEALTHY)])
    assert told.startswith("runs/a\n\nCritical") and "\n\nruns/b\n\nHealthy" in told


@pytest.mark.parametrize("string", XSS)
@pytest.mark.parametrize("form", formats.FORMATS)
def test_hostile_strings_stay_text_in_every_format(form, string):
    told = formats.FORMATS[form]([(string, poisoned(string)), ("b", HEALTHY)])
    told.encode("utf-8")
    assert "\x1b" not in told and "\x00" not in told
    if form == "markdown":
        code_free = "".join(told.split("```")[::2])
        assert "<script" not in code_free.replace("\\<", "") and "<img" not in code_free.replace("\\<", "")


def test_markdown_fences_hold_any_code():
    fence, code, end = markdown.fenced("a ```` b")
    assert fence == "`````python" and end == "`````" and code == "a ```` b"


@pytest.mark.parametrize(
    ("suffix", "begins"), [(".html", "<!DOCTYPE html>"), (".md", "# Critical"), (".txt", "Critical"), (".json", "{\n")]
)
def test_save_chooses_by_suffix_and_creates_folders(tmp_path, suffix, begins):
    path = tmp_path / "new" / f"report{suffix}"
    assert SICK.save(str(path)) == path
    assert path.read_text(encoding="utf-8").startswith(begins)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["report.pdf", "report"])
def test_an_unknown_suffix_is_an_error_that_says_what_to_do(tmp_path, name):
    with pytest.raises(TorchDoctorError, match=r"one of .html, .md, .txt, .json. Try 'report.html'"):
        SICK.save(tmp_path / name)


def test_a_report_is_not_saved_under_no_name():
    with pytest.raises(TorchDoctorError, match="path of a file"):
        Report(step=1).save("")


def test_a_failed_save_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = SICK.save(tmp_path / "report.txt")
    monkeypatch.setattr(
        Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(TorchDoctorError, match="No space left"):
        HEALTHY.save(path)
    assert path.read_text().startswith("Critical")
    assert [file.name for file in tmp_path.iterdir()] == ["report.txt"]


def test_files_get_the_permissions_that_the_umask_gives(tmp_path: Path):
    def mode(path: Path) -> int:
        return path.stat().st_mode & 0o777

    before = os.umask(0o027)
    try:
        assert mode(HEALTHY.save(tmp_path / "report.html")) == 0o640
        assert mode(formats.write_whole(tmp_path / "new" / "told.prom", "", mode=0o644)) == 0o644
    finally:
        os.umask(before)
    (tmp_path / "a file").touch()
    with pytest.raises(TorchDoctorError, match="cannot write"):
        formats.write_whole(tmp_path / "a file" / "report.txt", "")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a file", "new", "report.html"]
