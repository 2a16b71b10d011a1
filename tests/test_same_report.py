"""Live and offline give the same report on the same journal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import torchdoctor
from torchdoctor import Doctor
from torchdoctor.cli import group


def train(net, journal, preset: str, sickness: str):
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    doctor = Doctor(net, optimizer, journal=journal, settings={"quiet": True, "preset": preset})
    generator = torch.Generator().manual_seed(3)
    for step in range(400):
        x = torch.randn(16, 8, generator=generator)
        if sickness == "nan" and step == 250:
            x[0, 0] = float("nan")
        if sickness == "rate" and step == 300:
            optimizer.param_groups[0]["lr"] = 30.0
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if sickness == "explosion" and step in (200, 203):
            torch._foreach_mul_([p.grad for p in net.parameters()], 20.0)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss)
        if step % 40 == 39:
            doctor.log_validation(loss.item() * 1.1 + (step / 100 if sickness == "overfit" else 0), accuracy=0.5)
    return doctor


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("sickness", ["none", "nan", "rate", "explosion", "overfit"])
def test_the_report_of_a_live_run_is_that_of_its_journal(net, tmp_path, preset, sickness):
    doctor = train(net, tmp_path / "run", preset, sickness)
    going_on = doctor.diagnose().to_dict()
    doctor.detach()
    live = doctor.diagnose().to_dict()
    settings = {"preset": preset}
    offline = torchdoctor.diagnose(torchdoctor.read(tmp_path / "run"), settings=settings).to_dict()
    assert json.dumps(live) == json.dumps(offline)
    assert live["step"] == going_on["step"] == 399
    assert live["symptoms"] == going_on["symptoms"]
    if sickness not in ("none", "overfit"):
        assert live["symptoms"]
    elif preset == "default" and sickness == "none":
        assert live["health"] == "healthy"


def test_a_report_by_other_settings_than_the_run_had_says_so(net, tmp_path):
    settings = {
        "quiet": True,
        "preset": "paper",
        "ignore": ["LO03"],
        "thresholds": {"gradient-explosion": {"limit": 20}},
        "sinks": [f"prometheus:{tmp_path}/hunter2.prom"],
    }
    with Doctor(net, torch.optim.SGD(net.parameters(), lr=0.1), journal=tmp_path / "run", settings=settings):
        pass
    run = torchdoctor.read(tmp_path / "run")
    assert run.header["settings"] == {key: settings[key] for key in ("preset", "ignore", "thresholds")}
    assert not torchdoctor.diagnose(run, settings=settings).notes
    (note,) = torchdoctor.diagnose(run, settings={}).notes
    assert note == (
        "during training, this run was judged with other settings (preset paper, ignore, thresholds) than in this "
        "report."
    )
    (note,) = torchdoctor.diagnose(run).notes
    assert note.endswith("the run was judged during training (preset paper, ignore, thresholds).")
    for strange in ("x" * 9999, ["paper"], None, {"preset": 3}):  # the words of a file are not repeated
        odd = replace(run, header={**run.header, "settings": {"preset": strange} if strange else strange})
        assert all("xx" not in item and len(item) < 120 for item in torchdoctor.diagnose(odd).notes)


def test_without_other_settings_a_journal_is_judged_as_the_run_was(net, tmp_path, monkeypatch):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    settings = {"quiet": True, "ignore": ["gradients-not-cleared"]}
    with Doctor(net, optimizer, journal=tmp_path / "run", settings=settings) as doctor:
        for _ in range(100):
            loss = net(torch.randn(16, 8)).square().mean()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
    read = torchdoctor.read(tmp_path / "run")
    found = {name: torchdoctor.diagnose(read, settings=given) for name, given in (("as watched", None), ("plain", {}))}
    named = {name: "gradients-not-cleared" in {item.name for item in made.symptoms} for name, made in found.items()}
    assert named == {"as watched": False, "plain": True}
    live, offline = doctor.diagnose().to_dict(), found["as watched"].to_dict()
    assert offline["notes"].pop().endswith("judged during training (ignore).")
    assert json.dumps(live) == json.dumps(offline)
    result = CliRunner().invoke(group, ["diagnose", str(tmp_path / "run"), "--format", "concise"])
    assert "gradients-not-cleared" not in result.stdout and result.exit_code == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torchdoctor.toml").write_text('ignore = ["LO03"]')  # it says itself how to judge
    assert "gradients-not-cleared" in {item.name for item in torchdoctor.diagnose(tmp_path / "run").symptoms}


def test_the_header_says_what_a_colleague_would_ask_and_no_secrets(net, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2-hunter2")
    doctor = train(net, tmp_path / "run", "default", "none")
    doctor.detach()
    lines = (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    assert header["type"] == "header" and header["schema"] == 1
    context = torchdoctor.diagnose(tmp_path / "run").context
    assert context["model"]["class"] == "Sequential" and context["model"]["parameters"] == 161
    assert context["optimizer"][0]["class"] == "AdamW" and context["batch_size"] == 16
    assert {"scheduler", "precision", "devices", "world_size", "seed"} <= set(context)
    assert {"torch", "python", "numpy", "torchdoctor"} <= set(header["versions"])
    assert "hunter2" not in "\n".join(lines)
    groups = next(json.loads(line) for line in lines if '"groups"' in line and '"betas"' in line)
    assert groups["groups"][0]["betas"] == [0.9, 0.999]

    def refuse(token):
        raise ValueError(token)

    for line in lines:
        json.loads(line, parse_constant=refuse)
