"""What the names in other people's logs mean: general rules on the words of a name, not a list of known files.

>>> chosen = understand({"train/loss": 100, "eval_loss": 10, "lr-AdamW": 100, "eval_wer": 10, "note_count": 100})
>>> chosen.columns
{'loss': ('train/loss',), 'val_loss': ('eval_loss',), 'val_wer': ('eval_wer',), 'lr': ('lr-AdamW',)}
>>> chosen.better, chosen.left_out
({'val_wer': 'lower'}, ('note_count',))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from torchdoctor.sources.single_names import RULES, SCALED, Rule, scale_of
from torchdoctor.sources.words import (
    AVERAGED,
    EPISODES,
    EVALUATED,
    FALLBACK,
    FILLERS,
    HIGHER,
    KINDS,
    LOSS,
    LOWER,
    ODD,
    REWARD,
    SCORES,
    SMOOTHED,
    SPLITS,
    SYNONYMS,
    TOTAL,
    Name,
    Split,
    listed,
    taken_apart,
    words_of,
)

Better = Literal["higher", "lower"]

MOST_PARTS = 24
"""Most parts of a loss that are kept under their own names."""
MOST_METRICS = 48
FEW = 5
"""A metric with fewer points than this is used only if no other has the same meaning."""
NO_METRIC = listed(
    "time count num std best min max n improve improving improved with saved from previous target thr thresh threshold "
    "thresholds"
)
"""Words that turn a metric into something else: a record, or the best so far."""
PLAYERS = {
    **dict.fromkeys(("d", "disc", "discriminator", "dis"), "d_loss"),
    **dict.fromkeys(("g", "gen", "generator"), "g_loss"),
}
_TRAINED = re.compile(rf"(?i)loss[_ .-]?(?:{'|'.join(word for word, split in SPLITS.items() if split == 'train')})$")
_EVALUATED = re.compile(r"(?i)loss[_ .-]?val$")
"""Names of a training loss; and of a validation loss, if there is such a training loss."""
NESTED = ("grad_norm", "entropy")
"""Vitals whose names RLlib nests deeply."""
PASSING = frozenset({"step", "running"})
"""Words in values written during a validation: Lightning's val_loss_step."""
ACTING = frozenset({"policy", "actor", "critic", "value", "vf", "pg", "surrogate", "q", "qf", "td", "alpha"})
"""Losses of RL agents: their sum does not show how well the agent learns."""


@dataclass(frozen=True)
class Understood:
    """Which columns become which vitals."""

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our name → the names in the log; several are summed."""
    averaged: frozenset[str] = frozenset()
    """Vitals whose columns are averaged instead: losses on several validation sets."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Our name → the factor for its values, if not 1."""
    better: Mapping[str, Better] = field(default_factory=dict)
    """Metrics → which direction is better."""
    left_out: tuple[str, ...] = ()
    """Names that are not used."""


