"""The command without a person: it never waits, says what is missing, and its output can be read by programs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.consulting.journals import HEADER, recorded
from tests.consulting.scripts import NANOGPT

from torchdoctor.cli import group
from torchdoctor.consulting.casebook import Casebook
from torchdoctor.consulting.questions import QUESTIONS
from torchdoctor.journal import Journal

NAN = {"symptoms": ["nan"], "nan_step": 12, "norms_before": "grew", "lr": 0.01, "optimizer": "adamw"}


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def consult(*arguments: object, answers: Any = None) -> Result:
    words = [str(argument) for argument in arguments]
    if answers is not None:
        Path("answers.json").write_text(json.dumps(answers), encoding="utf-8")
        words += ["--answers", "answers.json"]
    return CliRunner().invoke(group, ["consult", *words])


def test_it_never_waits_and_says_what_is_missing() -> None:
    done = consult()
    assert done.exit_code == 2 and "answers are missing: symptoms" in done.stderr and "overfitting" in done.stderr
    done = consult(answers={"symptoms": ["nan"]})
    assert done.exit_code == 2 and "nan_step, norms_before" in done.stderr and done.stdout == ""
    assert consult(answers={"symptoms": ["nan"], "nan_step": None, "norms_before": None}).exit_code == 1


def test_a_run_answers_what_it_can(desk: Path) -> None:
    run = recorded(desk / "run", nan_at=200)
    done = consult(run, "--format", "json")
    assert done.exit_code == 1, done.stderr
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    known = found["consultation"]["answered_by_run"]
    assert (known["nan_step"], known["norms_before"], known["optimizer"]) == (200, "grew", "adamw")
    assert {item["name"] for item in found["symptoms"]} >= {"nan-or-inf", "gradient-explosion"}
    assert found["health"] == "critical" and found["diagnoses"][0]["probability"] > 0
    without = recorded(desk / "without", nan_at=200, norms=False)
    assert "missing: norms_before" in consult(without).stderr
    assert consult(without, answers={"norms_before": "normal"}).exit_code == 1
    assert consult(recorded(desk / "well")).exit_code == 0


def test_what_a_run_does_not_show_is_said(desk: Path) -> None:
    run = recorded(desk / "run")
    done = consult(run, "--format", "json", answers={"symptoms": ["unstable"], "shape": "swings"})
    [symptom] = json.loads(done.stdout)["symptoms"]
    assert symptom["severity"] == "info" and "does not show it" in symptom["message"] and done.exit_code == 0


def test_questions_are_data() -> None:
    found = json.loads(consult("--questions").stdout)["questions"]
    assert [item["name"] for item in found] == [item.name for item in QUESTIONS]
    some = json.loads(consult("--questions", answers={"symptoms": ["overfitting"]}).stdout)["questions"]
    assert "dropout" in {item["name"] for item in some} and "nan_step" not in {item["name"] for item in some}


def test_trees_and_ranges_are_printed() -> None:
    text = consult("--trees").stdout
    for words in (
        "Loss plateau",
        "NaN loss",
        "Overfitting",
        "0.1 to 10",
        "dropout of 0.1 to 0.3 and weight decay of 0.01 to 0.1",
    ):
        assert words in text


def test_it_writes_a_patch_settings_and_a_transcript(desk: Path) -> None:
    (desk / "train.py").write_text(NANOGPT, encoding="utf-8")
    files = ("--script", "train.py", "--patch", "fix.patch", "--overrides", "new.toml", "--transcript", "talk.md")
    answers = NAN | {"lr": 6e-4}
    done = consult(*files, "--fix", "scale-lr", answers=answers)
    assert done.exit_code == 1, done.stderr
    assert "+learning_rate = 0.0003" in (desk / "fix.patch").read_text(encoding="utf-8")
    assert tomllib.loads((desk / "new.toml").read_text(encoding="utf-8")) == {"learning_rate": 0.0003}
    assert (desk / "train.py").read_text(encoding="utf-8") == NANOGPT
    assert "git apply fix.patch" in done.stdout
    assert "read the patch, then apply it (or: patch -p1 < fix.patch)." in done.stdout
    again = consult(*files, "--fix", "scale-lr", answers=answers)
    assert again.exit_code == 2 and "fix.patch exists" in again.stderr
    json_file = consult("--overrides", "new.json", "--fix", "scale-lr", answers=NAN | {"lr": None})
    assert json_file.exit_code == 1
    assert json.loads((desk / "new.json").read_text(encoding="utf-8")) == {"learning_rate_factor": 0.5}


def test_what_to_do_may_be_in_the_answers(desk: Path) -> None:
    (desk / "train.py").write_text(NANOGPT.replace("grad_clip = 1.0", "grad_clip = 5.0"), encoding="utf-8")
    done = consult(answers=NAN | {"fix": "set-clip-norm", "script": "train.py", "patch": "a.patch"})
    assert done.exit_code == 1 and "+grad_clip = 1.0" in (desk / "a.patch").read_text(encoding="utf-8")
    (desk / "train.py").write_text(NANOGPT, encoding="utf-8")
    done = consult(answers=NAN | {"fix": "set-clip-norm", "script": "train.py", "patch": "b.patch"})
    assert "already has this value" in done.stdout and not (desk / "b.patch").exists()
    [case] = Casebook(desk / "data" / "torchdoctor" / "casebook.jsonl").cases()
    assert case.action == "set-clip-norm"
    assert consult(answers=NAN | {"case_outcome": "nothing", "fix": "none"}).exit_code == 1
    assert Casebook(desk / "data" / "torchdoctor" / "casebook.jsonl").cases()[0].outcome == "nothing"
    assert "no open case" in consult(answers=NAN | {"case_outcome": "helped"}).stderr


def test_before_and_after(desk: Path) -> None:
    one, other = recorded(desk / "one"), recorded(desk / "other", floor=0.5)
    book = Casebook(desk / "book.jsonl")
    book.open_case(project=str(desk.resolve()), complaints=["plateau"], cause="lr-too-low", action="scale-lr", code="x")
    done = consult("--before", one, "--after", other, "--casebook", "book.jsonl", "--format", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["outcome"] == "helped" and found["action"] == "scale-lr"
    assert book.cases()[0].outcome == "helped"
    assert consult("--before", one).exit_code == 2
    assert consult("--before", one, "--after", desk / "nothing").exit_code == 2


BAD: list[tuple[Any, str]] = [
    ([1], "JSON object"),
    ({"symptom": ["nan"]}, "Did you mean 'symptoms'?"),
    ({"symptoms": ["nam"]}, "Did you mean 'nan'?"),
    ({"symptoms": ["nan"], "nan_step": "soon", "norms_before": None}, "not a number"),
    (NAN | {"fix": "scale-rl"}, "Did you mean 'scale-lr'?"),
    (NAN | {"patch": "fix.patch"}, "--script"),
    (NAN | {"fix": "scale-lr", "overrides": "new.yaml"}, ".toml or .json"),
    (NAN | {"script": ["a"]}, "not a path"),
    (NAN | {"script": "missing.py"}, "cannot read the script"),
]


@pytest.mark.parametrize(("answers", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_input_is_one_sentence(answers: Any, words: str) -> None:
    done = consult(answers=answers)
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.stderr, done.output


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b'{"lr": ' + b"9" * 6000 + b"}"])
def test_files_of_answers_that_are_none(desk: Path, content: bytes) -> None:
    (desk / "bad.json").write_bytes(content)
    done = consult("--answers", "bad.json")
    assert done.exit_code == 2 and "bad.json" in done.stderr
    assert consult("--answers", "missing.json").exit_code == 2


def test_hostile_words_stay_words(desk: Path) -> None:
    words = "nan <script>alert(1)</script> \x1b[2J [x](javascript:1) @team | ../../etc/passwd"
    answers = {"symptoms": ["other"], "description": words}
    done = consult("--transcript", "talk.md", "--fail-on", "never", answers=answers)
    assert done.exit_code == 0 and "\x1b" not in done.stdout
    page = (desk / "talk.md").read_text(encoding="utf-8")
    assert "<script>" not in page and "\x1b" not in page and "[x](javascript" not in page and "\\@team" in page


def test_markdown_and_a_file(desk: Path) -> None:
    assert "## Diagnosis" in consult("--format", "markdown", answers=NAN).stdout
    done = consult("--output", "out.json", "--format", "json", answers=NAN)
    assert done.stdout == "" and json.loads((desk / "out.json").read_text(encoding="utf-8"))["consultation"]


def test_a_note_is_no_complaint(desk: Path) -> None:
    """A plateau that is only a note is shown, and nothing is asked for it."""
    run = desk / "run"
    with Journal(run, HEADER) as journal:
        for step in range(1700):
            loss = max(6.0 - 0.005 * step, 2.0) + 0.01 * (step % 3 - 1)
            journal.write({"type": "vitals", "step": step, "vitals": {"loss": loss, "lr": 1e-3}})
    done = consult(run, "--format", "json")
    found = json.loads(done.stdout)
    assert {item["severity"] for item in found["symptoms"]} == {"info"}
    assert done.exit_code == 0 and found["consultation"]["symptoms"] == [] and found["consultation"]["plan"] is None
    chosen = consult(run, "--format", "json", answers={"symptoms": [1], "grad_norm": 0.7, "at_floor": "no"})
    assert json.loads(chosen.stdout)["consultation"]["plan"] is not None


def test_a_log_is_judged_as_diagnose_judges_it(desk: Path) -> None:
    """Of a finished log the end is known: an interview that calls a dead run healthy would be worse than none."""
    rows = [1.64, 11.8, 11.2, 10.6, *[10.3735] * 6]
    log = desk / "dead.csv"
    log.write_text("\n".join(["step,loss,lr", *(f"{step},{loss},5.0" for step, loss in enumerate(rows, 1))]))
    verdict = CliRunner().invoke(group, ["diagnose", str(log)]).output.splitlines()[0]
    assert verdict.startswith("Critical since step 2")
    told = consult(log, answers={}).output
    assert verdict.split(",")[0] in told and "nothing was found" not in told
