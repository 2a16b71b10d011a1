"""Real training loops of every normal kind: what is recorded, and for which step."""

from __future__ import annotations

import copy
import math
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as imported_early
from torch.nn.utils import clip_grad_value_ as values_imported_early
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torchdoctor
from torchdoctor.doctor import Doctor

QUIET = {"quiet": True}


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 8, generator=generator)
    return x, x.sum(1, keepdim=True)


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    x, y = batch(seed)
    return (model(x) - y).square().mean()


class Watched:
    """A doctor with its records kept."""

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("settings", QUIET)
        self.records: list[dict] = []
        self.doctor = Doctor(*args, **kwargs)
        self.doctor.subscribe(self.records.append)

    def vitals(self) -> dict[int, dict[str, float]]:
        """Every step's vitals; late records of a step are added to it."""
        report = self.doctor.diagnose()
        assert not [note for note in report.notes if "failed inside" in note], report.notes
        steps: dict[int, dict[str, float]] = {}
        for record in self.records:
            if record["type"] == "vitals":
                steps.setdefault(record["step"], {}).update(record["vitals"])
        return steps


def total_norm(model: nn.Module) -> float:
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters() if p.grad is not None))


@pytest.mark.parametrize("place", ["before backward", "after backward", "after step", "after zero_grad"])
@pytest.mark.parametrize("kind", ["graph", "float", "detached", "four times"])
def test_a_loss_belongs_to_its_step_wherever_it_is_logged(net, place, kind):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    factor = 4 if kind == "four times" else 1  # its node is younger than the step that it belongs to
    kinds = {"float": lambda t: t.item(), "detached": lambda t: t.detach(), "four times": lambda t: (factor * t).sum()}
    convert = kinds.get(kind, lambda t: t)
    expected, norms = [], []

    def say(here: str, loss: torch.Tensor) -> None:
        if here == place:
            watched.doctor.log_loss(convert(loss))

    for seed in range(6):
        loss = loss_of(net, seed)
        expected.append(factor * loss.item())
        say("before backward", loss)
        loss.backward()
        norms.append(total_norm(net))
        say("after backward", loss)
        optimizer.step()
        say("after step", loss)
        optimizer.zero_grad()
        say("after zero_grad", loss)
    vitals = watched.vitals()
    assert [vitals[step]["loss"] for step in range(6)] == pytest.approx(expected, rel=1e-6)
    assert [vitals[step]["grad_norm"] for step in range(6)] == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("steps", [6, 90])
def test_a_total_norm_that_the_loop_writes_to_is_made_of_its_parts(net, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    watched, norms = Watched(net, optimizer), []
    for seed in range(steps):
        loss = loss_of(net, seed)
        loss.backward()
        norms.append(total_norm(net))
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9).mul_(0.0)
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    vitals = watched.vitals()
    assert [vitals[step]["grad_norm"] for step in range(steps)] == pytest.approx(norms, rel=1e-5)


def test_gradients_that_are_clipped_between_micro_batches_are_not_cleared(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    watched = Watched(net, optimizer)
    for seed in range(60):
        for micro in range(4):
            (loss_of(net, 4 * seed + micro) / 4).backward()
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss_of(net, seed))
    names = [item.name for item in watched.doctor.diagnose().symptoms if item.severity != "info"]
    assert "gradients-not-cleared" not in names


def test_micro_batches_are_averaged_and_are_one_step(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    means, norms = [], []
    for step in range(4):
        losses = []
        for micro in range(3):
            loss = loss_of(net, 10 * step + micro)
            losses.append(loss.item())
            watched.doctor.log_loss(loss)
            (loss / 3).backward()
        means.append(sum(losses) / 3)
        norms.append(total_norm(net))
        optimizer.step()
        optimizer.zero_grad()
    vitals = watched.vitals()
    assert list(vitals) == [0, 1, 2, 3]
    assert [v["loss"] for v in vitals.values()] == pytest.approx(means, rel=1e-6)
    assert [v["grad_norm"] for v in vitals.values()] == pytest.approx(norms, rel=1e-5)


def via_early(model, _optimizer):
    imported_early(model.parameters(), 0.5)


def via_attribute(model, _optimizer):
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.5)


def via_slow_path(model, _optimizer):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)


def via_two_halves(model, _optimizer):
    total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(list(model.parameters()), 0.5, total)


def via_parts(model, _optimizer):
    imported_early(model[0].parameters(), 0.5)


def log_then_clip_by_hand(model, doctor):
    doctor.log_gradients()
    scale = 0.5 / total_norm(model)
    for p in model.parameters():
        p.grad.mul_(scale)


