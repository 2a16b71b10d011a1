"""States of the Hugging Face trainer, and the folders they lie in."""

import json
import math
from pathlib import Path

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import read, trainer_state

ROWS = [
    {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 2.0, "step": 10},
    {"epoch": 1.0, "grad_norm": math.nan, "learning_rate": 5e-5, "loss": 0.0, "step": 20},
    {"epoch": 1.0, "eval_loss": 1.75, "eval_runtime": 3.0, "step": 20},
]
LAST = {"epoch": 2.0, "step": 40, "total_flos": 1e15, "train_loss": 1.0, "train_runtime": 9.0}


def state(path: Path, rows: list[object], **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"best_metric": None, "epoch": 2.0, "global_step": 40, "max_steps": 80, "num_train_epochs": 4, **more}
    path.write_text(json.dumps({**settings, "log_history": rows}))
    return path


def test_training_and_evaluation_are_read_and_the_summary_is_not(tmp_path: Path) -> None:
    path = state(tmp_path / "trainer_state.json", [*ROWS, LAST], train_batch_size=8)
    assert trainer_state.recognises(path)
    (run,) = trainer_state.read(path)
    assert run.points["loss"].steps.tolist() == [10, 20] and run.points["eval_loss"].values.tolist() == [1.75]
    assert math.isnan(run.points["grad_norm"].values[1])
    assert "train_loss" not in run.points
    assert run.points["epoch"].values.tolist() == [0.5, 1.0, 1.0]
    assert run.context == {"steps_per_epoch": 20, "max_steps": 80, "epochs": 4, "batch_size": 8}
    assert run.config == {"num_train_epochs": 4, "max_steps": 80, "train_batch_size": 8}


def test_the_latest_checkpoint_speaks_for_the_folder(tmp_path: Path) -> None:
    for steps in (10, 100, 20):
        rows = [{"loss": 1.0, "step": step} for step in range(0, steps, 5)]
        state(tmp_path / f"checkpoint-{steps}" / "trainer_state.json", rows, global_step=steps)
    assert trainer_state.recognises(tmp_path) and trainer_state.recognises(tmp_path / "checkpoint-20")
    (run,) = trainer_state.read(tmp_path)
    assert run.points["loss"].steps[-1] == 95 and run.name == tmp_path.name


def test_the_model_card_has_hyper_parameters(tmp_path: Path) -> None:
    path = state(tmp_path / "trainer_state.json", ROWS)
    card = "The following hyperparameters were used during training:\n- learning_rate: 5e-05\n- seed: 42\n"
    (tmp_path / "README.md").write_text(
        f"- not: this\n{card}- optimizer: Adam with betas=(0.9,0.999)\n\n### Results\n- x: 1\n"
    )
    (run,) = trainer_state.read(path)
    assert run.config["learning_rate"] == 5e-05 and run.config["seed"] == 42
    assert run.config["optimizer"].startswith("Adam with") and "x" not in run.config and "not" not in run.config


@pytest.mark.parametrize("cut", [40, 200])
def test_a_state_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    path = state(tmp_path / "trainer_state.json", [{"loss": 1.0, "step": step} for step in range(50)])
    path.write_text(path.read_text()[:-cut])
    (run,) = trainer_state.read(path)
    assert run.torn and 30 < len(run.points["loss"]) < 50
    assert run.context["max_steps"] == 80


def test_rows_that_are_none_are_counted(tmp_path: Path) -> None:
    path = state(tmp_path / "trainer_state.json", [*ROWS[:1], 7, None, "loss", {"loss": {}, "step": 30}, *ROWS[1:]])
    (run,) = trainer_state.read(path)
    assert run.points["loss"].steps.tolist() == [10, 20]
    assert (run.skipped, run.first_skipped) == (3, 2)


@pytest.mark.parametrize(
    "more", [{"global_step": 10**400}, {"epoch": "x"}, {"num_train_epochs": 2**63 - 1}, {"epoch": 0}]
)
def test_odd_settings_are_no_context(tmp_path: Path, more: dict[str, object]) -> None:
    (run,) = trainer_state.read(state(tmp_path / "trainer_state.json", ROWS, **more))
    assert not {"steps_per_epoch", "epochs"} <= run.context.keys()
    assert all(abs(value) < 10**12 for value in run.context.values())


@pytest.mark.parametrize("content", ['{"loss": 1}', "[1, 2]", '["log_history"]', "log_history", ""])
def test_other_files_are_not_taken(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    assert not trainer_state.recognises(path)


def test_a_history_that_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": 3}')
    with pytest.raises(SourceError, match="no list log_history"):
        trainer_state.read(path)


def test_tensorboard_knows_how_a_killed_run_ended(tmp_path: Path) -> None:
    writing = pytest.importorskip("torch.utils.tensorboard")
    state(tmp_path / "checkpoint-20" / "trainer_state.json", ROWS, train_batch_size=8)
    with writing.SummaryWriter(str(tmp_path / "runs" / "Jan01_host")) as writer:
        for step in range(10, 60, 10):
            writer.add_scalar("train/loss", math.nan if step == 50 else 2.0, step)
    (run,) = trainer_state.read(tmp_path)
    assert run.points["train/loss"].steps.tolist() == [10, 20, 30, 40, 50]
    assert run.config["train_batch_size"] == 8 and "ends at step 20" in run.notes[0]


def test_a_state_in_the_encoding_of_powershell_is_read(tmp_path: Path) -> None:
    path = state(tmp_path / "trainer_state.json", ROWS)
    path.write_bytes(path.read_text().encode("utf-16"))
    (run,) = trainer_state.read(path)
    assert run.points["loss"].steps.tolist() == [10, 20]


def test_a_run_that_logged_nothing_but_its_summary_has_one_value(tmp_path: Path) -> None:
    (run,) = trainer_state.read(state(tmp_path / "trainer_state.json", [LAST]))
    assert run.points["train_loss"].steps.tolist() == [40] and run.points["train_loss"].values.tolist() == [1.0]
    assert set(run.points) == {"epoch", "train_loss"}


def test_a_state_without_records_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="its log_history is empty"):
        trainer_state.read(state(tmp_path / "trainer_state.json", []))


def test_scores_of_all_classes_together_are_read_however_many_single_classes_come_before_them(tmp_path: Path) -> None:
    scores = {f"eval_T{place:03}_{kind}": 0.5 for place in range(60) for kind in ("f1", "precision", "recall")}
    rows = [{"eval_loss": 1.0, **scores, "eval_overall_f1": 0.6, "step": step} for step in (10, 20, 30)]
    run = read(state(tmp_path / "trainer_state.json", rows))
    assert run.header["context"]["columns"]["val_f1"] == "eval_overall_f1"
