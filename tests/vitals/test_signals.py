"""Activations, batches and outputs in real loops: the bug as people write it, and the healthy run that looks alike."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.vitals.loops import adam, causes_of, chart_of, classes, curve, found, sgd, stack, watch
from torch import nn

from torchdoctor.doctor import Doctor
from torchdoctor.vitals.activations import ActivationGauge
from torchdoctor.vitals.batches import BatchGauge
from torchdoctor.vitals.outputs import OutputGauge

MINE = {
    "dead-units",
    "saturated-activations",
    "activation-explosion",
    "identical-units",
    "collapsed-output",
    "unexpected-initial-loss",
    "uneven-position-loss",
    "input-anomaly",
    "target-anomaly",
    "batch-anomaly",
}


class Attends(nn.Module):
    """A block with attention, pre-norm."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down, self.causal = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), causal

    def forward(self, x):
        h, length = self.before(x), x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        x = x + self.attention(h, h, h, attn_mask=mask)[0]
        return x + self.down(F.gelu(self.up(self.after(x))))


class Language(nn.Module):
    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 32), nn.Embedding(12, 32)
        self.blocks = nn.Sequential(Attends(32, causal), Attends(32, causal))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 12)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1])))))


class TokenLoss(nn.Module):
    def forward(self, output, target):
        return F.cross_entropy(output.flatten(0, 1), target.flatten())


def text(step: int):
    """Half of the tokens follow from the one before, half are anybody's guess."""
    tokens = torch.randint(0, 12, (32, 13))
    for place in range(1, 13):
        known = torch.rand(32) < 0.5
        tokens[known, place] = (5 * tokens[known, place - 1] + 1) % 12
    return tokens[:, :-1], tokens[:, 1:]


def dead_from_the_start():
    model = stack(20, 64, 64, 5)
    nn.init.constant_(model[2].bias, -10.0)
    return watch(model, sgd(model), classes(), nn.CrossEntropyLoss(), 60)


def killed_by_loud_inputs():
    model, patterns = stack(144, 64, 5), torch.rand(5, 144)

    def batches(step):
        labels = torch.randint(0, 5, (32,))
        return 200 * (patterns[labels] + 0.3 * torch.rand(32, 144)), labels

    return watch(model, sgd(model), batches, nn.CrossEntropyLoss(), 130)


def wide_tanh():
    model = stack(20, 64, 64, 5, act=nn.Tanh)
    for layer in model[::2]:
        nn.init.normal_(layer.weight, 0, 1.0)
    return watch(model, adam(model), classes(), nn.CrossEntropyLoss(), 30)


def growing_through_depth():
    model = stack(20, *[64] * 5, 5)
    for layer in model[::2]:
        nn.init.normal_(layer.weight, 0, 1.0)
    return watch(model, adam(model), classes(), nn.CrossEntropyLoss(), 20)


def all_weights_equal():
    model = stack(20, 32, 5)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.05)
    return watch(model, adam(model), classes(), nn.CrossEntropyLoss(), 30)


def raw_pixels():
    model, patterns = stack(144, 64, 5), torch.rand(5, 144)

    def batches(step):
        labels = torch.randint(0, 5, (32,))
        return 200 * (patterns[labels] + 0.3 * torch.rand(32, 144)), labels

    return watch(model, adam(model), batches, nn.CrossEntropyLoss(), 30)


def one_column_in_thousands():
    model, batches = stack(8, 32, 1), curve()

    def columns(step):
        x, y = batches(step)
        return torch.cat([x[:, :7], 1000 * x[:, 7:] + 5000], 1), y

    return watch(model, adam(model), columns, nn.MSELoss(), 30)


def targets_out_of_reach():
    model = stack(8, 32, 1)
    return watch(model, adam(model), curve(1e4, 3e4), nn.MSELoss(), 130)


def one_batch_for_ever():
    model, (x, y) = stack(20, 64, 5), classes()(0)
    return watch(model, adam(model), lambda step: (x.clone(), y.clone()), nn.CrossEntropyLoss(), 80)