@pytest.mark.parametrize(
    "clip", [via_early, via_attribute, via_slow_path, via_two_halves, via_parts, log_then_clip_by_hand]
)
def test_the_norm_before_clipping_is_seen(net, clip):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer, settings=QUIET | {"sample_every": 1})
    norms, tensors = [], []
    for seed in range(5):
        loss_of(net, seed).backward()
        norms.append(total_norm(net))
        tensors.append([p.grad.norm().item() for p in net.parameters()])
        clip(net, watched.doctor)
        optimizer.step()
        optimizer.zero_grad()
    vitals = watched.vitals()
    assert [v["grad_norm"] for v in vitals.values()] == pytest.approx(norms, rel=1e-5)
    rows = [r["vitals"]["grad_norm"] for r in watched.records if r["type"] == "tensors"]
    for row, expected in zip(rows, tensors, strict=True):
        assert row == pytest.approx(expected, rel=1e-5)
    if clip is not log_then_clip_by_hand:
        assert [v["clip"] for v in vitals.values() if "clip" in v] == [0.5]  # said once, when it is first seen


def by_value(model):
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)


def by_value_imported_early(model):
    values_imported_early(list(model.parameters()), 0.05)


def by_largest(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type=math.inf)


def by_sum(model):
    imported_early(model.parameters(), 1.0, norm_type=1)


def by_value_then_norm(model):
    by_value(model)
    imported_early(model.parameters(), 0.1)


def by_norm_then_value(model):
    imported_early(model.parameters(), 0.1)
    by_value(model)


@pytest.mark.parametrize(
    "clip", [by_value, by_value_imported_early, by_largest, by_sum, by_value_then_norm, by_norm_then_value]
)
def test_the_norm_before_a_clip_of_another_kind_is_seen(net, clip):
    """Nothing that such a clip computes is of use, so the norm is taken before it cuts, on the short way too."""
    plain = copy.deepcopy(net)
    optimizer, other = (torch.optim.SGD(item.parameters(), lr=0.01) for item in (net, plain))
    norms, left = [], []
    for seed in range(150):
        loss_of(plain, seed).backward()
        if seed == 120:
            torch._foreach_mul_([p.grad for p in plain.parameters()], 50.0)
        norms.append(total_norm(plain))
        clip(plain)
        left.append(total_norm(plain))
        other.step()
        other.zero_grad()
    watched = Watched(net, optimizer)
    for seed in range(150):
        loss = loss_of(net, seed)
        loss.backward()
        if seed == 120:
            torch._foreach_mul_([p.grad for p in net.parameters()], 50.0)
        clip(net)
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    vitals = watched.vitals()
    assert [v["grad_norm"] for v in vitals.values()] == pytest.approx(norms, rel=1e-5)
    assert all(map(torch.equal, net.parameters(), plain.parameters()))
    report = watched.doctor.diagnose()
    assert ("gradient-explosion", 120) in [(item.name, item.first_step) for item in report.symptoms]
    assert not report.notes
    (limit,) = [v["clip"] for v in vitals.values() if "clip" in v]
    assert max(left) <= limit * (1 + 1e-6)
    watched.doctor.detach()


@pytest.mark.parametrize("factor", [20.0, 1e-8])
@pytest.mark.parametrize("when", ["before clip", "after clip"])
def test_gradients_that_are_changed_after_the_capture_are_seen_as_applied(net, factor, when):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    watched = Watched(net, optimizer)
    for _ in range(3):
        loss_of(net, 1).backward()
        plain = total_norm(net)
        if when == "before clip":
            torch._foreach_mul_([p.grad for p in net.parameters()], factor)
        imported_early(net.parameters(), 1e6)
        if when == "after clip":
            torch._foreach_mul_([p.grad for p in net.parameters()], factor)
        optimizer.step()
        optimizer.zero_grad()
    assert [v["grad_norm"] for v in watched.vitals().values()] == pytest.approx([plain * factor] * 3, rel=1e-4)