def understand(counts: Mapping[str, int], mapping: Mapping[str, str] | None = None) -> Understood:
    """Find out what the names of a log mean. `counts` gives the points of each; `mapping` is the user's choice."""
    wished = {vital: (name,) for vital, name in (mapping or {}).items()}
    taken = {name for names in wished.values() for name in names}
    apart = _without_head([taken_apart(name, count) for name, count in counts.items() if name not in taken])
    apart = _evaluated_twins(apart)
    by_split = any(_TRAINED.search(item.original) for item in apart)
    names = [replace(item, split="val") if by_split and _EVALUATED.search(item.original) else item for item in apart]
    held_out = _held_out(names)
    columns: dict[str, tuple[str, ...]] = dict(wished)
    averaged: set[str] = set()

    def offer(found: Mapping[str, tuple[str, ...]]) -> None:
        columns.update((vital, those) for vital, those in found.items() if vital not in columns)

    trained = [item for item in names if item.is_loss and item.split in ("train", "")]
    evaluated = [item for item in names if item.is_loss and item.split == held_out]
    if not evaluated:  # PyTorch's ImageNet example: "Test: Loss", and a summary of the accuracy without a loss
        evaluated = [item for item in names if item.is_loss and item.split == "test" and item.count >= FEW]
    if not evaluated:
        trained, evaluated = _beside(trained, names)
    offer(_losses("", trained))
    offer(_losses("val_", evaluated, whole_only="d_loss" in columns, like="".join(columns.get("loss", ())[:1])))
    if len(columns.get("val_loss", ())) > 1 and len(columns.get("loss", ())) == 1:
        averaged.add("val_loss")  # there is one training loss, so these are several validation sets
    metrics, better = _metrics(names, held_out)
    offer(metrics)
    offer({vital: found for vital, rule in RULES.items() if (found := _best(names, rule))})
    offer({vital: found for vital in NESTED if (found := _only_leaf(names, RULES[vital]))})
    offer(_stand_ins(names, columns, held_out))
    agent = "n_updates" in counts  # Stable-Baselines, printed as a table
    negated = [
        item.original for item in names if item.words == ("entropy", "loss") and (item.split == "train" or agent)
    ]
    scales = {vital: scale for vital in SCALED if vital in columns and (scale := scale_of(columns[vital][0])) != 1.0}
    if negated and "entropy" not in columns:  # Stable-Baselines logs the negated entropy
        columns["entropy"], scales["entropy"] = (negated[0],), -1.0
    used = {name for found in columns.values() for name in found}
    return Understood(
        columns=columns,
        averaged=frozenset(averaged),
        scales=scales,
        better={vital: way for vital, way in better.items() if vital in columns and vital not in wished},
        left_out=tuple(item.original for item in names if item.original not in used),
    )


def _without_head(names: Sequence[Name]) -> list[Name]:
    """Names without a common prefix of all measures: finetuning/train_acc next to finetuning/val_acc is train_acc.

    >>> [item.words for item in _without_head([taken_apart(name, 9) for name in ("my/x_loss", "my/x_acc", "lr")])]
    [('x', 'loss'), ('x', 'acc'), ('lr',)]
    """
    measures = [item for item in names if item.is_loss or item.has(HIGHER | LOWER)]
    heads = {item.original.partition("/")[0] for item in measures if "/" in item.original}
    head = heads.pop() if len(heads) == 1 else ""
    if not head or len(measures) < 2 or any("/" not in item.original for item in measures):
        return list(names)
    known = any(word in SPLITS or word in FILLERS for word in words_of(head))
    cut = {
        item.original: replace(taken_apart(item.original[len(head) + 1 :], item.count), original=item.original)
        for item in measures
    }
    if known or not all(item.is_loss or item.has(HIGHER | LOWER) for item in cut.values()):  # loss/train, loss/val
        return list(names)
    return [cut.get(item.original, item) for item in names]


def _held_out(names: Sequence[Name]) -> Split:
    """The split used for validation: "val", or "test" if there is no other."""
    there = {item.split for item in names if item.is_loss or item.is_objective or item.has(HIGHER | LOWER)}
    return "test" if "val" not in there and "test" in there else "val"


def _beside(trained: list[Name], names: Sequence[Name]) -> tuple[list[Name], list[Name]]:
    """The losses, with those of an evaluation separate: a plain "loss" as often as "train_loss", with plain metrics."""
    whole = [item for item in trained if not item.rest and item.count > 2]
    named, plain = ([item for item in whole if item.split == split] for split in ("train", ""))
    metrics = [item.count for item in names if item.has(HIGHER) and not item.split]
    if len(named) != 1 or len(plain) != 1 or not named[0].count == plain[0].count == max(metrics, default=0):
        return trained, []
    return [item for item in trained if item is not plain[0]], plain


def _evaluated_twins(names: Sequence[Name]) -> list[Name]:
    """Names in which those with a v before another name are marked as validation: v_loss and v_kl next to loss and kl.

    >>> [item.split for item in _evaluated_twins([taken_apart(name, 9) for name in ("loss", "kl", "v_loss", "v_kl")])]
    ['', '', 'val', 'val']
    """
    given = {item.original for item in names}
    twins = {name for name in given if name.startswith("v_") and name[2:] in given}
    if len(twins) < 2 or "v_loss" not in twins:  # a single one is the loss of a value function
        return list(names)
    known = {name: replace(taken_apart(name[2:], 0), split="val", original=name) for name in twins}
    return [replace(known[item.original], count=item.count) if item.original in twins else item for item in names]


