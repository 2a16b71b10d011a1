"""The casebook: it remembers over consultations, survives what may happen to a file, and knows when to stop."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.consulting.journals import recorded

from torchdoctor.consulting import Interview, conclude
from torchdoctor.consulting.casebook import Casebook, default_place, project_of
from torchdoctor.consulting.outcomes import judge_runs
from torchdoctor.consulting.question import ConsultError
from torchdoctor.consulting.session import Wishes, scripted, settle, settled_text
from torchdoctor.errors import TorchDoctorError
from torchdoctor.sources import read

ANSWERS = {"symptoms": ["exploding"], "grad_peak": 500, "grad_norm": 1.2, "clip": 0, "onset": 800, "lr": 0.1}


def interview() -> Interview:
    made = Interview()
    made.accept_all(ANSWERS)
    return made


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook(tmp_path / "deep" / "casebook.jsonl")


def test_what_did_not_help_is_not_proposed_first_again(book: Casebook) -> None:
    first = scripted(interview(), book, "here", Wishes())
    assert first.plan is not None
    action = first.plan.proposal.suggestion.action
    [case] = book.open_cases("here")
    assert case.action == action and case.complaints == ("exploding",)
    book.close_case(case.id, "nothing", by="answer")
    second = scripted(interview(), book, "here", Wishes())
    assert second.plan is not None and second.plan.proposal.suggestion.action != action
    assert second.proposals[-1].suggestion.action == action and second.proposals[-1].tried is not None
    # and its cause has lost ground, with the reason said
    cause = next(item.cause for item in first.report.diagnoses if item.cause != "unknown")
    before = next(item for item in first.report.diagnoses if item.cause == cause)
    after = next(item for item in second.report.diagnoses if item.cause == cause)
    assert after.probability < before.probability
    assert any("was tried on" in text for text in after.evidence)
    elsewhere = scripted(interview(), book, "elsewhere", Wishes())
    assert elsewhere.plan is not None and elsewhere.plan.proposal.suggestion.action == action


def test_the_same_proposal_is_one_open_case(book: Casebook) -> None:
    for _ in range(3):
        scripted(interview(), book, "here", Wishes())
    assert len(book.open_cases("here")) == 1


def test_three_changes_in_vain_are_a_reason_to_stop(book: Casebook) -> None:
    for outcome in ("helped", "nothing", "worse", "nothing"):
        case = book.open_case(
            project="here", complaints=["exploding"], cause="lr-too-high", action="scale-lr", code="x"
        )
        book.close_case(case.id, outcome, by="answer")
        found = scripted(interview(), book, "here", Wishes(fix="none"))
        assert bool(found.stop) == (outcome == "nothing" and len(book.cases()) == 4)
    assert "3 changes in a row" in found.stop[0]
    assert scripted(interview(), book, "here", Wishes()).plan is None  # not unless it is asked for by name


def test_two_runs_decide(book: Casebook, tmp_path: Path) -> None:
    sick = recorded(tmp_path / "sick", nan_at=200)
    well, better = recorded(tmp_path / "well"), recorded(tmp_path / "better", floor=0.6)
    pairs = [(sick, well, "helped"), (well, sick, "worse"), (well, well, "nothing"), (well, better, "helped")]
    for before, after, outcome in pairs:
        case = book.open_case(project="p", complaints=["nan"], cause="lr-too-high", action="scale-lr", code="x")
        verdict, closed, _ = settle(book, "p", str(before), str(after))
        assert (verdict.outcome, closed and closed.id) == (outcome, case.id), verdict
        assert book.cases()[-1].by == "comparison"
    assert "within the noise" in book.cases()[2].note
    assert settle(book, "p", str(well), str(better))[1] is None  # no case is open any more


def test_the_case_of_the_run_is_closed(book: Casebook, tmp_path: Path) -> None:
    one, two, after = (recorded(tmp_path / name) for name in ("one", "two", "after"))
    known = {"project": "p", "complaints": ["nan"], "cause": "lr-too-high", "action": "scale-lr"}
    first = book.open_case(run=str(one), code="x", **known)
    book.open_case(run=str(two), code="y", **known)
    assert settle(book, "p", str(after), str(two))[1] is None  # of two cases, neither is about this run
    closed = settle(book, "p", str(one), str(after))[1]
    assert closed is not None and closed.id == first.id
    assert settle(book, "p", str(after), str(one))[1] is not None  # the only one that is left


def broken(folder: Path, *, at: int | None = None, validations: int = 6) -> Path:
    """A run with a few validations, whose loss may leap up at a step and stay there."""
    folder.mkdir()
    rows = []
    for step in range(100 * validations):
        high = at is not None and step >= at
        loss = 0.5 + 1.2 * math.exp(-step / 60) + (7 / (1 + step - at) + 1 if high and at is not None else 0.0)
        loss += 0.02 * math.sin(step * 7.3)
        rows.append({"type": "vitals", "step": step, "vitals": {"loss": loss, "lr": 0.3 if high else 0.001}})
        if step % 100 == 99:
            rows.append({"type": "validation", "step": step, "vitals": {"val_loss": loss + 0.1}})
    head = {"type": "header", "step": 0, "schema": 1, "context": {}}
    lines = [json.dumps(row) for row in (head, *rows)]
    (folder / "journal.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("validations", [3, 4, 6, 12])
def test_a_loss_that_leapt_and_stayed_is_not_noisy(book: Casebook, tmp_path: Path, validations: int) -> None:
    """A cure is no noise floor, and nobody is told to give up after it."""
    leapt = broken(tmp_path / "leapt", at=100 * validations - 199, validations=validations)
    well = broken(tmp_path / "well", validations=validations)
    book.open_case(project="p", complaints=["unstable"], cause="lr-too-high", action="scale-lr", code="x")
    verdict, _, stop = settle(book, "p", str(leapt), str(well))
    assert verdict.outcome == "helped" and "within the noise" not in verdict.note and not stop, (verdict, stop)
    assert settle(book, "p", str(well), str(leapt))[0].outcome == "worse"


def test_a_change_that_leaves_the_trouble_is_not_at_the_noise_floor(book: Casebook, tmp_path: Path) -> None:
    one, other = (broken(tmp_path / name, at=401) for name in ("one", "other"))
    book.open_case(project="p", complaints=["unstable"], cause="lr-too-high", action="scale-lr", code="x")
    verdict, _, stop = settle(book, "p", str(one), str(other))
    assert verdict.outcome == "nothing" and "still there: " in verdict.note and not stop


def test_what_helped_is_no_reason_to_stop(book: Casebook) -> None:
    case = book.open_case(project="here", complaints=["exploding"], cause="lr-too-high", action="scale-lr", code="x")
    note = "gone: loss-spike; loss 1 before, 1 after, at step 9: within the noise"
    book.close_case(case.id, "helped", by="comparison", note=note)
    assert not conclude(interview(), book.cases()).stop


def test_steps_are_not_held_against_epochs(book: Casebook, tmp_path: Path) -> None:
    steps = recorded(tmp_path / "steps")
    rows = [f"{epoch},{1 + 3 * 0.9**epoch},{1.1 + 3 * 0.9**epoch}" for epoch in range(60)]
    (tmp_path / "keras.csv").write_text("\n".join(["epoch,loss,val_loss", *rows]) + "\n", encoding="utf-8")
    case = book.open_case(project="p", complaints=["nan"], cause="lr-too-high", action="scale-lr", code="x")
    with pytest.raises(ConsultError, match=r"steps is logged by steps and keras\.csv by epochs"):
        settle(book, "p", str(steps), str(tmp_path / "keras.csv"))
    assert [item.id for item in book.open_cases("p")] == [case.id], "it stays open"
    again = tmp_path / "again.csv"
    again.write_bytes((tmp_path / "keras.csv").read_bytes())
    assert "at epoch 59" in settle(book, "p", str(tmp_path / "keras.csv"), str(again))[0].note


@pytest.mark.parametrize("given", ["boom", "boom/journal.jsonl"])
def test_a_folder_and_the_journal_in_it_are_one_run(
    book: Casebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Whoever consults about a folder, and later gives it as --before, means that case, from wherever he calls."""
    recorded(tmp_path / "boom", nan_at=200)
    after = recorded(tmp_path / "after")
    monkeypatch.chdir(tmp_path)
    scripted(Interview(read("boom")), book, "p", Wishes())
    [own] = book.open_cases("p")
    book.open_case(project="p", complaints=["nan"], cause="lr-too-high", action="scale-lr", code="without a run")
    monkeypatch.chdir(after)
    closed = settle(book, "p", f"../{given}", ".")[1]
    assert closed is not None and closed.id == own.id


