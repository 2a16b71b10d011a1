import gc
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdoctor.vitals import machine
from torchdoctor.vitals.machine import Machine

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    now = types.SimpleNamespace(value=100.0)
    monkeypatch.setattr(machine.time, "monotonic", lambda: now.value)
    return now


def test_the_host_tells_its_memory_and_the_folder_its_disk(tmp_path):
    values = Machine(CPU, tmp_path).read()
    assert values["host_memory"] > 10 * 2**20
    assert values["disk_free"] > 0
    assert Machine(CPU, None).read().keys() == {"host_memory", "host_load", "processor_seconds"}


def test_memory_that_is_taken_is_seen(clock):
    gc.collect()
    gauge = Machine(CPU, None)
    before = gauge.read()["host_memory"]
    taken = bytearray(256 * 2**20)  # what earlier tests left may be given back in the meantime
    taken[::4096] = b"x" * len(taken[::4096])
    clock.value += 2
    assert gauge.read()["host_memory"] - before > 128 * 2**20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="told by Linux only")
def test_a_file_that_is_read_through_a_mapping_is_not_memory_of_the_process(tmp_path, clock):
    corpus = np.memmap(tmp_path / "train.bin", np.uint8, "w+", shape=64 * 2**20)
    corpus[:] = 1
    corpus.flush()
    del corpus
    corpus = np.memmap(tmp_path / "train.bin", np.uint8, "r")
    gauge = Machine(CPU, None)
    before = gauge.read()["host_memory"]
    assert corpus[::512].sum() > 0
    clock.value += 2
    assert gauge.read()["host_memory"] - before < 16 * 2**20


def test_a_second_look_within_a_second_asks_for_what_costs_nothing(clock):
    gauge = Machine(CPU, None)
    assert gauge.read()
    clock.value += 0.5
    assert set(gauge.read()) == {"host_memory", "host_load", "processor_seconds"}
    clock.value += 0.6
    assert gauge.read()


def test_a_reader_that_fails_is_left_out_and_not_asked_again(tmp_path, clock):
    gauge = Machine(CPU, tmp_path / "gone" / "missing")
    assert gauge.read().keys() == {"host_memory", "host_load", "processor_seconds"}
    clock.value += 2
    assert gauge.read().keys() == {"host_memory", "host_load", "processor_seconds"}


def unsupported(*args):
    raise OSError("not supported on this device")


def fake_nvml(reasons, asked):
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": asked.append,
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=37),
        "nvmlDeviceGetTemperature": lambda handle, kind: 71,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: reasons,
        "nvmlDeviceGetTotalEccErrors": unsupported,
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(free=5 * 2**30),
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "NVML_TEMPERATURE_GPU": 0,
    }
    return types.SimpleNamespace(**answers, **dict(zip(machine.SLOWED, (8, 32, 64, 128), strict=True)))


@pytest.mark.parametrize(("reasons", "throttled"), [(4, 0.0), (64, 1.0), (4 + 8, 1.0)])
def test_a_device_tells_what_it_can(monkeypatch, reasons, throttled):
    asked = []
    fake = fake_nvml(reasons, asked)
    monkeypatch.setattr(machine.importlib, "import_module", lambda name: fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="abc"))
    values = Machine(torch.device("cuda"), None).read()
    assert asked == ["GPU-abc"]
    assert values.pop("host_memory") > 0
    assert values.pop("processor_seconds") > 0
    assert values.pop("host_load") >= 0
    assert values == {
        "gpu_utilisation": 37.0,
        "gpu_temperature": 71.0,
        "gpu_throttled": throttled,
        "gpu_memory_free": 5.0 * 2**30,
    }


def test_without_nvml_and_proc_nothing_is_raised(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(machine.importlib, "import_module", missing)
    monkeypatch.setattr(machine.Path, "exists", lambda self: False)
    assert Machine(torch.device("cuda"), None).read().keys() == {"host_load", "processor_seconds"}