def one_batch_and_validation():
    model, batches = stack(20, 64, 5), classes()
    (x, y), (other, labels) = batches(0), batches(1)

    def validate():
        with torch.no_grad():
            return F.cross_entropy(model(other), labels[torch.randperm(32)])

    return watch(model, adam(model, 1e-2), lambda step: (x, y), nn.CrossEntropyLoss(), 130, validate=validate)


def sorted_by_class():
    model, centres = stack(20, 64, 5), torch.randn(5, 20)

    def batches(step):
        labels = torch.full((32,), step // 10 % 5)
        return centres[labels] + torch.randn(32, 20), labels

    return watch(model, adam(model), batches, nn.CrossEntropyLoss(), 130)


def sorted_by_answer():
    model, batches = stack(8, 32, 1), curve()

    def yes_then_no(step):
        return batches(step)[0], torch.full((64, 1), float(step // 20 % 2))

    return watch(model, adam(model), yes_then_no, nn.BCEWithLogitsLoss(), 200)


def one_class_only():
    model = stack(20, 64, 5)
    return watch(
        model, adam(model), lambda step: (torch.randn(32, 20), torch.full((32,), 3)), nn.CrossEntropyLoss(), 60
    )


def rare_class_never_predicted():
    model = stack(20, 8, 2)

    def batches(step):
        return torch.randn(64, 20), (torch.rand(64) < 0.04).long()

    return watch(model, adam(model), batches, nn.CrossEntropyLoss(), 700)


def head_far_too_large():
    model = stack(20, 64, 5)
    nn.init.normal_(model[2].weight, 0, 10.0)
    return watch(model, adam(model), classes(), nn.CrossEntropyLoss(), 5)


def targets_not_shifted():
    model = Language()
    return watch(model, adam(model, 1e-2), lambda step: (text(step)[0],) * 2, TokenLoss(), 80)


def mask_that_leaks():
    torch.manual_seed(0)
    model = Language(causal=False)
    return watch(model, adam(model, 5e-3), text, TokenLoss(), 160)


SICK = {
    dead_from_the_start: ("dead-units", "bad-initialization"),
    killed_by_loud_inputs: ("dead-units", "unnormalized-inputs"),
    wide_tanh: ("saturated-activations", "bad-initialization"),
    growing_through_depth: ("activation-explosion", "bad-initialization"),
    all_weights_equal: ("identical-units", "bad-initialization"),
    raw_pixels: ("input-anomaly", "unnormalized-inputs"),
    one_column_in_thousands: ("input-anomaly", "unnormalized-inputs"),
    targets_out_of_reach: ("target-anomaly", "unnormalized-targets"),
    one_batch_for_ever: ("batch-anomaly", "repeated-batch"),
    one_batch_and_validation: ("batch-anomaly", "repeated-batch"),
    sorted_by_class: ("batch-anomaly", "data-order"),
    sorted_by_answer: ("batch-anomaly", "data-order"),
    one_class_only: ("target-anomaly", "class-imbalance"),
    rare_class_never_predicted: ("collapsed-output", "class-imbalance"),
    head_far_too_large: ("unexpected-initial-loss", "bad-initialization"),
    targets_not_shifted: ("target-anomaly", "information-leak"),
    mask_that_leaks: ("uneven-position-loss", "information-leak"),
}


@pytest.mark.parametrize("run", SICK, ids=lambda run: run.__name__)
def test_the_bug_is_found_and_named(run):
    torch.manual_seed(0)
    name, cause = SICK[run]
    doctor = run()
    assert name in found(doctor), doctor.diagnose()
    assert cause in causes_of(doctor, name)[:2], causes_of(doctor, name)


def natural_sparsity():
    model = stack(20, 64, 64, 5)
    return watch(model, adam(model, 3e-3), classes(), nn.CrossEntropyLoss(), 120)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.leave = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 5)

    def forward(self, x):
        state = x.new_zeros(len(x), 32)
        for _ in range(3):
            state = torch.tanh(self.enter(x) + self.again(state))
        return self.leave(state)


def recurrence_by_hand():
    """What its second layer gets at first is nobody's output."""
    model = Recurrent()
    return watch(model, adam(model, 3e-3), classes(), nn.CrossEntropyLoss(), 60)


def one_input():
    model = stack(1, 64, 64, 1)

    def batches(step):
        x = 2 * torch.rand(64, 1) - 1
        return x, torch.sin(3 * x)

    return watch(model, adam(model, 3e-3), batches, nn.MSELoss(), 150)


def positive_inputs():
    model, weights = stack(8, 32, 1), torch.randn(8)

    def batches(step):
        x = 4 * torch.rand(64, 8) + 3
        return x, 0.3 * (x @ weights)[:, None]

    return watch(model, adam(model, 3e-3), batches, nn.MSELoss(), 120)


def dropout_and_gelu():
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 5))
    return watch(model, adam(model), classes(), nn.CrossEntropyLoss(), 100)