def test_a_torn_line_costs_itself_only(book: Casebook) -> None:
    case = book.open_case(project="here", complaints=["nan"], action="scale-lr")
    assert book.path is not None
    with book.path.open("ab") as file:
        file.write(b'{"type": "outcome", "id": "' + case.id.encode())
    book.close_case(case.id, "helped", by="answer")
    assert [item.outcome for item in book.cases()] == ["helped"]
    assert stat.S_IMODE(book.path.stat().st_mode) == 0o600


def test_hostile_lines_are_passed_over(book: Casebook) -> None:
    case = book.open_case(project="here", complaints=["nan"], action="scale-lr")
    assert book.path is not None
    lines = [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"type": 3}',
        b'{"type": "outcome", "id": "x", "outcome": "helped"}',
        json.dumps({"type": "outcome", "id": case.id, "outcome": "cured"}).encode(),
        b'{"type": "case", "id": 7, "complaints": "nan"}',
        b'{"type": "draft", "project": "here", "answers": [1]}',
        b"x" * 3_000_000,
    ]
    with book.path.open("ab") as file:
        file.write(b"\n".join(lines) + b"\n")
    assert [item.outcome for item in book.cases()] == [None, None]
    assert book.draft("here") is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine", encoding="utf-8")
    (tmp_path / "book").symlink_to(tmp_path / "target")
    with pytest.raises(ConsultError, match="casebook"):
        Casebook(tmp_path / "book").open_case(project="p", complaints=[])
    assert (tmp_path / "target").read_text(encoding="utf-8") == "mine"


