"""What is suggested first fits what was said of this run, not of its cause in general."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem
from torchdoctor.records import Symptom
from torchdoctor.treatments.case import Case
from torchdoctor.treatments.fitting import fitting, in_question
from torchdoctor.treatments.parameters import parameters
from torchdoctor.treatments.prescription import BY_SLUG, suggest

PLATEAU = "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer"
FIRST = [
    ("reattach-graph", "the loss is exactly 2.53 for 50 steps: an old value is logged", "doctor.log_loss(loss)"),
    ("change-precision", "the loss was the first that was not finite, and takes a log", "y = torch.log(x.clamp_min"),
    ("change-precision", "part of the run is in float16, which ends at 65,504", "with torch.autocast("),
    ("change-precision", "against: no float16 anywhere", "y = torch.log(x.clamp_min"),
    (
        "change-precision",
        "float16 cannot hold them, and no gradient scaler lifts them",
        "scaler.scale(loss).backward()",
    ),
    (
        "fix-loss",
        "the graph of the loss shows softmax before cross entropy",
        "loss = torch.nn.functional.cross_entropy(",
    ),
    ("fix-loss", "the loss is a sum over the batch: gradients grow with it", "loss = loss_fn(outputs, targets) / len("),
    ("fix-mask", "certain: validation samples were seen in training", "train_set, val_set = "),
    ("fix-mask", "certain: one column of the inputs follows the label", "inputs = table.drop("),
    ("fix-mask", "certain: the labels are the next tokens", "mask = torch.nn.Transformer"),
    ("match-validation", "certain: inputs have size 117 in validation, but 1 in training", "val_inputs = preprocess("),
    ("match-validation", "the model is in training mode whenever validation runs", "model.eval()"),
    ("change-schedule", "StepLR is stepped at every batch", "scheduler.step()  # once per epoch"),
    ("change-schedule", "the learning rate is 0 and was 0.1", "scheduler = torch.optim.lr_scheduler.Cosine"),
    ("reattach-graph", "certain: the loss had the same graph", "outputs = model(inputs)  # again at every step"),
    ("reattach-graph", "certain: encoder: the module runs, but its tensors never get", "x = second(first(x))"),
    ("shuffle-data", "the inputs of all 16 inspected batches are the same 64 samples", "for inputs, targets in loader"),
    ("shuffle-data", "90 % of the sample pairs within a batch share a class", "loader = torch.utils.data.DataLoader("),
    ("restore-state", "steps are undone: dozens of steps move the weights by 0.01 times one step", "average.lerp_("),
    ("add-parameters-to-optimizer", "certain: head.weight: in no optimizer", "optimizer = torch.optim.AdamW("),
    (
        "add-parameters-to-optimizer",
        "certain: x: in the graph of the loss, but not in model.parameters()",
        "self.layers",
    ),
    ("add-parameters-to-optimizer", "certain: weights of 8 × 4 are created anew at each step", "self.head = "),
    ("add-parameters-to-optimizer", "certain: d.0.weight: in an optimizer that has not stepped once", "for item in"),
    ("fix-loss", "the graph of the loss shows negated, broadcast", "outputs, targets = outputs.squeeze(-1), targets."),
    ("fix-mask", "certain: the targets are equal to the inputs, position by position", "inputs, targets = tokens["),
    (
        "use-relu-family",
        "targets range from -3 to 2, but the model ends with Sigmoid, which cannot",
        "output = self.last",
    ),
    ("use-relu-family", "all outputs are exactly zero, as with a ReLU at the end of the model", "output = self.last"),
    ("use-relu-family", "each layer divides the gradient by about 4.0", "activation = "),
    ("prevent-collapse", "the loss compares outputs with each other, and both sides get gradients", "target = target."),
    ("prevent-collapse", "the loss stays at 4.14, chance level for a batch of 64", "loss = loss + torch.relu("),
    ("change-schedule", 'ReduceLROnPlateau has mode="max" but gets the validation loss', f'{PLATEAU}, mode="min")'),
    ("change-schedule", 'ReduceLROnPlateau has mode="min" but gets val_accuracy', f'{PLATEAU}, mode="max")'),
    ("set-clip-norm", "certain: gradients are clipped while still multiplied by 65536", "scaler.unscale_(optimizer)"),
    ("set-clip-norm", "gradients are clipped at 1; their median norm is 54.8", "grad_clip = "),
    ("add-normalization", "certain: 3 BatchNorm layers have at most 2 values", "norm = torch.nn.GroupNorm("),
]


@pytest.mark.parametrize(("slug", "said", "beginning"), FIRST)
def test_the_line_that_the_evidence_asks_for_comes_first(slug, said, beginning):
    assert fitting(Chart(), BY_SLUG[slug].code, [said]).startswith(beginning)


@pytest.mark.parametrize("slug", BY_SLUG)
def test_no_line_is_lost_and_no_block_torn(slug):
    code = BY_SLUG[slug].code
    for _, said, _ in FIRST:
        lines = fitting(Chart(), code, [said]).split("\n")
        assert sorted(lines) == sorted(code.split("\n")) and not lines[0].startswith(" ")


@pytest.mark.parametrize(
    ("optimizer", "call"),
    [
        ("SGD", "torch.optim.SGD("),
        ("Muon2", "Muon2("),
        ("", "torch.optim.AdamW("),
        ("not a name", "torch.optim.AdamW("),
    ],
)
def test_the_optimizer_is_built_again_as_it_was(optimizer, call):
    chart = Chart()
    chart.groups = [{"optimizer": optimizer}]
    assert fitting(chart, BY_SLUG["add-parameters-to-optimizer"].code).startswith(f"optimizer = {call}model")
    assert "AdamW" in fitting(chart, BY_SLUG["use-adamw"].code)


def test_a_wrong_setting_is_set_right_and_the_optimizer_kept():
    suggests = next(cause for cause in CAUSES if cause.name == "optimizer-misconfigured").suggests
    assert in_question(suggests, ["certain: eps is 1 and outweighs 100% of the gradients"]) == ["change-eps"]
    assert "use-adamw" in in_question(suggests, ["certain: Adam adds weight decay: AdamW is usually intended"])


def test_gradients_that_are_cleared_too_early_are_not_cleared_once_more():
    said = ("certain: gradients are cleared between backward() and step(): nothing is left to apply",)
    for evidence, fits in ((said, False), (("certain: gradients are not cleared",), True)):
        asked = Case(
            Chart(), Problem((Symptom("no-gradient", "", "critical", 0.9, 0, 9),)), "missing-zero-grad", evidence
        )
        assert (parameters(asked, "zero-gradients") is not None) is fits
        assert "move it" in suggest(asked, "fix-zero-grad", 0.9, "").code.split("\n")[0]


def test_no_setting_is_set_that_the_optimizer_does_not_have():
    for group, fits in (({"optimizer": "Rprop", "maximize": False}, False), ({"optimizer": "Adam"}, True)):
        asked = case("optimizer-misconfigured", "update-ratio-abnormal", lr=[1e-3] * 9)
        asked.chart.groups = [group]
        for slug in ("change-eps", "change-betas", "set-momentum"):
            assert (parameters(asked, slug) is not None) is fits, slug
    asked.chart.context["optimizer"] = [{"class": "Rprop"}]
    assert parameters(asked, "scale-lr") is None


def test_clipping_at_the_wrong_place_is_moved_and_its_limit_kept():
    late = case("clip-missing", "clipping-anomaly", facts={"clip.after_step": True}, clip=[0.5])
    code = suggest(late, "set-clip-norm", 0.9, "").code
    assert code.startswith("torch.nn.utils.clip_grad_norm_(") and "grad_clip = 0.5" in code
    said = (
        "gradients are clipped to 1 while their norm, times the loss scale, is 93263: call scaler.unscale_(optimizer)"
    )
    for cause in ("", "clip-too-tight"):
        early = case(cause, "clipping-anomaly", message=said, clip=[1.0], grad_norm=[50.0] * 300)
        code = suggest(early, "set-clip-norm", 0.9, "").code
        assert code.startswith("scaler.unscale_(optimizer)") and "grad_clip = 1.0" in code
    tight = case("clip-too-tight", "clipping-anomaly", clip=[1.0], grad_norm=[50.0] * 300)
    assert suggest(tight, "set-clip-norm", 0.9, "").code.startswith("grad_clip = 100.0")


def case(cause, *names, evidence=(), facts=None, first=300, message="", context=None, **vitals):
    chart = Chart.of(context=context, **vitals)
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    symptoms = tuple(Symptom(name, "", "warning", 0.9, first, 399, message=message) for name in names)
    return Case(chart, Problem(symptoms), cause, tuple(evidence))


OUT_OF_PLACE = [
    ("fix-loss", case("", "suspicious-loss", facts={"loss.lint": ["dropout-before-loss"]})),
    ("rebalance-classes", case("", "collapsed-output", facts={"loss.kind": "mse"})),
    ("rebalance-classes", case("class-imbalance", "target-anomaly", pooled_classes=[1.0])),
    ("check-labels", case("class-imbalance", "target-anomaly", pooled_classes=[2.0])),
    ("fix-zero-grad", case("accumulation-error", "gradients-not-cleared", evidence=["losses enter with weight 1"])),
    ("lower-penalty", case("over-regularized", "not-learning", evidence=["dropout is 0.95"])),
    ("skip-step", case("numeric-precision", "frozen-weights", evidence=["99% did not move: rounded away"])),
    ("adaptive-clip", case("clip-missing", "clipping-anomaly", facts={"clip.after_step": True}, clip=[0.5])),
    ("use-gru-or-layernorm-rnn", case("clip-missing", "loss-spike", facts={"modules.kinds": ["GRU"]})),
    ("roll-back", case("lr-too-high", "loss-divergence", first=4)),
    ("initialize", case("saturating-nonlinearity", "target-anomaly", evidence=["but the model ends with Sigmoid"])),
    ("free-memory", case("", "step-time-regression", host_memory=[1e9] * 300)),
    ("speed-up-data", case("", "step-time-regression", seconds=[0.2] * 300, data_seconds=[0.01] * 9)),
    ("check-hardware", case("", "step-time-regression", context={"devices": ["cpu"]})),
    ("set-clip-norm", case("unnormalized-targets", "slow-learning", grad_norm=[1e8] * 300)),
    ("set-clip-norm", case("unnormalized-targets", "slow-learning", "activation-explosion", grad_norm=[1e6] * 300)),
    ("scale-lr", case("unnormalized-targets", "slow-learning", "activation-explosion", lr=[1e-3] * 300)),
]
IN_PLACE = [
    ("rebalance-classes", case("class-imbalance", "target-anomaly", pooled_classes=[2.0]), {}),
    (
        "rebalance-classes",
        case("class-imbalance", "collapsed-output", target_std=[0.1], facts={"loss.kind": "bce"}),
        {},
    ),
    ("check-labels", case("class-imbalance", "target-anomaly", pooled_classes=[1.0]), {}),
    ("fix-zero-grad", case("accumulation-error", "gradients-not-cleared", evidence=["gradients are cleared"]), {}),
    ("lower-penalty", case("over-regularized", "collapsed-output", evidence=["its penalty outweighs"]), {}),
    (
        "set-clip-norm",
        case("clip-missing", "clipping-anomaly", facts={"clip.after_step": True}, clip=[0.5]),
        {"max_norm": 0.5},
    ),
    ("roll-back", case("lr-too-high", "loss-divergence", first=40), {"step": 40.0}),
    ("initialize", case("saturating-nonlinearity", evidence=["as with a ReLU at the end of the model"]), {}),
    ("free-memory", case("", "step-time-regression"), {}),
    ("free-memory", case("", "step-time-regression", message="it grows with every step", host_memory=[1e9] * 300), {}),
    ("free-memory", case("", "step-time-regression", "memory-growth", host_memory=[1e9] * 300), {}),
    ("speed-up-data", case("", "step-time-regression", seconds=[0.2] * 300, data_seconds=[0.1] * 9), {}),
    ("check-hardware", case("", "step-time-regression", context={"devices": ["NVIDIA H200"]}), {}),
    ("check-hardware", case("", "straggler-rank"), {}),
    ("skip-window", case("bad-batch", "loss-spike", first=160), {"first": 150.0, "last": 180.0}),
    ("scale-lr", case("unnormalized-targets", "slow-learning", "loss-spike", lr=[1e-3] * 300), {"factor": 0.5}),
    ("scale-lr", case("unnormalized-targets", "activation-explosion", lr=[1e-3] * 300), {"factor": 0.5}),
    ("skip-window", case("bad-batch", "loss-spike", first=5000), {"first": 4990.0, "last": 5190.0}),
]


@pytest.mark.parametrize(("slug", "given"), OUT_OF_PLACE)
def test_what_would_not_help_is_not_suggested(slug, given):
    assert parameters(given, slug) is None


@pytest.mark.parametrize(("slug", "given", "values"), IN_PLACE)
def test_what_would_help_is(slug, given, values):
    assert parameters(given, slug) == values


def test_norms_that_had_grown_before_anybody_looked_are_no_scale():
    given = case("lr-too-high", "loss-divergence", first=350, grad_norm=[3.0] * 4 + [1e6] * 396)
    assert parameters(given, "set-clip-norm") == {"max_norm": 1.0}


def test_the_rate_of_a_sum_is_divided_by_the_batch():
    given = case("lr-too-high", "loss-divergence", facts={"loss.reduction": "sum"}, lr=[0.05] * 400)
    given.chart.context["batch_size"] = 64
    assert parameters(given, "scale-lr") == {"factor": 0.02}


@pytest.mark.parametrize(
    ("group", "fits"),
    [
        ({"optimizer": "Adam", "weight_decay": 0.01}, True),
        ({"optimizer": "Adam", "weight_decay": 0.01, "decoupled_weight_decay": True}, False),
        ({"optimizer": "Adam", "weight_decay": 0}, False),
        ({"optimizer": "AdamW", "weight_decay": 0.01}, False),
        ({"optimizer": "SGD", "weight_decay": 0.01}, False),
        ({}, True),
    ],
)
def test_adamw_replaces_only_an_adam_that_adds_its_decay_to_the_gradient(group, fits):
    asked = case("optimizer-misconfigured", "optimizer-advice")
    asked.chart.groups = [group] if group else []
    assert (parameters(asked, "use-adamw") is not None) == fits


@pytest.mark.parametrize(
    ("fresh", "optimizer", "factor"),
    [(1.0, "AdamW", 6e4), (1.0, "SGD", 2e6), (0.1, "AdamW", 2e3), (None, "AdamW", 2e3)],
)
def test_a_learning_rate_of_practically_zero_is_raised_to_one_that_trains(fresh, optimizer, factor):
    known = {} if fresh is None else {"weights_fresh": [fresh]}
    asked = case("lr-too-low", "slow-learning", lr=[5e-9] * 300, context={"optimizer": [{"class": optimizer}]}, **known)
    assert parameters(asked, "scale-lr") == {"factor": factor}
