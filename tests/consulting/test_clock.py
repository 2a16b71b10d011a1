"""A log that counts epochs is spoken of, and tested, in epochs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from torchdoctor.consulting import Interview
from torchdoctor.consulting.casebook import Casebook
from torchdoctor.consulting.document import as_text
from torchdoctor.consulting.session import Wishes, scripted
from torchdoctor.consulting.telling import told
from torchdoctor.consulting.terminal import Talk, hold
from torchdoctor.consulting.trees import TREES, walk
from torchdoctor.consulting.trials import SPANS, plan_test
from torchdoctor.sources import read


@pytest.fixture
def overfitted(tmp_path: Path) -> Interview:
    """Sixty epochs, of which the sixteenth validates best."""
    rows = ["epoch,loss,val_loss"]
    for epoch in range(60):
        validation = 0.78 + 1.3 * math.exp(-epoch / 6) + 0.018 * max(epoch - 16, 0)
        rows.append(f"{epoch},{2 * math.exp(-epoch / 9) + 0.02},{validation}")
    (tmp_path / "keras.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return Interview(read(tmp_path / "keras.csv"))


def test_the_test_is_as_long_as_the_trouble_takes_to_show(overfitted: Interview) -> None:
    found = scripted(overfitted, Casebook(None), "here", Wishes())
    assert found.plan is not None
    onset = found.plan.test.onset
    assert 10 < onset < found.plan.test.steps < 60 and found.plan.to_dict()["clock"] == "epoch"
    commands = " ".join(command for command, _ in found.plan.commands)
    assert f"python train.py  # {found.plan.test.steps} epochs" in commands
    text = " ".join(as_text(told(found)).split())
    assert " steps with" not in text and "Train with the change: the same epochs" in text and "at step" not in text


def test_the_list_of_symptoms_counts_epochs(overfitted: Interview) -> None:
    said: list[str] = []
    answers = iter(["", "done"])
    hold(overfitted, Talk(lambda _: next(answers), said.append, 100))
    line = next(text for text in said if "[x] Overfitting" in text)
    assert "at epoch 1" in line and "at step" not in line


@pytest.mark.parametrize(("clock", "early"), [("step", "yes"), ("epoch", "no, it came later")])
def test_a_whole_epoch_is_more_than_a_few_steps(clock: str, early: str) -> None:
    found = walk(TREES["nan"], {"nan_step": 12.0, "clock": clock})
    assert found.way[0] == ("Did the NaN appear in the first few steps?", early)
    assert walk(TREES["nan"], {"nan_step": 0.0, "clock": "epoch"}).missing, "within the first, nobody knows"


@pytest.mark.parametrize("clock", SPANS)
def test_every_clock_has_its_spans(clock: str) -> None:
    shortest, longest = SPANS[clock]
    assert plan_test(0, clock).steps == shortest and plan_test(10**9, clock).steps == longest
    assert plan_test(10**9, clock).from_checkpoint and shortest <= plan_test(None, clock).steps <= longest
    assert plan_test(0, clock).length.startswith(f"{shortest} {clock}s")
