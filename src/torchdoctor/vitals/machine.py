"""The machine gauge: what the device and the host say of themselves, at most once a second and well under 1 ms a look.

NVML (``nvidia-ml-py``) and psutil are optional: ``pip install torchdoctor[machine]``. What cannot be had is left out.
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
"""Time between two looks: NVML asks the driver, and its answers change no faster."""
CHEAP = ("host_memory", "processor_seconds", "host_load")
"""Read at every look: the kernel answers in some microseconds, and a short run has few seconds."""
OWN = ("RssAnon:", "RssShmem:")
"""What the kernel calls the memory that is the process's own, or that it shares with its workers."""
SLOWED = (
    "nvmlClocksThrottleReasonHwSlowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
)
"""Reasons for a lower clock that mean trouble; a power cap is how busy devices live."""


class Machine:
    """Reads utilisation, temperature, throttling, errors and memory of a device, memory and time of the process, disk.

    >>> sorted(Machine(torch.device("cpu"), Path()).read())
    ['disk_free', 'host_load', 'host_memory', 'processor_seconds']
    """

    def __init__(self, device: torch.device, folder: Path | None) -> None:
        self._readers = _readers(device, folder)
        self._looked_at = float("-inf")

    def read(self) -> dict[str, float]:
        """What can be had now, by name of vital; within a second of the last look what costs nothing. Never raises."""
        now = time.monotonic()
        soon = now - self._looked_at < LEAST_SECONDS
        self._looked_at = self._looked_at if soon else now
        values: dict[str, float] = {}
        for name, reader in list(self._readers.items()):
            if soon and name not in CHEAP:
                continue
            try:
                values[name] = float(reader())
            except Exception:  # noqa: BLE001  what fails once is not asked again
                del self._readers[name]
        return values


class MachineGauge(Gauge):
    """The machine's vitals, at sampled steps."""

    def __init__(self, setup: Setup) -> None:
        tensor = next((item for model in setup.models.values() for item in model.parameters()), None)
        folder = setup.folder
        if folder is not None and folder.suffix == ".jsonl":
            folder = folder.parent
        self._machine = Machine(torch.device("cpu") if tensor is None else tensor.device, folder)

    def after_step(self, index: int, slot: Slot) -> None:
        """Read what can be had."""
        for name, value in self._machine.read().items():
            slot.add(name, value)


def _readers(device: torch.device, folder: Path | None) -> dict[str, Reader]:
    """Found once, outside of the loop: starting NVML takes a fifth of a second."""
    readers: dict[str, Reader] = {}
    if device.type == "cuda":
        try:
            readers.update(_device_readers(device))
        except Exception:  # noqa: BLE001  no NVML, or none that knows this device
            readers.clear()
    readers["host_memory"] = _host_reader()
    readers["processor_seconds"] = time.process_time  # what the process worked, all its threads; waiting is not in it
    # Threads that wait for a turn, of all processes, by processor. Above one, a process works more for the same: its
    # threads spin while they wait for each other.
    if hasattr(os, "getloadavg"):
        readers["host_load"] = lambda: os.getloadavg()[0] / (os.cpu_count() or 1)
    if folder is not None:
        readers["disk_free"] = lambda: shutil.disk_usage(folder).free
    return readers


def _device_readers(device: torch.device) -> dict[str, Reader]:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    properties = torch.cuda.get_device_properties(device)
    # The order of devices is CUDA's own affair (CUDA_VISIBLE_DEVICES): only the identity tells which one is ours.
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
    """The memory that this process holds itself: from the kernel where it tells, else through psutil."""
    table = Path("/proc/self/status")
    if table.exists() and own_memory(table.read_text(encoding="utf-8", errors="replace")) > 0:
        return lambda: own_memory(table.read_text(encoding="utf-8", errors="replace"))
    return _psutil_memory


def own_memory(status: str) -> int:
    """Bytes in use, without pages of mapped files: a corpus that is read through a mapping fills memory that is free.

    >>> own_memory("VmRSS:\\t  900 kB\\nRssAnon:\\t  300 kB\\nRssFile:\\t  500 kB\\nRssShmem:\\t  100 kB\\n")
    409600
    """
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(OWN))


def _psutil_memory() -> float:
    psutil: Any = importlib.import_module("psutil")
    return float(psutil.Process().memory_info().rss)