def test_a_clip_that_cannot_be_seen_is_admitted(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    watched = Watched(net, optimizer)
    for seed in range(40):
        loss_of(net, seed).backward()
        scale = 0.25 / total_norm(net)
        for p in net.parameters():
            p.grad.mul_(scale)
        optimizer.step()
        optimizer.zero_grad()
    report = watched.doctor.diagnose()
    assert any("norm before clipping is then unknown" in note for note in report.notes)


@pytest.mark.parametrize("logs", [True, False])
def test_a_norm_that_stays_by_itself_is_no_clip(net, logs):
    """The same batch at every step and weights that hardly move: nothing is cut."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-7)
    watched = Watched(net, optimizer)
    for _ in range(150):
        loss = loss_of(net, 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if logs:
            watched.doctor.log_loss(loss)
    assert not any("clip" in vitals for vitals in watched.vitals().values())
    assert not [note for note in watched.doctor.diagnose().notes if "clip" in note]
    watched.doctor.detach()


def test_a_hidden_clip_is_told_by_a_loss_that_changes_while_the_norm_does_not(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    watched = Watched(net, optimizer)
    for seed in range(150):
        loss = loss_of(net, seed)
        loss.backward()
        torch._foreach_mul_([p.grad for p in net.parameters()], 0.2345 / total_norm(net))
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    assert [v["clip"] for v in watched.vitals().values() if "clip" in v] == [pytest.approx(0.2345)]
    assert any("0.2345 for 20 steps: gradients may be" in note for note in watched.doctor.diagnose().notes)
    watched.doctor.detach()


@pytest.mark.parametrize("number", [3, 120])
@pytest.mark.parametrize("place", ["before backward", "after backward"])
def test_a_batch_that_the_loop_passes_over_is_told_by_itself(net, tmp_path, number, place):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer, journal=tmp_path)
    losses = []
    for seed in range(150):
        loss = loss_of(net, seed) * (math.nan if seed == number else 1.0)
        if place == "after backward":
            loss.backward()
        if not math.isfinite(loss.item()):
            watched.doctor.log_loss(loss)
            optimizer.zero_grad()
            continue
        if place == "before backward":
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
        losses.append(loss.item())
    assert [v["loss"] for v in watched.vitals().values()] == pytest.approx(losses, rel=1e-6)
    watched.doctor.detach()
    report = watched.doctor.diagnose()
    (finding,) = [item for item in report.symptoms if item.name == "nan-or-inf"]
    assert finding.first_step == finding.last_step == number
    assert report.to_dict() == torchdoctor.diagnose(tmp_path).to_dict()


def test_two_optimizers_that_take_turns_are_one_step():
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    opt_g, opt_d = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    watched = Watched({"generator": generator, "critic": critic}, [opt_g, opt_d])
    expected = []
    for seed in range(5):
        x, _ = batch(seed)
        d_loss = critic(x).mean() - critic(generator(x[:, :4]).detach()).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        watched.doctor.log_loss(d_loss, name="d_loss")
        g_loss = -critic(generator(x[:, :4])).mean()
        watched.doctor.log_loss(g_loss, name="g_loss")
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        expected.append((d_loss.item(), g_loss.item()))
    vitals = watched.vitals()
    assert list(vitals) == [0, 1, 2, 3, 4]
    for (d_loss, g_loss), seen in zip(expected, vitals.values(), strict=True):
        assert (seen["d_loss"], seen["g_loss"]) == pytest.approx((d_loss, g_loss), rel=1e-6)
    names = watched.doctor._monitor.names
    assert names[0] == "generator.weight" and names[2] == "critic.weight"


def test_five_critic_steps_to_one_generator_step():
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    opt_g, opt_d = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    watched = Watched({"g": generator, "d": critic}, [opt_g, opt_d])
    expected = {}
    for step in range(10):
        x, _ = batch(step)
        loss = critic(x).square().mean()
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        watched.doctor.log_loss(loss, name="d_loss")
        if step % 5 == 4:
            g_loss = -critic(generator(x[:, :4])).mean()
            opt_g.zero_grad()
            g_loss.backward()
            watched.doctor.log_loss(g_loss, name="g_loss")
            opt_g.step()
            expected[step] = g_loss.item()
    vitals = watched.vitals()
    assert list(vitals) == list(range(10))
    assert {step: v["g_loss"] for step, v in vitals.items() if "g_loss" in v} == pytest.approx(expected, rel=1e-6)


def test_a_closure_is_measured_at_its_first_call(net):
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
    watched = Watched(net, optimizer)
    firsts, norms = [], []
    for seed in range(3):
        calls = []

        def closure(seed=seed, calls=calls):
            optimizer.zero_grad()
            loss = loss_of(net, seed)
            loss.backward()
            if not calls:
                norms.append(total_norm(net))
            calls.append(loss.item())
            watched.doctor.log_loss(loss)
            return loss

        optimizer.step(closure)
        assert len(calls) > 1
        firsts.append(calls[0])
    vitals = watched.vitals()
    assert [v["loss"] for v in vitals.values()] == pytest.approx(firsts, rel=1e-6)
    assert [v["grad_norm"] for v in vitals.values()] == pytest.approx(norms, rel=1e-5)


def test_autocast_is_noted(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    for seed in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(net, seed)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    assert watched.doctor.diagnose().context["autocast"] == "bfloat16"
    assert watched.doctor.diagnose().context["batch_size"] == 16


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_scaler_s_gradients_are_unscaled_and_its_skipped_steps_are_numbered(net, fused, unscale):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watched = Watched(net, optimizer, scaler=scaler)
    norms = []
    for step in range(6):
        x, y = batch(step)
        if step == 3:
            x = x * float("inf")
        loss = (net(x) - y).square().mean()
        scaler.scale(loss).backward()
        norms.append(total_norm(net) / scaler.get_scale())
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    vitals = watched.vitals()
    assert list(vitals) == list(range(6))
    assert [v["skipped"] for v in vitals.values()] == [0, 0, 0, 1, 0, 0]
    assert [v["loss_scale"] for v in vitals.values()] == [1024.0, 1024.0, 1024.0, 1024.0, 512.0, 512.0]
    healthy = [step for step in range(6) if step != 3]
    assert [vitals[s]["grad_norm"] for s in healthy] == pytest.approx([norms[s] for s in healthy], rel=1e-4)
    assert not math.isfinite(vitals[3]["grad_norm"]) and not math.isfinite(vitals[3]["loss"])
    found = [(item.name, item.severity, item.first_step) for item in watched.doctor.diagnose().symptoms]
    assert found == [("nan-or-inf", "warning", 3)]  # the step is saved, the batch is bad


@pytest.mark.parametrize("what", ["model", "step", "both"])
def test_compiled_models_and_steps(net, what):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    model = torch.compile(net, backend="aot_eager") if what != "step" else net
    step_function = torch.compile(optimizer.step, backend="eager") if what != "model" else optimizer.step
    watched = Watched(model, optimizer)
    losses, norms = [], []
    for seed in range(4):
        loss = loss_of(model, seed)
        loss.backward()
        losses.append(loss.item())
        norms.append(total_norm(net))
        imported_early(model.parameters(), 1.0)
        step_function()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    vitals = watched.vitals()
    assert [v["loss"] for v in vitals.values()] == pytest.approx(losses, rel=1e-6)
    assert [v["grad_norm"] for v in vitals.values()] == pytest.approx(norms, rel=1e-5)
    assert watched.doctor._monitor.names[0] == "0.weight"


def test_a_raw_model_whose_compiled_twin_is_trained(net):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    watched = Watched(net, optimizer)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for seed in range(12):
        loss = loss_of(compiled, seed)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    assert list(watched.vitals()) == list(range(12))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_tied_weights_are_one_tensor_and_ddp_prefixes_are_dropped():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    model = nn.DataParallel(Tied())
    watched = Watched(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert watched.doctor._monitor.names == ("embed.weight",)


def test_sparse_gradients_and_parameters_without_gradients():
    torch.manual_seed(0)
    table, unused = nn.Embedding(10, 4, sparse=True), nn.Linear(3, 3)
    model = nn.ModuleDict({"table": table, "unused": unused})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = Watched(model, optimizer, settings=QUIET | {"sample_every": 1})
    for _ in range(3):
        loss = table(torch.tensor([1, 1, 2])).square().sum()
        loss.backward()
        expected = table.weight.grad.to_dense().norm().item()
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    vitals = watched.vitals()
    assert vitals[2]["grad_norm"] == pytest.approx(expected, rel=1e-5)
    row = [r for r in watched.records if r["type"] == "tensors"][-1]["vitals"]["grad_norm"]
    assert row[0] == pytest.approx(expected, rel=1e-5) and row[1:] == [None, None]


def test_parameters_and_modules_added_later(net):
    optimizer = torch.optim.SGD(net[0].parameters(), lr=0.01)
    watched = Watched(net, optimizer, settings=QUIET | {"sample_every": 1})
    for seed in range(6):
        if seed == 3:
            net.append(nn.Linear(1, 1))
            optimizer.add_param_group({"params": list(net[2:].parameters()), "lr": 0.05})
        loss = loss_of(net, seed)
        watched.doctor.log_loss(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    vitals = watched.vitals()
    assert list(vitals) == list(range(6)) and all("loss" in v and "grad_norm" in v for v in vitals.values())
    assert vitals[5]["lr/1"] == 0.05
    rows = [r["vitals"]["grad_norm"] for r in watched.records if r["type"] == "tensors"]
    assert rows[0][2:] == [None, None] and len(rows[-1]) == 6 and None not in rows[-1]
    assert watched.doctor._monitor.names[-1] == "3.bias"


def test_a_new_head_that_takes_the_place_of_the_old_one_in_its_group(net):
    optimizer = torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=0.01)
    watched = Watched(net, optimizer, settings=QUIET | {"sample_every": 1})
    for seed in range(8):
        if seed == 3:
            net[2] = nn.Linear(net[2].in_features, net[2].out_features)
            optimizer.param_groups[1]["params"] = list(net[2].parameters())
        loss = loss_of(net, seed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watched.doctor.log_loss(loss)
    assert watched.doctor._monitor._layout.held == [0, 0, 0, 0]
    moved = [r["vitals"]["update_ratio"] for r in watched.records if r["type"] == "tensors"][-1]
    assert all(ratio > 0 for ratio in moved)


def test_complex_numbers_are_watched_without_a_warning(request):
    torch.set_warn_always(True)  # else torch warns once in a process, perhaps in another test
    request.addfinalizer(lambda: torch.set_warn_always(False))
    model = torch.nn.Linear(8, 4, dtype=torch.complex64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings(record=True) as told, Doctor(model, optimizer, settings=QUIET) as doctor:
        warnings.simplefilter("always")
        seen = []
        doctor.subscribe(seen.append)
        for _ in range(20):
            loss = model(torch.randn(16, 8, generator=generator, dtype=torch.complex64)).abs().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        assert not doctor.diagnose().notes
    assert not [item.message for item in told]
    facts = [name for record in seen if record["type"] == "facts" for name in record["facts"]]
    assert facts and not [name for name in facts if name.startswith("gauges.")]


def test_a_model_that_is_given_twice_is_watched_once(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    doctor = Doctor({"student": net, "again": net}, [optimizer], settings=QUIET)
    for _ in range(3):
        net(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
    assert not doctor.diagnose().notes
    doctor.detach()
    assert not net._forward_pre_hooks


def test_an_accelerate_optimizer_is_unwrapped(net):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    watched = Watched(model, optimizer)
    norms = []
    for seed in range(3):
        loss = loss_of(model, seed)
        accelerator.backward(loss)
        norms.append(total_norm(model))
        accelerator.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    assert [v["grad_norm"] for v in watched.vitals().values()] == pytest.approx(norms, rel=1e-5)


def test_learning_rates_and_settings_are_recorded_as_they_change(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    watched = Watched(net, optimizer, scheduler=scheduler)
    for seed in range(10):
        if seed == 4:
            optimizer.param_groups[0]["weight_decay"] = 0.5
        loss_of(net, seed).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    vitals = watched.vitals()
    assert [v["lr"] for v in vitals.values()] == pytest.approx([10.0 ** -(2 + step // 2) for step in range(10)])
    groups = [(r["step"], r["groups"][0]["weight_decay"]) for r in watched.records if r["type"] == "groups"]
    assert groups[0] == (0, 0.01) and groups[-1][1] == 0.5  # noticed within sixteen steps


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(64, 8))


@pytest.mark.parametrize(
    ("data", "size"), [(lambda: TensorDataset(torch.randn(100, 8)), 100), (lambda: Stream(), None), (list, None)]
)
def test_the_size_of_the_data_set_is_known_where_a_loader_is_gone_through(net, data, size):
    made = data()
    training = DataLoader(made, batch_size=16) if made else [[batch(0)[0]]] * 3
    validation = DataLoader(torch.randn(30, 8), batch_size=10)
    watched = Watched(net, torch.optim.SGD(net.parameters(), lr=0.01))
    with torch.no_grad():
        for x in validation:
            net(x)
    for x in training:
        net(x[0] if isinstance(x, list) else x).square().mean().backward()
        watched.doctor._setup.optimizers[0].step()
    context = watched.doctor.diagnose().context
    assert context["batch_size"] == 16 and context.get("dataset_size") == size
    watched.doctor.detach()


@pytest.mark.parametrize(("drop_last", "rest"), [(False, 4), (True, None)])
def test_a_loader_that_nobody_keeps_tells_its_size_and_its_last_batch(net, drop_last, rest):
    watched = Watched(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for (x,) in DataLoader(TensorDataset(torch.randn(100, 8)), batch_size=16, drop_last=drop_last):
        net(x).square().mean().backward()
        watched.doctor._setup.optimizers[0].step()
    context = watched.doctor.diagnose().context
    assert (context["dataset_size"], context.get("last_batch")) == (100, rest)
    assert context.get("epoch_batches") == (7 if rest else None)
    watched.doctor.detach()


def test_update_ratio_and_weight_norm(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watched = Watched(net, optimizer, settings=QUIET | {"sample_every": 2})
    expected = {}
    for seed in range(5):
        loss_of(net, seed).backward()
        before = [p.detach().clone() for p in net.parameters()]
        optimizer.step()
        expected[seed] = [
            ((p.detach() - b).norm() / b.norm()).item() for p, b in zip(net.parameters(), before, strict=True)
        ]
        weights = [p.detach().norm().item() for p in net.parameters()]
        optimizer.zero_grad()
    watched.vitals()
    rows = {r["step"]: r["vitals"] for r in watched.records if r["type"] == "tensors"}
    assert set(rows) >= {0, 2, 4}
    assert rows[4]["update_ratio"] == pytest.approx(expected[4], rel=1e-4)
    assert rows[4]["weight_norm"] == pytest.approx(weights, rel=1e-5)


def test_a_user_s_own_step_numbers(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    for step in range(5000, 5005):
        loss = loss_of(net, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss, step=step)
    assert list(watched.vitals()) == list(range(5000, 5005))


def test_a_loss_that_is_logged_after_the_report_is_not_lost(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    losses = []
    for seed in range(4):
        loss = loss_of(net, seed)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.diagnose()
        watched.doctor.log_loss(loss)
        losses.append(loss.item())
    assert [v["loss"] for v in watched.vitals().values()] == pytest.approx(losses, rel=1e-6)


def test_where_a_non_finite_value_comes_from():
    torch.manual_seed(0)

    class Logarithm(nn.Module):
        def forward(self, x):
            return (x - x).log() if self.broken else x

    middle = Logarithm()
    middle.broken = False
    model = nn.Sequential(nn.Linear(8, 4), middle, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watched = Watched(model, optimizer)
    for seed in range(12):
        middle.broken = seed >= 5
        loss = loss_of(model, seed)
        loss.backward()
        optimizer.zero_grad() if middle.broken else None
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    watched.vitals()
    origins = [r for r in watched.records if r["type"] == "origin"]
    assert origins and origins[0]["module"] == "1" and origins[0]["kind"] == "output"
    assert not any(len(module._forward_hooks) for module in model.modules())


def test_copies_of_a_watched_model_report_nothing(net, tmp_path):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    twin = copy.deepcopy(net)
    average = torch.optim.swa_utils.AveragedModel(net)
    torch.save(net, tmp_path / "net.pt")
    loaded = torch.load(tmp_path / "net.pt", weights_only=False)
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
    for model in (twin, average, loaded):
        loss_of(model, 0).backward()
    twin_optimizer.step()
    before = len(watched.records)
    copy.deepcopy(optimizer).step()
    watched.doctor.diagnose()
    assert len(watched.records) == before
    for seed in range(3):
        loss = loss_of(net, seed)
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
        watched.doctor.log_loss(loss)
    assert list(watched.vitals()) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize("steps", [0, 10])
def test_a_watched_model_and_its_copies_can_be_scripted(net, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    for seed in range(steps):
        loss = loss_of(net, seed)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    hooks = [dict(module._forward_pre_hooks) for module in net.modules()]
    x, _ = batch(0)
    for model in (net, copy.deepcopy(net)):
        with torch.no_grad():
            assert torch.equal(torch.jit.script(model)(x), net(x))
    assert any(hooks) and [dict(module._forward_pre_hooks) for module in net.modules()] == hooks
    watched.doctor.detach()


def test_a_newer_doctor_replaces_the_older(net, caplog):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    first, second = (Watched(net, optimizer, settings={}) for _ in range(2))
    loss_of(net, 0).backward()
    optimizer.step()
    assert len(first.vitals()) == 0 and len(second.vitals()) == 1
    assert "older one was detached" in caplog.text


def test_an_unassigned_doctor_lives_with_its_optimizer(net, tmp_path):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    Doctor(net, optimizer, journal=tmp_path / "run", settings=QUIET)
    for seed in range(3):
        loss_of(net, seed).backward()
        optimizer.step()
        optimizer.zero_grad()
    owner = next(iter(optimizer._optimizer_step_pre_hooks.values())).monitor.owner
    owner.detach()
    assert (tmp_path / "run" / "journal.jsonl").read_text().count('"type":"vitals"') == 3 or (
        (tmp_path / "run" / "journal.jsonl").read_text().count('"type": "vitals"') == 3
    )


@pytest.mark.parametrize("late", [True, False])
def test_a_clip_after_the_step_is_noticed(net, late):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    for seed in range(60):
        loss = loss_of(net, seed)
        loss.backward()
        if not late:
            imported_early(net.parameters(), 1.0)
        optimizer.step()
        if late:
            imported_early(net.parameters(), 1.0)
        optimizer.zero_grad()
        watched.doctor.log_loss(loss)
    watched.vitals()
    told = [r["facts"] for r in watched.records if r["type"] == "facts" and "clip.after_step" in r["facts"]]
    assert told == ([{"clip.after_step": True}] if late else [])


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("before backward", {"clip.no_gradients": 0.5}),
        ("an iterator that is used up", {"clip.no_parameters": 0.5}),
        ("a frozen layer by itself, then all", {}),
        ("in its place", {}),
    ],
)
def test_a_clip_of_nothing_is_noticed(net, how, told):
    for parameter in net[0].parameters():
        parameter.requires_grad_(how != "a frozen layer by itself, then all")
    kept = filter(lambda parameter: True, net.parameters())
    optimizer = torch.optim.SGD(net.parameters() if how != "an iterator that is used up" else kept, lr=0.01)
    watched = Watched(net, optimizer)
    for seed in range(30):
        optimizer.zero_grad()
        loss = loss_of(net, seed)
        if how == "before backward":
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        loss.backward()
        if how == "an iterator that is used up":
            nn.utils.clip_grad_norm_(kept, 0.5)
        elif how != "before backward":
            nn.utils.clip_grad_norm_(net[0].parameters(), 0.5)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        watched.doctor.log_loss(loss)
    watched.vitals()
    facts = [r["facts"] for r in watched.records if r["type"] == "facts"]
    assert {key: value for fact in facts for key, value in fact.items() if key.startswith("clip.")} == told
    assert any("clipping-anomaly" in item.symptoms for item in watched.doctor.diagnose().diagnoses) is bool(told)


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_forgotten_step_is_noticed(net, forgotten):
    """And sixty micro-batches before the first step are not one."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    for seed in range(60):
        loss = loss_of(net, seed)
        if forgotten:
            optimizer.zero_grad()
        loss.backward()
        watched.doctor.log_loss(loss)
    found = [symptom.name for symptom in watched.doctor.diagnose().symptoms]
    assert found == (["frozen-weights"] if forgotten else [])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_loss_logged_after_the_step_shows_its_graph_too(net, when):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    for seed in range(4):
        loss = loss_of(net, seed)
        if when == "before":
            watched.doctor.log_loss(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if when == "after":
            watched.doctor.log_loss(loss)
    watched.vitals()
    kinds = [r["facts"]["loss.kind"] for r in watched.records if r["type"] == "facts" and "loss.kind" in r["facts"]]
    assert kinds == ["mse"]


def test_a_loop_without_a_loss_is_told_that_it_was_not_judged():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for number in range(25):
        loss = model(torch.randn(8, 4)).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))  # not backward(), which would show the loss
        for tensor, grad in zip(model.parameters(), grads, strict=True):
            tensor.grad = grad
        optimizer.step()
        said = [note for note in doctor.diagnose().notes if "no loss was logged" in note]
        assert bool(said) == (number >= 19)
    assert "but no loss was logged" in str(doctor.diagnose())
    doctor.detach()


