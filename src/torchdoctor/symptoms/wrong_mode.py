"""GP03 wrong-mode."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, names_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class WrongMode(Detector):
    """The model is trained in eval mode.

    ## What it means
    Dropout does nothing and BatchNorm uses its stored statistics instead of the batch's, which it no longer updates.
    The model overfits, or trains against statistics that are wrong: at the start of a run they are those of no data at
    all. Usual reasons: `model.eval()` for a validation and no `model.train()` after it; a pretrained model, which
    some libraries hand out in eval mode.

    ## How it is told apart
    Only passes that a step follows are looked at, so a validation in eval mode is no finding. A model without dropout
    and BatchNorm has no mode. A frozen trunk may rest in eval mode, and BatchNorm layers alone may (their parents
    train): both are done on purpose, and left alone. Unless the statistics that these layers use are those of a new
    layer, mean 0 and deviation 1: then they were never learnt, and the layers normalize nothing.

    ## What to do
    `model.train()` at the start of each epoch, after each validation.

    ## How to see that it is cured
    `model.training` is true in the line before the training forward pass.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 100, "facts": {"mode.whole": True, "mode.eval": ["bn1", "drop"]}})
    >>> print(WrongMode().check(chart))
    step 100: GP03 wrong-mode (warning): the whole model is trained in eval mode: bn1, drop do not do their work
    """

    code = "GP03"
    name = "wrong-mode"
    reads = ("tensors/grad_norm", "facts/mode.whole", "facts/mode.eval", "resting_as_new")
    suggests = ("set-train-mode",)
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",)
    closes_after = 2

    def check(self, chart: Chart) -> Symptom | None:
        """The whole model, or BatchNorm layers that have learnt nothing yet."""
        resting = tuple(chart.fact("mode.eval") or ())
        if chart.fact("mode.whole"):
            names = names_text([chart.called(name) for name in resting])
            what = f"{names} {'does not do its' if len(resting) == 1 else 'do not do their'} work"
            message = f"the whole model is trained in eval mode: {what}"
            since = chart.facts["mode.whole"].step
            return self.symptom(chart, "warning", message, where=resting, since=since, confidence=0.95)
        if rests_unlearnt(chart):
            message = f"{names_text(resting)} normalize nothing: they are in eval mode, with the statistics of no data"
            since = int(chart["resting_as_new"].steps[0])
            return self.symptom(chart, "warning", message, where=resting, since=since, confidence=0.95)
        return None


def rests_unlearnt(chart: Chart, share: float = 0.5) -> bool:
    """Whether most BatchNorm layers that are trained in eval mode have the statistics that they were made with."""
    series = chart["resting_as_new"]
    return bool(chart.fact("mode.eval")) and len(series) >= 2 and series.latest > share
