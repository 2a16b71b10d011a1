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
    `model.eval()` for a validation, and no `model.train()` after it; or a pretrained model that came in eval mode.
    Dropout is off; BatchNorm normalizes with old statistics and does not renew them.

    ## How to confirm it
    `print(model.training)` in the line before the training forward pass.

    ## What to change
    `model.train()` at the start of each epoch, and after each validation.

    ## How to see it cured
    The training loss becomes noisier (dropout is back), and validation follows it again.
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
        """What the mode census saw in passes that were trained on."""
        whole = chart.fact("mode.whole")
        if whole:
            resting = names_text([chart.called(name) for name in chart.fact("mode.eval") or []])
            since = chart.facts["mode.whole"].step
            yield Evidence(CERTAIN, f"the model is trained in eval mode, seen since step {since} ({resting})")
        elif rests_unlearnt(chart):
            text = f"{names_text(chart.fact('mode.eval'))} are in eval mode, with statistics of no data at all"
            yield Evidence(CERTAIN, text)
        elif whole is False:
            yield Evidence(-6.0, "the training passes ran in train mode")
