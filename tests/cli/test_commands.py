"""The command: manners of a linter."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

import torchdoctor
from torchdoctor.cli import COMMANDS, group
from torchdoctor.journal import Journal
from torchdoctor.reports import formats
from torchdoctor.symptoms import DETECTORS

HEADER = {"type": "header", "schema": 1, "context": {"model": {"class": "Net", "parameters": 10}}}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def recorded(folder: Path, *, nan_at: int | None = None, jump_at: int | None = None, steps: int = 300) -> Path:
    with Journal(folder, HEADER) as journal:
        for step in range(steps):
            noise = math.sin(step * 7.3)
            loss = math.nan if nan_at is not None and step >= nan_at else 1.0 + 3 * math.exp(-step / 80) + 0.02 * noise
            norm = (40.0 if step == jump_at else 1.0) * (1 + 0.1 * noise)
            journal.write({"type": "vitals", "step": step, "vitals": {"loss": loss, "grad_norm": norm, "lr": 1e-3}})
        journal.write({"type": "end", "step": steps - 1})
    return folder


@pytest.fixture
def healthy(tmp_path):
    return recorded(tmp_path / "healthy")


@pytest.fixture
def sick(tmp_path):
    return recorded(tmp_path / "sick", jump_at=200)


@pytest.fixture
def dying(tmp_path):
    return recorded(tmp_path / "dying", nan_at=250)


def test_the_help_lists_every_command():
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
        assert run(name, "--help").exit_code == 0


def test_the_version():
    assert run("--version").stdout.split()[-1] == torchdoctor.__version__


def test_a_misspelt_command_gets_the_nearest():
    result = run("diagnos", "x")
    assert result.exit_code == 2 and "Did you mean 'diagnose'?" in result.stderr and result.stdout == ""


def test_a_healthy_run_exits_0(healthy):
    result = run("diagnose", healthy)
    assert result.exit_code == 0 and result.stderr == ""
    assert result.stdout == "Healthy at step 299: nothing was found.\n"


def test_a_warning_fails_only_if_asked(sick):
    assert run("diagnose", sick).exit_code == 0
    for bar, code in (("info", 1), ("warning", 1), ("critical", 0), ("never", 0)):
        assert run("diagnose", sick, "--fail-on", bar).exit_code == code


def test_a_critical_run_exits_1_and_says_what_and_when(dying):
    result = run("diagnose", dying)
    assert result.exit_code == 1
    assert result.stdout.startswith("Critical since step 250: nan-or-inf")
    assert "Problem 1 (critical, steps 250 to " in result.stdout


def test_json_is_the_report_and_a_list_for_several(dying, healthy):
    one = json.loads(run("diagnose", dying, "--format", "json").stdout)
    assert one == torchdoctor.diagnose(dying).to_dict()
    both = run("diagnose", dying, healthy, "--format", "json")
    assert [item["health"] for item in json.loads(both.stdout)] == ["critical", "healthy"] and both.exit_code == 1


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("full", "Critical"),
        ("concise", "PATH:250: NU01"),
        ("jsonl", '{"type": "report"'),
        ("github", "::error title=NU01"),
        ("markdown", "# Critical"),
    ],
)
def test_formats(dying, form, begins):
    result = run("diagnose", dying, "--format", form)
    assert result.stdout.startswith(begins.replace("PATH", str(dying))) and result.exit_code == 1


@pytest.mark.parametrize(
    ("name", "begins"), [("a.html", "<!DOCTYPE html>"), ("a.md", "# Critical"), ("a.txt", "Critical"), ("a.json", "{")]
)
def test_output_goes_to_a_file(dying, tmp_path, name, begins):
    result = run("diagnose", dying, "--output", tmp_path / name)
    assert result.exit_code == 1 and result.stdout == "" and "Wrote" in result.stderr
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)


def test_output_in_an_explicit_format(dying, healthy, tmp_path):
    run("diagnose", dying, healthy, "--output", tmp_path / "log", "--format", "concise")
    assert (tmp_path / "log").read_text().count("\n") >= 3


def test_wrong_usage_exits_2_with_one_sentence(dying, healthy, tmp_path):
    for arguments in (
        ("diagnose",),
        ("diagnose", dying, "--output", tmp_path / "a.pdf"),
        ("diagnose", dying, healthy, "--output", tmp_path / "a.html"),
        ("diagnose", dying, "--select", "GR99"),
        ("diagnose", dying, "--preset", "papper"),
        ("diagnose", dying, "--settings", tmp_path / "none.toml"),
        ("diagnose", dying, "--output", tmp_path / "dying" / "journal.jsonl" / "a.txt"),
        ("explain", "loss-spyke"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and "Error: " in result.stderr and "Traceback" not in result.output


def test_an_unreadable_run_exits_2_but_the_others_are_shown(dying, tmp_path):
    result = run("diagnose", tmp_path / "none", dying)
    assert result.exit_code == 2
    assert "none does not exist" in result.stderr and result.stdout.startswith("Critical")
    told = json.loads(run("diagnose", tmp_path / "none", dying, "--format", "json").stdout)
    assert [item["health"] for item in told] == ["critical"]


def test_select_and_ignore(dying):
    assert run("diagnose", dying, "--ignore", "NU01,LO").exit_code == 0
    for words, told in ((("--select", "GR"), "anything but GR"), (("--ignore", "NU01,LO"), "NU01, LO")):
        said = run("diagnose", dying, *words, "--format", "concise").stdout
        assert said.endswith(f": Nothing was found up to step 299 (not looked for, as requested: {told}).\n")
    assert run("diagnose", dying, "--select", "nan-or-inf").exit_code == 1
    assert run("diagnose", dying, "--select", "nu01").exit_code == 1


def test_the_preset_of_the_paper(tmp_path):
    folder = recorded(tmp_path / "run", jump_at=200)
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"type": "vitals", "step": 300, "vitals": {"loss": 50.0, "grad_norm": 1.0}}\n')
    found = json.loads(run("diagnose", folder, "--preset", "paper", "--format", "json").stdout)
    assert "loss-divergence" in {item["name"] for item in found["symptoms"]}  # the paper's fixed rule: above 10


def test_rules_lists_every_finding():
    told = run("rules").stdout
    for detector in DETECTORS:
        assert detector.code in told and detector.name in told
    assert {row["code"] for row in json.loads(run("rules", "--format", "json").stdout)} == {
        item.code for item in DETECTORS
    }
    assert len(run("rules", "--format", "jsonl").stdout.splitlines()) == len(DETECTORS)
    assert run("rules", "--format", "markdown").stdout.startswith("| code |")
    assert "lr-too-high" in run("rules", "--kind", "all", "--format", "concise").stdout


@pytest.mark.parametrize(("form", "words"), [("github", "is for findings of a run"), ("jsn", "Did you mean 'json'?")])
def test_a_format_that_is_none_of_a_list(form, words):
    result = run("rules", "--format", form)
    assert (
        result.exit_code == 2 and words in result.stderr and "full, concise, json, jsonl or markdown" in result.stderr
    )


def test_everything_listed_can_be_explained():
    for row in json.loads(run("rules", "--kind", "all", "--format", "json").stdout):
        result = run("explain", row["name"])
        assert (
            result.exit_code == 0
            and row["name"] in result.stdout
            and row["summary"].split(".")[0] in " ".join(result.stdout.split())
        )


def test_explain_takes_codes_in_any_case_and_shows_the_docstring():
    told = run("explain", "gr01").stdout
    assert told.startswith("# GR01 gradient-explosion\n")
    assert "## How it is told apart" in told and "```python\n>>> " in told and "`ratio`" in told


def test_formats_of_an_explanation():
    told = json.loads(run("explain", "GR01", "--format", "json").stdout)
    assert (told["kind"], told["name"], told["code"]) == ("finding", "gradient-explosion", "GR01")
    assert run("explain", "GR01", "--format", "markdown").stdout.rstrip("\n") == told["page"]
    assert run("explain", "GR01", "--format", "full").stdout.rstrip("\n") == told["page"]
    assert run("explain", "GR01", "--format", "github").exit_code == 2


def test_an_unknown_name_gets_the_nearest():
    result = run("explain", "gradient-explosoin")
    assert result.exit_code == 2 and "Did you mean 'gradient-explosion'?" in result.stderr
    assert "torchdoctor rules" in run("explain", "xyzzy").stderr
    assert "Did you mean 'gradient-explosion'?" in run("explain", "exploding gradients").stderr
    assert "stands for several: gradient-explosion, gradient-vanishing, " in run("explain", "gr").stderr
    assert run("explain", "").exit_code == 2


@pytest.mark.parametrize("form", ["full", "json"])
def test_a_reader_that_has_enough_is_no_finding(form):
    command = [sys.executable, "-m", "torchdoctor", "rules", "--kind", "all", "--format", form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def module(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "torchdoctor", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, **environment},
    )


def test_as_a_module_without_colours_when_piped(dying):
    done = module("diagnose", dying)
    assert done.returncode == 1 and done.stdout.startswith(b"Critical") and b"\x1b" not in done.stdout


def test_a_terminal_that_knows_only_ascii(tmp_path):
    with Journal(tmp_path / "run", HEADER) as journal:
        journal.write({"type": "vitals", "step": 0, "vitals": {"loss": 1.0}})
        journal.write({"type": "note", "step": 0, "text": "größer \ud800"})
    done = module("diagnose", tmp_path / "run", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 0 and b"  - gr" in done.stdout and done.stderr == b""


def test_hostile_paths_and_notes_reach_the_terminal_as_text(tmp_path):
    with Journal(tmp_path / "run", HEADER) as journal:
        journal.write({"type": "vitals", "step": 0, "vitals": {"loss": 1.0}})
        journal.write({"type": "note", "step": 0, "text": "\x1b[2J[bold]\x1b]0;owned\x07"})
    done = module("diagnose", tmp_path / "run", tmp_path / "\x1b[31mx", FORCE_COLOR="1")
    assert done.returncode == 2
    assert b"\x1b[2J" not in done.stdout and b"owned" not in done.stdout and b"[bold]" in done.stdout
    assert b"\x1b[31m" not in done.stderr


@pytest.mark.parametrize("words", ["nan_or_inf", "NU*", "nan-*", "Nan-or-INF"])
def test_a_finding_is_selected_as_people_write_it(dying, words):
    told = json.loads(run("diagnose", dying, "--select", words, "--format", "json").stdout)
    assert {item["name"] for item in told["symptoms"]} == {"nan-or-inf"}


def test_an_unknown_finding_with_nothing_near_is_no_list_of_a_hundred_names(dying):
    told = run("diagnose", dying, "--select", "xyz*").stderr
    assert told == "Error: select: there is no finding 'xyz*'. `torchdoctor rules` lists the findings.\n"


def test_a_mistake_in_a_settings_file_names_the_file(dying, tmp_path):
    (tmp_path / "own.toml").write_text("ignore = ['GR99']", encoding="utf-8")
    told = run("diagnose", dying, "--settings", tmp_path / "own.toml").stderr
    assert told.startswith("Error: ") and "own.toml: ignore: there is no finding 'GR99'. Did you mean" in told


def test_a_settings_file_of_an_editor_that_marks_utf_8(dying, tmp_path):
    (tmp_path / "own.toml").write_bytes(b"\xef\xbb\xbfignore = ['NU', 'LO']\r\n")
    assert run("diagnose", dying, "--settings", tmp_path / "own.toml").exit_code == 0


def test_what_was_not_looked_for_is_told_in_every_format(dying):
    for form in ("full", "concise", "json", "jsonl", "github", "markdown"):
        assert "not looked for" in run("diagnose", dying, "--ignore", "NU,LO", "--format", form).stdout


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_to_and_stays_a_pipe(dying, tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    reader = os.open(tmp_path / "pipe.json", os.O_RDONLY | os.O_NONBLOCK)
    assert run("diagnose", dying, "--output", tmp_path / "pipe.json").exit_code == 1
    assert stat.S_ISFIFO((tmp_path / "pipe.json").stat().st_mode)
    assert os.read(reader, 2**16).startswith(b'{\n  "health": "critical"')
    os.close(reader)


def test_devices_are_not_replaced():
    for name in ("/dev/stdout", "/dev/fd/63", "/dev/null"):  # not tried for real: a failure would break the machine
        assert formats._is_stream(Path(name))
    assert not formats._is_stream(Path("devices/report.html"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("command", [("diagnose",), ("report", "--format", "concise"), ("plot", "--format", "json")])
def test_a_log_through_a_named_pipe(dying, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "log")
    content = (dying / "journal.jsonl").read_bytes()
    Thread(target=(tmp_path / "log").write_bytes, args=(content,), daemon=True).start()
    result = run(*command, tmp_path / "log")
    assert result.exit_code == (1 if command == ("diagnose",) else 0) and "nan-or-inf" in result.stdout


@pytest.mark.parametrize("command", [("report", "-"), ("plot", "-")])
def test_a_log_from_standard_input_is_drawn_into_the_current_folder(dying, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(group, command, input=(dying / "journal.jsonl").read_bytes())
    assert result.exit_code == 0 and [*tmp_path.glob("standard-input-report.html"), *tmp_path.glob("loss_curve.*")]


@pytest.mark.parametrize("command", [("watch", "-"), ("compare", "-", "-"), ("consult", "-")])
def test_where_standard_input_is_not_read_this_is_said(command):
    result = run(*command)
    assert result.exit_code == 2 and "standard input is read only by diagnose, report and plot" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_standard_output_is_no_finding_and_no_traceback(dying):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "torchdoctor", "diagnose", str(dying)], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2 and done.stderr == b"Error: cannot write the output: No space left on device.\n"


def test_ctrl_c_is_no_finding(dying, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchdoctor.offline.diagnose", interrupted)
    result = run("diagnose", dying)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "\nInterrupted.\n")


def test_a_mistake_of_ours_is_no_finding(dying):
    code = "import torchdoctor.offline as o, sys; o.diagnose = None; sys.argv[1:] = ['diagnose', sys.argv[1]]; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}from torchdoctor.cli import main; main()", str(dying)], capture_output=True
    )
    assert done.returncode == 2 and b"Traceback" in done.stderr
