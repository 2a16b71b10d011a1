"""Text for the patient: characters in, batches out, without a draw from the global random state.

>>> corpus = Corpus("to be or not to be " * 50)
>>> corpus.vocabulary, len(corpus.train), len(corpus.validation)
(7, 855, 95)
>>> x, y = corpus.batches("train", batch_size=2, context=4, seed=0)()
>>> x.shape, bool((x[:, 1:] == y[:, :-1]).all())
(torch.Size([2, 4]), True)
"""

from __future__ import annotations

import hashlib
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdoctor.errors import PatientError, did_you_mean

FOLDER = "TORCHDOCTOR_DATA"
"""The environment variable that names the folder of the data sets."""
EMBEDDED = "python"
TRAINING_SHARE = 0.9

Split = Literal["train", "validation"]


class DataSet(NamedTuple):
    """A file of the data folder, and its checksum where the publisher states one."""

    file: str
    algorithm: str = ""
    checksum: str = ""


DATA_SETS = {
    "shakespeare_char": DataSet(
        "tinyshakespeare.txt.xz", "sha256", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    ),
    "enwik8": DataSet("enwik8.xz", "md5", "a1fa5ffddb56f4953e226637dabbb36a"),
    "text8": DataSet("text8_first74MB.xz"),
    "gutenberg": DataSet("gutenberg_28books.txt.xz"),
}


def load_text(name: str | Path | None = None) -> str:
    """The text of a data set or of any UTF-8 text file; None or "python": the documentation topics of this Python.

    The topics differ a little from one Python to the next; results that must be comparable need a data set.
    In enwik8 a character is a byte, as everywhere it is reported on.
    """
    if name is None or name == EMBEDDED:
        from pydoc_data.topics import topics

        return "\n\n".join(f"{title}\n{text}" for title, text in sorted(topics.items()))
    if isinstance(name, str) and name in DATA_SETS:
        content = _read_data_set(name, DATA_SETS[name])
        return content.decode("latin-1" if name == "enwik8" else "utf-8")
    path = Path(name)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        hint = did_you_mean(str(name), [EMBEDDED, *DATA_SETS])
        raise PatientError(f"{str(name)!r} is neither a data set nor a file. {hint}") from error
    except OSError as error:
        raise PatientError(f"cannot read the text {path}: {error.strerror or error}.") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatientError(f"{path} is not UTF-8 text (byte {error.start}); convert it or give another.") from error


def _read_data_set(name: str, data_set: DataSet) -> bytes:
    folder = os.environ.get(FOLDER)
    if not folder:
        raise PatientError(
            f"the data set {name!r} is read from the folder named by the environment variable {FOLDER}, "
            f"which is not set. Put {data_set.file} there, or leave the data set out to use Python's documentation."
        )
    packed = Path(folder) / data_set.file
    plain = packed.with_suffix("")
    try:
        content = lzma.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()
    except FileNotFoundError as error:
        raise PatientError(f"the data set {name!r} was expected at {packed} or {plain}; neither exists.") from error
    except (OSError, lzma.LZMAError) as error:
        raise PatientError(f"cannot read the data set {name!r} from {folder}: {error}.") from error
    if data_set.checksum:
        found = hashlib.new(data_set.algorithm, content, usedforsecurity=False).hexdigest()
        if found != data_set.checksum:
            raise PatientError(
                f"{data_set.file} in {folder} is not the published {name}: its {data_set.algorithm} is {found}, "
                f"expected {data_set.checksum}. Fetch it again."
            )
    return content


class Corpus:
    """A text as numbers: its alphabet, the first 90 % to train on and the rest to validate on."""

    def __init__(self, text: str) -> None:
        if len(set(text)) < 2:
            raise PatientError(f"a text of {len(text)} characters with fewer than two different ones teaches nothing.")
        try:  # a quarter of the memory where it can be had: enwik8 has 100 MB
            points: np.ndarray[Any, Any] = np.frombuffer(text.encode("latin-1"), np.uint8)
        except UnicodeEncodeError:
            points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        present = np.zeros(int(points.max()) + 1, bool)
        present[points] = True
        codes = np.flatnonzero(present)
        table = np.zeros(present.size, np.uint8 if codes.size <= 256 else np.int32)
        table[codes] = np.arange(codes.size)
        self.alphabet = "".join(map(chr, codes))
        self.tokens = torch.from_numpy(table[points])

    @property
    def vocabulary(self) -> int:
        """How many different characters there are."""
        return len(self.alphabet)

    @property
    def train(self) -> Tensor:
        """The part to learn from."""
        return self.tokens[: int(TRAINING_SHARE * len(self.tokens))]

    @property
    def validation(self) -> Tensor:
        """The part to judge by."""
        return self.tokens[int(TRAINING_SHARE * len(self.tokens)) :]

    def decode(self, tokens: Tensor) -> str:
        """The text of some tokens."""
        return "".join(self.alphabet[token] for token in tokens.tolist())

    def batches(
        self, split: Split, *, batch_size: int, context: int, seed: int, device: str = "cpu"
    ) -> Callable[[], tuple[Tensor, Tensor]]:
        """A function whose every call draws the next batch: inputs, and the same moved on by one character."""
        tokens = (self.train if split == "train" else self.validation).to(device)
        if len(tokens) <= context:
            raise PatientError(
                f"the {split} part has {len(tokens)} characters, too few for a context of {context}; "
                "give a longer text or a shorter context."
            )
        generator = torch.Generator("cpu").manual_seed(seed)
        offsets = torch.arange(context + 1, device=device)

        def draw() -> tuple[Tensor, Tensor]:
            starts = torch.randint(len(tokens) - context, (batch_size, 1), generator=generator, device="cpu")
            windows = tokens[starts.to(device, non_blocking=True) + offsets].long()
            return windows[:, :-1], windows[:, 1:]

        return draw
