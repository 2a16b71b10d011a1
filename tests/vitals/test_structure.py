"""Silent bugs as people write them, and right loops that look like them: real loops, watched by a Doctor."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchdoctor import Doctor
from torchdoctor.vitals.census import GraphCensus
from torchdoctor.vitals.loss_graph import read_graph
from torchdoctor.vitals.patient import Setup

SELECTED = ("GP", "WE", "OP", "GR04")
"""The findings of this file's subject; what else a tiny run may show is not."""
STEPS = 40
RULE = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
Found = tuple[set[tuple[str, str]], str]


def batch(size: int = 32) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(size, 8)
    return inputs, (inputs @ RULE).argmax(1)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([item for item in model.parameters() if item.requires_grad], lr=3e-3)


def watch(model, optimizer, **options) -> Doctor:
    return Doctor(model, optimizer, settings={"quiet": True, "select": SELECTED}, **options)


def verdict(doctor: Doctor) -> Found:
    report = doctor.diagnose()
    doctor.detach()
    assert not [note for note in report.notes if "failed" in note]
    grave = {(item.name, item.severity) for item in report.symptoms if item.severity != "info"}
    return grave, report.diagnoses[0].cause if report.diagnoses else ""


def train(model, optimizer=None, *, loss_fn=F.cross_entropy, steps=STEPS, size=32, **options) -> Found:
    """The plain loop."""
    optimizer = optimizer or adam(model)
    doctor = watch(model, optimizer, **options)
    for _ in range(steps):
        inputs, targets = batch(size)
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    return verdict(doctor)


# ── the bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def no_zero_grad() -> Found:
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss.item())
    return verdict(doctor)


def zero_grad_before_the_step() -> Found:
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        doctor.log_loss(loss)
    return verdict(doctor)


def accumulate(*, divide_by: float = 4, clear_each: bool = False, clear_every: int = 1, sgd: bool = True) -> Found:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02) if sgd else adam(model)
    doctor = watch(model, optimizer)
    for step in range(2 * STEPS):
        if step % clear_every == 0:
            optimizer.zero_grad()
        for _ in range(4):
            if clear_each:
                optimizer.zero_grad()
            inputs, targets = batch(8)
            loss = F.cross_entropy(model(inputs), targets)
            doctor.log_loss(loss)
            (loss / divide_by).backward()
        optimizer.step()
    return verdict(doctor)


def head_not_in_optimizer() -> Found:
    model = network()
    return train(model, torch.optim.AdamW(model[:5].parameters(), lr=3e-3))


def head_replaced() -> Found:
    model = network()
    optimizer = adam(model)
    model[6] = nn.Linear(32, 3)
    return train(model, optimizer)


class PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Linear(8, 16), nn.Linear(16, 16)]
        self.head = nn.Linear(16, 3)

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values).relu()
        return self.head(values)


def middle_frozen() -> Found:
    model = network()
    model[4].requires_grad_(False)
    return train(model)


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.encoder(values).relu().detach())


def leaf_loss() -> Found:
    return train(network(), loss_fn=lambda output, target: F.cross_entropy(output, target).detach().requires_grad_())


