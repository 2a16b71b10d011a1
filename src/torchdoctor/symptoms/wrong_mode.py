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
    Dropout is off, and BatchNorm uses its running statistics, which it no longer updates, instead of the batch's. The
    model overfits, or trains with wrong statistics: at the start of a run they are only initial values. Usual reasons:
    there is no `model.train()` after the `model.eval()` of a validation, or the model is pretrained and its library
    returns it in eval mode.

    ## How it is told apart
    Only forward passes that are followed by a step are judged, so a validation in eval mode is not reported. A model
    without dropout and BatchNorm behaves the same in both modes. A frozen trunk in eval mode, or BatchNorm layers alone
    in eval mode, are intended and not reported, unless these layers still have their initial statistics (mean 0,
    variance 1): then they normalize nothing.

    ## What to do
    Call `model.train()` at the start of each epoch and after each validation.

    ## How to see that it is cured
    `model.training` is true right before the training forward pass.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 100, "facts": {"mode.whole": True, "mode.eval": ["bn1", "drop"]}})
    >>> print(WrongMode().check(chart))
    step 100: GP03 wrong-mode (warning): the whole model is trained in eval mode, which affects bn1, drop
    """

    code = "GP03"
    name = "wrong-mode"
    reads = ("tensors/grad_norm", "facts/mode.whole", "facts/mode.eval", "resting_as_new")
    suggests = ("set-train-mode",)
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",)
    closes_after = 2

    def check(self, chart: Chart) -> Symptom | None:
        """Test whether the whole model, or BatchNorm layers with initial statistics, are in eval mode."""
        resting = tuple(chart.fact("mode.eval") or ())
        if chart.fact("mode.whole"):
            names = names_text([chart.called(name) for name in resting])
            message = f"the whole model is trained in eval mode, which affects {names}"
            since = chart.facts["mode.whole"].step
            return self.symptom(chart, "warning", message, where=resting, since=since, confidence=0.95)
        if rests_unlearnt(chart):
            message = f"{names_text(resting)} normalize nothing: they are in eval mode, with their initial statistics"
            since = int(chart["resting_as_new"].steps[0])
            return self.symptom(chart, "warning", message, where=resting, since=since, confidence=0.95)
        return None


def rests_unlearnt(chart: Chart, share: float = 0.5) -> bool:
    """Whether most BatchNorm layers that are trained in eval mode still have their initial statistics."""
    series = chart["resting_as_new"]
    return bool(chart.fact("mode.eval")) and len(series) >= 2 and series.latest > share
