"""Lines that people's scripts print, and whole logs of them."""

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import read
from torchdoctor.sources.text_line import LineReader
from torchdoctor.sources.vital_series import vital_series

COLOURED = (
    "[rank0]:[titan] 2025-01-01 12:00:00,000 - root - INFO - \x1b[31mstep:  7  \x1b[32mloss:  8.1234  "
    "\x1b[33mgrad_norm: 1.2345  \x1b[34mmemory:  2.00GiB(6.47%)  \x1b[36mtps: 7,432  mfu: 3.98%\x1b[0m"
)
LINES = [
    ("step 0: train loss 10.9886, val loss 10.9898", {"step": 0, "train loss": 10.9886, "val loss": 10.9898}),
    ("step:1/5100 train_loss:16.0047 step_avg:nanms", {"step": 1, "step of": 5100, "train_loss": 16.0047}),
    (COLOURED, {"step": 7, "loss": 8.1234, "grad_norm": 1.2345, "memory (bytes)": 2.0**31, "tps": 7432}),
    ("{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.01}", {"loss": 2.3, "learning_rate": 5e-05}),
    ("{'loss': '2.3', 'epoch': '0.01'}", {"loss": 2.3, "epoch": 0.01}),
    (
        "Epoch 1:  45%|####5   | 45/100 [00:10<00:12,  4.50it/s, loss=0.512, v_num=0]",
        {"Epoch": 1, "batch": 45, "loss": 0.512},
    ),
    ("val:  45%|████▌     | 45/100 [00:10<00:12, loss=0.512]", {"val/loss": 0.512, "batch": None}),
    ("100/100 [=====] - 10s 100ms/step - loss: 0.51 - val_loss: 0.6", {"batch": 100, "loss": 0.51, "val_loss": 0.6}),
    (
        "x - mmengine - INFO - Epoch(train)  [1][  50/1000]  lr: 1.0e-03  eta: 1:23:45  time: 0.4  loss: 1.2",
        {"epoch": 1, "batch": 50, "lr": 1e-3, "train/loss": 1.2, "eta": None},
    ),
    (
        "x - mmengine - INFO - Epoch(val) [1][9/9]  coco/bbox_mAP: 0.3120  time: 0.1",
        {"val/coco/bbox_mAP": 0.312, "batch": None, "time": None},
    ),
    (
        "[01/01 12:00:00 d2.utils.events]:  eta: 1:02:03  iter: 19  total_loss: 2.34  lr: 0.0002",
        {"iter": 19, "total_loss": 2.34},
    ),
    (
        "2020-01-01 | INFO | train_inner | epoch 001:    100 / 1000 loss=12.3, num_updates=100, gnorm=3.2",
        {"epoch": 1, "batch": 100, "loss": 12.3, "num_updates": 100},
    ),
    (
        "2020-01-01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.5 | num_updates 1000",
        {"val/loss": 9.5},
    ),
    (
        " iteration      100/  5000 | learning rate: 1.500E-06 | lm loss: 9.123E+00 | number of nan iterations:   0 |",
        {"iteration": 100, "lm loss": 9.123, "number of nan iterations": 0},
    ),
    (" validation loss at iteration 1000 | lm loss value: 6.0E+00 |", {"iteration": 1000, "val/lm loss value": 6.0}),
    ("[1,  2000] loss: 2.173", {"epoch": 1, "batch": 2000, "loss": 2.173}),
    (
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.259",
        {"epoch": 1, "batch": 640, "batch of": 60000, "train/Loss": 2.259},
    ),
    (
        "Test set: Average loss: 0.0487, Accuracy: 9847/10000 (98%)",
        {"test/Average loss": 0.0487, "test/Accuracy": 0.9847},
    ),
    (
        "Epoch: [0][  10/5005]\tTime  0.4 ( 0.9)\tLoss 7.0e+00 (7.1e+00)\tAcc@1   0.10 (  0.12)",
        {"Epoch": 0, "batch": 10, "Loss": 7.0, "Acc@1": 0.1},
    ),
    ("Train: 3 [  50/1251 (  4%)]  Loss: 6.9 (6.93)  LR: 1.0e-05", {"epoch": 3, "batch": 50, "train/Loss": 6.9}),
    (
        "step   11/19560 | loss 10.3 (+nanz)| norm 6.1 (+nanz)| lr 2.2e-06 | 130.2 ms",
        {"step": 11, "loss": 10.3, "norm": 6.1},
    ),
    ("epoch 3 train 0.123 val 0.345", {"train loss": 0.123, "val loss": 0.345}),
    ("train: loss 0.5 acc 0.9 | val: loss 0.6 acc 0.8", {"train/loss": 0.5, "val/loss": 0.6, "val/acc": 0.8}),
    ("[10]\ttrain-rmse:0.5\teval-rmse:0.6", {"iteration": 10, "train-rmse": 0.5}),
    ("step 100 loss=tensor(0.512, device='cuda:0')", {"step": 100, "loss": 0.512}),
    ("INFO [train.py:123] step=1200 loss=0.532 tokens/s=12,345.6", {"step": 1200, "loss": 0.532, "train.py": None}),
    ("I1010 10:00:00.1 140 logging_writer.py:48] [100] accuracy=0.5, loss=2.3", {"iteration": 100, "loss": 2.3}),
    ("2024-05-05 10:00:00 INFO step 3: loss 0.5", {"step": 3, "loss": 0.5}),
    ("loss nan lr 1e-4", {"loss": float("nan"), "lr": 1e-4}),
    ("saved checkpoint-500 to out/model-3.pt", {}),
    ("epoch1 loss=2.065 acc=1%", {"epoch": 1, "loss": 2.065, "acc": 1}),
    ("ep12 loss 0.711", {"ep": 12, "loss": 0.711}),
    ("step1 loss 0.5 step2 loss 0.7", {"step": None}),  # parts of a model, not counts
    (
        "[host] 2022-05-12 10:00:10,123 (trainer:732) INFO: 2epoch:train:201-400batch: loss_ctc=133.7, loss=93.05",
        {"epoch": 2, "batch": 400, "train/loss": 93.05, "train/loss_ctc": 133.7},
    ),
    (
        "(trainer:338) INFO: 3epoch results: [train] loss=102.5, total_count=1000, [valid] loss=119.3, cer=0.25",
        {"epoch": 3, "train/loss": 102.5},
    ),
    (
        "2021-07-01 10:00:00,124\tm\tINFO\t[1.9, 2.4, nan, 40.7, 200, 0.0002]",
        {
            "part1_loss": 1.9,
            "part3_loss": float("nan"),
            "part4_loss": 40.7,
            "part5_loss": None,
            "step": 200,
            "lr": 2e-4,
        },
    ),
    ("INFO\tLosses: [2.3, 2.1, 12.2], step: 400, lr: 0.0002", {"part1_loss": 2.3, "part3_loss": 12.2, "step": 400}),
    ("INFO image sizes [3.0, 4.0, 5.5, 6.5]", {"part1_loss": None}),
    ("INFO:gluonts.trainer:Epoch[4] Evaluation metric 'epoch_loss'=5.63", {"Epoch": 4, "loss": 5.63}),
    (
        "2021-07-01 10:00:00,123 INFO: [EDSR_..][epoch:  0, iter:   1,100, lr:(2.000e-04,)] [eta: 1 day, 2:03:04, "
        "time (data): 0.412 (0.003)] l_pix: 5.6068e-02 ",
        {"iter": 1100, "lr": 2e-4, "l_pix": 0.056068},
    ),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_a_line_gives_its_numbers_by_name(line, expected):
    found = LineReader().read(line)
    for name, value in expected.items():
        assert found.get(name) == (pytest.approx(value, nan_ok=True) if value is not None else None), found


def written(tmp_path, text, name="train.log"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_source_code_at_the_top_is_no_part_of_the_log(tmp_path):
    code = "import os\nlr = 0.3\nloss = 0\nfor step in range(10):\n    learning_rate = 0.5\n" * 5
    log = "".join(f"step:{step}/40 train_loss:{5 - step / 10:.4f}\n" for step in range(40))
    run = read(written(tmp_path, code + log))
    assert vital_series(run) == {"loss": (list(range(40)), [round(5 - step / 10, 4) for step in range(40)])}
    assert run.header["context"]["max_steps"] == 40


def test_steps_that_start_over_in_every_epoch_are_counted_on(tmp_path):
    log = "".join(
        f"Epoch [{epoch}/3], Step [{step}/600], Loss: {1 / (epoch * step):.6f}\n"
        for epoch in (1, 2, 3)
        for step in range(100, 601, 100)
    )
    run = read(written(tmp_path, log))
    assert vital_series(run)["loss"][0] == list(range(100, 1801, 100))
    assert run.header["context"]["steps_per_epoch"] == 600


def test_keras_bars_are_read_by_the_epoch(tmp_path):
    log = ""
    for epoch in range(1, 6):
        log += f"Epoch {epoch}/5\n"
        log += "".join(f"\r {n}/100 [==>...] - ETA: 1s - loss: {9 - n / 50:.4f}" for n in range(1, 100, 7))
        log += f"\r100/100 [=====] - 2s 15ms/step - loss: {1 / epoch:.4f} - val_loss: {1.5 / epoch:.4f}\n"
    run = read(written(tmp_path, log))
    assert run.header["context"]["clock"] == "epoch"
    assert vital_series(run)["loss"] == ([1, 2, 3, 4, 5], [1.0, 0.5, 0.3333, 0.25, 0.2])
    assert vital_series(run)["val_loss"][0] == [1, 2, 3, 4, 5]


def test_validation_on_lines_of_their_own_takes_the_step_before(tmp_path):
    log = "".join(
        f"iter {step}: loss {3 - step / 100:.3f}\n" + (f"val loss {3.5 - step / 100:.3f}\n" if step % 10 == 9 else "")
        for step in range(50)
    )
    assert vital_series(read(written(tmp_path, log)))["val_loss"][0] == [9, 19, 29, 39, 49]


def test_dict_lines_without_steps_are_counted_and_epochs_known(tmp_path):
    log = "".join(f"{{'loss': {3 - row / 50}, 'learning_rate': 1e-4, 'epoch': {row / 25}}}\n" for row in range(1, 101))
    context = read(written(tmp_path, log)).header["context"]
    assert (context["clock"], context["steps_per_epoch"]) == ("row", 25)


def test_a_decimal_comma_is_understood(tmp_path):
    log = "".join(f"step {step} loss: 0,{900 - step}\n" for step in range(30))
    assert vital_series(read(written(tmp_path, log)))["loss"][1][:2] == [0.9, 0.899]


def test_a_pattern_reads_what_nobody_could_guess(tmp_path):
    path = written(tmp_path, "".join(f"<<{step}>> energy of {9 - step} units\n" for step in range(8)))
    run = read(path, pattern=r"<<(?P<step>\d+)>> energy of (?P<loss>\S+)")
    assert vital_series(run)["loss"] == (list(range(8)), [9.0 - step for step in range(8)])


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("(?P<loss>", "is not a regular expression"),
        (r"loss (\S+)", "names no group"),
        (r"(?P<loss>(\d+)*)x", "can take forever"),
        (r"nothing like (?P<loss>\d+)", "no line of"),
    ],
)
def test_patterns_that_cannot_work_are_refused(tmp_path, pattern, sentence):
    path = written(tmp_path, "step 1 loss 2\nstep 2 loss 1\n")
    with pytest.raises(SourceError, match=sentence):
        read(path, pattern=pattern)
