"""The machine gauge: device and host measurements, at most once per second, in well under 1 ms.

NVML (``nvidia-ml-py``) and psutil are optional: ``pip install torchdoctor[machine]``. Anything unavailable is left out.
"""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchdoctor.vitals.gauge import Gauge
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.transfer import Slot

Reader = Callable[[], float]

LEAST_SECONDS = 1.0
"""Time between two looks: NVML asks the driver, and its answers do not change faster."""
CHEAP = ("host_memory", "processor_seconds", "host_load")
"""Read at every look: the kernel answers in a few microseconds, and a short run has few seconds."""
OWN = ("RssAnon:", "RssShmem:")
"""What the kernel calls memory that the process owns, or shares with its workers."""
SLOWED = (
    "nvmlClocksThrottleReasonHwSlowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
)
"""Reasons for a lower clock that mean trouble; a power cap is normal for busy devices."""


class Machine:
    """Reads utilization, temperature, throttling, errors and memory of a device, memory and time of the process, disk.

    >>> sorted(Machine(torch.device("cpu"), Path()).read())
    ['disk_free', 'host_load', 'host_memory', 'processor_seconds']
    """

    def __init__(self, device: torch.device, folder: Path | None) -> None:
        self._readers = _readers(device, folder)
        self._looked_at = float("-inf")

    def read(self) -> dict[str, float]:
        """The available values by vital; only the cheap ones within a second of the last look. Never raises."""
        now = time.monotonic()
        soon = now - self._looked_at < LEAST_SECONDS
        self._looked_at = self._looked_at if soon else now
        values: dict[str, float] = {}
        for name, reader in list(self._readers.items()):
            if soon and name not in CHEAP:
                continue
            try:
                values[name] = float(reader())
            except Exception:  # noqa: BLE001  a reader that fails once is not used again
                del self._readers[name]
        return values


class MachineGauge(Gauge):
    """The machine's vitals at sampled steps."""

    def __init__(self, setup: Setup) -> None:
        tensor = next((item for model in setup.models.values() for item in model.parameters()), None)
        folder = setup.folder
        if folder is not None and folder.suffix == ".jsonl":
            folder = folder.parent
        self._machine = Machine(torch.device("cpu") if tensor is None else tensor.device, folder)

    def after_step(self, index: int, slot: Slot) -> None:
        """Read everything available."""
        for name, value in self._machine.read().items():
            slot.add(name, value)


def _readers(device: torch.device, folder: Path | None) -> dict[str, Reader]:
    """Set up once, outside the loop: starting NVML takes 0.2 seconds."""
    readers: dict[str, Reader] = {}
    if device.type == "cuda":
        try:
            readers.update(_device_readers(device))
        except Exception:  # noqa: BLE001  no NVML, or it does not know this device
            readers.clear()
    readers["host_memory"] = _host_reader()
    readers["processor_seconds"] = time.process_time  # CPU time of all threads of the process, without waiting
    # Threads of all processes that wait to run, per processor. Above one, a process uses more CPU time for the same
    # work, because its threads spin while they wait for each other.
    if hasattr(os, "getloadavg"):
        readers["host_load"] = lambda: os.getloadavg()[0] / (os.cpu_count() or 1)
    if folder is not None:
        readers["disk_free"] = lambda: shutil.disk_usage(folder).free
    return readers


def _device_readers(device: torch.device) -> dict[str, Reader]:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    properties = torch.cuda.get_device_properties(device)
    # CUDA orders devices in its own way (CUDA_VISIBLE_DEVICES): only the UUID identifies ours.
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
    mask = sum(int(getattr(nvml, name, 0)) for name in SLOWED)
    uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return {
        "gpu_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "gpu_throttled": lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & mask),
        "gpu_ecc_errors": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile),
        "gpu_memory_free": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).free,
    }


def _host_reader() -> Reader:
    """The process's own memory: from the kernel if available, else through psutil."""
    table = Path("/proc/self/status")
    if table.exists() and own_memory(table.read_text(encoding="utf-8", errors="replace")) > 0:
        return lambda: own_memory(table.read_text(encoding="utf-8", errors="replace"))
    return _psutil_memory


def own_memory(status: str) -> int:
    """Bytes in use, without pages of mapped files: a memory-mapped dataset fills memory that is otherwise free.

    >>> own_memory("VmRSS:\\t  900 kB\\nRssAnon:\\t  300 kB\\nRssFile:\\t  500 kB\\nRssShmem:\\t  100 kB\\n")
    409600
    """
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(OWN))


def _psutil_memory() -> float:
    psutil: Any = importlib.import_module("psutil")
    return float(psutil.Process().memory_info().rss)
