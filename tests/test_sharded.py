"""A model that is sharded (FSDP2): its gradients and the norms that clipping computes are not ordinary tensors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from torchdoctor import Doctor
from torchdoctor.vitals.transfer import Transfer

fsdp = pytest.importorskip("torch.distributed.fsdp")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no FSDP2")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clip", [True, False])
def test_a_sharded_loop_is_watched(group, clip, monkeypatch):
    torch.manual_seed(0)
    load, kinds = Transfer._load, set()

    def loads(self, block, scalars):
        kinds.update(map(type, scalars))
        load(self, block, scalars)

    monkeypatch.setattr(Transfer, "_load", loads)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    plain.load_state_dict(model.state_dict())
    fsdp.fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    norms = []
    for patient in (model, plain):
        optimizer = torch.optim.AdamW(patient.parameters(), lr=1e-2)
        records = []
        generator = torch.Generator().manual_seed(1)
        with Doctor(patient, optimizer, settings={"quiet": True}) as doctor:
            doctor.subscribe(records.append)
            for step in range(60):
                x = torch.randn(32, 8, generator=generator)
                loss = (patient(x) - x.sum(1, keepdim=True)).square().mean()
                loss.backward()
                if step == 50:
                    for parameter in patient.parameters():
                        parameter.grad.mul_(100.0)
                if clip:
                    torch.nn.utils.clip_grad_norm_(patient.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                doctor.log_loss(loss)
            report = doctor.diagnose()
        assert not [note for note in report.notes if "inside torchdoctor" in note]
        assert [item.first_step for item in report.symptoms if item.name == "gradient-explosion"] == [50]
        norms.append([record["vitals"]["grad_norm"] for record in records if record["type"] == "vitals"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert kinds == {torch.Tensor}  # anything else cannot be gathered on a CUDA device


@pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no FSDP2")
@pytest.mark.filterwarnings("ignore")
def test_micro_batches_of_a_sharded_loop_that_logs_no_loss_are_seen(group):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    fsdp.fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    optimizer, expected = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(30):
            parts = []
            for _ in range(2):
                x = torch.randn(32, 8)
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                (loss / 2).backward()
                parts.append(loss.item() / 2)
            optimizer.step()
            optimizer.zero_grad()
            expected.append(sum(parts))
        doctor.diagnose()
        assert doctor._examination.chart["loss"].values.tolist() == pytest.approx(expected, rel=1e-5)
