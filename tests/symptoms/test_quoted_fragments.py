"""Fragments of logs as people quote them when something is wrong, and those of runs in which nothing is."""

import textwrap

import pytest

from torchdoctor import diagnose
from torchdoctor.records import INFORMATIVE
from torchdoctor.sources import read


def keras(*lines, start=1, of=50, bar="100/100 [==============================] - 3s"):
    """What Keras prints: each line the numbers of an epoch."""
    return "\n".join(f"Epoch {start + place}/{of}\n{bar} - {line}" for place, line in enumerate(lines))


def said_of(text, folder):
    path = folder / "quoted.txt"
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    report = diagnose(read(path))
    return {item.name for item in report.symptoms if item.severity != "info" and item.name not in INFORMATIVE}


SICK = {
    "one line of NaN": (keras("loss: nan - acc: nan - val_loss: nan - val_acc: nan"), "nan-or-inf"),
    "one loss for nine epochs": (
        keras("loss: 1.9112 - acc: 0.5325", *["loss: 1.9105 - acc: 0.5378"] * 4),
        "not-learning",
    ),
    "a saturated output, from the midst": (
        keras(*["loss: 14.5063 - acc: 0.1000 - val_loss: 14.5063 - val_acc: 0.1000"] * 6, start=278, of=300),
        "not-learning",
    ),
    "three epochs, both losses constant": (keras(*["loss: 7.1726 - val_loss: 6.9442"] * 3), "not-learning"),
    "validation at what guessing among six gives": (
        keras(
            *(
                f"loss: {2.31 - 0.07 * epoch:.4f} - acc: {0.14 + 0.015 * epoch:.4f} - "
                f"val_loss: {1.80 + 0.01 * (epoch % 2):.4f} - val_acc: {0.16 + 0.03 * (epoch % 3):.4f}"
                for epoch in range(9)
            )
        ),
        "validation-anomaly",
    ),
    "three epochs of a fine-tuned model": (
        keras(
            "loss: 0.3860 - accuracy: 0.8232 - val_loss: 0.3179 - val_accuracy: 0.8580",
            "loss: 0.2266 - accuracy: 0.9095 - val_loss: 0.3203 - val_accuracy: 0.8650",
            "loss: 0.1134 - accuracy: 0.9621 - val_loss: 0.4432 - val_accuracy: 0.8610",
        ),
        "overfitting",
    ),
    "validation that swings for ten epochs": (
        "\n".join(
            f"epoch [{epoch}]: training loss: {loss} - acc: 0.8 - val_loss: {val} - val_acc: {rate}"
            for epoch, (loss, val, rate) in enumerate(
                zip(
                    (2.27, 1.55, 1.07, 0.87, 0.59, 0.52, 0.38, 0.32, 0.21, 0.34),
                    (3.29, 0.92, 1.43, 1.85, 0.58, 2.30, 0.17, 1.52, 0.14, 2.81),
                    (0.49, 0.50, 0.53, 0.61, 0.61, 0.50, 0.86, 0.60, 0.88, 0.49),
                    strict=True,
                ),
                1,
            )
        ),
        "validation-anomaly",
    ),
    "accuracies that part": (
        """
        2016-01-01 21:43:39,380 Node[0] Update[48956]: Change learning rate to 5.90490e-03
        2016-01-01 21:43:49,904 Node[0] Epoch[4] Train-accuracy=0.548824
        2016-01-01 21:43:49,904 Node[0] Epoch[4] Time cost=20670.702
        2016-01-01 21:46:44,073 Node[0] Epoch[4] Validation-accuracy=0.406630
        2016-01-02 03:30:58,979 Node[0] Update[58747]: Change learning rate to 5.31441e-03
        2016-01-02 03:31:11,608 Node[0] Epoch[5] Train-accuracy=0.577686
        2016-01-02 03:34:05,323 Node[0] Epoch[5] Validation-accuracy=0.404347
        2016-01-02 09:18:28,803 Node[0] Epoch[6] Train-accuracy=0.600828
        2016-01-02 09:21:23,119 Node[0] Epoch[6] Validation-accuracy=0.380495
        """,
        "overfitting",
    ),
    "the first epoch and the last": (
        """
        epoch=1
        train_loss=0.0481, val_loss=0.0378
        ...
        epoch=29
        train_loss=0.0010, val_loss=0.0916
        """,
        "overfitting",
    ),
    "a loss scale that is halved for ever": (
        "\n".join(
            [
                "{'loss': 2.0491, 'learning_rate': 0.0001, 'epoch': 0.28}",
                *(
                    f" 14%|#4        | {379 + place}/2724 [14:02:33<86:01:24, 132.12s/it] [INFO] OVERFLOW! Rank 0 "
                    f"Skipping step. Attempted loss scale: {scale}, reducing to {scale // 2}"
                    for place, scale in enumerate((64, 32, 16, 8, 4))
                ),
            ]
        ),
        "skipped-steps",
    ),
    "a reward that was earned and lost": (
        "\n".join(
            f"Mean Reward: {reward}"
            for reward in (
                2.3,
                4.1,
                5.4,
                6.5,
                8,
                70,
                69.9,
                70.3,
                70.7,
                69,
                57,
                53,
                54,
                48,
                42,
                9,
                8,
                8,
                7,
                0.2,
                0.2,
                0.3,
            )
        ),
        "loss-divergence",
    ),
    "players that stand still": (
        "\n".join(f"Step: {step}00 Gen_loss: -0.0 Dis_loss: 13.82 Cls_loss: N/A" for step in range(1, 7)),
        "not-learning",
    ),
    "thousands after tenths": (
        "\n".join(
            f"step {3866 + place}, loss {loss}, acc 0.5"
            for place, loss in enumerate((0.43, 0.48, 0.26, 0.27, 0.23, 3.6, 8.5, 5.2, 322, 21, 131, 4977, 155, 1825))
        ),
        "loss-divergence",
    ),
    "guessing among a thousand, late": (
        "\n".join(
            f"Iteration {78000 + 20 * place}, loss = {loss}" for place, loss in enumerate((6.9063, 6.9073, 6.9073))
        ),
        "not-learning",
    ),
    "every word is wrong": (
        "\n".join(
            f"epoch: 19 | nupdates: {step}000 | lr: 2.0 | loss: {loss} | dev-loss: {val} | dev-WER: {wer}"
            for step, loss, val, wer in ((66, 79.1, 69.0, 99.99), (67, 81.1, 32.7, 100.01), (68, 80.6, 36.2, 100.0))
        ),
        "not-learning",
    ),
    "a table that came through a page": (
        """
        epoch train loss valid loss accuracy time
        0 0.693 0.694 0.5 00:12
        1 0.500 0.720 0.51 00:12
        2 0.300 0.900 0.52 00:12
        3 0.200 1.200 0.50 00:12
        """,
        "overfitting",
    ),
}

