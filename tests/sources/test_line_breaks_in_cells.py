"""Tables whose cells hold line breaks, and quotes that stand alone."""

import csv
import math

import pytest

from torchdoctor.sources import read

QUOTE = '"'
PROSE = "Once upon\n a time, 3 cats: loss 9\n"


def series(path, name="loss"):
    return [(record["step"], record["vitals"][name]) for record in read(path) if name in record.get("vitals", ())]


def written(path, cell_of, count=200, delimiter=",", heading=("step", "loss", "sample"), first=False):
    with path.open("w", newline="") as file:
        out = csv.writer(file, delimiter=delimiter)
        out.writerow(heading)
        for step in range(count):
            row = [step, math.nan if step >= 150 else 2 - step / 100, cell_of(step)]
            out.writerow([row[2], *row[:2]] if first else row)
    return path


SOME = {
    "one": lambda step: PROSE if step == 60 else "x",
    "the first": lambda step: "x" if step else PROSE,
    "all": lambda step: PROSE,
    "rows": lambda step: "1,2\n3,4\nloss,9\n" if step == 60 else "x",
    "blank lines and signs": lambda step: '\n\n# a\n---\n"b", "c' if step % 7 == 0 else "x",
    "long": lambda step: "word, word\n" * 300 if step % 9 == 0 else "x",
}


@pytest.mark.parametrize("case", SOME)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_cell_of_several_lines_is_one_cell(tmp_path, case, delimiter):
    found = series(written(tmp_path / "log.csv", SOME[case], delimiter=delimiter))
    assert [step for step, _ in found] == list(range(200))
    assert [value for _, value in found[:150]] == [2 - step / 100 for step in range(150)]
    assert all(math.isnan(value) for _, value in found[150:])


@pytest.mark.parametrize("case", ["one", "the first", "all"])
def test_in_the_first_column_too(tmp_path, case):
    path = written(tmp_path / "log.csv", SOME[case], heading=("sample", "step", "loss"), first=True)
    assert len(series(path)) == 200
    assert read(path).skipped == 0


@pytest.mark.parametrize("times", [1, 2, 3, 100])
def test_a_quote_that_stands_alone_swallows_nothing(tmp_path, times):
    path = tmp_path / "log.csv"
    odd = {step * 2 + 20 for step in range(times)}
    rows = [f"{step},{2 - step / 200},{QUOTE * (step in odd)}inch" for step in range(300)]
    path.write_text("\n".join(["step,loss,size", *rows, ""]))
    assert len(series(path)) == 300
    assert read(path).skipped == 0


def test_nor_does_one_behind_a_word(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{step},{2 - step / 200},{step}{QUOTE * (step % 5 == 0)}" for step in range(300)]
    path.write_text("\n".join(["step,loss,inches", *rows, ""]))
    assert len(series(path)) == 300


def test_a_pair_of_quotes_around_rows_are_two_that_stand_alone(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{step},{2 - step / 200},{QUOTE * (step == 20)}inch{QUOTE * (step == 90)}" for step in range(300)]
    path.write_text("\n".join(["step,loss,size", *rows, ""]))
    assert len(series(path)) == 300


def test_a_cell_that_is_still_being_written(tmp_path):
    path = written(tmp_path / "log.csv", SOME["all"])
    text = path.read_text()
    path.write_text(text[: text.rindex("time") + 3])
    found = series(path)
    assert [step for step, _ in found] == list(range(200))


def test_words_in_the_midst_of_a_table_are_no_new_names(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{step},{2 - step / 200},x" for step in range(100)]
    path.write_text("\n".join(["step,loss,note", *rows[:50], "saving the model, done", *rows[50:], ""]))
    run = read(path)
    assert (run.step, run.skipped) == (99, 1)


@pytest.mark.parametrize("names", ["step,loss,val_loss,note", "iteration,Loss,Val Loss,Note"])
def test_names_that_come_anew_are(tmp_path, names):
    path = tmp_path / "log.csv"
    rows = [f"{step},{2 - step / 200},7" for step in range(50)] + [names]
    rows += [f"{step},{2 - step / 200},{2 - step / 300},7" for step in range(50, 100)]
    path.write_text("\n".join(["step,loss,note", *rows, ""]))
    run = read(path)
    assert run.skipped == 0
    assert len(series(path, "val_loss")) == 50
