"""Loops that never call log_loss: what backward begins from is their loss."""

from __future__ import annotations

import copy
import gc
import json
import math
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchdoctor
from torchdoctor import Doctor
from torchdoctor.records import NO_LOSS
from torchdoctor.vitals import roots
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.root_losses import RootLosses

pytestmark = pytest.mark.usefixtures("no_other_doctors")
F = nn.functional
QUIET = {"quiet": True}
TAKEN = "is what its backward() began from"


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True)


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    x, y = batch(seed)
    return F.mse_loss(model(x), y)


def losses(doctor: Doctor) -> dict[int, float]:
    doctor.diagnose()
    series = doctor._examination.chart["loss"]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def is_close(doctor: Doctor, expected: list[float]) -> bool:
    found = losses(doctor)
    assert list(found) == list(range(len(expected)))
    return list(found.values()) == pytest.approx(expected, rel=1e-5)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01)


@pytest.fixture(params=["host", "device"])
def device(request, monkeypatch):
    """On a device, losses are kept as scalars and not read; a CPU tensor that denies it goes the same way."""
    if request.param == "device":
        monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False), raising=False)


@pytest.mark.usefixtures("device")
def test_each_step_has_the_loss_that_backward_began_from(net):
    optimizer = sgd(net)
    expected, on_the_lane, others = [], 0, len(roots._followers)
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(90):
            loss = loss_of(net, step)
            expected.append(loss.item())
            loss.backward()
            on_the_lane += doctor._monitor.lane.is_open
            optimizer.step(*[None] * (step % 2))  # a trainer passes a closure that is None
            optimizer.zero_grad()
            if step == 40:
                assert roots._taps
        assert is_close(doctor, expected)
    assert on_the_lane > 4  # how many are depends on the speed of the machine
    assert len(roots._followers) <= others
    report = doctor.diagnose()
    assert report.health == "healthy" and str(report).startswith("Healthy")
    assert len([note for note in report.notes if TAKEN in note]) == 1
    assert not any(note.startswith(NO_LOSS) for note in report.notes)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize(
    "way", ["divided", "multiplied", "undivided", "sum by the total count", "sum by its own count", "mean of a mask"]
)
def test_micro_batches_have_the_mean_loss_however_they_are_weighted(net, way, clears):
    optimizer, expected = sgd(net), []

    def weighted(loss: torch.Tensor) -> torch.Tensor:
        ways = {
            "divided": lambda: loss.mean() / 4,
            "multiplied": lambda: loss.mean() * 0.25,
            "undivided": loss.mean,
            "sum by the total count": lambda: loss.sum() / 64,
            "sum by its own count": lambda: loss.sum() / 16,
            "mean of a mask": lambda: (loss * torch.ones(16, 1)).sum() / torch.ones(16).sum(),
        }
        return ways[way]()

    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(30):
            parts = []
            for micro in range(4):
                x, y = batch(4 * step + micro)
                loss = (net(x) - y).square()
                weighted(loss).backward()
                parts.append(loss.mean().item())
            optimizer.step()
            optimizer.zero_grad(set_to_none=clears)
            expected.append(sum(parts) / 4)
        assert is_close(doctor, expected)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("on", [True, False])
def test_a_scaled_loss_is_recorded_without_its_scale(net, micro, given, on):
    optimizer, expected = sgd(net), []
    scaler = torch.amp.GradScaler("cpu", growth_interval=7, enabled=on)
    with Doctor(net, optimizer, scaler=scaler if given else None, settings=QUIET) as doctor:
        for step in range(30):
            parts = []
            for part in range(micro):
                loss = loss_of(net, micro * step + part)
                scaler.scale(loss / micro).backward()
                parts.append(loss.item())
            if on and step == 11:
                net[0].weight.grad.fill_(math.inf)  # the scaler skips this step
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            expected.append(sum(parts) / micro)
        assert is_close(doctor, expected)
        assert not on or doctor._examination.chart["skipped"].values[11] == 1


