"""Names of runs: the shortest parts of their paths that distinguish them.

>>> short_names(["/data/runs/lr0.1/seed0/journal.jsonl", "/data/runs/lr0.3/seed0/journal.jsonl"])
['lr0.1', 'lr0.3']
>>> short_names(["exp1/", "exp2/"]), short_names(["runs/a", "runs/a"])
(['exp1', 'exp2'], ['a', 'a (2)'])
>>> short_names(["log_2024_adam.txt", "log_2024_muon.txt"]), short_names(["my_seed_0.csv", "my_seed_1.csv"])
(['adam', 'muon'], ['seed_0', 'seed_1'])
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

LENGTH = 44
"""Maximum length of a name in a table; the middle of longer names is left out."""
BORDER = re.compile(r"((?:[_\s/-]|\.(?!\d))+)")


def short_names(paths: Sequence[str]) -> list[str]:
    """A name for each path, all different."""
    if not paths:
        return []
    split = [PurePath(path).parts or (path,) for path in paths]
    shared = _without_common(_without_ends(split)) if len(set(split)) > 1 else [parts[-1:] for parts in split]
    names = _trimmed(["/".join(parts) for parts in shared])
    return _numbered(names if max(map(len, names)) <= LENGTH else _abridged(names))


def _without_ends(split: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without the folders that all paths start with, and the names that all end with."""
    least = min(map(len, split)) - 1
    first = next((place for place in range(least) if len({parts[place] for parts in split}) > 1), least)
    rest = least - first
    last = next((place for place in range(rest) if len({parts[-1 - place] for parts in split}) > 1), rest)
    return [parts[first : len(parts) - last] for parts in split]


def _without_common(split: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without folders in the middle that are the same in all paths."""
    if len({len(parts) for parts in split}) > 1:
        return list(split)
    differ = [place for place in range(len(split[0])) if len({parts[place] for parts in split}) > 1]
    return [tuple(parts[place] for place in differ) for parts in split]


def _trimmed(names: list[str]) -> list[str]:
    """Without the words that all names start and end with."""
    if len(set(names)) < 2:
        return names
    for turned in (False, True):
        words = [BORDER.split(name)[:: -1 if turned else 1] for name in names]
        least = min(map(len, words)) - 1
        same = next((place for place in range(least) if len({item[place] for item in words}) > 1), max(least, 0))
        same -= same % 2  # words and separators alternate
        if not turned and any(item[same][:1].isdigit() for item in words):
            same = max(0, same - 2)  # a number alone says too little
        if same:
            names = ["".join(item[same:][:: -1 if turned else 1]) for item in words]
    return names


def _abridged(names: list[str]) -> list[str]:
    """Without the middle of long names, if they stay different."""
    half = LENGTH // 2 - 1
    short = [name if len(name) <= LENGTH else f"{name[:half]}…{name[-half:]}" for name in names]
    return short if len(set(short)) == len(set(names)) else names


def _numbered(names: Sequence[str]) -> list[str]:
    """The same names, with numbers added to repeated ones."""
    seen: Counter[str] = Counter()
    taken = set(names)
    found = []
    for name in names:
        seen[name] += 1
        unique = name
        while seen[name] > 1 and (unique := f"{name} ({seen[name]})") in taken:
            seen[name] += 1
        taken.add(unique)
        found.append(unique)
    return found
