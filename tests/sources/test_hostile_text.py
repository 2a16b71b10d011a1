"""Files that are damaged, huge or made to harm: no crash, no hang, bounded, and the readable part still read."""

import json
import random
import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdoctor.errors import SourceError
from torchdoctor.offline import diagnose
from torchdoctor.reports.formats import FORMATS
from torchdoctor.sources import opening, read, read_all
from torchdoctor.sources.vital_series import vital_series

CSV = "step,loss\n" + "".join(f"{step},{3 - step / 100:.4f}\n" for step in range(60))
JSONL = "".join(json.dumps({"step": step, "loss": 3 - step / 100}) + "\n" for step in range(60))
TEXT = "".join(f"step {step}: loss {3 - step / 100:.4f}, lr 1e-3\n" for step in range(60))
KINDS = {"log.csv": CSV, "log.jsonl": JSONL, "log.txt": TEXT}


def put(tmp_path, data, name):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def steps_of(path):
    return vital_series(read(path))["loss"][0]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_encodings(tmp_path, name, encoding):
    text = KINDS[name].replace("lr 1e-3", "lr 1e-3 Größe 1")
    assert steps_of(put(tmp_path, text.encode(encoding), name)) == list(range(60))


@pytest.mark.parametrize("name", KINDS)
def test_zero_bytes_line_ends_and_a_torn_last_line(tmp_path, name):
    text = KINDS[name]
    assert steps_of(put(tmp_path, text.replace("\n", "\r\n"), name)) == list(range(60))
    assert steps_of(put(tmp_path, text.encode() + b"\0" * 5000, name)) == list(range(60))
    torn = put(tmp_path, text[:-12], name)
    assert steps_of(torn)[:59] == list(range(59))


@pytest.mark.parametrize("name", KINDS)
def test_a_line_of_many_megabytes_is_passed_over_and_counted(tmp_path, name):
    lines = KINDS[name].splitlines(keepends=True)
    path = tmp_path / name
    with path.open("w") as file:
        file.writelines(lines[:30])
        for _ in range(40):
            file.write("x" * 2**20)
        file.write("\n")
        file.writelines(lines[30:])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = read(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert vital_series(run)["loss"][0] == list(range(60))
    assert run.skipped == 1
    assert run.first_skipped == 31
    assert "the first is line 31" in " ".join(run.notes)
    assert grown < 64 * 1024  # kilobytes


def test_a_line_of_many_megabytes_near_the_top_hides_nothing(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("step 0 loss 4\n" + "x" * 5_000_000 + "\n" + "".join(f"step {n} loss 2\n" for n in range(1, 60)))
    run = read(path)
    assert (run.step, run.skipped, run.first_skipped) == (59, 1, 2)


def test_deep_nesting_and_endless_integers_are_unreadable_lines(tmp_path):
    bad = ["[" * 100_000, '{"loss": ' * 50_000, '{"step": 1, "loss": ' + "9" * 5000 + "}", '{"step": 1e400, "loss": 1}']
    run = read(put(tmp_path, JSONL + "\n".join(bad) + "\n" + '{"step": 60, "loss": 1}\n', "log.jsonl"))
    assert vital_series(run)["loss"][0][-1] == 60
    assert run.skipped == 3
    with pytest.raises(SourceError):
        read(put(tmp_path, "[" * 200_000, "deep.json"))


def test_a_key_given_twice_and_steps_out_of_range(tmp_path):
    rows = [
        '{"step": 0, "loss": 5, "loss": 3}',
        '{"step": -7, "loss": 9}',
        '{"step": 1e15, "loss": 9}',
        '{"step": 2, "loss": 1}',
    ]
    assert steps_of(put(tmp_path, "\n".join(rows), "log.jsonl")) == [0, 2]


def test_names_and_values_with_escapes_and_markup_stay_harmless(tmp_path):
    evil = "<script>alert(1)</script>\x1b[2J\x1b]0;owned\x07"
    rows = "".join(
        json.dumps({"step": step, "loss": 3 - step / 100, evil: 1, f"val_{evil}_loss": 2}) + "\n" for step in range(60)
    )
    report = diagnose(put(tmp_path, rows, "log.jsonl"))
    for name in ("full", "markdown", "github", "concise"):
        assert "\x1b" not in FORMATS[name]([("run", report)])
    report.save(tmp_path / "report.html")
    assert "<script>alert(1)" not in (tmp_path / "report.html").read_text()


def test_many_names_are_bounded(tmp_path):
    row = {"step": 0, "loss": 1.0, **{f"name{place}": 1.0 for place in range(30_000)}}
    run = read(put(tmp_path, json.dumps(row) + "\n" + json.dumps({"step": 1, "loss": 0.5}) + "\n", "log.jsonl"))
    assert len(vital_series(run)["loss"][0]) == 2
    assert any("names beyond the first" in note for note in run.notes)


def test_files_of_another_kind_say_what_they_look_like(tmp_path):
    expected = {
        "PK\x03\x04 data": "a zip archive",
        "%PDF-1.4": "a PDF",
        "<html><body>503</body></html>": "an HTML page",
        "The quick brown fox\njumps over.\n": "text in which no line gives a loss",
        '{"name": "x", "version": 3}': "JSON without series of numbers",
    }
    for text, words in expected.items():
        with pytest.raises(SourceError, match=words):
            read(put(tmp_path, text, "file"))
    with pytest.raises(SourceError, match="a Python pickle, which is never opened"):
        read(put(tmp_path, b"\x80\x04\x95\x10\x00\x00", "file"))


def test_noise_never_reads_as_a_run_nor_crashes(tmp_path):
    for seed in range(30):
        path = put(tmp_path, random.Random(seed).randbytes(3000), "noise")
        with pytest.raises(SourceError):
            read(path)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_mutated_logs_are_read_or_refused(tmp_path, name, data):
    """Bytes changed, cut out, doubled: a run or a `SourceError`, and records that a report can be made of."""
    content = bytearray(KINDS[name].encode())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                content[place] = data.draw(st.integers(0, 255))
            case 1:
                del content[place : place + data.draw(st.integers(1, 200))]
            case 2:
                content[place:place] = content[: data.draw(st.integers(1, 200))]
            case _:
                content[place:place] = data.draw(
                    st.sampled_from([b"\n", b"\r", b"\0", b'"', b"{", b",", b"nan", b"1e999", b"\xff\xfe"])
                )
        if not content:
            return
    path = put(tmp_path, bytes(content), name)
    try:
        runs = read_all(path)
    except SourceError:
        return
    for run in runs:
        steps = [record["step"] for record in run if record["type"] == "vitals"]
        assert steps == sorted(steps)
        diagnose(run)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=12), st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=8)), max_size=5
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_objects_are_read_or_refused(tmp_path, rows):
    path = put(tmp_path, "\n".join(json.dumps(row) for row in rows), "log.jsonl")
    try:
        runs = read_all(path)
    except SourceError:
        return
    for run in runs:
        diagnose(run)


