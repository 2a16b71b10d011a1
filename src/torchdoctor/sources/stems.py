"""Which run a log belongs to, judging by its name.

>>> stem(Path("train.log")), stem(Path("metrics.csv"))
((), ())
>>> stem(Path("adam_metrics.csv")), stem(Path("adam.log")), stem(Path("run_2.jsonl.gz")), stem(Path("log2.txt"))
(('adam',), ('adam',), ('2',), ('2',))
>>> stem(Path("sgd_2024-05-01_12-30-05.log")), stem(Path("slurm-8412345.out")), stem(Path("version_1/metrics.csv"))
(('sgd',), (), ('version', '1'))
"""

from __future__ import annotations

import re
from pathlib import Path

from torchdoctor.sources.words import HIGHER, LOSS, LOWER, SPLITS, base, listed, words_of

SUFFIXES = listed(".csv .tsv .json .jsonl .ndjson .log .txt .out .parquet .db .sqlite .sqlite3 .wandb .gz .err")
"""Suffixes of logs."""
NO_LOGS = listed(
    ".7z .arrow .avi .bak .bat .bib .bin .bmp .bz2 .c .cc .cfg .ckpt .conf .cpp .css .cu .cuh .diff .dll .exe .flac "
    ".gif .go .h .h5 .hdf5 .hpp .htm .html .ini .ipynb .java .jpeg .jpg .js .joblib .lock .md .mp3 .mp4 .npy .npz .o "
    ".old .onnx .orig .patch .pb .pdf .pickle .pkl .png .ps1 .pt .pth .py .pyc .rar .rs .rst .safetensors .sh .so .svg "
    ".swp .tar .tex .tfrecord .tfrecords .tgz .tif .tiff .tmp .toml .ts .wav .webp .xml .xz .yaml .yml .zip .zst"
)
"""Suffixes of other files: code, settings, weights, images, archives and copies."""
SAYS_NOTHING = listed(
    "all batch check checkpoint checkpoints console csv curve curves data debug epoch epochs err event events "
    "experiment fit full hist history info iter iters job jobs json jsonl latest learning lightning log logger logging "
    "logs lr main metric metrics mlflow mlruns model monitor my nohup of out output outputs print printed progress "
    "rate record records report result results run runs save saved scalar scalars slurm state stats status stderr "
    "stdout step steps summary tb tensorboard text the trackio trained trainer txt vis wandb"
)
"""Words that appear in the names of logs of any run."""
SAYS_NOTHING |= LOSS | HIGHER | LOWER | frozenset(SPLITS)
_DATE = re.compile(
    r"(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?:[-_.T ]{0,2}[0-2]\d[-_.:h]?[0-5]\d(?:[-_.:m]?[0-5]\d)?)?(?!\d)"
)
STAMP = 6
"""Digits from which a number is a date, a time or a job id: two logs of one run may differ in it."""


def stem(path: Path) -> tuple[str, ...]:
    """The words that distinguish a log from those of other runs; empty if its name would suit any run."""
    place = path
    while place.suffix.lower() in SUFFIXES:
        place = place.with_suffix("")
    found = []
    for word in (word for part in place.parts for word in words_of(_DATE.sub(" ", part))):
        plain = base(word)
        number = word if plain.isdigit() else word[len(plain) :]
        if not plain.isdigit() and plain not in SAYS_NOTHING:
            found.append(word)
        elif number and len(number) < STAMP:
            found.append(number)
    return tuple(found)