def test_one_loss_of_any_name_is_enough_to_be_judged_by():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(25):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss.item(), name="objective")
    assert not any("no loss was logged" in note for note in doctor.diagnose().notes)


def test_a_parameter_without_elements_misses_nothing(net):
    net.register_parameter("placeholder", nn.Parameter(torch.zeros(0, 4)))
    watched = Watched(net, torch.optim.SGD(net.parameters(), lr=0.01))
    optimizer = watched.doctor._setup.optimizers[0]
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(net, step)
        loss.backward()
        optimizer.step()
        watched.doctor.log_loss(loss)
    assert not watched.doctor.diagnose().symptoms


@pytest.mark.parametrize("micro_batches", [1, 48])
def test_an_optimizer_that_stops_stepping_is_noticed(net, micro_batches):
    watched = Watched(net, torch.optim.SGD(net.parameters(), lr=0.01))
    optimizer = watched.doctor._setup.optimizers[0]
    for step in range(30):
        optimizer.zero_grad()
        for part in range(micro_batches):
            loss = loss_of(net, step * micro_batches + part) / micro_batches
            loss.backward()
            watched.doctor.log_loss(loss)
        optimizer.step()
    for step in range(400):  # a validation
        watched.doctor.log_loss(loss_of(net, step).detach())
    net.eval()
    for step in range(400):  # another one, with graphs
        watched.doctor.log_loss(loss_of(net, step))
    net.train()
    assert not watched.doctor.diagnose().symptoms
    for step in range(400):
        watched.doctor.log_loss(loss_of(net, step))
    report = watched.doctor.diagnose()
    found = next(item for item in report.symptoms if item.name == "frozen-weights")
    assert found.severity == "critical" and "the optimizer has not stepped again" in found.message
    first = report.diagnoses[0]  # without micro-batches, nothing was accumulated
    assert first.cause == ("unknown" if micro_batches == 1 else "accumulation-error")
    assert micro_batches > 1 or "whether its optimizer is the one given to Doctor" in first.evidence[0]


