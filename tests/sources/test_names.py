"""Names of other people's logs, as they are met."""

import pytest

from torchdoctor.sources import read
from torchdoctor.sources.naming import understand

MEANT = [
    ({"train/loss": 100, "eval/loss": 10}, {"loss": "train/loss", "val_loss": "eval/loss"}),
    ({"Loss/train": 9, "Loss/val": 9, "Accuracy/val": 9}, {"loss": "Loss/train", "val_accuracy": "Accuracy/val"}),
    ({"loss_metrics/global_avg_loss": 9, "loss_metrics/global_max_loss": 9}, {"loss": "loss_metrics/global_avg_loss"}),
    ({"train_loss_step": 900, "train_loss_epoch": 9, "val_loss": 9}, {"loss": "train_loss_step"}),
    ({"loss": 90, "train_loss": 1, "eval_loss": 9}, {"loss": "loss"}),  # a summary at the end is not the curve
    ({"trainLoss": 9, "valLoss": 9}, {"loss": "trainLoss", "val_loss": "valLoss"}),
    ({"Training Loss": 9, "Validation Loss": 9}, {"loss": "Training Loss", "val_loss": "Validation Loss"}),
    ({"lm loss": 9, "loss scale": 9, "grad norm": 9}, {"loss": "lm loss", "grad_norm": "grad norm"}),
    ({"train/CrossEntropyLoss": 9, "optim/total_grad_norm": 9}, {"grad_norm": "optim/total_grad_norm"}),
    ({"gnorm": 9, "loss": 9, "nll_loss": 9}, {"grad_norm": "gnorm", "loss": "loss"}),
    ({"loss": 9, "grad_2.0_norm_total": 9, "grad_2.0_norm/conv1.weight": 9}, {"grad_norm": "grad_2.0_norm_total"}),
    ({"loss": 9, "max_grad_norm": 9}, {"grad_norm": None}),
    ({"loss": 9, "lr-AdamW/pg1": 9, "lr-AdamW/pg2": 9}, {"lr": "lr-AdamW/pg1"}),
    ({"loss": 9, "x/lr0": 9, "base_lr": 9}, {"lr": "x/lr0"}),
    ({"train_loss": 9, "test_loss": 9}, {"val_loss": "test_loss"}),
    ({"train/loss": 9, "validation/loss": 9, "test/loss": 9}, {"val_loss": "validation/loss"}),
    ({"loss": 9, "acc": 9, "val_acc": 9}, {"train_accuracy": "acc", "val_accuracy": "val_acc"}),
    ({"loss": 9, "mIoU": 9}, {"val_miou": "mIoU"}),
    ({"Loss_D": 9, "Loss_G": 9}, {"d_loss": "Loss_D", "g_loss": "Loss_G", "loss": None}),
    (
        {"train/policy_loss": 9, "train/value_loss": 9, "rollout/ep_rew_mean": 9},
        {"loss": None, "reward": "rollout/ep_rew_mean"},
    ),
    ({"episode": 9, "scores": 9, "loss": 9}, {"reward": "scores"}),
    ({"score": 9, "loss": 9, "epsilon": 9}, {"reward": "score"}),
    ({"score": 9, "loss": 9}, {"reward": None}),
    ({"episode": 9, "best score": 9, "loss": 9}, {"reward": None}),
    ({"train-rmse": 9, "eval-rmse": 9}, {"loss": "train-rmse", "val_loss": "eval-rmse"}),
    ({"xent": 9, "validation perplexity": 9}, {"loss": "xent", "val_loss": None}),  # of another kind: not comparable
    ({"loss": 9, "best_val_loss": 9, "val_loss improved from": 9}, {"val_loss": None}),
    ({"train_loss_ema": 9, "val_loss": 9}, {"loss": "train_loss_ema", "val_loss": "val_loss"}),
    ({"loss_smooth": 9, "loss": 9}, {"loss": "loss"}),
    ({"loss_ema": 9, "box_loss": 9, "cls_loss": 9}, {"loss": "box_loss"}),  # the sum of the parts is as it was
    ({"smooth_l1_loss": 9}, {"loss": "smooth_l1_loss"}),  # the name of a loss
    ({"MultiClass": 9}, {"loss": "MultiClass"}),  # of CatBoost, and where a loss has a name a column like others
    ({"loss": 9, "MultiClass": 9, "l2": 9}, {"loss": "loss"}),
    ({"learn/Quantile:alpha=0.9": 9, "test/Quantile:alpha=0.9": 9}, {"val_loss": "test/Quantile:alpha=0.9"}),
    ({"train-gamma-nloglik": 9, "eval-gamma-nloglik": 9}, {"val_loss": "eval-gamma-nloglik"}),
    ({"training l2": 9, "valid_1 l2": 9}, {"loss": "training l2", "val_loss": "valid_1 l2"}),
    ({"training rmse": 9, "valid_1 rmse": 9}, {"loss": "training rmse", "val_loss": "valid_1 rmse"}),
    ({"train-aucpr": 9}, {"train_aucpr": "train-aucpr", "loss": None}),
    (
        {"loss": 9, "Retrieval/image_to_text_R1": 9},
        {"val_retrieval_image_to_text_recall1": "Retrieval/image_to_text_R1"},
    ),
    ({"loss": 9, "Avg R@5": 9}, {"val_recall5": "Avg R@5"}),
    ({"G_loss": 9, "D_loss": 9, "r1_penalty": 9, "R1": 9}, {"val_recall1": None, "train_recall1": None}),
    ({"loss": 99, "val_loss": 9, "val/running_loss": 99}, {"val_loss": "val_loss"}),
    ({"loss": 99, "val_kl_loss_step": 99, "val_kl_loss_epoch": 9}, {"val_kl_loss": "val_kl_loss_epoch"}),
    ({"loss": 9, "pos_iou_thr": 9, "Validation loss did not improve for": 9}, {"train_pos_iou_thr": None}),
    ({"loss": 9, "global_step/sec": 9, "time/fps": 9, "steps_per_second": 9}, {"seconds": None}),
    ({"loss": 9, "step_time": 9, "time/fps": 9}, {"seconds": "step_time"}),
    ({"l_pix": 9, "lr": 9, "psnr": 9}, {"loss": "l_pix", "lr": "lr"}),
    ({"l_g_pix": 9, "l_g_gan": 9, "l_d_real": 9}, {"g_loss": "l_g_pix", "d_loss": "l_d_real", "loss": None}),
    ({"l_hip_torque": 9, "l_rate": 9, "loss": 9}, {"hip_torque_loss": None, "lr": None}),
    ({"Loss": 330, "test/Loss": 300, "val/Acc@1": 30}, {"val_loss": "test/Loss", "val_accuracy_1": "val/Acc@1"}),
    ({"loss": 90, "test/loss": 1, "val/acc": 9}, {"val_loss": None}),  # a test at the end
    ({"loss": 9, "bbox/AP": 9, "bbox/AP50": 9}, {"val_bbox_ap": "bbox/AP", "val_bbox_ap50": "bbox/AP50"}),
    (
        {"loss": 9, "info/learner/stats/grad_gnorm": 9, "info/learner/stats/entropy": 9},
        {"entropy": "info/learner/stats/entropy", "grad_norm": "info/learner/stats/grad_gnorm"},
    ),
    ({"entropy_loss": 9, "loss": 9, "n_updates": 9}, {"entropy": "entropy_loss"}),
    ({"entropy_loss": 9, "loss": 9}, {"entropy": None}),
    ({"loss": 9, "memory/max_active(GiB)": 9, "memory/max_active(%)": 9}, {"memory": "memory/max_active(GiB)"}),
]