def test_a_scaler_may_come_later(net):
    optimizer, expected, scaler = sgd(net), [], torch.amp.GradScaler("cpu")
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(60):
            loss = loss_of(net, step)
            expected.append(loss.item())
            scaler.scale(loss).backward() if step > 40 else loss.backward()
            scaler.step(optimizer) if step > 40 else optimizer.step()
            if step > 40:
                scaler.update()
            optimizer.zero_grad()
        assert is_close(doctor, expected)


def test_the_first_call_of_a_closure_has_the_loss_of_the_step(net):
    optimizer, expected = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4), []
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(8):
            calls = []

            def closure(step=step, calls=calls):
                optimizer.zero_grad()
                loss = loss_of(net, step)
                loss.backward()
                calls.append(loss.item())
                return loss

            optimizer.step(closure)
            assert len(calls) > 1
            expected.append(calls[0])
        assert is_close(doctor, expected)


def test_an_interrupted_closure_does_not_end_it(net):
    optimizer, expected = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3), {}
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(8):
            calls = []

            def closure(step=step, calls=calls):
                optimizer.zero_grad()
                loss = loss_of(net, step)
                loss.backward()
                calls.append(loss.item())
                if step == 3 and len(calls) > 1:
                    raise KeyboardInterrupt
                return loss

            try:
                optimizer.step(closure)
            except KeyboardInterrupt:
                continue
            expected[len(expected)] = pytest.approx(calls[0], rel=0.5)
        found = losses(doctor)
        assert list(found) == list(range(7)) and found[6] == pytest.approx(expected[6].expected, rel=1e-5)


def test_several_parts_of_a_loss_are_added_up(net):
    optimizer, expected = sgd(net), []
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(12):
            x, y = batch(step)
            out = net(x)
            first, second = (out - y).square().sum() / 7, 0.1 * out.square().mean()
            first.backward(retain_graph=True)
            second.backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.append(first.item() + second.item())
        assert is_close(doctor, expected)


def test_only_backwards_that_train_count(net):
    optimizer, expected = sgd(net), []
    other = copy.deepcopy(net)
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(12):
            x, y = batch(step)
            (100 * loss_of(other, step)).backward()
            net(x.requires_grad_()).square().sum().backward(inputs=[x])  # an attack
            net(x).exp().sum().backward()  # saliency, of another kind: cleared before it is used
            net.zero_grad(set_to_none=bool(step % 2))
            torch.autograd.grad(net(x).sum(), x)
            assert loss_of(net, step).requires_grad  # a validation that forgets no_grad
            loss = F.mse_loss(net(x), y)
            expected.append(loss.item())
            thread = threading.Thread(target=lambda step=step: loss_of(other, step).backward())
            thread.start()
            loss.backward()
            thread.join()
            optimizer.step()
            optimizer.zero_grad()
        assert is_close(doctor, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_inside_a_backward_is_no_loss(reentrant):
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16), nn.Linear(16, 1)
    net = nn.ModuleList([first, second])
    optimizer, expected = sgd(net), []
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(6):
            x, y = batch(step)
            hidden = checkpoint(lambda x: first(x).tanh(), x.requires_grad_(), use_reentrant=reentrant)
            loss = F.mse_loss(second(hidden), y)
            expected.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert is_close(doctor, expected)