def no_backward() -> Found:
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        doctor.log_loss(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return verdict(doctor)


def eval_left_on() -> Found:
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for step in range(2 * STEPS):
        inputs, targets = batch()
        if step == 30:
            model.eval()
            with torch.no_grad():
                doctor.log_validation(F.cross_entropy(model(inputs), targets))
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    return verdict(doctor)


def regress(loss_fn: Callable[[Tensor, Tensor], Tensor]) -> Found:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return train(model, loss_fn=lambda output, target: loss_fn(output, target.float()))


def cosine_at_every_batch() -> Found:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    doctor = watch(model, optimizer, scheduler=scheduler)
    for _ in range(2 * STEPS):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return verdict(doctor)


def epochs(*, step_it: bool) -> Found:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    doctor = watch(model, optimizer, scheduler=scheduler)
    for epoch in range(8):
        for _ in range(12):
            inputs, targets = batch()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            doctor.log_loss(loss)
            optimizer.step()
            optimizer.zero_grad()
        doctor.log_validation(0.5 / (epoch + 1))
        if step_it:
            scheduler.step()
    return verdict(doctor)


def clip_everything(optimizer_class: type[torch.optim.Optimizer]) -> Found:
    model = network()
    optimizer = optimizer_class(model.parameters(), lr=1e-2)
    doctor = watch(model, optimizer)
    for _ in range(3 * STEPS):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
        optimizer.step()
        optimizer.zero_grad()
    return verdict(doctor)


def huge_eps() -> Found:
    model = network()
    return train(model, torch.optim.Adam(model.parameters(), lr=1e-3, eps=10.0))


class Cosines(nn.Module):
    """A classifier by angle, for more classes than the labels are of."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.trunk, self.classes, self.scale = nn.Linear(8, 16), nn.Parameter(torch.randn(12, 16)), scale

    def forward(self, inputs: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(self.trunk(inputs)), F.normalize(self.classes))
        return cosines if self.scale == 1 else self.scale * cosines


class Sequences(nn.Module):
    """A recurrent layer that reads time first, fed with the batch first unless it is turned around."""

    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.layer, self.head, self.turned = nn.GRU(2, 16), nn.Linear(16, 3), turned

    def forward(self, inputs: Tensor) -> Tensor:
        steps = inputs.view(-1, 4, 2)
        states = self.layer(steps if self.turned else steps.transpose(0, 1))[0]
        return self.head(states[:, -1] if self.turned else states[-1])


def parts(*, training: bool) -> Found:
    """A model that nobody calls: the loop calls its parts, as the steps of a LightningModule do."""
    model = nn.ModuleDict({"trunk": network(), "drop": nn.Dropout(0.1), "head": nn.Linear(3, 3)}).train(training)
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        loss = F.cross_entropy(model["head"](model["drop"](model["trunk"](inputs))), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss.item())
    return verdict(doctor)


BUGS = {
    "no zero_grad": (no_zero_grad, "gradients-not-cleared", "missing-zero-grad"),
    "zero_grad before the step": (zero_grad_before_the_step, "no-gradient", "missing-zero-grad"),
    "one player of two never cleared": (lambda: gan(forget=1), "gradients-not-cleared", "missing-zero-grad"),
    "the other player never cleared": (lambda: gan(forget=0), "gradients-not-cleared", "missing-zero-grad"),
    "cleared between micro-batches": (
        lambda: accumulate(clear_each=True), "gradients-not-cleared", "accumulation-error"
    ),
    "cleared at every other step": (lambda: accumulate(clear_every=3), "gradients-not-cleared", "accumulation-error"),
    "accumulation not divided": (lambda: accumulate(divide_by=1), "gradients-not-cleared", "accumulation-error"),
    "accumulation divided twice": (lambda: accumulate(divide_by=16), "gradients-not-cleared", "accumulation-error"),
    "head not in the optimizer": (head_not_in_optimizer, "frozen-weights", "parameters-not-in-optimizer"),
    "layers in a plain list": (lambda: train(PlainList()), "frozen-weights", "parameters-not-in-optimizer"),
    "head replaced after the optimizer": (head_replaced, "frozen-weights", "stale-parameters"),
    "a layer in the middle frozen": (middle_frozen, "frozen-weights", "frozen-by-mistake"),
    "detach in the middle": (lambda: train(Cut()), "no-gradient", "detached-graph"),
    "requires_grad_ on the loss": (leaf_loss, "suspicious-loss", "detached-graph"),
    "no backward": (no_backward, "no-gradient", "detached-graph"),
    "softmax before cross-entropy": (
        lambda: train(network(), loss_fn=lambda o, t: F.cross_entropy(F.softmax(o, dim=1), t)),
        "suspicious-loss", "loss-misuse",
    ),
    "softmax module before the loss module": (
        lambda: train(network().append(nn.Softmax(dim=1)), loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1)),
        "suspicious-loss", "loss-misuse",
    ),
    "sigmoid before bce with logits": (
        lambda: train(network(), loss_fn=lambda o, t: F.binary_cross_entropy_with_logits(
            o.sigmoid(), F.one_hot(t, 3).float())),
        "suspicious-loss", "loss-misuse",
    ),
    "relu before bce with logits": (
        lambda: train(network().append(nn.ReLU()), loss_fn=lambda o, t: F.binary_cross_entropy_with_logits(
            o, F.one_hot(t, 3).float())),
        "suspicious-loss", "loss-misuse",
    ),
    "cosines without a scale": (lambda: train(Cosines(1.0)), "suspicious-loss", "loss-misuse"),
    "the batch for time": (lambda: train(Sequences(turned=True)), "suspicious-loss", "loss-misuse"),
    "parts in eval mode": (lambda: parts(training=False), "wrong-mode", "eval-mode-in-training"),
    "raw outputs into nll": (lambda: train(network(), loss_fn=F.nll_loss), "suspicious-loss", "loss-misuse"),
    "softmax over the batch": (
        lambda: train(network(), loss_fn=lambda o, t: F.nll_loss(F.log_softmax(o, dim=0), t)),
        "suspicious-loss", "loss-misuse",
    ),
    "probabilities into a KL divergence": (
        lambda: train(network(), loss_fn=lambda o, t: F.kl_div(
            F.softmax(o, dim=1), F.one_hot(t, 3) * 0.7 + 0.1, reduction="batchmean")),
        "suspicious-loss", "loss-misuse",
    ),
    "logarithms as the target of a KL divergence": (
        lambda: train(network(), loss_fn=lambda o, t: F.kl_div(
            F.one_hot(t, 3) * 0.7 + 0.1, F.log_softmax(o, dim=1), reduction="batchmean")),
        "suspicious-loss", "loss-misuse",
    ),
    "a softmax of one score": (
        lambda: regress(lambda o, t: F.mse_loss(o.softmax(dim=1), t[:, None])), "suspicious-loss", "loss-misuse"
    ),
    "broadcast by hand": (lambda: regress(lambda o, t: (o - t).pow(2).mean()), "suspicious-loss", "loss-misuse"),
    "broadcast by hand, the other way": (
        lambda: regress(lambda o, t: (t[:, None] - o.squeeze()).abs().mean()), "suspicious-loss", "loss-misuse"
    ),
    "a minus sign too many": (
        lambda: train(network(), loss_fn=lambda o, t: -F.cross_entropy(o, t)), "suspicious-loss", "loss-misuse"
    ),
    "eval left on": (eval_left_on, "wrong-mode", "eval-mode-in-training"),
    "batches of two": (lambda: train(network(), size=2), "small-normalization-batch", "batchnorm-misuse"),
    "cosine stepped at every batch": (cosine_at_every_batch, "schedule-anomaly", "schedule-error"),
    "scheduler never stepped": (lambda: epochs(step_it=False), "schedule-anomaly", "schedule-error"),
    "clipped to nothing": (lambda: clip_everything(torch.optim.SGD), "clipping-anomaly", "clip-too-tight"),
    "eps above the gradients": (huge_eps, "optimizer-advice", "optimizer-misconfigured"),
}  # fmt: skip


@pytest.mark.parametrize(("bug", "finding", "cause"), BUGS.values(), ids=BUGS)
def test_bug_is_named(bug, finding, cause):
    torch.manual_seed(0)
    grave, first = bug()
    assert finding in {name for name, _ in grave}
    assert first == cause


@pytest.mark.parametrize(("scores", "raw"), [(lambda o: o, True), (lambda o: o.log_softmax(-1), False)])
def test_a_bias_that_is_added_afterwards_belongs_to_a_linear_layer(scores, raw):
    torch.manual_seed(0)
    layer, read = nn.Linear(8, 5), nn.GRU(4, 8, batch_first=True)
    outputs = layer(read(torch.randn(3, 6, 4))[0])  # turned round: multiplied first, and then added to
    loss = F.nll_loss(scores(outputs).flatten(0, 1), torch.randint(0, 5, (18,)))
    assert ("nll-without-log-softmax" in read_graph(loss.grad_fn).lint) == raw


def test_a_loss_that_was_computed_once_is_known_again():
    model = nn.Linear(8, 3)
    told = {}
    census = GraphCensus(Setup({"": model}, [adam(model)]), told.update)
    inputs, targets = batch()
    fresh = [F.cross_entropy(model(inputs), targets) for _ in range(3)]
    for loss in (*fresh, fresh[-1]):
        assert "loss.stale" not in told
        census.arm()
        census.loss_logged("loss", loss)
        census.loss_logged("loss", loss)  # logged twice within a step: nothing odd
    assert told["loss.stale"]


def test_outputs_of_an_earlier_step_are_known_by_their_age():
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = watch(model, optimizer)
    inputs, targets = batch()
    outputs = model(inputs)
    for _ in range(10):
        loss = F.cross_entropy(outputs, targets)
        loss.backward(retain_graph=True)
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    grave, first = verdict(doctor)
    assert ("suspicious-loss", "critical") in grave
    assert first == "stale-loss"


def test_outputs_of_an_earlier_step_are_known_in_mid_run_after_the_loss_has_changed():
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    inputs, targets = batch()
    for step in range(320):
        if step <= 120:
            outputs = model(inputs)
        loss = F.cross_entropy(outputs, targets if step <= 120 else (targets + 1) % 3)
        loss.backward(retain_graph=True)
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    named = {item.name: item for item in doctor.diagnose().symptoms}
    assert named["suspicious-loss"].first_step < 240


@pytest.mark.parametrize("late", [0, 1, 4])
def test_parts_that_the_loop_calls_one_by_one_are_not_old(late):
    """No forward pass of the whole model is ever seen where it is a `ModuleDict` of parts."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"trunk": nn.Linear(8, 16), "head": nn.Linear(16, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = watch(model, optimizer)
    for _ in range(30):
        inputs, targets = batch()
        loss = F.cross_entropy(model["head"](model["trunk"](inputs).relu()), targets)
        loss.backward()
        if not late:
            doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
        if late:
            doctor.log_loss(late * loss)
    doctor.detach()
    assert doctor._examination.chart.fact("loss.stale") is None


def test_a_generator_that_ran_before_its_critic_stepped_is_not_old():
    torch.manual_seed(0)
    players = {"makes": nn.Linear(4, 8), "judges": nn.Linear(8, 1)}
    optimizers = [torch.optim.SGD(player.parameters(), lr=0.01) for player in players.values()]
    doctor = Doctor(players, optimizers, settings={"quiet": True})
    for _ in range(20):
        made = players["makes"](torch.randn(16, 4))
        critic = players["judges"](made.detach()).mean() - players["judges"](torch.randn(16, 8)).mean()
        optimizers[1].zero_grad()
        critic.backward()
        optimizers[1].step()
        loss = -players["judges"](made).mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        doctor.log_loss(loss, name="g_loss")
    doctor.detach()
    assert doctor._examination.chart.fact("loss.stale") is None


@pytest.mark.parametrize("stepping", [False, True])
@pytest.mark.parametrize("clears_first", [False, True])
def test_gradients_that_nobody_applies(stepping, clears_first):
    torch.manual_seed(0)
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(60):
        inputs, targets = batch()
        if clears_first:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        doctor.log_loss(loss)
        loss.backward()
        if stepping:
            optimizer.step()
        if not clears_first:
            optimizer.zero_grad()
    grave, _ = verdict(doctor)
    assert (("frozen-weights", "critical") in grave) is not stepping


def test_micro_batches_are_weighed_where_only_the_loss_module_shows_them():
    torch.manual_seed(0)
    model, loss_fn = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = watch(model, optimizer, loss_fn=loss_fn)
    for _ in range(STEPS):
        for _ in range(4):
            inputs, targets = batch(8)
            loss = loss_fn(model(inputs), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss.item())
    assert verdict(doctor) == ({("gradients-not-cleared", "warning")}, "accumulation-error")


@pytest.mark.parametrize(("share", "found"), [(1.0, True), (0.25, False)])
def test_micro_batches_are_counted_where_only_backward_shows_them(share, found):
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        for _ in range(4):
            inputs, targets = batch(8)
            loss = F.cross_entropy(model(inputs), targets)
            (loss if share == 1 else loss * share).backward()
            doctor.log_loss(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    grave, _ = verdict(doctor)
    assert (("gradients-not-cleared", "warning") in grave) is found


@pytest.mark.parametrize(("times", "found"), [(4, True), (2, False)], ids=["micro-batches", "two tasks"])
def test_factors_of_one_that_a_trainer_multiplies_and_divides_by_change_nothing(times, found):
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        for _ in range(times):
            inputs, targets = batch(8)
            loss = F.cross_entropy(model(inputs), targets)
            (loss * 1 / 1 if times > 2 else loss / 1).backward()  # processes, then micro-batches
        optimizer.step()
        optimizer.zero_grad()
    grave, _ = verdict(doctor)
    assert (("gradients-not-cleared", "warning") in grave) is found


@pytest.mark.parametrize("rest", [1, 2])
def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches_than_its_losses_are_divided_by(rest):
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    doctor = watch(model, optimizer)
    for _ in range(8):
        for number in range(1, 8 + rest + 1):
            inputs, targets = batch(8)
            (F.cross_entropy(model(inputs), targets) / 4).backward()
            if number % 4 == 0 or number == 8 + rest:
                optimizer.step()
                optimizer.zero_grad()
        grave, _ = verdict(doctor)
        assert not any(name == "gradients-not-cleared" for name, _ in grave)


def test_a_loss_module_shows_its_graph_where_the_loop_logs_a_number_after_the_step():
    torch.manual_seed(0)
    model, loss_fn = network().append(nn.Softmax(dim=1)), nn.CrossEntropyLoss()
    optimizer = adam(model)
    doctor = watch(model, optimizer, loss_fn=loss_fn)
    for _ in range(5):
        inputs, targets = batch()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss.item())
    assert verdict(doctor) == ({("suspicious-loss", "warning")}, "loss-misuse")


def test_mse_loss_that_broadcasts_is_seen_behind_its_warning():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="target size"):
        grave, first = regress(F.mse_loss)
    assert (grave, first) == ({("suspicious-loss", "warning")}, "loss-misuse")