@pytest.mark.parametrize(("counts", "meant"), MEANT)
def test_names_are_understood(counts, meant):
    columns = understand(counts).columns
    assert {vital: columns.get(vital, (None,))[0] for vital in meant} == meant


def test_parts_are_added_up_where_only_parts_are_logged():
    counts = dict.fromkeys(["train/box_loss", "train/cls_loss", "val/box_loss", "val/cls_loss"], 9)
    columns = understand(counts).columns
    assert columns["loss"] == ("train/box_loss", "train/cls_loss")
    assert columns["val_loss"] == ("val/box_loss", "val/cls_loss")
    assert columns["val_box_loss"] == ("val/box_loss",)


def test_the_losses_of_several_validation_sets_are_averaged():
    found = understand({"loss": 90, "eval_wiki_loss": 9, "eval_books_loss": 9})
    assert found.columns["val_loss"] == ("eval_wiki_loss", "eval_books_loss")
    assert found.averaged == {"val_loss"}


def test_units_in_names_are_converted():
    found = understand({"loss": 9, "elapsed time per iteration (ms)": 9, "memory (MiB)": 9})
    assert found.scales == {"seconds": 1e-3, "memory": 2.0**20}


def test_which_way_a_metric_is_better_is_known():
    found = understand({"loss": 9, "eval_wer": 9, "eval_f1": 9, "metrics/mAP50-95(B)": 9})
    assert found.better == {"val_wer": "lower", "val_f1": "higher", "val_map50_95_b": "higher"}


