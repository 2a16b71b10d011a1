"""What was measured counts before what was said, and nobody is told as a fact what only he said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.consulting.journals import recorded

from torchdoctor.consulting import Interview, conclude
from torchdoctor.consulting.consultation import Consultation
from torchdoctor.consulting.document import as_text
from torchdoctor.consulting.telling import told
from torchdoctor.journal import Journal
from torchdoctor.sources import read

NAN = {"symptoms": ["nan"], "nan_step": 12, "norms_before": "grew"}


def consulted(run: Path, answers: dict[str, Any]) -> Consultation:
    interview = Interview(read(run))
    interview.accept_all(answers)
    return conclude(interview)


def words(consultation: Consultation) -> str:
    return " ".join(as_text(told(consultation)).split())


def test_nan_where_the_log_is_finite_is_not_what_happened(tmp_path: Path) -> None:
    """Of a run with trouble of its own, that trouble is judged."""
    run = recorded(tmp_path / "run", nan_at=200)
    found = consulted(recorded(tmp_path / "well"), NAN)
    assert "You say NaN at step 12; the log has a finite loss there, 3.57." in words(found)
    assert not found.report.symptoms and not found.walks and "contradicts what you report" in words(found)
    assert found.to_dict()["consultation"]["contradicted_by_run"].keys() == {"nan_step"}
    other = consulted(run, NAN)  # there is a NaN, at another step
    assert "The step of the first NaN: you say 12, the run says 200." in words(other)
    assert "nan-or-inf (step 200)" in words(other) and "step 12)" not in words(other) and other.walks


def test_nothing_further_is_asked_about_what_did_not_happen(tmp_path: Path) -> None:
    interview = Interview(read(recorded(tmp_path / "run")))
    interview.accept_all({"symptoms": ["nan"], "nan_step": 12})
    assert interview.missing() == [] and interview.next_question() is None
    assert "nan_step" not in interview.answers, "no test is planned around it"


@pytest.mark.parametrize(
    ("step", "answers"),
    [(400, "the log ends before"), (None, "nobody knows when")],
)
def test_what_the_log_cannot_know_is_believed(tmp_path: Path, step: int | None, answers: str) -> None:
    found = consulted(recorded(tmp_path / "run"), NAN | {"nan_step": step})
    assert "nan_step" not in found.contradicted, answers
    assert "nan-or-inf" in {item.name for item in found.report.symptoms}


def test_a_loss_of_zero_denies_nothing(tmp_path: Path) -> None:
    """Some trainers log NaN as 0."""
    with Journal(tmp_path / "run", {"type": "header", "schema": 1, "context": {}}) as journal:
        for step in range(60):
            loss = 0.0 if step == 12 else 2.0 - 0.01 * step
            journal.write({"type": "vitals", "step": step, "vitals": {"loss": loss}})
    assert "nan_step" not in consulted(tmp_path / "run", NAN).contradicted


def test_a_step_that_was_not_logged_lies_between_finite_ones(tmp_path: Path) -> None:
    rows = [json.dumps({"step": step, "loss": 2.0 - 0.001 * step}) for step in range(0, 600, 10)]
    (tmp_path / "log.jsonl").write_text("\n".join(rows), encoding="utf-8")
    found = consulted(tmp_path / "log.jsonl", NAN)
    assert found.contradicted["nan_step"] == "You say NaN at step 12; the log has finite losses only."


def test_settings_that_the_run_knows_better_are_told(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", nan_at=200)
    given = {"lr": 0.3, "optimizer": "sgd", "parameters": "11k", "batch_size": 32, "grad_norm": None}
    found = consulted(run, given)
    assert list(found.contradicted) == ["lr", "optimizer"], "what was rounded, or is not known, agrees"
    assert "The optimizer: you say SGD, the run says AdamW." in words(found)


def test_what_is_only_reported_is_no_part_of_the_story(tmp_path: Path) -> None:
    found = consulted(recorded(tmp_path / "run", nan_at=200), {"symptoms": ["nan", "plateau"], "onset": 150})
    assert any(item.name == "loss-plateau" for item in found.report.symptoms)
    story = words(found).partition("What happened: ")[2].partition("No cause")[0].partition("Most likely")[0]
    assert "nan-or-inf (step 200)" in story and "loss-plateau" not in story
