"""The norms of many gradients in one launch, for CUDA loops that do not clip.

torch's multi-tensor norm makes an output tensor for each input: with 150 tensors, that takes ten times as long on the
host as everything else in a watched step. Here, a small kernel gets the gradients' addresses, which change at every
step, as arguments and writes all norms into one vector. It is compiled by torch's own run-time compiler, in a thread,
while the first steps run; the thread never touches the device, which may be recording a graph. If any of this is
unavailable (torch before 2.9, other devices, unsupported types), the multi-tensor norm is used.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("torchdoctor")

FEWEST = 24
"""Number of tensors from which our launch is cheaper than one output for each."""
MOST = 480
"""Addresses that fit into the arguments of a launch, at most 4 KB: more tensors take more launches."""
CHUNK = 1 << 16
"""Elements that one block of threads adds up."""
LANES = 256
"""Threads per block."""
READ = {torch.float32: "p[i]", torch.bfloat16: "__uint_as_float((unsigned)p[i] << 16)"}
"""How an element is read; bfloat16 is the upper half of a float32."""
STORED = {torch.float32: "float", torch.bfloat16: "unsigned short"}
ROWS = 32
"""Steps whose results are allocated at a time: making two tensors per step would cost as much as a launch."""
GLANCES = 8
"""How often the gradients' layout is learned anew; if it changes more often, it is checked tensor by tensor."""
TRUSTED = 15
"""Steps for which gradients at unchanged addresses are taken to have an unchanged layout too. Autograd gives a gradient
the type and size of its parameter, and all of that memory was the gradients' own when their layout was last checked."""
_grad = operator.attrgetter("grad")
_are_at: Callable[[list[Any], list[int], list[int]], bool] | None = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", None
)
"""torch's own comparison of many addresses, a third faster than reading and comparing them; in CUDA builds only."""

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
struct Addresses { unsigned long long at[MOST]; };
extern "C" __global__ void norms_of(const __grid_constant__ Addresses address, int tensor, int block,
                                    const long long* size, const int* owner, const int* first, volatile double* sums,
                                    unsigned* done, float* norms, float* total, int tensors, int blocks) {
  int b = block + blockIdx.x, t = owner[b];
  const STORED* p = (const STORED*)address.at[t - tensor];
  long long begin = (long long)(b - first[t]) * CHUNK, end = begin + CHUNK;
  if (end > size[t]) end = size[t];
  float x = 0.0f;
  for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) { float v = READ; x = fmaf(v, v, x); }
  double sum = block_sum((double)x);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    sums[b] = sum;
    __threadfence();
    last = atomicAdd(done, 1u) == blocks - 1;
  }
  __syncthreads();
  if (!last) return;  // the block that ends last takes the roots, in an order that is always the same
  __threadfence();
  double all = 0.0;
  for (int t = threadIdx.x / 32; t < tensors; t += blockDim.x / 32) {
    double sum = 0.0;
    for (int b = first[t] + threadIdx.x % 32; b < first[t + 1]; b += 32) sum += sums[b];
    sum = lanes_sum(sum);
    if (threadIdx.x % 32 == 0) { norms[t] = (float)sqrt(sum); all += sum; }
  }
  all = block_sum(all);
  if (threadIdx.x == 0) { *total = (float)sqrt(all); *done = 0; }
}
"""


class Reduction:
    """The norms of the gradients of these tensors, at each call; returns None while it is not ready or not possible."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._device, self._type = tensors[0].device, tensors[0].dtype
        self._sizes = [tensor.numel() for tensor in tensors]
        self._binary: bytes | None = None
        self._launches: list[_Launch] | None = None
        self._known: list[int] = []
        """Addresses of the gradients at the last call."""
        self._all = list(range(len(tensors)))
        self._has_known_form: Callable[..., bool] | None = None
        """Whether types, devices, sizes and strides are those that were last found valid."""
        self._glances = GLANCES
        self._trusted = 0
        """For how many more steps unchanged addresses are enough."""
        self._room: list[tuple[Tensor, Tensor, int, int]] = []
        """For upcoming steps: memory for the norms and for the total, and the addresses of both."""
        self._stream = 0
        if self._device.type == "cuda" and len(tensors) >= FEWEST and all(self._sizes) and self._type in READ:
            # Not a daemon thread: a compiler still running at the interpreter's exit may crash it.
            threading.Thread(target=self._compile, name="torchdoctor-compile").start()

    def __call__(self) -> tuple[Tensor, Tensor] | None:
        """Norm by tensor and total norm of the gradients as they are now; raises an error if a tensor has none."""
        if self._launches is None and self._binary is None:
            return None
        if torch._C._cuda_getDevice() != self._device.index or (self._launches is None and not self._load()):
            return None
        launches = self._launches
        assert launches is not None
        grads = list(map(_grad, self._tensors))
        moved = not self._known or not self._is_unmoved(grads)
        self._trusted -= 1
        if moved or self._trusted < 0 or grads[-1].dtype is not self._type:
            if not self._are_whole(grads):
                return None
            self._trusted = TRUSTED
        if moved:
            self._known = addresses = list(map(Tensor.data_ptr, grads))
            for start, launch in zip(range(0, len(addresses), MOST), launches, strict=True):
                launch.place(addresses[start : start + MOST])
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        if not self._room or stream != self._stream:
            self._make_room(stream)
        norms, total, *places = self._room.pop()
        for launch in launches:
            launch(*places)
        return norms, total

    def _is_unmoved(self, grads: list[Tensor]) -> bool:
        """Whether each gradient is where it was at the last call."""
        if _are_at is not None:
            return _are_at(grads, self._known, self._all)
        return list(map(Tensor.data_ptr, grads)) == self._known

    def _make_room(self, stream: int) -> None:
        """Allocate memory for some steps on this stream, in two blocks that live until the last of them is read."""
        norms = torch.empty(ROWS, len(self._tensors), device=self._device).unbind()
        totals = torch.empty(ROWS, device=self._device).unbind()
        places = (map(Tensor.data_ptr, rows) for rows in (norms, totals))
        self._room, self._stream = list(zip(norms, totals, *places, strict=True)), stream
        for launch in self._launches or ():
            launch.turn_to(stream)

    def _are_whole(self, grads: list[Tensor]) -> bool:
        """Whether each gradient is dense and complete, as the kernel expects; if so, their layout is remembered."""
        if self._has_known_form is not None and self._has_known_form(*grads):
            return True
        whole = all(
            grad.dtype == self._type and grad.numel() == size and grad.device == self._device and _is_dense(grad)
            for grad, size in zip(grads, self._sizes, strict=True)
        )
        if whole and self._glances:
            self._glances -= 1
            self._has_known_form = _form_of(grads)
        return whole

    def _compile(self) -> None:
        source = SOURCE.replace("STORED", STORED[self._type]).replace("READ", READ[self._type])
        source = source.replace("MOST", str(min(MOST, len(self._tensors)))).replace("CHUNK", str(CHUNK))
        try:
            with torch.cuda.device(self._device):
                self._binary = _runtime()._nvrtc_compile(source, "norms_of")[0]
        except Exception as error:  # noqa: BLE001  an optional shortcut: the multi-tensor kernel remains
            logger.debug("using torch's multi-tensor kernel for gradient norms: %s", error)

    def _load(self) -> bool:
        """Put the kernel and its tables on the device, once it is compiled."""
        binary, self._binary = self._binary, None
        chunks = [-(-size // CHUNK) for size in self._sizes]
        owner = [index for index, count in enumerate(chunks) for _ in range(count)]
        first = [0, *itertools.accumulate(chunks)]
        rows = (self._sizes, torch.int64), (owner, torch.int32), (first, torch.int32), ([0], torch.int32)
        try:
            kernels = _runtime()._cuda_load_module(binary, ["norms_of"])
            tables = [
                torch.tensor(row, dtype=kind, device="cpu").pin_memory().to(self._device, non_blocking=True)
                for row, kind in rows
            ]
            sums = torch.empty(len(owner), dtype=torch.float64, device=self._device)
            self._kept = kernels, tables, sums  # the launches only hold their addresses
            sizes, owners, firsts, done = tables
            arguments = [sizes, owners, firsts, sums, done, None, None, len(chunks), len(owner)]
            self._launches = []
            for start in range(0, len(chunks), MOST):
                begin, end = first[start], first[min(start + MOST, len(chunks))]
                self._launches.append(_Launch(kernels["norms_of"], end - begin, [start, begin, *arguments]))
        except Exception as error:  # noqa: BLE001
            self._launches = None
            logger.debug("using torch's multi-tensor kernel for gradient norms: %s", error)
        return self._launches is not None


def _form_of(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """A test whether tensors have this layout, in one call: two Python passes over 150 tensors take twice as long."""
    try:
        from torch._C._dynamo import guards

        make: Any = guards.TensorGuards
        sizes, strides = [list(tensor.shape) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
        test: Callable[..., bool] = make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    except Exception as error:  # noqa: BLE001  an optional shortcut, like the kernel
        logger.debug("checking the layout of gradients one by one: %s", error)
        return None
    return test


def _runtime() -> Any:
    """torch's own interface to the run-time compiler and the driver."""
    from torch.cuda import _utils

    return _utils


class _Launch:
    """A kernel with prepared arguments: a launch is one foreign call. None stands for an address given later."""

    def __init__(self, kernel: Any, blocks: int, arguments: Sequence[Tensor | int | None]) -> None:
        values: list[Any] = [
            ctypes.c_int(item) if isinstance(item, int) else ctypes.c_void_p(None if item is None else item.data_ptr())
            for item in arguments
        ]
        self._norms, self._total = (value for value, item in zip(values, arguments, strict=True) if item is None)
        self._places = (ctypes.c_uint64 * MOST)()
        self._values = [self._places, *values]
        self._pointers = (ctypes.c_void_p * len(self._values))(*map(ctypes.addressof, self._values))
        self._shape = kernel.func, blocks, 1, 1, LANES, 1, 1, 0
        self._launch: Any = _runtime()._get_gpu_runtime_library().cuLaunchKernel

    def place(self, addresses: list[Any]) -> None:
        """Set the gradients' addresses; each launch copies them."""
        self._places[: len(addresses)] = addresses

    def turn_to(self, stream: int) -> None:
        """Launch on this stream from now on."""
        self._call = partial(self._launch, *self._shape, ctypes.c_void_p(stream), self._pointers, None)

    def __call__(self, norms: int, total: int) -> None:
        self._norms.value, self._total.value = norms, total
        failure = self._call()
        if failure:
            raise RuntimeError(f"the norm kernel could not be launched (CUDA error {failure})")


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill one contiguous block of memory, in any order."""
    return tensor.layout is torch.strided and bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
