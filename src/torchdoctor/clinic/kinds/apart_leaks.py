"""Answers that leak, splits and orders that deceive, learning by heart, and slow or greedy loaders."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.apart_nets import Dilated, Gated, Ratings
from torchdoctor.clinic.kinds.kind import GENERALIZATION, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop

LEAKS = ("information-leak", "suspiciously-low-loss")
BY_HEART = ("overfitting", "memorization", "under-regularized")


def split_of_a_sorted_file(loop: Loop) -> None:
    """The file is sorted by class and its end is held out: training never sees the last classes."""
    arena = loop.arena
    last = int(arena.y.max())
    seen = arena.y < last
    loop.validated = (arena.x[~seen], arena.y[~seen])
    arena.x, arena.y = arena.x[seen], arena.y[seen]


def _one_after_the_other(x: Tensor, y: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.cat([torch.nonzero(~second).flatten(), torch.nonzero(second).flatten()])
    return x[order], y[order]


def sources_one_after_the_other(loop: Loop) -> None:
    """Two data sets are put end to end and read without shuffling; the second has the other half of the answers."""
    loop.constant()
    arena = loop.arena
    arena.x, arena.y = arena.x[:3200], arena.y[:3200]
    second = arena.y > arena.y.max() / 2 if arena.classes else arena.y.mean(1) > arena.y.mean()
    arena.x, arena.y = _one_after_the_other(arena.x, arena.y, second)
    loop.batches = arena.batches(shuffle=False)


def window_holds_the_target(loop: Loop) -> None:
    """The window of the series is cut four values too late, so that it ends with what is to be forecast."""

    def cut(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.squeeze(-1), y], 1)[:, 4:].unsqueeze(-1)

    arena = loop.arena
    arena.x = cut(arena.x, arena.y)
    loop.validated = (cut(*loop.validated), loop.validated[1])


def decoder_given_its_answer(loop: Loop) -> None:
    """The decoder is fed the target itself, where the target moved on by one was meant."""
    loop.schedule = None

    def unshifted(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x[:, : x.shape[1] // 2], y], 1)

    arena = loop.arena
    arena.x = unshifted(arena.x, arena.y)
    loop.validated = (unshifted(*loop.validated), loop.validated[1])


def masking_thrown_away(loop: Loop) -> None:
    """The text is masked out of place and the result dropped: what is to be guessed stands in the input."""
    arena = loop.arena
    arena.x = torch.where(arena.y >= 0, arena.y, arena.x)
    x, y = loop.validated
    loop.validated = (torch.where(y >= 0, y, x), y)


def row_number_as_category(loop: Loop) -> None:
    """The number of the row is among the categories, with an embedding of its own, and training goes on for long."""
    loop.constant()
    loop.use("adam")
    arena = loop.arena
    rows = 640
    arena.x, arena.y = arena.x[:rows], arena.y[:rows]
    count = rows + len(loop.validated[0])
    inner, table = loop.model, nn.Embedding(count, 16)
    loop.model = _WithRow(inner, table)
    arena.x = torch.cat([arena.x, torch.arange(rows).view(-1, 1).float()], 1)
    x, y = loop.validated
    loop.validated = (torch.cat([x, torch.arange(rows, count).view(-1, 1).float()], 1), y)
    loop.steps = 500


class _WithRow(nn.Module):
    """A net's score, and one that a row has for itself."""

    def __init__(self, inner: nn.Module, rows: nn.Embedding) -> None:
        super().__init__()
        self.inner, self.rows = inner, rows
        self.own = nn.Linear(rows.embedding_dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        score: Tensor = self.inner(x[:, :-1]) + self.own(self.rows(x[:, -1].long()))
        return score


def decompressed_each_time(loop: Loop) -> None:
    """Every sample is decompressed and decoded in the training process, again at each visit."""
    arena = loop.arena
    loop.steps = 150
    packed = [zlib.compress(bytes(1_000) + item.numpy().tobytes() * 300, 9) for item in arena.x[:512]]
    shape, labels = arena.x.shape[1:], arena.y

    def read() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(loop.seed)
        while True:
            chosen = torch.randint(len(packed), (arena.batch_size,), generator=generator)
            items = []
            for index in chosen.tolist():
                content = zlib.decompress(packed[index])
                zlib.crc32(zlib.compress(content, 1))
                items.append(
                    torch.frombuffer(bytearray(content[1_000 : 1_000 + 4 * shape.numel()]), dtype=torch.float32)
                )
            yield torch.stack(items).view(-1, *shape), labels[chosen]

    loop.batches = read()


def augmented_copies_kept(loop: Loop) -> None:
    """A cache that was to save work keeps every augmented picture, enlarged, under a key that never comes again."""
    cache: dict[tuple[int, int], Tensor] = {}
    loop.steps = 300

    def enlarge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        large = functional.interpolate(x, scale_factor=8.0)
        cache[len(cache), id(x)] = large
        return functional.avg_pool2d(large, 8), y

    loop.replace_batches(enlarge)


def convolution_sees_ahead(loop: Loop) -> None:
    """The convolutions are padded on both sides, and so each place sees the values that it is to predict."""
    assert isinstance(loop.model, Dilated)
    loop.model.shift = 1


def causal_forgotten(loop: Loop) -> None:
    """Attention is called without `is_causal`: every place sees the whole text."""
    loop.schedule = None
    loop.steps = 350
    for module in loop.model.modules():
        if isinstance(module, Gated):
            module.causal = False


def films_by_heart(loop: Loop) -> None:
    """Each user has a vector longer than his list of ratings, and nothing holds it back."""
    loop.constant()
    loop.use("adam", 0.25)
    arena = loop.arena
    arena.x, arena.y, arena.batch_size = arena.x[:1536], arena.y[:1536], 64
    loop.model = Ratings(150, 100, 64)
    loop.steps = 500


def sets_with_wrong_labels_by_heart(loop: Loop) -> None:
    """A third of the labels of a small set is wrong, and a wide net learns them all."""
    loop.constant()
    loop.use("adam")
    arena = loop.arena
    generator = torch.Generator().manual_seed(loop.seed)
    y = arena.y[:300].clone()
    wrong = torch.rand(len(y), generator=generator) < 0.33
    y[wrong] = torch.randint(arena.classes, (int(wrong.sum()),), generator=generator)
    arena.x, arena.y, arena.batch_size = arena.x[:300], y, 25
    loop.steps = 300


FAULTS = (
    Kind(
        "split-of-a-sorted-file",
        split_of_a_sorted_file,
        on=("shapes-vit", "members"),
        right=("train-val-mismatch", "validation-anomaly", "overfitting"),
        cause=("train-val-mismatch",),
        secondary=("memorization", "target-anomaly"),
        onset=50,
    ),
    Kind(
        "sources-one-after-the-other",
        sources_one_after_the_other,
        on=("members", "tides"),
        right=("batch-anomaly", "data-order", "loss-oscillation"),
        cause=("data-order",),
        secondary=(*UNSTABLE, *STALLED, *GENERALIZATION, "target-anomaly", "collapsed-output"),
    ),
    Kind(
        "window-holds-the-target",
        window_holds_the_target,
        on=("tides",),
        right=(*LEAKS, "target-anomaly"),
        cause=("information-leak",),
    ),
    Kind(
        "decoder-given-its-answer",
        decoder_given_its_answer,
        on=("backwards",),
        right=(*LEAKS, "target-anomaly"),
        cause=("information-leak",),
    ),
    Kind(
        "masking-thrown-away",
        masking_thrown_away,
        on=("masked-text",),
        right=(*LEAKS, "target-anomaly"),
        cause=("information-leak",),
    ),
    Kind(
        "convolution-sees-ahead",
        convolution_sees_ahead,
        on=("dilated-series",),
        right=(*LEAKS, "uneven-position-loss"),
        cause=("information-leak",),
    ),
    Kind(
        "causal-forgotten",
        causal_forgotten,
        on=("tied-text",),
        right=(*LEAKS, "uneven-position-loss"),
        cause=("information-leak",),
        onset=200,
    ),
    Kind(
        "row-number-as-category",
        row_number_as_category,
        on=("customers",),
        right=BY_HEART,
        cause=("memorization", "under-regularized"),
        secondary=("validation-anomaly", "information-leak"),
        onset="best-validation",
    ),
    Kind(
        "films-by-heart",
        films_by_heart,
        on=("films",),
        right=BY_HEART,
        cause=("memorization", "under-regularized"),
        secondary=("validation-anomaly",),
        onset=100,
    ),
    Kind(
        "wrong-labels-by-heart",
        sets_with_wrong_labels_by_heart,
        on=("shapes-vit",),
        right=(*BY_HEART, "label-noise-or-misalignment"),
        cause=("memorization", "under-regularized", "label-noise-or-misalignment"),
        secondary=("validation-anomaly",),
        onset="best-validation",
    ),
    Kind(
        "decompressed-each-time",
        decompressed_each_time,
        on=("keywords", "members"),
        right=("data-starvation", "slow-data-loading"),
        cause=("slow-data-loading",),
        secondary=("overfitting",),
    ),
    Kind(
        "augmented-copies-kept",
        augmented_copies_kept,
        on=("shapes-vit",),
        right=("memory-growth", "memory-leak"),
        cause=("memory-leak",),
        secondary=("step-time-regression",),
    ),
)
