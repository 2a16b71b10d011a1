"""Tensors from untrusted files: nothing in them is executed, and nothing is computed before it is checked.

`torch.load` with ``weights_only=True`` runs no code, but it does not protect from a file of two kilobytes that claims
to be a tensor of 10¹² elements (one element, stride 0), nor from a compressed archive that unpacks to a thousand times
its size. So archives are checked before they are read, and tensors before anything is computed with them. A file that
fails a check is refused: there is no second attempt with fewer checks.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from torchdoctor.checks.pickles import unpickled
from torchdoctor.errors import PatientError

ZIP = b"PK\x03\x04"
PICKLED = b"\x80"
"""How a pickle begins, from its second protocol on."""
ENTRIES = 1_000_000
PROGRAM = 256 * 2**20
"""Most bytes of the pickle program in a .pt file: it holds names and shapes, never weights."""
UNPACKED = 4 * 2**30
"""Most bytes that an .npz may unpack to."""
DEPTH = 16
ITEMS = 1_000_000
VIEWS = 8
"""How many times the size of the file all tensors together may claim: tied weights claim theirs twice."""
SAFE_SINCE = (2, 10)
"""The first torch version whose restricted unpickler has no known hole (CVE-2025-32434, CVE-2026-24747)."""
SUFFIXES = ".pt, .pth, .bin, .ckpt, .safetensors, .npz"
CONVERT = (
    "Convert it on a machine where you trust it: torch.save(model.state_dict(), 'weights.pt') for a model, "
    "torch.save((inputs, targets), 'sample.pt') for data. Or pass --trust-pickle if you would run a program from "
    "the author of this file: reading a pickle can run any code."
)


def read_tensors(path: Path, *, trust_pickle: bool = False) -> Any:
    """The content of a .pt, .safetensors or .npz file: tensors in dicts, lists and tuples; detected by content."""
    try:
        if not path.is_file():
            raise PatientError(f"{path} does not exist or is not a file. Known formats: {SUFFIXES}.")
        with path.open("rb") as file:
            start = file.read(9)
        if trust_pickle and path.suffix not in (".safetensors", ".npz"):
            return unpickled(path)
        if start.startswith(ZIP):
            return _npz(path) if path.suffix == ".npz" else _pt(path)
    except OSError as error:
        raise PatientError(f"cannot read {path}: {error.strerror or error}.") from error
    if path.suffix == ".safetensors" or start[8:] == b"{":
        return _safetensors(path)
    if not start:
        raise PatientError(f"{path} is empty. Was the program that wrote it stopped?")
    if not start.startswith(PICKLED):
        raise PatientError(
            f"{path} is not a file that torch.save, safetensors or numpy wrote. Known formats: {SUFFIXES}."
        )
    raise PatientError(f"{path} is neither a zip archive as written by torch.save nor safetensors. {CONVERT}")


def _pt(path: Path) -> Any:
    with path.open("rb") as file:
        check_archive(file, str(path))
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < SAFE_SINCE:
        raise PatientError(
            f"torch {torch.__version__} has known holes in reading .pt files from others (CVE-2026-24747). Update "
            f"to {SAFE_SINCE[0]}.{SAFE_SINCE[1]}, use .safetensors, or pass --trust-pickle if you trust {path}."
        )
    try:
        found = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except Exception as error:  # a damaged file may raise anything
        reason = next(iter(str(error).splitlines()), "")
        if "Unsupported" in str(error) or "GLOBAL" in str(error) or "weights_only" in str(error).lower():
            reason = "it holds objects, not only tensors"
        raise PatientError(f"{path} could not be read: {reason[:300]}. {CONVERT}") from error
    check_tensors(found, str(path), path.stat().st_size)
    return found


def check_archive(file: BinaryIO, name: str) -> None:
    """Refuse a .pt that is compressed, claims more than its size, or has odd entry names; no entry is read."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise PatientError(f"{name} is damaged: {error}. Was it copied completely?") from error
    size = file.seek(0, 2)
    names = [entry.filename for entry in entries]
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
        raise PatientError(f"{name} is a compressed archive, unlike torch.save's. It was refused: unpack it yourself.")
    if sum(entry.file_size for entry in entries) > size or len(entries) > ENTRIES:
        raise PatientError(f"{name} claims to hold more than its {size:,} bytes. It was refused.")
    if len(set(names)) != len(names) or any(_is_odd(entry) for entry in names):
        raise PatientError(f"{name} has entries with duplicate names or with paths outside it. It was refused.")
    if any(PurePosixPath(entry).name == "constants.pkl" for entry in names):
        raise PatientError(f"{name} is a TorchScript program: loading it runs code. Save model.state_dict() instead.")
    if any(entry.file_size > PROGRAM for entry in entries if entry.filename.endswith("data.pkl")):
        raise PatientError(f"{name} has a description (data.pkl) of more than {PROGRAM:,} bytes. It was refused.")