WRITER = """
import sys
from pathlib import Path
from torchdoctor.consulting.casebook import Casebook
book = Casebook(Path(sys.argv[1]))
for number in range(40):
    book.open_case(project=sys.argv[2], complaints=["nan"], action=f"a{number}", code="x" * 5000)
"""


def test_two_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "book.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("one", "two")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert len(Casebook(path).cases()) == 80


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_place() == tmp_path / "torchdoctor" / "casebook.jsonl"
    (tmp_path / "nets" / ".git").mkdir(parents=True)
    (tmp_path / "nets" / "src").mkdir()
    assert project_of(tmp_path / "nets" / "src") == str((tmp_path / "nets").resolve())


def test_without_a_casebook_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = scripted(interview(), Casebook(None), "here", Wishes())
    assert found.plan is not None and not list(tmp_path.iterdir())


def test_an_outcome_must_be_known(book: Casebook) -> None:
    case = book.open_case(project="here", complaints=[])
    with pytest.raises(TorchDoctorError, match="helped, nothing, worse"):
        book.close_case(case.id, "great", by="answer")


NOISE = "loss 1 before, 1 after, at step 9: within the noise"


def closed_within_the_noise(book: Casebook, complaint: str) -> None:
    case = book.open_case(project="here", complaints=[complaint], cause="lr-too-high", action="scale-lr", code="x")
    book.close_case(case.id, "nothing", by="comparison", note=NOISE)


def test_two_changes_within_the_noise_are_a_reason_to_stop(book: Casebook) -> None:
    closed_within_the_noise(book, "exploding")
    assert not conclude(interview(), book.cases()).stop, "one change may have been the wrong one"
    closed_within_the_noise(book, "exploding")
    assert "noise floor" in conclude(interview(), book.cases()).stop[0]
    broke = interview()
    broke.answer("budget", 0)
    assert "budget" in conclude(broke).stop[0]


