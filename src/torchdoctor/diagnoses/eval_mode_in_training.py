"""eval-mode-in-training."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import names_text
from torchdoctor.symptoms.wrong_mode import rests_unlearnt


class EvalModeInTraining(Cause):
    """The model is trained in eval mode.

    ## What it is
    `model.eval()` was called for validation without a `model.train()` after it, or a pretrained model was loaded in
    eval mode. Dropout is off, and BatchNorm uses old statistics and does not update them.

    ## How to confirm it
    Call `print(model.training)` right before the forward pass in training.

    ## What to change
    Call `model.train()` at the start of each epoch, and after each validation.

    ## How to see it cured
    The training loss becomes noisier (dropout is on again), and validation follows it again.
    """

    name = "eval-mode-in-training"
    explains = (
        "wrong-mode",
        "overfitting",
        "validation-anomaly",
        "loss-plateau",
        "not-learning",
        "loss-divergence",
        "slow-learning",
        "underfitting",
        "gradient-explosion",
        "activation-explosion",
        "nan-or-inf",
        "unexpected-initial-loss",
        "update-ratio-abnormal",
        "dead-units",
    )
    prior = -1.8
    suggests = ("set-train-mode",)
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The modes of the modules in training passes."""
        whole = chart.fact("mode.whole")
        if whole:
            resting = names_text([chart.called(name) for name in chart.fact("mode.eval") or []])
            since = chart.facts["mode.whole"].step
            yield Evidence(CERTAIN, f"the model is trained in eval mode, seen since step {since} ({resting})")
        elif rests_unlearnt(chart):
            text = (
                f"{names_text(chart.fact('mode.eval'))}: in eval mode, with running statistics that were never updated"
            )
            yield Evidence(CERTAIN, text)
        elif whole is False:
            yield Evidence(-6.0, "training passes run in train mode")
