"""More ways in which people write down a run, each found in a public repository."""

import math

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import read, read_all
from torchdoctor.sources.vital_series import vital_series

N = 30
LOSS = [round(2 * math.exp(-i / 8) + 0.3, 4) for i in range(N)]


def series(path, text):
    path.write_text(text)
    return {name: list(values) for name, (_, values) in vital_series(read(path).records).items()}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("loss.csv", ",loss\n" + "".join(f"{i},{LOSS[i]}\n" for i in range(N))),
        ("train_loss.csv", ",".join(map(str, LOSS)) + "\n"),
        ("2.2_loss_log.txt", "".join(f"{500 + 50 * i},{LOSS[i]}\n" for i in range(N))),
        ("saved.txt", "".join(f"Saved model at epoch {i + 1} with loss: {LOSS[i]}\n" for i in range(N))),
        ("run.log", "".join(f"2021-11-11 00:04:31.311 | INFO     | __main__:train:35 - loss: {v}\n" for v in LOSS)),
        (
            "bigdl.log",
            "".join(
                f"[Epoch 1 {i}/99][Iteration {i}] Train 1792 in 4.3seconds. Throughput is 408.4 records/second. "
                f"Loss is {LOSS[i]}. Current learning rate is 0.04.\n"
                for i in range(N)
            ),
        ),
    ],
)
def test_the_loss_is_found(tmp_path, name, text):
    assert series(tmp_path / name, text)["loss"] == LOSS


def test_a_count_that_goes_back_is_still_a_count(tmp_path):
    rows = [*range(1, 11), *range(6, 30)]
    text = "".join(f"{step},{LOSS[step]}\n" for step in rows)
    assert series(tmp_path / "loss_log.txt", text)["loss"] == LOSS[1:]


def test_losses_of_players_have_no_word_for_loss(tmp_path):
    head = "================ Training Loss (Tue Jun 21 17:38:13 2022) ================\n"
    lines = "".join(
        f"(epoch: {1 + i // 10}, iters: {100 * (1 + i % 10)}, time: 0.1, data: 0.002) D_A: 0.2 G_A: 0.5 cycle_A: 1.1 \n"
        for i in range(N)
    )
    found = series(tmp_path / "loss_log.txt", head + lines + head + lines.replace("epoch: ", "epoch: 1"))
    assert {"d_loss", "g_loss", "cycle_a_loss"} <= set(found)
    assert "loss" not in found


def test_a_script_that_trains_several_models_made_several_runs(tmp_path):
    one = "".join(f"Epoch {i + 1}/{N}\n - 1s - loss: {LOSS[i]} - val_loss: {LOSS[i]}\n" for i in range(N))
    (tmp_path / "all.log").write_text(one * 3)
    assert [vital_series(run)["loss"][1] for run in read_all(tmp_path / "all.log")] == [LOSS] * 3


def test_tokens_per_second_are_no_duration(tmp_path):
    rows = "".join(f"{i},{LOSS[i]},{25000 + i % 7}\n" for i in range(N))
    assert set(series(tmp_path / "m.csv", "step,loss,tokens_per_sec\n" + rows)) == {"loss"}


def test_a_plain_loss_beside_that_of_training_and_plain_metrics_is_of_an_evaluation(tmp_path):
    rows = "".join(f"{i},{LOSS[i]},{2 * LOSS[i]},0.5\n" for i in range(N))
    found = series(tmp_path / "m.csv", "epoch,train_loss,loss,f1\n" + rows)
    assert found["loss"] == LOSS
    assert found["val_loss"] == [2 * value for value in LOSS]


def test_a_log_of_nothing_but_gradient_norms_is_read(tmp_path):
    line = " iteration     {}/  250000 | learning rate: 2.999E-04 | loss scale: 1.0 | grad norm: nan |\n"
    found = series(tmp_path / "m.log", "".join(line.format(step) for step in range(5426, 5436)))
    assert all(map(math.isnan, found["grad_norm"]))


def test_what_an_estimator_lists_after_its_evaluation_is_no_training(tmp_path):
    lines = [f"INFO:tensorflow:loss = {LOSS[i]}, step = {100 * i} (144.1 sec)" for i in range(N)]
    dictionary = "eval_accuracy = 0.85, eval_loss = 0.72, global_step = 2950, loss = 0.7219"
    results = ["eval_accuracy = 0.85", "eval_loss = 0.72", "global_step = 2950", "loss = 0.7219"]
    lines += [f"INFO:tensorflow:Saving dict for global step 2950: {dictionary}"]
    lines += ["INFO:tensorflow:***** Eval results *****", *(f"INFO:tensorflow:  {text}" for text in results)]
    assert series(tmp_path / "train.log", "\n".join(lines))["loss"] == LOSS


