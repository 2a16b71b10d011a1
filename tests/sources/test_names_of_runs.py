"""What several runs are called, and what is said of a log with a hole in it."""

import pytest

from torchdoctor.sources import labels, read, read_all


def stored(folder, experiment, run, name):
    place = folder / "mlruns" / experiment / run
    (place / "metrics").mkdir(parents=True)
    (place.parent / "meta.yaml").write_text(f"experiment_id: '{experiment}'\nname: e\n")
    (place / "meta.yaml").write_text(f"run_id: {run}\nrun_name: {name}\nlifecycle_stage: active\n")
    (place / "metrics" / "loss").write_text("".join(f"1 {3 - step / 10} {step}\n" for step in range(9)))
    return place


def test_runs_of_a_store_are_called_by_their_names(tmp_path):
    places = [stored(tmp_path, "7", run * 32, name) for run, name in (("a", "warm-owl"), ("b", "cold-fox"))]
    assert labels(read_all(tmp_path)) == [f"{places[0]} (warm-owl)", f"{places[1]} (cold-fox)"]


def test_a_run_that_is_called_like_its_folder_is_not_named_twice(tmp_path):
    places = [stored(tmp_path, "7", run * 32, run * 32) for run in "ab"]
    assert labels(read_all(tmp_path)) == [str(place) for place in places]


def noted(path, steps):
    path.write_text("step,loss\n" + "".join(f"{step},{3 - step / 9999}\n" for step in steps))
    return [note for note in read(path).notes if note.startswith("no loss between")]


def test_a_gap_in_the_steps_is_noted(tmp_path):
    (note,) = noted(tmp_path / "log.csv", [*range(0, 6000, 10), *range(14_000, 20_000, 10)])
    assert note.startswith("no loss between steps 5990 and 14000, elsewhere one every 10 steps")


@pytest.mark.parametrize(
    "steps",
    [
        range(0, 6000, 10),
        [*range(100), *range(100, 2000, 50)],  # denser at first
        [2**power for power in range(35)],
        [step for step in range(900) if step % 100 < 60],  # pauses again and again
        [0, 1, 2, 500],
    ],
)
def test_a_pace_that_changes_is_no_gap(tmp_path, steps):
    assert not noted(tmp_path / "log.csv", steps)
