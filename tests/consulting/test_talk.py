"""What a person on a terminal reads: lines that fit, plain refusals, and no guess that looks like an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.consulting.journals import recorded

from torchdoctor.chart import Chart
from torchdoctor.cli import group
from torchdoctor.consulting import Interview, conclude
from torchdoctor.consulting.casebook import Casebook
from torchdoctor.consulting.document import as_text
from torchdoctor.consulting.evidence import report_complaints
from torchdoctor.consulting.session import Wishes, converse, scripted
from torchdoctor.consulting.telling import told
from torchdoctor.consulting.terminal import Talk
from torchdoctor.journal import Journal
from torchdoctor.records import Symptom
from torchdoctor.sources import read


def held(*answers: str, width: int = 60, run: Path | None = None) -> list[str]:
    """The lines of an interview; after the answers, Enter to everything."""
    lines: list[str] = []
    given: Iterator[str] = iter(answers)

    def ask(prompt: str) -> str:
        lines.append(prompt)
        return next(given, "")

    talk = Talk(ask, lambda text: lines.extend(text.split("\n")), width)
    converse(Interview(read(run) if run is not None else None), Casebook(None), "p", Wishes(), talk)
    return lines


@pytest.mark.parametrize("number", range(1, 9))
def test_every_sentence_fits_a_narrow_terminal(number: int) -> None:
    wide = [line for line in held(str(number)) if len(line) > 60 and not line.startswith("    ")]
    assert wide == []


def test_who_knows_nothing_more_is_asked_nothing_more() -> None:
    lines = held("4", "12", "done")
    assert "What is the highest learning rate?" not in lines and "Diagnosis" in lines
    assert "What is the highest learning rate?" in held("4", "12")


def test_a_refusal_does_not_name_the_key_of_a_file_of_answers() -> None:
    refused = next(line for line in held("4", "soon", "done") if "soon" in line)
    assert refused == "  'soon' is not a number. Give one such as 0.001."


def test_where_little_is_known_no_cause_is_called_the_likeliest_and_nothing_is_finished() -> None:
    text = "\n".join(held("1", "done", width=100))
    assert "No cause stands out" in text and "Most likely cause" not in text
    assert "Reasons to stop" not in text
    assert "The change:" not in text, "Enter takes nothing where nothing is likely"


def test_players_are_thought_of_only_where_somebody_speaks_of_them() -> None:
    def causes(**answers: object) -> set[str]:
        interview = Interview()
        interview.accept_all({"symptoms": ["unstable", "other"], "shape": None, "description": None, **answers})
        return {item.cause for item in conclude(interview).report.diagnoses}

    games = {"adversarial-imbalance", "mode-collapse"}
    assert not games & causes() and games <= causes(description="my GAN swings")


def test_a_rule_of_thumb_that_the_run_speaks_against_is_not_left_standing(tmp_path: Path) -> None:
    with Journal(
        tmp_path / "run", {"type": "header", "schema": 1, "context": {"optimizer": [{"class": "Adam"}]}}
    ) as run:
        for step in range(300):
            rate, loss = (0.001, 2.3 * 0.98**step + 0.1) if step < 150 else (0.5, 6.0)
            run.write({"type": "vitals", "step": step, "vitals": {"loss": loss, "lr": rate, "grad_norm": 1.0}})
        run.write({"type": "end", "step": 299})
    interview = Interview(read(tmp_path / "run"))
    interview.accept_all({"symptoms": ["plateau"], "at_floor": "no"})
    text = " ".join(as_text(told(conclude(interview))).split())
    assert "Most likely cause" in text and "lr-too-high" in text
    assert "raise it 2 to 10 times. Not in this run: the measurements point to lr-too-high" in text


def test_what_the_run_shows_is_not_asked_and_not_put_into_the_mouth(tmp_path: Path) -> None:
    lines = held("done", width=100, run=recorded(tmp_path / "run", nan_at=120))
    text = "\n".join(lines)
    assert "The run shows: Loss went to NaN or Inf (nan-or-inf)" in text and "You say:" not in text


def unlike_runs(folder: Path) -> tuple[Path, Path]:
    """Two runs of two tasks: other losses."""
    places = []
    for name, kind in (("mnist", "cross-entropy"), ("prices", "mse")):
        place = recorded(folder / name, floor=1.0 if name == "mnist" else 0.5)
        with (place / "journal.jsonl").open("a", encoding="utf-8") as file:
            file.write(f'{{"type": "facts", "step": 0, "facts": {{"loss.kind": "{kind}"}}}}\n')
        places.append(place)
    return places[0], places[1]


def test_runs_of_two_tasks_cannot_tell_whether_a_change_helped(tmp_path: Path) -> None:
    before, after = unlike_runs(tmp_path)
    book = Casebook(tmp_path / "book.jsonl")
    book.open_case(
        project=str(Path.cwd()), complaints=("nan",), run="", cause="lr-too-high", action="scale-lr", code=""
    )
    words = ["consult", "--before", str(before), "--after", str(after), "--casebook", str(book.path)]
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 2 and "helped." not in done.stdout
    assert "the loss is cross-entropy in mnist and mse in prices" in done.stderr
    assert book.cases()[-1].outcome is None, "the case stays open"


def test_two_healthy_runs_with_too_few_losses_are_no_judgement(tmp_path: Path) -> None:
    places = [recorded(tmp_path / name, steps=8) for name in ("before", "after")]
    done = CliRunner().invoke(
        group, ["consult", "--no-casebook", "--before", str(places[0]), "--after", str(places[1])]
    )
    assert done.exit_code == 2 and "too few losses in common" in done.stderr


def test_enter_takes_the_change_that_a_file_of_answers_takes() -> None:
    """Though no cause stands out: what is proposed is worth a test."""
    given = {"symptoms": ["nan"], "nan_step": 1500, "norms_before": None}
    interview = Interview()
    interview.accept_all(given)
    taken = scripted(interview, Casebook(None), "p", Wishes()).plan
    lines = held("4", "1500", "done", width=100)
    assert taken is not None and f"The change: {taken.proposal.suggestion.action}" in lines
    assert any(line.startswith("No cause stands out") for line in lines)


def test_what_is_missing_is_named_where_nothing_is_proposed() -> None:
    text = " ".join(" ".join(held("1", "done", width=100)).split())
    assert "No change is likely enough to be proposed; find out first: Is the gradient norm healthy" in text


def test_none_is_an_answer_where_it_is_offered_and_an_unclear_one_is_answered() -> None:
    offered = [("clip", "clip the norm"), ("none", "none of them")]
    lines: list[str] = []
    given = iter(["-", "none"])
    assert Talk(lambda prompt: next(given), lines.append).choose("Which?", offered) == "none"
    assert lines[-1] == "  Type a number from 1 to 2."
    interview = Interview()
    interview.accept_all({"symptoms": ["vanishing"], "activation": "none", "optimizer": "none"})
    assert (interview.given["activation"], interview.given["optimizer"]) == ("none", None)


def test_a_norm_that_grew_before_the_nan_counts_although_an_old_jump_is_known() -> None:
    chart = Chart.of(loss=[1.0] * 900)
    chart.episodes += [Symptom("gradient-explosion", "GR01", "info", 0.9, 100, 101)]
    chart.episodes += [Symptom("nan-or-inf", "NU01", "critical", 0.9, 899, 899)]
    report_complaints(chart, ["nan"], {"norms_before": "grew"}, run=True)
    assert [item.first_step for item in chart.episodes] == [100, 898, 899]
