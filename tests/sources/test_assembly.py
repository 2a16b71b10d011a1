"""Runs out of what formats give."""

from pathlib import Path

import numpy as np
import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources.assembly import assemble
from torchdoctor.sources.logged import Logged, Points, Wish
from torchdoctor.sources.vital_series import vital_series
from torchdoctor.stretch import Stretch


def logged(form="CSV", **points):
    return Logged(Path("log"), "log", form, {name: Points.of(*pair) for name, pair in points.items()})


def test_validation_follows_its_step_and_stretches_hold_the_rest():
    found = logged(loss=(range(100), [1.0] * 100), lr=(range(100), [0.1] * 100), val_loss=([49, 99], [1.0, 1.0]))
    pieces = list(assemble(found).pieces)
    assert [len(piece) if isinstance(piece, Stretch) else piece["type"] for piece in pieces] == [
        "header",
        50,
        "validation",
        50,
        "validation",
    ]
    assert isinstance(pieces[1], Stretch)
    assert set(pieces[1].columns) == {"loss", "lr"}


def test_vitals_that_are_logged_seldom_leave_the_others_alone():
    run = assemble(logged(loss=(range(20), range(20)), grad_norm=(range(0, 20, 5), [1.0] * 4)))
    series = vital_series(run)
    assert series["loss"] == (list(range(20)), [float(step) for step in range(20)])
    assert series["grad_norm"][0] == [0, 5, 10, 15]


def test_a_run_that_was_started_again_and_again_keeps_what_was_not_replaced():
    steps = [*range(0, 50), *range(30, 60), *range(20, 80)]
    run = assemble(logged(loss=(steps, range(len(steps)))))
    assert vital_series(run)["loss"][0] == list(range(80))
    assert run.sessions == 2  # the second start was replaced whole
    assert [record["step"] for record in run if record["type"] == "header"] == [-1, 19]


def test_a_series_that_stops_early_is_not_the_loss():
    run = assemble(logged(loss=(range(100), [3.0] * 100), **{"train/loss": (range(0, 50_000, 1000), [2.0] * 50)}))
    assert run.header["context"]["columns"]["loss"] == "train/loss"


@pytest.mark.parametrize("form", ["W&B", "Trackio"])
def test_a_count_that_the_run_logged_itself_is_the_clock_where_calls_are_counted(form):
    points = {"loss": (range(40), [1.0] * 40), "trainer/global_step": (range(40), range(0, 4000, 100))}
    assert assemble(logged(form, **points)).step == 3900
    assert assemble(logged("TensorBoard", **points)).step == 39


def test_the_step_may_be_mapped_in_any_format():
    found = logged("TensorBoard", loss=(range(40), [1.0] * 40), seen=(range(40), range(0, 400, 10)))
    assert assemble(found, Wish({"step": "seen"})).step == 390


def test_times_since_the_start_are_no_step_times():
    steady = {"loss": (range(40), [1.0] * 40)}
    assert "seconds" not in vital_series(assemble(logged(**steady, time=(range(40), range(40)))))
    jitter = 0.3 + 0.01 * np.random.default_rng(0).random(40)
    assert "seconds" in vital_series(assemble(logged(**steady, step_time=(range(40), jitter))))


def test_secrets_are_not_kept():
    found = Logged(
        Path("log"),
        "log",
        "CSV",
        {"loss": Points.of([0, 1], [2.0, 1.0])},
        config={
            "lr": 0.1,
            "hf_token": "x",
            "max_tokens": 5,
            "wandb_api_key": "y",
            "password": "z",
            "prompt": "p" * 900,
        },
    )
    assert assemble(found).header["context"]["config"] == {"lr": 0.1, "max_tokens": 5}


def test_an_empty_log_says_so():
    with pytest.raises(SourceError, match="Its numeric columns: none"):
        assemble(logged())


def test_a_loss_of_zero_beside_broken_gradients_is_the_nan_that_the_trainer_filtered_out():
    losses, norms = [2.0, 1.5, 0.0, 0.0, 0.0], [1.0, 1.0, np.nan, np.nan, 0.2]
    run = assemble(logged(loss=(range(5), losses), grad_norm=(range(5), norms)))
    assert np.isnan(vital_series(run)["loss"][1]).tolist() == [False, False, True, True, False]
    assert any("filtered it out" in text for text in run.notes)
    calm = assemble(logged(loss=(range(5), losses), grad_norm=(range(5), [1.0] * 5)))
    assert vital_series(calm)["loss"][1] == losses and not any("filtered" in text for text in calm.notes)
