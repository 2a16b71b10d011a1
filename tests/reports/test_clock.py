"""A log by epochs or rows is told in epochs or rows, in every form of its report."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import torchdoctor
from torchdoctor.cli import group
from torchdoctor.reports.clock import counted
from torchdoctor.reports.formats import FORMATS

EPOCHS = 120


@pytest.fixture
def overfitted(tmp_path):
    place = tmp_path / "results.csv"
    rows = [
        f"{epoch},{2.0 * 0.97**epoch + 0.1:.4f},{2.2 * 0.95**epoch + 0.4 + max(epoch - 50, 0) * 0.03:.4f}"
        for epoch in range(EPOCHS)
    ]
    place.write_text("\n".join(["epoch,train_loss,val_loss", *rows]))
    return place


@pytest.mark.parametrize("form", ["full", "concise", "github", "markdown"])
def test_every_form_speaks_of_epochs(overfitted, form):
    report = torchdoctor.diagnose(overfitted)
    told = FORMATS[form]([("results.csv", report)])
    assert "epoch" in told.splitlines()[0]
    for text in told.replace("the loss every 10 steps", "").splitlines():
        assert "step 1" not in text and "steps 1" not in text and "at step" not in text, text


def test_the_page_and_its_script_count_epochs(overfitted, tmp_path):
    place = torchdoctor.diagnose(overfitted).save(tmp_path / "report.html")
    page = place.read_text()
    assert '"clock":"epoch"' in page.replace(": ", ":") and "at epoch 119" in page


def test_the_data_keeps_its_keys(overfitted):
    report = torchdoctor.diagnose(overfitted).to_dict()
    assert report["context"]["clock"] == "epoch" and report["step"] == EPOCHS - 1
    assert {"first_step", "last_step"} <= set(report["symptoms"][0])


def test_watching_says_epochs_too(overfitted):
    told = CliRunner().invoke(group, ["watch", str(overfitted), "--once"]).output
    assert "epoch 119" in told and "step 119" not in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("at step 12", "at row 12"),
        ("steps 3 to 9, every 17 steps", "rows 3 to 9, every 17 rows"),
        ("in the first steps", "in the first rows"),
        ("optimizer.step()  # the next training step", "optimizer.step()  # the next training step"),
        ("step_time 12", "step_time 12"),
    ],
)
def test_only_counted_steps_are_renamed(text, told):
    assert counted(text, "row") == told and counted(text, "step") == text


def test_what_to_try_next_is_counted_in_steps_of_the_optimizer(tmp_path):
    rows = [f"{epoch},{2.3 + 0.01 * (epoch % 3)},0.1" for epoch in range(EPOCHS)]
    (tmp_path / "flat.csv").write_text("\n".join(["epoch,train_loss,train_acc", *rows]))
    told = str(torchdoctor.diagnose(tmp_path / "flat.csv"))
    assert "not-learning" in told and "overfit one batch for 1,000 steps" in " ".join(told.split())
