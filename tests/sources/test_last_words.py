"""What ended a run is quoted, what a run survived is not."""

import pytest

from torchdoctor import diagnose
from torchdoctor.errors import SourceError
from torchdoctor.reports.formats import concise
from torchdoctor.sources import read

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
OOM = f"{TRACE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
STEPS = "".join(f"step {step} loss {2 - step / 300:.4f}\n" for step in range(300))


def words(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_text(text)
    run = read(path)
    assert run.step == 299
    return [note.removeprefix("the log ends with an error: ") for note in run.notes if "an error" in note]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (OOM, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        (f"{OOM}srun: error: node3: task 0: Exited with exit code 1\n", "torch.OutOfMemoryError: CUDA out of memory"),
        (f"{TRACE}KeyboardInterrupt\n", "KeyboardInterrupt"),
        (f"{TRACE}AssertionError\n\n\n", "AssertionError"),
        (f"{TRACE}KeyError: 1\n\nDuring handling, another:\n\n{TRACE}RuntimeError: two\n", "RuntimeError: two"),
        ("".join(f"[rank0]: {line}\n" for line in OOM.splitlines()), "torch.OutOfMemoryError"),
        ("Killed\n", "Killed"),
        ("run.sh: line 3: 12345 Killed                  python train.py\n", "run.sh: line 3: 12345 Killed"),
        ("Segmentation fault (core dumped)\n", "Segmentation fault (core dumped)"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-05-01 DUE TO TIME LIMIT ***\n", "slurmstepd: error"),
    ],
)
def test_an_error_at_the_end_is_quoted(tmp_path, end, said):
    (found,) = words(tmp_path, STEPS + end)
    assert found.startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        STEPS,
        OOM + STEPS,
        STEPS.replace("step 50 ", f"{OOM}step 50 "),
        f"{STEPS}killed 3 workers that were idle, as usual, and went on with the rest of what there was to be done\n",
        f"{STEPS}Training finished. ValueError: 0 in total\n",
        f"{STEPS}ResourceWarning: unclosed file\n",
    ],
)
def test_what_came_before_is_not(tmp_path, text):
    assert words(tmp_path, text) == []


def test_the_first_line_says_of_what_the_run_died(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(STEPS + OOM)
    report = diagnose(path)
    assert report.health == "healthy"
    assert concise([("run", report)]) == (
        "run: Healthy at step 299: nothing was found. The run died: torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 2.00 GiB."
    )


def test_an_error_without_a_log_before_it_is_quoted_too(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(f"Loading\n{TRACE}RuntimeError: CUDA error: device-side assert triggered\n")
    with pytest.raises(SourceError, match="It ends with an error: RuntimeError: CUDA error: device-side assert"):
        read(path)