def deep_and_plain():
    model = stack(20, *[32] * 8, 5)
    return watch(model, adam(model), classes(), nn.CrossEntropyLoss(), 150)


def sigmoid_at_the_end():
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 30), nn.Sigmoid())
    basis = torch.randn(4, 30)

    def batches(step):
        x = torch.sigmoid(8 * torch.randn(32, 4) @ basis)
        return x, x

    return watch(model, adam(model, 1e-2), batches, nn.MSELoss(), 150)


def pixels_into_batchnorm():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 5)
    )
    patterns = torch.rand(5, 1, 12, 12)

    def batches(step):
        labels = torch.randint(0, 5, (32,))
        return 200 * (patterns[labels] + 0.2 * torch.rand(32, 1, 12, 12)), labels

    return watch(model, adam(model, 3e-3), batches, nn.CrossEntropyLoss(), 60)


class Scales(nn.Module):
    """Divides its pixels itself, and calls its activations as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(32, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x / 255)), 2)
        return self.last(F.adaptive_avg_pool2d(F.relu(self.second(x)), 2).flatten(1))


def pixels_scaled_inside():
    model, patterns = Scales(), torch.rand(5, 1, 12, 12)

    def batches(step):
        labels = torch.randint(0, 5, (32,))
        return 200 * (patterns[labels] + 0.2 * torch.rand(32, 1, 12, 12)), labels

    return watch(model, adam(model, 3e-3), batches, nn.CrossEntropyLoss(), 60)


def thousands_that_are_reached():
    model = stack(8, 64, 1)
    return watch(model, adam(model, 3e-2), curve(1000, 3000), nn.MSELoss(), 330)


def small_part_of_a_large_value():
    model = stack(8, 32, 1)
    nn.init.constant_(model[2].bias, 1000.0)
    return watch(model, adam(model, 3e-3), curve(1.0, 1000.0), nn.MSELoss(), 120)


def whole_data_set_at_once():
    model, (x, y) = stack(8, 32, 1), curve(batch=300)(0)
    return watch(model, adam(model, 1e-2), lambda step: (x, y), nn.MSELoss(), 80)


def imbalanced_and_learning():
    model, weights = stack(20, 32, 2), torch.randn(20)

    def batches(step):
        x = torch.randn(64, 20)
        return x, (x @ weights > 1.5 * weights.norm()).long()

    return watch(model, adam(model, 3e-3), batches, nn.CrossEntropyLoss(), 300)


def zero_head():
    model = stack(20, 64, 5)
    nn.init.zeros_(model[2].weight)
    return watch(model, adam(model), classes(), nn.CrossEntropyLoss(), 60)


def text_with_a_sound_mask():
    model = Language()
    return watch(model, adam(model, 5e-3), text, TokenLoss(), 100)


def padded_text(loss_fn):
    """Texts end early, and the loss leaves out what follows: a model never learns to name the padding."""
    model = Language()

    def batches(step):
        x, y = text(step)
        over = torch.arange(12) >= torch.randint(4, 13, (32, 1))
        return (x % 11 + 1).masked_fill(over, 0), (y % 11 + 1).masked_fill(over.roll(-1, 1) | over, 0)

    return watch(model, adam(model, 5e-3), batches, loss_fn, 100)


def text_padded_for_the_loss():
    class PaddedLoss(TokenLoss):
        ignore_index = 0

        def forward(self, output, target):
            return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=0)

    return padded_text(PaddedLoss())


def text_padded_for_a_loss_that_does_not_say_so():
    class Masked(TokenLoss):
        def forward(self, output, target):
            return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=0)

    return padded_text(Masked())


def reversed_text():
    """Another task than the next token: the last answer is the first input, and hardest to remember."""
    model = nn.Sequential(nn.Embedding(12, 16), Last(), nn.Linear(16, 12 * 8), nn.Unflatten(1, (8, 12)))

    def batches(step):
        x = torch.randint(0, 12, (32, 8))
        return x, x.flip(1)

    return watch(model, adam(model, 1e-2), batches, TokenLoss(), 120)


class Last(nn.Module):
    """A recurrent layer of which the last output counts."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(16, 16, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0][:, -1]