# ── the look-alikes ──────────────────────────────────────────────────────────────────────────────────────────────────


def frozen_trunk() -> Found:
    model = network()
    model[:4].requires_grad_(False)
    model[:4].eval()
    return train(model)


class LoRA(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, 2, bias=False)
        self.up = nn.Linear(2, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values) + self.up(self.down(values))


def lora() -> Found:
    model = network()
    for index in (0, 4, 6):
        model[index] = LoRA(model[index])
    model[1].requires_grad_(False)
    return train(model)


class Routed(nn.Module):
    """Tasks take turns, and one head is for another data set."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.heads = nn.ModuleList(nn.Linear(16, 3) for _ in range(3))
        self.turn = 0

    def forward(self, values: Tensor) -> Tensor:
        self.turn += 1
        return self.heads[self.turn % 2](self.trunk(values).relu())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 16), nn.Linear(16, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.embedding(values.argmax(1)))


class Checkpointed(nn.Module):
    """Reentrant checkpointing hides its parameters from the graph, and computes them a second time in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(checkpoint(self.inner, self.first(values).relu(), use_reentrant=True))


def gan(*, real_and_fake_apart: bool = False, clear_at_the_top: bool = False, forget: int = -1) -> Found:
    generator, critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)), nn.Linear(8, 1)
    optimizers = [torch.optim.Adam(critic.parameters(), lr=1e-3), torch.optim.Adam(generator.parameters(), lr=1e-3)]
    doctor = watch({"generator": generator, "critic": critic}, optimizers)
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    judge = F.binary_cross_entropy_with_logits
    for _ in range(STEPS):
        fake = generator(torch.randn(16, 4))
        for number, optimizer in enumerate(optimizers):
            if number != forget and (number == 0 or clear_at_the_top):
                optimizer.zero_grad(set_to_none=not clear_at_the_top)
        if real_and_fake_apart:
            judge(critic(torch.randn(16, 8)), ones).backward()
            judge(critic(fake.detach()), zeros).backward()
        else:  # the graph reaches the generator here too: its gradients are cleared before its own turn
            unlike = fake.detach() if clear_at_the_top else fake
            loss = judge(critic(torch.randn(16, 8)), ones) + judge(critic(unlike), zeros)
            loss.backward()
            doctor.log_loss(loss, name="d_loss")
        optimizers[0].step()
        critic.requires_grad_(False)
        if not clear_at_the_top and forget != 1:
            optimizers[1].zero_grad()
        loss = judge(critic(generator(torch.randn(16, 4))), ones)
        loss.backward()
        doctor.log_loss(loss, name="g_loss")
        optimizers[1].step()
        critic.requires_grad_(True)
    return verdict(doctor)