def _losses(
    prefix: str, losses: Sequence[Name], whole_only: bool = False, like: str = ""
) -> dict[str, tuple[str, ...]]:
    """The loss, its parts under their own names; if only parts are logged, the loss is their sum."""
    longest = max((item.count for item in losses), default=0)
    losses = [item for item in losses if not item.count == 1 < longest]  # a summary, written once at the end
    whole = [item for item in losses if not item.rest] or _deep_totals(losses)
    whole.sort(key=lambda item: _rank(item, like))
    if prefix and whole and whole[0].has(PASSING):  # validation batches are logged next to their mean
        whole.sort(key=lambda item: item.count < 3 or item.has(PASSING))
    parts = [item for item in losses if item.rest and not item.has(AVERAGED)]
    if prefix:
        parts.sort(key=lambda item: item.has(PASSING))
    if not whole and not parts and not prefix:  # a smoothed loss is better than none
        whole = sorted((item for item in losses if AVERAGED.issuperset(item.rest)), key=_rank)
    found: dict[str, tuple[str, ...]] = {}
    if whole:
        found[f"{prefix}loss"] = (whole[0].original,)
    players = _players(parts)
    if players or whole_only:
        found |= {f"{prefix}{vital}": those for vital, those in players.items()}
    elif not whole and not any(item.has(ACTING) for item in parts):
        rests = {item.rest for item in parts}
        often = [item for item in parts if item.count * 2 > longest and not _is_part_of_a_part(item, rests)]
        totals = [item for item in often if item.has(TOTAL)]
        kinds = often if all(item.has(KINDS) for item in often) else []
        if often:
            found[f"{prefix}loss"] = tuple(item.original for item in (totals[:1] or kinds[:1] or often))
    known = set(found.values())
    for item in parts[:MOST_PARTS]:
        if (item.original,) not in known:
            found.setdefault(f"{prefix}{_vital(item.rest)}_loss", (item.original,))
    return found


def _deep_totals(losses: Sequence[Name]) -> list[Name]:
    """The only total loss, if it is nested deeply: info/learner/default_policy/total_loss."""
    ends = [(item, taken_apart(item.original.rpartition("/")[2], item.count)) for item in losses]
    found = [item for item, end in ends if not end.rest and end.has(TOTAL) and end.is_loss]
    return found if len(found) == 1 else []


def _is_part_of_a_part(item: Name, parts: Set[tuple[str, ...]]) -> bool:
    """Whether another name is the beginning of this one: vae_loss is the sum of vae_kl_loss and vae_recon_loss."""
    return any(item.rest[:length] in parts for length in range(1, len(item.rest)))