def one_label_for_all_on_purpose():
    """Contrastive: the positive is always the first of many."""
    model, optimizer, loss_fn = (encoder := stack(20, 64, 16)), adam(encoder), nn.CrossEntropyLoss()
    doctor = Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True})
    for _ in range(60):
        x = torch.randn(32, 20)
        query = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        keys = F.normalize(model(x), dim=1).detach()
        scores = query @ keys.T / 0.2
        others = scores[~torch.eye(32, dtype=torch.bool)].view(32, 31)
        loss = loss_fn(torch.cat([scores.diag()[:, None], others], 1), torch.zeros(32, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    doctor.detach()
    return doctor


def two_players():
    makes, judges = stack(8, 32, 2), stack(2, 32, 1)
    optimizers, loss_fn = (adam(makes), adam(judges)), nn.BCEWithLogitsLoss()
    doctor = Doctor({"makes": makes, "judges": judges}, optimizers, loss_fn=loss_fn, settings={"quiet": True})
    yes, no = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(150):
        real, made = 0.5 * torch.randn(64, 2) + 1, makes(torch.randn(64, 8))
        loss = loss_fn(judges(real), yes) + loss_fn(judges(made.detach()), no)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        fooled = loss_fn(judges(made), yes)
        optimizers[0].zero_grad()
        fooled.backward()
        optimizers[0].step()
        doctor.log_loss(loss, name="d_loss")
        doctor.log_loss(fooled, name="g_loss")
    doctor.detach()
    assert "output_spread/makes" in chart_of(doctor)
    return doctor


class Reads(nn.Module):
    """An encoder of sequences, which returns its last state: layers first, one of them, and the batch second."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 16, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[1]


def encoder_and_decoder():
    encoder, decoder = Reads(), stack(16, 16, 1)
    optimizers = adam(encoder), adam(decoder)
    doctor = Doctor({"encoder": encoder, "decoder": decoder}, optimizers, settings={"quiet": True})
    for _ in range(120):
        x = torch.randn(32, 6, 1)
        loss = F.mse_loss(decoder(encoder(x)[-1]), x.mean(1))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        doctor.log_loss(loss)
    doctor.detach()
    assert "output_spread/decoder" in chart_of(doctor)
    return doctor


def single_samples():
    model = stack(4, 32, 2)

    def policy(output, _):
        return -(F.log_softmax(output, 1)[:, 0] * torch.randn(1)).mean()

    return watch(model, adam(model), lambda step: (torch.randn(1, 4), None), policy, 120, functional=True)


HEALTHY = (
    natural_sparsity,
    recurrence_by_hand,
    one_input,
    positive_inputs,
    dropout_and_gelu,
    deep_and_plain,
    sigmoid_at_the_end,
    pixels_into_batchnorm,
    pixels_scaled_inside,
    thousands_that_are_reached,
    small_part_of_a_large_value,
    whole_data_set_at_once,
    imbalanced_and_learning,
    zero_head,
    text_with_a_sound_mask,
    text_padded_for_the_loss,
    text_padded_for_a_loss_that_does_not_say_so,
    reversed_text,
    one_label_for_all_on_purpose,
    two_players,
    encoder_and_decoder,
    single_samples,
)


@pytest.mark.parametrize("run", HEALTHY, ids=lambda run: run.__name__)
def test_the_look_alike_is_left_alone(run):
    torch.manual_seed(0)
    doctor = run()
    assert not MINE & set(found(doctor)), doctor.diagnose()


# ── the gauges themselves ────────────────────────────────────────────────────────────────────────────────────────


def hooks_of(*modules: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for module in modules for m in module.modules())


def test_hooks_are_off_between_samples_and_gone_at_the_end():
    model, loss_fn = stack(20, 32, 5), nn.CrossEntropyLoss()
    optimizer, batches = sgd(model), classes()
    doctor = Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True})
    on = []
    for step in range(12):
        x, y = batches(step)
        on.append(hooks_of(model, loss_fn) > 2)  # the two that look out for validations stay
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    assert [step for step, there in enumerate(on) if there] == [0, 1, 2, 4, 8]
    doctor.detach()
    assert hooks_of(model, loss_fn) == 0


@pytest.mark.parametrize("validation", ["without gradients", "in eval mode"])
def test_validation_between_two_steps_is_not_training(validation):
    model, loss_fn, batches = stack(20, 32, 5), nn.CrossEntropyLoss(), classes()
    optimizer = sgd(model)
    doctor = Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True})
    for step in range(9):
        model.eval()
        with torch.set_grad_enabled(validation == "in eval mode"):
            loss_fn(model(1e6 * torch.randn(4, 20)), torch.zeros(4, dtype=torch.long))
        model.train()
        x, y = batches(step)
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    doctor.detach()
    chart = chart_of(doctor)
    for vital in ("entry_rms", "input_absmax", "output_absmax"):
        assert len(chart[vital]) == 5
        assert chart[vital].values.max() < 100
    assert chart.modules("act_rms").matrix().max() < 100


def test_numbers_are_those_of_the_tensors():
    torch.manual_seed(0)
    model, loss_fn = stack(20, 32, 5), nn.CrossEntropyLoss()
    before, seen = copy.deepcopy(model), []

    def batches(step):
        seen.append(classes()(step))
        return seen[-1]

    chart = chart_of(watch(model, sgd(model), batches, loss_fn, 1))
    x, y = seen[0]
    output = before(x)
    assert chart.module_names == ("0", "1", "2")
    assert chart.fact("modules.kinds") == ["Linear", "ReLU", "Linear"]
    assert chart.fact("modules.outputs") == ["2"]
    assert chart.fact("loss.chance") == pytest.approx(math.log(5))
    rows = {vital: chart.modules(vital).latest for vital in ("act_rms", "act_absmax", "act_zero", "act_spread")}
    assert rows["act_rms"][2] == pytest.approx(output.square().mean().sqrt().item(), rel=1e-4)
    assert rows["act_absmax"][2] == pytest.approx(output.abs().max().item(), rel=1e-4)
    assert rows["act_zero"][1] == pytest.approx((before[:2](x) == 0).float().mean().item(), rel=1e-4)
    spread = output.var(0, correction=0).mean().sqrt() / output.square().mean().sqrt()
    assert rows["act_spread"][2] == pytest.approx(spread.item(), rel=1e-4)
    assert chart["input_std"].latest == pytest.approx(x.std(correction=0).item(), rel=1e-4)
    shares = torch.bincount(y, minlength=5) / 32
    assert chart["target_entropy"].latest == pytest.approx(torch.special.entr(shares).sum().item(), rel=1e-4)
    probability = output.softmax(1).gather(1, y[:, None]).mean().item()
    assert chart["target_probability"].latest == pytest.approx(probability, rel=1e-4)
    assert chart["criterion"].latest == pytest.approx(chart["loss"].latest)


def test_targets_from_a_logged_batch_and_outputs_from_the_model():
    model, batches = stack(20, 32, 5), classes()
    optimizer = sgd(model)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    x, y = batches(0)
    doctor.log_batch(x, y)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    doctor.detach()
    chart = chart_of(doctor)
    assert chart["target_classes"].latest == y.unique().numel()
    assert chart["output_rms"].latest > 0
    assert chart.fact("outputs.classes") == 5


@pytest.mark.parametrize("kind", ["model", "in place", "child", "step"])
def test_compiled_code_is_neither_broken_nor_compiled_again(kind):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    model, loss_fn, batches = stack(20, 32, 5), nn.CrossEntropyLoss(), classes()
    optimizer, facts = sgd(model), {}
    watched = model
    if kind == "model":
        watched = torch.compile(model, backend="aot_eager")
    elif kind == "in place":
        model.compile(backend="aot_eager")
    elif kind == "child":
        model[0] = torch.compile(model[0], backend="aot_eager")

    def loss_of(x, y):
        return loss_fn(watched(x), y)

    compute = torch.compile(loss_of, backend="aot_eager", fullgraph=True) if kind == "step" else loss_of
    gauges = [
        ActivationGauge({"": watched}, facts.update),
        BatchGauge({"": watched}, loss_fn, facts.update),
        OutputGauge({"": watched}, loss_fn, facts.update),
    ]
    for step in range(20):
        if step in (0, 1, 5, 10):
            for gauge in gauges:
                gauge.arm()
        loss = compute(*batches(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for gauge in gauges:
            gauge.disarm()
    assert counters["stats"]["unique_graphs"] <= 1
    assert not counters["graph_break"]
    if kind != "step":
        assert facts["activations.hidden"]
    gauges.clear()
    del gauge
    assert hooks_of(model, loss_fn) == 0


def test_no_activation_is_kept_alive_and_checkpoints_are_seen_once():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = stack(20, 32, 32), nn.Linear(32, 5)

        def forward(self, x):
            return self.head(checkpoint(self.body, x, use_reentrant=False))

    model = Checkpointed()
    chart = chart_of(watch(model, sgd(model), classes(), nn.CrossEntropyLoss(), 3))
    assert not torch.isnan(torch.tensor(chart.modules("act_rms").latest)).any()


def test_a_module_that_the_gauge_cannot_read_does_no_harm():
    class Odd(nn.Module):
        def forward(self, x):
            return {"logits": [x, None, "text"], "sparse": torch.eye(3).to_sparse()}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.odd = nn.Linear(20, 5), Odd()

        def forward(self, x):
            return self.odd(self.layer(x))["logits"][0]

    model = Model()
    chart = chart_of(watch(model, sgd(model), classes(), nn.CrossEntropyLoss(), 5))
    assert len(chart.modules("act_rms").rows) == 4
    assert len(chart["output_rms"]) == 4


@pytest.mark.parametrize("kind", ["text", "images"])
def test_watched_and_unwatched_runs_are_identical(kind):
    def train(watched: bool):
        torch.manual_seed(0)
        if kind == "text":
            model, loss_fn, batches = Language(), TokenLoss(), text
        else:
            model = nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 5)
            )
            loss_fn = nn.CrossEntropyLoss()

            def batches(step):
                return torch.randn(16, 1, 8, 8), torch.randint(0, 5, (16,))

        optimizer = adam(model)
        doctor = Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True}) if watched else None
        for step in range(12):
            x, y = batches(step)
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if doctor is not None:
                doctor.log_loss(loss)
        if doctor is not None:
            doctor.detach()
            assert len(chart_of(doctor).modules("act_rms").rows) == 5
        return [*model.state_dict().values(), torch.get_rng_state()]

    assert all(torch.equal(left, right) for left, right in zip(train(True), train(False), strict=True))


# ── labels without a loss function ───────────────────────────────────────────────────────────────────────────────────


def rare(step: int):
    labels = (torch.rand(32) < 0.1).long() * 3
    return torch.randn(32, 20) + labels[:, None], labels


@pytest.mark.parametrize("batches", [classes(4), rare], ids=["even", "rare"])
def test_labels_are_seen_at_backward_where_no_loss_function_is_shown(batches):
    charts = []
    for functional in (False, True):
        torch.manual_seed(0)
        model = stack(20, 32, 4)
        seen = watch(model, adam(model), batches, nn.CrossEntropyLoss(), 60, functional=functional)
        charts.append(chart_of(seen))
    shown, hidden = charts
    for vital in ("target_classes", "target_top_share", "target_collision"):
        assert hidden[vital].steps.tolist() == shown[vital].steps.tolist()
        assert hidden[vital].values == pytest.approx(shown[vital].values)
    for vital in ("guess_loss", "criterion", "target_probability"):
        assert hidden[vital].values == pytest.approx(shown[vital].values, rel=1e-4)
    assert hidden.fact("loss.chance") == shown.fact("loss.chance")
    assert not hidden["target_top_share"].nonfinite


def test_labels_that_are_places_in_the_batch_are_no_labels():
    torch.manual_seed(0)
    model = stack(20, 32, 8)

    def contrast(codes, labels):
        first, second = F.normalize(codes, dim=1).chunk(2)
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(16))

    chart = chart_of(watch(model, adam(model), classes(4), contrast, 40, functional=True))
    assert chart.fact("loss.kind") == "cross-entropy"
    assert chart["target_top_share"].count == 0


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_padding_that_the_loss_counts(functional, ignored):
    torch.manual_seed(0)

    def padded(step: int):
        tokens, labels = text(step)
        tokens[:, 3:], labels[:, 3:] = 0, 0
        return tokens, labels

    class Loss(nn.CrossEntropyLoss):
        def forward(self, output, target):
            return super().forward(output.transpose(1, 2), target)

    model = Language()
    loss_fn = Loss(ignore_index=0) if ignored else Loss()
    doctor = watch(model, adam(model), padded, loss_fn, 20, functional=functional)
    assert ("target-anomaly" in found(doctor)) is not ignored


# ── loops that call a function for a loss, and log a number ──────────────────────────────────────────────────────


def train_by_function(compare, targets, *, steps=30, width=1):
    torch.manual_seed(0)
    model = stack(6, 16, width)
    optimizer = adam(model)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(steps):
        x = torch.randn(32, 6)
        loss = compare(model(x), targets(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss.item())
    doctor.detach()
    return doctor


def test_backward_is_tapped_in_sampled_steps_only():
    original = torch.autograd.backward
    seen = []

    def compare(output, target):
        seen.append(torch.autograd.backward is not original)
        return F.mse_loss(output, target)

    train_by_function(compare, lambda x: x[:, :1], steps=12)
    assert [step for step, tapped in enumerate(seen) if tapped] == [0, 1, 2, 4, 8]
    assert torch.autograd.backward is original


@pytest.mark.parametrize("compare", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_targets_of_a_function_are_seen(compare):
    chart = chart_of(train_by_function(compare, lambda x: 500 + x[:, :1]))
    assert chart["target_mean"].latest == pytest.approx(500, abs=2)
    assert chart["criterion"].first == pytest.approx(chart["loss"].first, rel=1e-4)
    assert chart["guess_loss"].latest < 0.01 * chart["criterion"].latest


def test_zeros_and_ones_are_labels():
    chart = chart_of(train_by_function(F.binary_cross_entropy_with_logits, lambda x: (x[:, :1] > 1).float()))
    assert 0.7 < chart["pooled_top_share"].latest < 0.95
    assert chart["pooled_classes"].latest == 2
    assert 0.5 <= chart["prediction_top_share"].latest <= 1
    soft = chart_of(train_by_function(F.binary_cross_entropy_with_logits, lambda x: x[:, :1].sigmoid()))
    assert not soft["pooled_top_share"].latest > 0


@pytest.mark.parametrize("compare", [lambda a, b: ((a - b) ** 2).mean(), lambda a, b: (a - b).abs().mean()])
def test_a_number_that_is_logged_does_not_hide_a_crossed_loss(compare):
    doctor = train_by_function(compare, lambda x: x[:, 0])
    assert found(doctor)["suspicious-loss"] == "warning"


def test_tensors_that_were_packed_away_are_left_alone():
    unpacked = []

    def compare(output, target):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(0) or t):
            return F.mse_loss(output, target)

    chart = chart_of(train_by_function(compare, lambda x: x[:, :1], steps=5))
    assert chart["target_mean"].count == 0
    assert len(unpacked) == 10  # once for output and target, by backward itself


def test_a_loss_between_two_outputs_has_no_targets():
    chart = chart_of(train_by_function(lambda out, _: F.mse_loss(out[:16], out[16:]), lambda x: x, width=8))
    assert chart.fact("loss.between_outputs") is True
    assert chart["target_std"].count == 0


@pytest.mark.parametrize(("mode", "scale", "sick"), [("train", 1, True), ("eval", 1, False), ("eval", 255, True)])
def test_what_is_fed_between_steps(mode, scale, sick):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 5))
    optimizer, batches = adam(model), classes()
    doctor = Doctor(model, optimizer, settings={"quiet": True, "select": ["validation-anomaly"]})
    for step in range(120):
        x, y = batches(step)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss.item())
        if step % 30 == 29:
            model.train(mode == "train")
            with torch.no_grad():
                x, y = batches(step)
                doctor.log_validation(F.cross_entropy(model(scale * x), y).item())
            model.train()
    doctor.detach()
    assert chart_of(doctor)["idle_input_std"].count > 1
    assert ("validation-anomaly" in found(doctor)) is sick
    assert hooks_of(model) == 0


@pytest.mark.parametrize(("error", "ratio"), [(F.mse_loss, 1e4), (F.l1_loss, 100)])
def test_the_parts_of_a_summed_loss_are_measured(error, ratio):
    torch.manual_seed(0)
    model, labels = nn.Linear(4, 6), torch.randint(0, 3, (32,))

    def boxes_and_classes(outputs, boxes):
        return error(outputs[:, :3], boxes) + F.cross_entropy(outputs[:, 3:], labels)

    batch = torch.randn(32, 4), torch.full((32, 3), 400.0)
    chart = chart_of(watch(model, sgd(model, 1e-6), lambda step: batch, boxes_and_classes, 3, functional=True))
    assert chart["part_target_size"].latest == pytest.approx(400.0, rel=0.01)
    assert chart["part_loss_ratio"].latest > ratio


@pytest.mark.parametrize("binary", [False, True])
def test_the_weight_of_the_common_class_is_measured(binary):
    torch.manual_seed(0)
    labels = torch.tensor([0] * 28 + [1] * 4)
    model, loss_fn = nn.Linear(4, 2), nn.CrossEntropyLoss(weight=torch.tensor([0.8, 0.2]))
    if binary:
        model, loss_fn = (
            nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
            nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.25)),
        )
        labels = labels.float()
    doctor = watch(model, sgd(model), lambda step: (torch.randn(32, 4), labels), loss_fn, 3)
    assert chart_of(doctor)["weight_of_common"].latest == pytest.approx(4.0)


@pytest.mark.parametrize("several", [False, True])
def test_a_loss_by_sample_that_the_loop_weighs_itself_is_watched_to_the_end(several):
    model = stack(8, 16, 8)
    optimizer = adam(model)
    doctor = Doctor([model, stack(8, 8)] if several else model, optimizer, settings={"quiet": True})
    for _ in range(60):
        inputs = torch.randn(16, 8)
        loss = F.mse_loss(model(inputs), inputs, reduction="none").sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    assert doctor.diagnose().step == 59
    doctor.detach()


class Timed(nn.Module):
    """Two inputs, of which the second enters a layer of its own."""

    def __init__(self, *, normalized: bool = False) -> None:
        super().__init__()
        self.first, self.time, self.last = nn.Linear(8, 16), nn.Linear(1, 16), nn.Linear(16, 1)
        self.norm = nn.BatchNorm1d(16) if normalized else nn.Identity()

    def forward(self, x, t):
        return self.last(torch.relu(self.first(x) + self.norm(self.time(t))))


@pytest.mark.parametrize(
    ("scale", "normalized", "loud"), [(1000.0, False, True), (1.0, False, False), (1000.0, True, False)]
)
def test_a_second_input_is_measured_at_its_own_door(scale, normalized, loud):
    model = Timed(normalized=normalized)
    optimizer = adam(model)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(30):
        x, t = torch.randn(32, 8), scale * torch.rand(32, 1)
        loss = (model(x, t)[:, 0] - x[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    assert ("input-anomaly" in {item.name for item in doctor.diagnose().symptoms}) == loud
    doctor.detach()