def lbfgs() -> Found:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    doctor = watch(model, optimizer)
    inputs, targets = batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return verdict(doctor)


def critic_watched_alone() -> Found:
    """The generator learns through the critic, and what that leaves there is cleared before the critic's own turn."""
    generator, critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)), nn.Linear(8, 1)
    own, other = adam(critic), adam(generator)
    doctor = watch(critic, own)
    for _ in range(STEPS):
        fake = generator(torch.randn(16, 4))
        own.zero_grad()
        loss = (critic(torch.randn(16, 8)) - 1).square().mean() + critic(fake.detach()).square().mean()
        loss.backward()
        own.step()
        doctor.log_loss(loss)
        other.zero_grad()
        (critic(fake) - 1).square().mean().backward()
        other.step()
    return verdict(doctor)


def sharpness_aware() -> Found:
    """Two backwards a step with a clearing between them: the weights moved in between."""
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        F.cross_entropy(model(inputs), targets).backward()
        shifts = [0.01 * item.grad / (item.grad.norm() + 1e-9) for item in model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), shifts)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), shifts)
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    return verdict(doctor)


def gradients_put_together_by_hand() -> Found:
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        parts = []
        for task in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), (targets + task) % 3)
            loss.backward()
            parts.append([item.grad.clone() for item in model.parameters()])
            doctor.log_loss(loss, name=f"task{task}")
        for item, *gradients in zip(model.parameters(), *parts, strict=True):
            item.grad = sum(gradients)
        optimizer.step()
        optimizer.zero_grad()
    return verdict(doctor)