def test_a_loop_that_logs_has_what_it_logs_and_no_tap(net):
    optimizer = sgd(net)
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(30):
            loss = loss_of(net, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:  # a common habit
                doctor.log_loss(3 * loss.item())
            assert not roots._followers and doctor._monitor._roots is None
        assert list(losses(doctor)) == [0, 10, 20]
    assert not any(TAKEN in note for note in doctor.diagnose().notes)


@pytest.mark.parametrize("name", ["loss", "objective"])
@pytest.mark.parametrize("kind", ["number", "graph"])
@pytest.mark.parametrize("first", [0, 1, 2, 9, 40])
def test_from_the_first_logged_loss_on_only_logged_losses_count(net, tmp_path, first, kind, name):
    optimizer, before = sgd(net), []
    doctor = Doctor(net, optimizer, journal=tmp_path / "run", settings=QUIET)
    doctor.subscribe(lambda record: before.append(record["vitals"]) if record["type"] == "vitals" else None)
    for step in range(60):
        loss = loss_of(net, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= first and (step - first) % 10 == 0:
            doctor.log_loss(100 * loss if kind == "graph" else 100 * loss.item(), name=name)  # in another unit
    chart = doctor._examination.chart
    doctor.detach()
    assert chart[name].steps.tolist() == list(range(first, 60, 10))
    assert name == "loss" or "loss" not in chart
    assert sum("loss" in vitals for vitals in before) == first + (len(range(first, 60, 10)) if name == "loss" else 0)
    live = doctor.diagnose()
    assert not [item for item in live.symptoms if item.severity != "info"]
    assert json.dumps(live.to_dict()) == json.dumps(torchdoctor.diagnose(tmp_path / "run").to_dict())


def test_where_the_loss_comes_from_is_no_warning(net, caplog):
    optimizer = sgd(net)
    with Doctor(net, optimizer), caplog.at_level("INFO", logger="torchdoctor"):
        for step in range(25):
            loss_of(net, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [record.levelname for record in caplog.records if TAKEN in record.getMessage()] == ["INFO"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("by", ["norm", "value"])
@pytest.mark.parametrize("clears", [True, False])
def test_a_clip_between_micro_batches_clears_nothing(net, clears, by):
    optimizer, expected = sgd(net), []
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(40):
            parts = []
            for micro in range(3):
                loss = loss_of(net, 3 * step + micro)
                (loss / 3).backward()
                if by == "norm":
                    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                else:
                    torch.nn.utils.clip_grad_value_(net.parameters(), 0.1)
                parts.append(loss.item() / 3)
            optimizer.step()
            optimizer.zero_grad(set_to_none=clears)
            expected.append(sum(parts))
        assert is_close(doctor, expected)


def test_a_loss_may_be_logged_inside_a_hook_of_the_step(net):
    optimizer, given = sgd(net), []
    optimizer.register_step_pre_hook(lambda *_: doctor.log_loss(given[-1]) if len(given) > 3 else None)
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        optimizer.register_step_post_hook(lambda *_: None)
        for step in range(12):
            loss = loss_of(net, step)
            given.append(2 * loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert losses(doctor) == {step: pytest.approx(given[step], rel=1e-6) for step in range(3, 12)}


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_the_journal_gives_the_same_report(net, tmp_path, preset):
    optimizer = sgd(net)
    settings = {**QUIET, "preset": preset}
    with Doctor(net, optimizer, journal=tmp_path / "run", settings=settings) as doctor:
        for step in range(200):
            x, y = batch(step)
            if step == 150:
                x[0, 0] = math.nan
            F.mse_loss(net(x), y).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    live = doctor.diagnose()
    assert doctor._examination.chart["loss"].nonfinite == 50
    assert ("nan-or-inf", 150) in [(item.name, item.first_step) for item in live.symptoms]
    assert any(TAKEN in note for note in live.notes)
    offline = torchdoctor.diagnose(torchdoctor.read(tmp_path / "run"), settings={"preset": preset})
    assert json.dumps(live.to_dict()) == json.dumps(offline.to_dict())


def unseen(net: nn.Module, optimizer: torch.optim.Optimizer, step: int, way: str) -> None:
    """A step whose loss cannot be seen, or has no meaning by itself."""
    x, y = batch(step)
    out = net(x)
    if way == "autograd.grad":
        for tensor, grad in zip(
            net.parameters(), torch.autograd.grad(F.mse_loss(out, y), net.parameters()), strict=True
        ):
            tensor.grad = grad
    elif way == "a given gradient":
        out.backward((out - y).detach())
    elif way == "turns":
        (F.mse_loss(out, y) if step % 2 else 9 * out.exp().mean()).backward()
    elif way == "a critic":
        CRITIC(out).mean().neg().backward()
    optimizer.step()
    optimizer.zero_grad()


CRITIC = nn.Linear(1, 1)


@pytest.mark.parametrize("way", ["autograd.grad", "a given gradient", "turns", "a critic"])
def test_a_loop_whose_loss_cannot_be_taken_is_told_to_log_it(net, tmp_path, way):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    with Doctor(net, optimizer, journal=tmp_path, settings=QUIET) as doctor:
        for step in range(40):
            unseen(net, optimizer, step, way)
        assert not losses(doctor) and "but no loss was logged" in str(doctor.diagnose())
    report = doctor.diagnose()
    assert not any(TAKEN in note for note in report.notes)
    assert json.dumps(report.to_dict()) == json.dumps(torchdoctor.diagnose(tmp_path).to_dict())


def test_a_term_that_comes_and_goes_makes_no_other_loss(net):
    optimizer, expected = sgd(net), []
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(30):
            loss = loss_of(net, step)
            if step % 3 == 0:
                loss = loss + 0.01 * net[0].weight.abs().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.item())
        assert is_close(doctor, expected)


def test_with_two_optimizers_the_loss_is_not_taken(net):
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (net[0], net[2])]
    with Doctor(net, optimizers, settings=QUIET) as doctor:
        for step in range(30):
            loss_of(net, step).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert not roots._followers and not losses(doctor)
    assert "but no loss was logged" in str(doctor.diagnose())


def test_one_player_alone_has_its_own_loss(net):
    player = nn.Linear(4, 8)
    optimizer, others, expected = sgd(net), sgd(player), []
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(12):
            noise = torch.randn(16, 4)
            optimizer.zero_grad(set_to_none=False)
            loss = F.softplus(net(player(noise).detach())).mean() + F.softplus(-net(batch(step)[0])).mean()
            loss.backward()
            optimizer.step()
            others.zero_grad()
            F.softplus(-net(player(noise))).mean().backward()  # its gradients for the watched player are cleared unused
            others.step()
            expected.append(loss.item())
        assert is_close(doctor, expected)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS])
def test_the_run_is_the_same_bit_for_bit(net, kind):
    def train(model: nn.Module, *, watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        optimizer = kind(model.parameters(), lr=0.01)
        doctor = Doctor(model, optimizer, settings=QUIET) if watched else None
        for step in range(40):

            def closure(step=step):
                optimizer.zero_grad()
                (F.dropout(model(batch(step)[0])) - batch(step)[1]).square().mean().backward(retain_graph=True)
                loss = 0.1 * loss_of(model, step + 1000)
                loss.backward()
                return loss

            optimizer.step(closure)
        if doctor is not None:
            assert len(losses(doctor)) == 40
            doctor.detach()
        return [*model.parameters(), torch.get_rng_state()]

    twin = copy.deepcopy(net)
    backward, step = torch.autograd.backward, torch.amp.GradScaler.step
    for mine, other in zip(train(net, watched=True), train(twin, watched=False), strict=True):
        assert torch.equal(mine, other)
    assert torch.autograd.backward is backward and torch.amp.GradScaler.step is step


def test_a_doctor_that_is_gone_leaves_no_tap(net):
    backward = torch.autograd.backward
    optimizer = sgd(net)
    Doctor(net, optimizer, settings=QUIET)
    loss_of(net, 0).backward()
    optimizer.step()
    assert torch.autograd.backward is not backward
    del optimizer
    for _ in range(2):
        gc.collect()
    assert torch.autograd.backward is backward and not roots._followers


def test_a_failing_backward_is_the_users_error(net):
    optimizer = sgd(net)
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        loss = loss_of(net, 0)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        optimizer.step()
        assert losses(doctor) == {0: pytest.approx(loss.item(), rel=1e-6)}


def test_parameters_that_are_frozen_or_unused_at_first_are_no_witnesses_for_good():
    torch.manual_seed(0)
    net = nn.ModuleList([nn.Linear(8, 1) for _ in range(7)])
    optimizer, expected = sgd(net), {}
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(12):
            loss = loss_of(net[2], step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step:
                expected[step] = pytest.approx(loss.item(), rel=1e-6)
        assert losses(doctor) == expected


class OnADevice(RootLosses):
    """As on a device, where a loss is kept without reading it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        model = nn.Linear(1, 1)
        monitor = Doctor(model, sgd(model), settings=QUIET)._monitor
        super().__init__(monitor, Setup({"": model}, [optimizer]), print, print)


def test_on_a_device_a_loss_is_kept_and_copied_only_if_its_memory_is_used_again(net):
    own = OnADevice(sgd(net))
    given = [torch.tensor(float(number)) for number in range(8)]
    kept = [own._kept(value) for value in given]
    assert [mine is value for mine, value in zip(kept, given, strict=True)] == [False] * 3 + [True] * 5
    shared = OnADevice(sgd(net))
    place = torch.zeros(())
    for number in range(8):
        place.fill_(number)
        kept[number] = shared._kept(place.detach())
    assert [value.item() for value in kept] == list(range(8))


def test_a_compiled_loop_is_seen_or_told(net):
    optimizer = sgd(net)

    @torch.compile(backend="eager")
    def forward(step: torch.Tensor) -> torch.Tensor:
        return net(step).square().mean()

    expected = []
    with Doctor(net, optimizer, settings=QUIET) as doctor:
        for step in range(25):
            loss = forward(batch(step)[0])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.item())
        assert is_close(doctor, expected)


def test_accelerate_needs_no_call(net):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    expected = []
    with Doctor(model, optimizer, settings=QUIET) as doctor:
        for seed in range(60):
            with accelerator.accumulate(model):
                loss = loss_of(model, seed)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                expected.append(loss.item())
        assert is_close(doctor, [sum(pair) / 2 for pair in zip(expected[::2], expected[1::2], strict=True)])


class Wrapped(nn.Module):
    """A model as Hugging Face's Trainer wants it, which returns its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": F.mse_loss(self.net(x), labels)}


@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_hugging_face_needs_no_call(net, tmp_path, micro):
    transformers = pytest.importorskip("transformers")
    model, expected = Wrapped(net), []
    model.register_forward_hook(lambda module, args, out: expected.append(out["loss"].item()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        max_steps=30,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=micro,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    data = [{"x": batch(seed)[0][0], "labels": batch(seed)[1][0]} for seed in range(256)]
    with Doctor(model, optimizer, scheduler=scheduler, settings=QUIET) as doctor:
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=data, optimizers=(optimizer, scheduler)
        )
        trainer.train()
        steps = [sum(expected[micro * step : micro * (step + 1)]) / micro for step in range(30)]
        assert is_close(doctor, steps)


@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_lightning_needs_no_call(net, tmp_path, micro):
    lightning = pytest.importorskip("lightning.pytorch")
    expected: list[float] = []

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic = net, True

        def training_step(self, data, index):
            loss = F.mse_loss(self.net(data[0]), data[1])
            expected.append(loss.item())
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            self.doctor = Doctor(self, optimizer, settings=QUIET)
            return optimizer

    model = Lit()
    data = torch.utils.data.TensorDataset(*(torch.cat(part) for part in zip(*map(batch, range(16)), strict=True)))
    trainer = lightning.Trainer(
        max_steps=30,
        accumulate_grad_batches=micro,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
    steps = [sum(expected[micro * step : micro * (step + 1)]) / micro for step in range(30)]
    assert is_close(model.doctor, steps)
    model.doctor.detach()