def test_optimizers_that_take_turns_by_the_epoch_both_step():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in net]
    watched = Watched(net, optimizers)
    for epoch in range(4):
        for step in range(80):
            optimizers[epoch % 2].zero_grad()
            loss = loss_of(net, step)
            loss.backward()
            optimizers[epoch % 2].step()
            watched.doctor.log_loss(loss)
    assert not [item for item in watched.doctor.diagnose().symptoms if item.severity != "info"]


class Sharpness(torch.optim.Optimizer):
    """As SAM's authors write it: two calls, and an inner optimizer that steps."""

    def __init__(self, parameters, **kwargs):
        super().__init__(parameters, kwargs)
        self.base_optimizer = torch.optim.SGD(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * 0.01)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()


def test_an_optimizer_whose_inner_one_steps_is_followed(net):
    optimizer = Sharpness(net.parameters(), lr=0.01, momentum=0.9)
    watched = Watched(net, optimizer)
    for seed in range(60):
        loss = loss_of(net, seed)
        loss.backward()
        optimizer.first_step()
        loss_of(net, seed).backward()
        optimizer.second_step()
        watched.doctor.log_loss(loss)
    vitals = watched.vitals()
    assert list(vitals) == list(range(60)) and all("grad_norm" in item and "loss" in item for item in vitals.values())
    assert not watched.doctor.diagnose().symptoms
    watched.doctor.detach()