def test_names_that_differ_in_a_digit_are_not_mixed_up_though_their_lines_look_alike(tmp_path):
    text = "".join(
        f"STEP: {i}\n | loss_0: {v:.4f}\n | loss_1: {2 * v:.4f}\n | loss_2: 0.5\n" for i, v in enumerate(LOSS)
    )
    found = series(tmp_path / "train.log", text)
    assert found["0_loss"] == LOSS
    assert found["1_loss"] == [round(2 * v, 4) for v in LOSS]


def test_of_the_evaluation_of_boxes_what_holds_for_all_of_them_is_read(tmp_path):
    coco = (
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = {:.3f}\n"
        " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.500\n"
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = -1.000\n"
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 0.210\n"
    )
    text = "".join(f"Epoch: {i} loss: {v}\n" + coco.format(1 - v / 4) for i, v in enumerate(LOSS))
    found = series(tmp_path / "train.log", text)
    assert found == {"loss": LOSS, "val_bbox_map": [round(1 - v / 4, 3) for v in LOSS], "val_bbox_map50": [0.5] * N}


def test_bars_between_what_a_logger_says_are_no_table(tmp_path):
    said = "INFO     | 2024-05-02 10:51:14 | trainers.common:on_log:226 - "
    text = f"{said}Starting to train...\n" + "".join(
        f"  {i}%|          | {25 * i}/2326 [04:22<70:55:06, 10.99s/it]\n{said}{{'loss': {v}, 'epoch': {i / 10}}}\n"
        for i, v in enumerate(LOSS)
    )
    assert series(tmp_path / "output.log", text)["loss"] == LOSS


def test_what_is_written_at_step_0_after_the_end_replaces_nothing(tmp_path):
    rows = "".join(f"{i + 1},{v}\n" for i, v in enumerate(LOSS))
    assert series(tmp_path / "a.csv", f"step,loss\n{rows}0,0.3\n0,0.3\n")["loss"] == LOSS
    assert series(tmp_path / "b.csv", f"step,loss\n0,9\n{rows}0,0.3\n1,0.2\n")["loss"] == [0.3, 0.2]


def test_a_file_of_an_evaluation_holds_values_of_validation(tmp_path):
    text = "epoch,steps,cosine_spearman\n" + "".join(f"{i},-1,{1 - v / 4}\n" for i, v in enumerate(LOSS))
    assert [*series(tmp_path / "similarity_evaluation_results.csv", text)] == ["val_cosine_spearman"]


@pytest.mark.parametrize("between", [",", " ", " - "])
def test_columns_without_names_can_be_named_as_the_message_says(between, tmp_path):
    path = tmp_path / "train_log.txt"
    path.write_text("".join(f"{v}{between}{90 - 9 * v}\n" for v in LOSS))
    with pytest.raises(SourceError, match="column 1, column 2. Name the loss column: --map 'loss=column 1'"):
        read(path)
    found = vital_series(read(path, mapping={"loss": "column 1", "val_accuracy": "column 2"}).records)
    assert found["loss"][1] == LOSS
    assert len(found["val_accuracy"][1]) == N
    path.rename(tmp_path / "train_loss.txt")
    assert vital_series(read(tmp_path / "train_loss.txt").records)["loss"][1] == LOSS


def test_names_that_nobody_knows_are_listed_and_can_be_said_to_be_the_loss(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(
        "".join(f"{i}th batch, lsd is {v}, lreg is 0.5, outputs [[0.1, 0.2],\n  [0.3]]\n" for i, v in enumerate(LOSS))
    )
    with pytest.raises(SourceError, match="lsd is, lreg is, outputs: if one is the loss, use --map 'loss=lsd is'"):
        read(path)
    assert vital_series(read(path, mapping={"loss": "lsd is"}).records)["loss"][1] == LOSS
    with pytest.raises(SourceError, match="named lsd is"):
        read(path, mapping={"loss": "l"})


@pytest.mark.parametrize("number", ["{}", "np.float64({})", "tensor({}, device='cuda:0')"])
def test_a_history_that_python_printed_is_read(tmp_path, number):
    path = tmp_path / "history.txt"
    values = ", ".join(number.format(value) for value in LOSS)
    path.write_text(f"{{'loss': [{values}], 'val_loss': array([{', '.join(map(str, LOSS))}], dtype=float32)}}\n")
    found = vital_series(read(path).records)
    assert found["loss"][1] == LOSS and found["val_loss"][1] == LOSS