def parts_of_one_objective() -> Found:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        for name, loss in (
            ("fit", F.cross_entropy(model(inputs), targets)),
            ("size", 1e-3 * model(inputs).square().mean()),
        ):
            doctor.log_loss(loss, name=name)
            loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=False)
    return verdict(doctor)


def validation_with_gradients_on() -> Found:
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    for _ in range(STEPS):
        inputs, targets = batch()
        model.eval()
        doctor.log_validation(F.cross_entropy(model(inputs), targets))
        model.train()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    return verdict(doctor)


def resting_batchnorm() -> Found:
    """With statistics that it has learnt before, as a pretrained model has."""
    model = network()
    model(torch.randn(64, 8))
    model[1].eval()
    return train(model)


def average_of_weights() -> Found:
    """A teacher inside the model, moved by hand and run without gradients."""

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 3)
            self.teacher = [copy.deepcopy(self.net).requires_grad_(False)]

        def forward(self, values: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = self.teacher[0](values)
            return self.net(values) + 0 * wanted

    return train(Student())


def second_optimizer_unknown_to_the_doctor() -> Found:
    model = network()
    known, other = adam(model[:4]), adam(model[4:])
    doctor = watch(model, known)
    for _ in range(STEPS):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        known.step()
        other.step()
        model.zero_grad()
    return verdict(doctor)


def linear_probe() -> Found:
    model = network()
    with torch.no_grad():
        for tensor in model.parameters():  # it was trained before: a few directions stand out
            tensor += 0.3 * torch.linspace(-1, 1, tensor.numel()).pow(3).reshape(tensor.shape)
    return train(model, torch.optim.AdamW(model[6].parameters(), lr=3e-3))


def warm_restarts() -> Found:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10)
    doctor = watch(model, optimizer, scheduler=scheduler)
    for _ in range(2 * STEPS):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return verdict(doctor)


