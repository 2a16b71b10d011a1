"""parameters-not-in-optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import names_text


class ParametersNotInOptimizer(Cause):
    """Parameters get gradients, but no optimizer holds them.

    ## What it is
    The optimizer got only part of the model, or layers are in a plain Python list or dict. In that case
    `model.parameters()` does not list them, `model.to(device)` does not move them and `state_dict()` does not save
    them.

    ## How to confirm it
    `held = {id(p) for g in optimizer.param_groups for p in g["params"]}` and
    `[n for n, p in model.named_parameters() if id(p) not in held]`: the list must be empty.

    ## What to change
    Use `nn.ModuleList` instead of a list. Call `optimizer.add_param_group({"params": missing})`, or build the optimizer
    from all of `model.parameters()`.

    ## How to see it cured
    The list above is empty, and one step changes the weights.
    """

    name = "parameters-not-in-optimizer"
    explains = (
        "frozen-weights",
        "not-learning",
        "slow-learning",
        "underfitting",
        "loss-plateau",
        "gradients-not-cleared",
        "collapsed-output",
    )
    prior = -2.0
    suggests = ("add-parameters-to-optimizer",)
    references = ("https://pytorch.org/docs/stable/generated/torch.nn.ModuleList.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The parameters in the graph of the loss, compared with those in an optimizer."""
        hidden, left = chart.fact("graph.not_in_model") or [], chart.fact("graph.not_in_optimizer")
        if hidden:
            yield Evidence(CERTAIN, f"{names_text(hidden)}: in the graph of the loss, but not in model.parameters()")
        elif anew := chart.fact("graph.made_anew"):
            sizes = " × ".join(map(str, anew[0]))
            yield Evidence(CERTAIN, f"weights of {sizes} in the graph of the loss are created anew at each step")
        elif left and chart.fact("graph.stale"):
            yield Evidence(2.0, f"{names_text(left)}: in no optimizer")
        elif left:
            text = f"{names_text(left)}: in the graph of the loss, but in no optimizer"
            if model := left_out_whole(chart, left):
                held = f"none of the {len(chart.context['optimizer'])} optimizers holds any parameter of {model}"
                text += f"; {held}: one of them may have been built from another model's parameters"
            yield Evidence(CERTAIN, text)
        elif idle := chart.fact("graph.idle"):
            yield Evidence(CERTAIN, f"{names_text(idle)}: in an optimizer that has not stepped once")
        elif outside := chart.fact("graph.criterion_left_out"):
            yield Evidence(CERTAIN, f"{names_text(outside)} of the loss function: with gradients, but in no optimizer")
        elif left is not None:
            yield Evidence(-6.0, "every parameter with a gradient is in an optimizer")


def left_out_whole(chart: Chart, left: Sequence[str]) -> str:
    """The one of several models, with several optimizers, all of whose parameters are in none; "" if there is none.

    >>> chart = Chart.of(context={"model": {"class": "Net, Net"}, "optimizer": [{"class": "Adam"}] * 2})
    >>> chart.names = ("G.weight", "G.bias", "D.weight")
    >>> left_out_whole(chart, ["G.weight", "G.bias"]), left_out_whole(chart, ["G.weight"])
    ('G', '')
    """
    models, optimizers = (chart.context.get("model") or {}).get("class"), chart.context.get("optimizer") or ()
    if "," not in str(models) or len(optimizers) < 2:
        return ""
    model = left[0].partition(".")[0]
    return model if set(left) == {name for name in chart.names if name.startswith(f"{model}.")} else ""