HEALTHY = {
    "a slow start": keras(
        "accuracy: 0.1018 - loss: 2.3085 - val_accuracy: 0.1000 - val_loss: 2.3085",
        "accuracy: 0.1059 - loss: 2.3041 - val_accuracy: 0.1000 - val_loss: 2.2969",
        "accuracy: 0.2186 - loss: 2.1957 - val_accuracy: 0.4717 - val_loss: 1.7799",
        "accuracy: 0.5319 - loss: 1.3382 - val_accuracy: 0.5858 - val_loss: 1.1263",
    ),
    "a full batch that has converged": "\n".join(
        f"Epoch {epoch}, Loss: {4.4834 + 28 * 0.5**epoch:.4f}" for epoch in range(40)
    ),
    "the same, told from its midst": "\n".join(f"Epoch {epoch}, Loss: 0.4834" for epoch in range(900, 930)),
    "a policy that has learnt": "\n".join(f"Episode {step}, reward: {min(step, 40) * 5}" for step in range(60)),
    "three epochs, the last a little worse": keras(
        "loss: 0.3860 - val_loss: 0.3179", "loss: 0.2266 - val_loss: 0.2903", "loss: 0.1934 - val_loss: 0.3012"
    ),
    "a count after its measure": "\n".join(
        f"Loss [{epoch}, {batch}00](epoch, minibatch):  {9.6 / (3 * epoch + batch):.4f}"
        for epoch in (1, 2, 3)
        for batch in (1, 2, 3)
    ),
    "losses of the first steps": "\n".join(
        f"iter {step}: loss {6.908 - 0.0002 * step:.4f}" for step in range(0, 60, 20)
    ),
}


@pytest.mark.parametrize("kind", SICK)
def test_what_people_complain_of_is_found(kind, tmp_path):
    text, expected = SICK[kind]
    assert expected in said_of(text, tmp_path)


@pytest.mark.parametrize("kind", HEALTHY)
def test_what_looks_like_it_is_left_in_peace(kind, tmp_path):
    assert not said_of(HEALTHY[kind], tmp_path)