def _players(parts: Sequence[Name]) -> dict[str, tuple[str, ...]]:
    """The losses of two networks that train against each other; empty if there are not two.

    >>> _players([taken_apart(name, 9) for name in ("loss_D_A", "loss_D_B", "loss_G", "loss_cycle")])
    {'d_loss': ('loss_D_A', 'loss_D_B'), 'g_loss': ('loss_G',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for vital in ("d_loss", "g_loss"):
        own = [item for item in parts if any(PLAYERS.get(word) == vital for word in item.rest)]
        alone = [item for item in own if len(item.rest) == 1]
        if not own:
            return {}
        found[vital] = tuple(item.original for item in (alone[:1] or own))
    return found


def _rank(item: Name, like: str = "") -> tuple[bool, int, bool, bool, bool, int, int]:
    """Sort key for choosing the loss: logged often, not smoothed, of training, written like `like`, and short."""
    often = item.count.bit_length()  # counts within a factor of two are equal
    odd = bool(like) and _style(item.original) != _style(like)
    return (item.count <= 2, -often, item.has(SMOOTHED), item.split == "", odd, len(item.words), len(item.original))


def _style(name: str) -> tuple[bool, ...]:
    """The style of a name: "Valid Loss" goes with "Train Loss", "val_loss" with "loss"."""
    return name[:1].isupper(), " " in name, "/" in name


def _metrics(names: Sequence[Name], held_out: Split) -> tuple[dict[str, tuple[str, ...]], dict[str, Better]]:
    """Accuracies, error rates and rewards, and which direction is better for each."""
    found: dict[str, tuple[str, ...]] = {}
    better: dict[str, Better] = {}
    played = any(item.has(EPISODES) for item in names)
    many = len(names) > MOST_METRICS  # then those of all classes together come before those of single ones
    for item in sorted(
        names,
        key=lambda item: (
            item.count < FEW or (bool(item.split == held_out) and "step" in item.words),
            many and not item.has(TOTAL),
        ),
    ):
        known = item.has(HIGHER | LOWER | REWARD) or (item.split == held_out and item.words[-1:] == ("score",))
        known = known or (played and item.has(SCORES) and not item.has(ODD))
        if not known or item.is_loss or item.has(NO_METRIC):
            continue
        prefix = {held_out: "val_", "train": "train_", "": "val_" if item.has(EVALUATED) else "train_"}.get(item.split)
        if prefix is None or len(found) >= MOST_METRICS:
            continue
        earned = item.has(REWARD) and item.words[-1] not in HIGHER | LOWER  # "reward precision" is not a reward
        earned = earned or (played and item.has(SCORES))
        words = ("reward",) if earned else tuple(word for word in item.words if word not in FILLERS | LOSS)
        prefix = "" if earned and prefix == "train_" else prefix
        vital = prefix + _vital(words)
        if vital not in found:
            found[vital] = (item.original,)
            better[vital] = "lower" if item.has(LOWER) else "higher"
    return found, better


def _stand_ins(
    names: Sequence[Name], columns: Mapping[str, tuple[str, ...]], held_out: Split
) -> dict[str, tuple[str, ...]]:
    """If no loss is logged, an error that falls like one."""
    if "d_loss" in columns or ("loss" in columns and "val_loss" in columns):
        return {}
    usable = [item for item in names if item.is_objective and item.count > 1]
    usable += [item for item in names if item.has(FALLBACK) and item.count > 1 and not item.has(NO_METRIC)]
    if "loss" not in columns and "val_loss" not in columns:
        totals = [item for item in names if item.words == ("total",) and item.count > 2]
        if totals:  # the sum of other columns: box, obj, cls, total
            return {"loss": (max(totals, key=lambda item: item.count).original,)}
        if not usable:  # best losses so far are better than none
            usable = [item for item in names if item.is_record and item.count > 2]
    trained = [item for item in usable if item.split in ("train", "")]
    evaluated = [item for item in usable if item.split == held_out]
    if "loss" in columns:  # the replacement must be of the same kind, or the two cannot be compared
        alike = [item for item in names if (item.original,) == columns["loss"]]
        evaluated = [item for item in evaluated if alike and set(item.rest) <= set(alike[0].rest)]
    elif trained:
        alike = [item for item in evaluated if _unnumbered(item.rest) == _unnumbered(trained[0].rest)]
        evaluated = alike if alike or "val_loss" in columns else []
    return {
        vital: (items[0].original,)
        for vital, items in (("loss", trained), ("val_loss", evaluated))
        if items and vital not in columns
    }


def _unnumbered(words: Sequence[str]) -> list[str]:
    """Words without the number of a validation set, as in valid_1's rmse."""
    return [word for word in words if not word.isdigit()]


def _best(names: Sequence[Name], rule: Rule) -> tuple[str, ...]:
    """The name that fits best, the first of equals; empty if none fits."""
    fits = [(fit, place) for place, item in enumerate(names) if (fit := rule(item)) is not None]
    return (names[min(fits)[1]].original,) if fits else ()


def _only_leaf(names: Sequence[Name], rule: Rule) -> tuple[str, ...]:
    """The only deeply nested name whose last part fits: info/learner/default_policy/learner_stats/entropy."""
    deep = (item for item in names if item.original.count("/") > 1 and item.split in ("", "train"))
    fits = [item for item in deep if rule(taken_apart(item.original.rpartition("/")[2], item.count)) is not None]
    return (fits[0].original,) if len(fits) == 1 else ()


def _vital(words: Sequence[str]) -> str:
    return "_".join(SYNONYMS.get(word, word) for word in words)[:64]