def _is_odd(name: str) -> bool:
    return name.startswith("/") or "\\" in name or "\x00" in name or ".." in PurePosixPath(name).parts


def check_tensors(found: Any, name: str, size: int) -> None:
    """Refuse tensors that claim more elements than their storage has, or that are not plain."""
    claimed = 0
    for tensor in _tensors(found, name):
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise PatientError(f"{name} holds a {tensor.layout} tensor on {tensor.device}; only plain ones are read.")
        needed = tensor.numel() * tensor.element_size()
        if needed > tensor.untyped_storage().nbytes():
            raise PatientError(
                f"{name} holds a tensor of {tensor.numel():,} elements whose storage has fewer (stride 0). It was "
                "refused: save a contiguous copy."
            )
        claimed += needed
    if claimed > VIEWS * max(size, 2**20):
        raise PatientError(f"{name} has {size:,} bytes, but its tensors claim {claimed:,}. It was refused.")


def _tensors(found: Any, name: str) -> Iterator[Tensor]:
    """Every tensor in nested containers, which may contain each other."""
    stack = [(found, 0)]
    seen: set[int] = set()
    while stack:
        item, depth = stack.pop()
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, Mapping | list | tuple | set):
            if id(item) in seen:
                continue
            seen.add(id(item))
            if depth > DEPTH or len(seen) + len(stack) + len(item) > ITEMS:
                raise PatientError(f"{name} is nested too deeply or holds too many objects. It was refused.")
            stack += [(inner, depth + 1) for inner in (item.values() if isinstance(item, Mapping) else item)]


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise PatientError("reading .safetensors needs safetensors: pip install 'torchdoctor[safetensors]'.") from error
    try:
        found: dict[str, Tensor] = load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise PatientError(f"{path} is not a valid .safetensors file: {error}.") from error
    return found


def _npz(path: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            total = sum(entry.file_size for entry in entries)
            if total > UNPACKED or len(entries) > ENTRIES:
                raise PatientError(f"{path} unpacks to {total:,} bytes, more than {UNPACKED:,}. It was refused.")
            for entry in entries:
                _check_array(archive, entry, str(path))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: as_tensor(arrays[name]) for name in arrays.files}
    except PatientError:
        raise
    except Exception as error:  # zip, zlib and numpy each raise their own errors
        raise PatientError(f"{path} is not an .npz of plain numbers: {str(error)[:300]}.") from error


def as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """The same numbers; float64, numpy's default, becomes torch's default dtype.

    >>> as_tensor(np.ones(2)).dtype
    torch.float32
    """
    found = torch.from_numpy(array)
    return found.to(torch.get_default_dtype()) if found.dtype is torch.float64 else found


def _check_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> None:
    """Refuse an array whose header claims more than its entry has: numpy would allocate it first."""
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"{entry.filename} has format {version}, which plain numbers do not need")
        shape, _, dtype = readers[version](stream)
        if dtype.hasobject:
            raise ValueError(f"{entry.filename} holds Python objects, which only a pickle can")
        if prod(shape) * dtype.itemsize > entry.file_size:
            raise PatientError(f"{name}: {entry.filename} claims {prod(shape):,} elements, more than it has. Refused.")