def as_number(loss):
    return loss.item()


def without_a_step(net, tmp_path, losses, bad=0, steps=0, of=lambda loss: loss):
    """The report on a loop that takes some steps, and then goes on with updates by hand, which nobody sees."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    doctor = Doctor(net, optimizer, journal=tmp_path, settings=QUIET)
    for seed in range(steps + losses):
        optimizer.zero_grad()
        loss = loss_of(net, seed) * (math.nan if seed >= steps + losses - bad else 1.0)
        loss.backward()
        if seed < steps:
            optimizer.step()
        elif seed < steps + losses - bad:
            with torch.no_grad():
                torch._foreach_sub_(list(net.parameters()), [item.grad for item in net.parameters()], alpha=0.01)
        doctor.log_loss(of(loss))
    doctor.detach()
    assert doctor.diagnose().to_dict() == torchdoctor.diagnose(tmp_path).to_dict()
    return doctor.diagnose()


@pytest.mark.parametrize(("steps", "losses"), [(0, 30), (3, 30), (100, 30)])
def test_losses_without_a_step_are_told(net, tmp_path, steps, losses):
    report = without_a_step(net, tmp_path, losses, steps=steps)
    after = f" after step {steps - 1}" if steps else ""
    told = re.compile(rf"no training step was seen while at least 3[01] losses were logged{after}[:.]")
    assert any(map(told.match, report.notes)) and told.search(" ".join(str(report).split()))
    assert "ealthy" not in str(report)


@pytest.mark.parametrize("steps", [3, 100])
def test_losses_on_the_fast_path_are_counted_too(net, tmp_path, steps):
    report = without_a_step(net, tmp_path, 70, steps=steps)
    assert [item.name for item in report.symptoms] == ["frozen-weights"]


@pytest.mark.parametrize("of", [lambda loss: loss, as_number])
@pytest.mark.parametrize(
    ("steps", "losses", "bad", "severity"),
    [
        (0, 30, 9, "critical"),
        (100, 60, 9, "critical"),
        (100, 1, 1, "warning"),
        (0, 1, 1, "warning"),
    ],
)
def test_a_loss_that_is_not_finite_needs_no_step(net, tmp_path, steps, losses, bad, severity, of):
    report = without_a_step(net, tmp_path, losses, bad, steps, of)
    (found,) = [item for item in report.symptoms if item.name == "nan-or-inf"]
    late = (
        of is as_number and steps and losses > 1
    )  # they count as further losses of the last step, most of them finite
    assert found.severity == ("warning" if late else severity)


def test_many_losses_that_are_not_finite_are_told_at_once(net):
    watched = Watched(net, torch.optim.SGD(net.parameters(), lr=0.01))
    optimizer = watched.doctor._setup.optimizers[0]
    for seed in range(60):
        loss = loss_of(net, seed) * (math.nan if seed > 50 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        if seed < 20:
            optimizer.step()
        watched.doctor.log_loss(loss)
    found = {record["name"] for record in watched.records if record["type"] == "symptom"}
    assert "nan-or-inf" in found
    watched.doctor.detach()


@pytest.mark.parametrize("of", [lambda loss: loss, as_number])
def test_micro_batches_before_a_report_are_not_without_a_step(net, of):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)
    for seed in range(200):
        loss = loss_of(net, seed) / 32
        loss.backward()
        watched.doctor.log_loss(of(loss))
        if seed % 32 == 31:
            optimizer.step()
            optimizer.zero_grad()
        if seed > 32:
            assert not watched.doctor.diagnose().notes
    watched.doctor.detach()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo looks at a loss that crosses a break
def test_a_log_in_a_compiled_step_does_not_break_the_graph_aloud(net, caplog):
    torch._dynamo.reset()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watched = Watched(net, optimizer)

    @torch.compile(backend="eager")
    def step(x, y):
        watched.doctor.log_batch(x, y)
        loss = (net(x) - y).square().mean()
        watched.doctor.log_loss(loss.detach())
        return loss

    for seed in range(20):
        loss = step(*batch(seed))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not [record for record in caplog.records if "Graph break" in record.getMessage()]
    assert all("loss" in item for item in watched.vitals().values())
    watched.doctor.detach()
