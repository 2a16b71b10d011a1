"""The norms of many gradients in two launches, for CUDA loops that do not clip.

torch's multi-tensor norm makes an output tensor for each of its inputs: at 150 tensors that takes ten times as long on
the host as everything else that a watched step costs. Here a small kernel reads a table of addresses and writes all
norms into one vector. It is compiled by torch's own run-time compiler, in a thread, while the first steps go on; the
thread never touches the device, which may be recording a graph. Where all this is not to be had (torch before 2.9,
other devices, types that the kernel does not read) the multi-tensor norm is used.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import operator
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("torchdoctor")

FEWEST = 24
"""Tensors from which two launches of ours are cheaper than one output for each."""
CHUNK = 1 << 16
"""Elements that one block of threads adds up."""
LANES, WIDTH = 256, 1024
"""Threads of a block of the first kernel, and of the only one of the second."""
READ = {torch.float32: "p[i]", torch.bfloat16: "__uint_as_float((unsigned)p[i] << 16)"}
"""How an element is read; bfloat16 is the upper half of a float."""
STORED = {torch.float32: "float", torch.bfloat16: "unsigned short"}
ROWS = 32
"""Steps whose results are given room at a time: making two tensors a step would cost as much as a launch."""
_grad = operator.attrgetter("grad")

SOURCE = r"""
__device__ double lanes_sum(double x) {
  for (int o = 16; o; o >>= 1) x += __shfl_down_sync(0xffffffffu, x, o);
  return x;
}
__device__ double block_sum(double x) {
  __shared__ double parts[32];
  x = lanes_sum(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0;
  return threadIdx.x < 32 ? lanes_sum(x) : 0.0;
}
extern "C" __global__ void add_chunks(const unsigned long long* address, const long long* size, const int* owner,
                                      const int* first, double* sums, int chunk) {
  int t = owner[blockIdx.x];
  const STORED* p = (const STORED*)address[t];
  long long begin = (long long)(blockIdx.x - first[t]) * chunk, end = begin + chunk;
  if (end > size[t]) end = size[t];
  float x = 0.0f;
  for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) { float v = READ; x = fmaf(v, v, x); }
  double sum = block_sum((double)x);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
extern "C" __global__ void take_roots(const double* sums, const int* first, float* norms, float* total, int tensors) {
  double all = 0.0;
  for (int t = threadIdx.x / 32; t < tensors; t += blockDim.x / 32) {
    double sum = 0.0;
    for (int b = first[t] + threadIdx.x % 32; b < first[t + 1]; b += 32) sum += sums[b];
    sum = lanes_sum(sum);
    if (threadIdx.x % 32 == 0) { norms[t] = (float)sqrt(sum); all += sum; }
  }
  all = block_sum(all);
  if (threadIdx.x == 0) *total = (float)sqrt(all);
}
"""


class Reduction:
    """The norms of the gradients of these tensors, again and again; `None` while, or where, it cannot tell."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._device, self._type = tensors[0].device, tensors[0].dtype
        self._sizes = [tensor.numel() for tensor in tensors]
        self._binary: bytes | None = None
        self._launches: tuple[_Launch, _Launch] | None = None
        self._known: list[int] = []
        """Where the gradients were last seen."""
        self._room: list[tuple[Tensor, Tensor]] = []
        """For steps to come: where the norms go, and the total."""
        self._stream = 0
        if self._device.type == "cuda" and len(tensors) >= FEWEST and all(self._sizes) and self._type in READ:
            # No daemon: a compiler that the interpreter leaves behind at its exit may crash it.
            threading.Thread(target=self._compile, name="torchdoctor-compile").start()

    def __call__(self) -> tuple[Tensor, Tensor] | None:
        """Norm by tensor and total norm of the gradients as they are now; raises where a tensor has none."""
        if self._launches is None and self._binary is None:
            return None
        if torch._C._cuda_getDevice() != self._device.index or (self._launches is None and not self._load()):
            return None
        addresses = list(map(Tensor.data_ptr, map(_grad, self._tensors)))
        if addresses != self._known and not self._locate(addresses):
            return None
        assert self._launches is not None
        add_chunks, take_roots = self._launches
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        if not self._room or stream != self._stream:
            self._make_room(stream)
        norms, total = self._room.pop()
        add_chunks(stream)
        take_roots(stream, norms.data_ptr(), total.data_ptr())
        return norms, total

    def _make_room(self, stream: int) -> None:
        """Room for some steps on this stream, in two pieces: they live until the last of these steps has been read."""
        norms = torch.empty(ROWS, len(self._tensors), device=self._device)
        totals = torch.empty(ROWS, device=self._device)
        self._room, self._stream = list(zip(norms.unbind(), totals.unbind(), strict=True)), stream

    def _locate(self, addresses: list[int]) -> bool:
        """Write down where the gradients lie now; False if one of them is not a whole, dense one of its own."""
        grads: list[Tensor] = list(map(_grad, self._tensors))
        for grad, size in zip(grads, self._sizes, strict=True):
            if grad.dtype != self._type or grad.numel() != size or not _is_dense(grad) or grad.device != self._device:
                return False
        table = torch.tensor(addresses, dtype=torch.int64).pin_memory()
        self._table.copy_(table, non_blocking=True)  # in order after the launches that still read it
        self._known = addresses
        return True

    def _compile(self) -> None:
        source = SOURCE.replace("STORED", STORED[self._type]).replace("READ", READ[self._type])
        try:
            with torch.cuda.device(self._device):
                self._binary = _runtime()._nvrtc_compile(source, "add_chunks")[0]
        except Exception as error:  # noqa: BLE001  an optional short cut: whatever is missing, there is the long way
            logger.debug("norms are measured by torch's multi-tensor kernel: %s", error)

    def _load(self) -> bool:
        """Put the kernels and their tables on the device, once they are compiled."""
        binary, self._binary = self._binary, None
        chunks = [-(-size // CHUNK) for size in self._sizes]
        owner = [index for index, count in enumerate(chunks) for _ in range(count)]
        first = [0, *itertools.accumulate(chunks)]
        rows = ([0] * len(chunks), torch.int64), (self._sizes, torch.int64), (owner, torch.int32), (first, torch.int32)
        try:
            kernels = _runtime()._cuda_load_module(binary, ["add_chunks", "take_roots"])
            self._table, *tables = (
                torch.tensor(row, dtype=kind).pin_memory().to(self._device, non_blocking=True) for row, kind in rows
            )
            sizes, owners, firsts = tables
            sums = torch.empty(len(owner), dtype=torch.float64, device=self._device)
            self._kept = kernels, tables, sums  # the launches hold their addresses only
            self._launches = (
                _Launch(kernels["add_chunks"], len(owner), LANES, [self._table, sizes, owners, firsts, sums, CHUNK]),
                _Launch(kernels["take_roots"], 1, WIDTH, [sums, firsts, None, None, len(chunks)]),
            )
        except Exception as error:  # noqa: BLE001
            logger.debug("norms are measured by torch's multi-tensor kernel: %s", error)
        return self._launches is not None


def _runtime() -> Any:
    """torch's own bridge to the run-time compiler and to the driver."""
    from torch.cuda import _utils

    return _utils


class _Launch:
    """A kernel with its arguments laid out, so that a launch is one foreign call; None: an address that it is given."""

    def __init__(self, kernel: Any, blocks: int, threads: int, arguments: Sequence[Tensor | int | None]) -> None:
        values: list[Any] = [
            ctypes.c_int(item) if isinstance(item, int) else ctypes.c_void_p(None if item is None else item.data_ptr())
            for item in arguments
        ]
        self._given = [value for value, item in zip(values, arguments, strict=True) if item is None]
        self._values = values
        self._pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._shape = kernel.func, blocks, 1, 1, threads, 1, 1, 0
        self._launch: Any = _runtime()._get_gpu_runtime_library().cuLaunchKernel

    def __call__(self, stream: int, *addresses: int) -> None:
        for value, address in zip(self._given, addresses, strict=True):
            value.value = address
        failure = self._launch(*self._shape, ctypes.c_void_p(stream), self._pointers, None)
        if failure:
            raise RuntimeError(f"the norm kernel could not be launched (CUDA error {failure})")


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill one stretch of memory, in any order."""
    return tensor.layout is torch.strided and bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