def test_lines_without_end_are_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "LINES_LIMIT", 1000)
    monkeypatch.setattr(opening, "CHUNK", 4096)
    path = tmp_path / "log.txt"
    path.write_text("".join(f"step {step} loss {3 - step / 5000:.4f}\n" for step in range(5000)))
    run = read(path)
    assert 1000 <= run.step < 1500
    assert any("first" in note or "limit" in note or "more" in note for note in run.notes), run.notes


@pytest.mark.parametrize("text", ["[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000])
def test_a_whole_document_that_is_nested_deeply_is_not_said_to_be_cut_off(tmp_path, text):
    with pytest.raises(SourceError, match="nested too deeply.*JSON Lines"):
        read(put(tmp_path, text, "deep.json"))


def test_names_given_twice_are_noted(tmp_path):
    table = put(tmp_path, "step,loss,loss\n" + "".join(f"{step},{3 - step / 10},9\n" for step in range(9)), "log.csv")
    assert "several columns are called loss: the first of them is used" in read(table).notes
    assert vital_series(read(table))["loss"][1][0] == 3.0
    rows = "".join(f'{{"step": {step}, "loss": 9, "loss": {3 - step / 10}}}\n' for step in range(9))
    run = read(put(tmp_path, rows, "log.jsonl"))
    assert "loss is given twice in one object, as in line 1: the later value is used" in run.notes
    assert not [note for note in read(put(tmp_path, JSONL, "log.jsonl")).notes if "twice" in note]


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "log.txt"])
def test_zero_bytes_are_noted_with_their_line(tmp_path, name):
    rows = {
        "log.csv": ["step,loss", *(f"{step},{3 - step / 10}" for step in range(20))],
        "log.jsonl": JSONL.splitlines(),
        "log.txt": [f"step {step} loss {3 - step / 10}" for step in range(20)],
    }[name]
    run = read(put(tmp_path, "\n".join([*rows[:10], "\0" * 50, *rows[10:], ""]), name))
    assert f"{name} holds zero bytes, the first in line 11: data may be missing there" in run.notes
    assert len(vital_series(run)["loss"][0]) == len(rows) - (name == "log.csv")


def test_a_document_with_zero_bytes_behind_it_is_read(tmp_path):
    document = json.dumps([{"step": step, "loss": 3 - step / 10} for step in range(9)], indent=1)
    assert steps_of(put(tmp_path, document + "\n" + "\0" * 100, "log.json")) == list(range(9))


@pytest.mark.parametrize("encoding", ["cp932", "shift_jis", "gb18030", "euc_jp"])
def test_text_of_the_east_is_read(tmp_path, encoding):
    path = tmp_path / "log.txt"
    path.write_bytes("".join(f"学習 step: {step} loss: {3 - step / 10:.4f}\n" for step in range(20)).encode(encoding))
    assert vital_series(read(path))["loss"][1][-1] == pytest.approx(1.1)


def test_a_step_of_hundreds_of_figures_is_no_other_step(tmp_path):
    rows = [f'{{"step": {"9" * 400 if step == 5 else step}, "loss": {3 - step / 10}}}' for step in range(9)]
    run = read(put(tmp_path, "\n".join(rows) + "\n", "log.jsonl"))
    assert vital_series(run)["loss"] == (
        [0, 1, 2, 3, 4, 6, 7, 8],
        pytest.approx([3, 2.9, 2.8, 2.7, 2.6, 2.4, 2.3, 2.2]),
    )
    assert (run.skipped, run.first_skipped) == (1, 6)