def test_a_plateau_is_no_noise_floor(book: Casebook) -> None:
    """A loss that stands does not move: that is the complaint, and the next change is proposed and written down."""
    stuck = Interview()
    stuck.accept_all(
        {"symptoms": ["plateau"], "grad_norm": 1.0, "lr": 1e-5, "at_floor": "no", "fell_before": "no"}
        | {"losses": [2.3, 2.31, 2.29] * 4}
    )
    for _ in range(2):
        closed_within_the_noise(book, "plateau")
    found = scripted(stuck, book, "here", Wishes())
    assert not found.stop and found.plan is not None and len(book.open_cases("here")) == 1
    closed_within_the_noise(book, "plateau")
    assert "3 changes in a row" in conclude(stuck, book.cases()).stop[0]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"nan_at": 200}, {"nan_at": 450, "steps": 500}, "nothing: still there: nan-or-inf at step 450 (before: 200)"),
        ({"nan_at": 450, "steps": 500}, {"nan_at": 200}, "worse: new: nan-or-inf at step 200 (before: 450)"),
        ({"nan_at": 200}, {"steps": 201}, "helped: gone: nan-or-inf"),
        ({"nan_at": 200}, {"steps": 900, "floor": 0.5}, "helped: gone: nan-or-inf"),
    ],
    ids=["later", "sooner", "just long enough", "longer"],
)
def test_what_comes_later_is_still_there(tmp_path: Path, before: dict, after: dict, told: str) -> None:
    runs = [recorded(tmp_path / str(number), norms=False, **given) for number, given in enumerate((before, after))]
    found = judge_runs(*runs)
    assert f"{found.outcome}: {found.note}".startswith(told)


@pytest.mark.parametrize("floor", [1.0, 0.4, 2.0], ids=["alike", "lower", "higher"])
def test_a_run_that_ends_before_the_trouble_tells_nothing(book: Casebook, tmp_path: Path, floor: float) -> None:
    """Neither does one that was not as long as that in which the trouble is new."""
    case = book.open_case(project="p", complaints=["nan"], cause="lr-too-high", action="scale-lr", code="x")
    sick, short = recorded(tmp_path / "sick", nan_at=200), recorded(tmp_path / "short", steps=190, floor=floor)
    with pytest.raises(ConsultError, match="too short to tell: it ends at step 189 .*Train it at least to step 300"):
        settle(book, "p", str(sick), str(short))
    if floor == 2.0:
        with pytest.raises(ConsultError, match="the run after the change shows nan-or-inf at step 200"):
            settle(book, "p", str(short), str(sick))
    assert [item.id for item in book.open_cases("p")] == [case.id], "it stays open"


def test_what_takes_its_time_to_show_is_not_gone_before(tmp_path: Path) -> None:
    """A plateau of 500 steps is none yet after 100: not the change, but the length is another."""
    names = [f"{steps}.jsonl" for steps in (500, 100, 499)]
    for seed, name in enumerate(names):
        noise = np.random.default_rng(seed).standard_normal(500)
        rows = [json.dumps({"step": step, "loss": 1.9 + 0.1 * noise[step]}) for step in range(int(name[:3]))]
        (tmp_path / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    long, short, alike = (tmp_path / name for name in names)
    with pytest.raises(ConsultError, match=r"before the change shows not-learning .* Train it at least to step 499"):
        judge_runs(long, short)
    assert judge_runs(long, alike).outcome == "nothing" and judge_runs(short, long).outcome == "nothing"


def test_a_change_without_a_cause_is_against_nothing(book: Casebook, tmp_path: Path) -> None:
    book.open_case(project="p", complaints=["nan"], action="change-schedule", code="x")
    runs = [str(recorded(tmp_path / name, floor=floor)) for name, floor in (("before", 1.0), ("after", 0.6))]
    assert settled_text(*settle(book, "p", *runs)).startswith("change-schedule (x): helped. ")