def test_what_the_user_says_comes_first():
    found = understand({"loss": 9, "my_thing": 9}, {"loss": "my_thing"})
    assert found.columns["loss"] == ("my_thing",)
    assert "loss" in found.left_out


def test_a_head_that_all_measures_share_is_no_part_of_their_names():
    found = understand({"tuning/train_loss_step": 20, "tuning/train_acc_step": 20, "tuning/val_acc": 2, "lr": 20})
    assert set(found.columns) == {"loss", "train_accuracy", "val_accuracy", "lr"}
    meaning = understand({"loss/train": 9, "loss/val": 9})
    assert meaning.columns == {"loss": ("loss/train",), "val_loss": ("loss/val",)}
    apart = understand({"box/loss": 9, "cls/loss": 9})
    assert set(apart.columns) == {"loss", "box_loss", "cls_loss"}


def test_of_batches_of_validation_and_their_mean_the_mean_is_the_loss():
    found = understand({"train_loss_step": 158, "val_loss_step": 1500, "val_loss_epoch": 50})
    assert found.columns["val_loss"] == ("val_loss_epoch",)


def test_other_languages_name_training_and_validation_too():
    found = understand({"loss_treino": 20, "loss_val": 20, "acc_treino": 20, "acc_val": 20})
    assert found.columns["loss"] == ("loss_treino",)
    assert found.columns["val_loss"] == ("loss_val",)
    assert found.columns["train_accuracy"] == ("acc_treino",)
    spanish = understand({"pérdida_entrenamiento": 9, "pérdida_validación": 9})
    assert (spanish.columns["loss"], spanish.columns["val_loss"]) == (
        ("pérdida_entrenamiento",),
        ("pérdida_validación",),
    )


@pytest.mark.parametrize(
    "name",
    ["loss_ema", "ema_loss", "train_loss_ema", "smooth_loss", "smoothed_loss", "loss_smooth", "loss/train_smoothed"],
)
def test_a_smoothed_loss_is_read_where_there_is_no_other_and_said_to_be_one(tmp_path, name):
    path = tmp_path / "log.csv"
    path.write_text(f"step,{name}\n" + "".join(f"{step},{3 - step / 10}\n" for step in range(9)))
    run = read(path)
    assert run.header["context"]["columns"] == {"loss": name}
    assert [note for note in run.notes if "smoothed" in note and name in note]
    path.write_text(f"step,{name},loss\n" + "".join(f"{step},2.0,{3 - step / 10}\n" for step in range(9)))
    run = read(path)
    assert run.header["context"]["columns"] == {"loss": "loss"}
    assert not [note for note in run.notes if "logged smoothed" in note]