def attention_before_cross_entropy() -> Found:
    """Softmax in the model, and after it a layer: the logits are logits."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Softmax(dim=1), nn.Linear(16, 3))
    return train(model)


def adam_with_decay() -> Found:
    model = network()
    return train(model, torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=0.01))


def pairs_on_purpose() -> Found:
    """Every sample against every other: N × N differences that are meant."""
    return regress(lambda o, t: ((o - o.T) - (t[:, None] - t[None, :])).square().mean())


def computed_weights() -> Found:
    """A weight that is computed of others; its length stays as it is, which is a method."""
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(32, 3, bias=False))
    normed.parametrizations.weight.original0.requires_grad_(False)
    return train(network()[:-1].append(normed))


HEALTHY = {
    "plain": lambda: train(network()),
    "weights computed of others": computed_weights,
    "frozen trunk in eval mode": frozen_trunk,
    "lora": lora,
    "tasks that take turns, an unused head": lambda: train(Routed()),
    "tied weights": lambda: train(Tied()),
    "reentrant checkpointing": lambda: train(Checkpointed()),
    "gan, real and fake apart": lambda: gan(real_and_fake_apart=True),
    "gan, not detached": gan,
    "gan, all cleared at the top": lambda: gan(clear_at_the_top=True),
    "lbfgs": lbfgs,
    "sharpness-aware": sharpness_aware,
    "a critic, watched alone": critic_watched_alone,
    "gradients put together by hand": gradients_put_together_by_hand,
    "parts of one objective": parts_of_one_objective,
    "accumulation": accumulate,
    "accumulation with Adam": lambda: accumulate(sgd=False),
    "validation with gradients on": validation_with_gradients_on,
    "resting BatchNorm": resting_batchnorm,
    "no mode at all": lambda: train(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()),
    "a teacher that is an average": average_of_weights,
    "a second optimizer": second_optimizer_unknown_to_the_doctor,
    "linear probe": linear_probe,
    "a scheduler that counts epochs": lambda: epochs(step_it=True),
    "warm restarts": warm_restarts,
    "tight clipping with Adam": lambda: clip_everything(torch.optim.Adam),
    "attention before cross-entropy": attention_before_cross_entropy,
    "cosines with a scale": lambda: train(Cosines(16.0)),
    "time first": lambda: train(Sequences(turned=False)),
    "parts in train mode": lambda: parts(training=True),
    "log_softmax and nll": lambda: train(network().append(nn.LogSoftmax(dim=1)), loss_fn=F.nll_loss),
    "a KL divergence of two heads": lambda: train(
        network(),
        loss_fn=lambda o, t: (
            F.cross_entropy(o, t)
            + F.kl_div(F.log_softmax(o, dim=1), F.softmax(o.roll(1, 0), dim=1), reduction="batchmean")
        ),
    ),
    "softmax before mse": lambda: train(
        network().append(nn.Softmax(dim=1)), loss_fn=lambda o, t: F.mse_loss(o, F.one_hot(t, 3).float())
    ),
    "regression": lambda: regress(lambda o, t: F.mse_loss(o, t[:, None])),
    "pairs on purpose": pairs_on_purpose,
    "Adam with weight decay": adam_with_decay,
}


@pytest.mark.parametrize("loop", HEALTHY.values(), ids=HEALTHY)
def test_look_alike_is_left_alone(loop):
    torch.manual_seed(0)
    grave, _ = loop()
    assert grave == set()


def test_hooks_are_off_between_samples_and_after():
    torch.manual_seed(0)
    model = network()
    optimizer = adam(model)
    doctor = watch(model, optimizer)
    counts = []
    for step in range(23):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        counts.append((step, hooks(model)))
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert {step for step, count in counts if count > 2} == {0, 1, 2, 4, 8, 16}  # two look out for validations
    doctor.detach()
    assert hooks(model) == 0


def hooks(model: nn.Module) -> int:
    on_modules = sum(len(item._forward_pre_hooks) + len(item._forward_hooks) for item in model.modules())
    return on_modules + sum(len(item._post_accumulate_grad_hooks or ()) for item in model.parameters())


def test_a_compiled_model_shows_its_parameters_and_hides_the_rest():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    grave, cause = train(compiled, torch.optim.SGD(model[:1].parameters(), lr=0.1), steps=12)
    assert (grave, cause) == ({("frozen-weights", "warning")}, "parameters-not-in-optimizer")
    torch._dynamo.reset()


def test_half_precision_that_rounds_updates_away_is_measured():
    torch.manual_seed(0)
    model = nn.Linear(8, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    doctor = watch(model, optimizer)
    for _ in range(10):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs.bfloat16()).float(), targets)
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    report = doctor.diagnose()
    assert doctor._examination.chart["update_lost"].last(3).min() > 0.5
    assert "frozen-weights" in {item.name for item in report.symptoms}
    doctor.detach()


def test_what_adam_remembers_is_compared_with_the_gradients():
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    doctor = watch(model, optimizer)
    for step in range(24):
        inputs, targets = batch()
        loss = F.cross_entropy(model(inputs), targets) * (100.0 if step == 23 else 1.0)
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
        optimizer.zero_grad()
    doctor.diagnose()
    chart = doctor._examination.chart
    assert 0.3 < chart["adam_staleness"].values[-2] < 3 < 30 < chart["adam_staleness"].latest
    assert chart["adam_eps_share"].latest < 0.05
    assert -1 <= chart["momentum_cosine"].latest <= 1
    doctor.detach()
