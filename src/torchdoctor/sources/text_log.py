"""What a training script printed: any line that gives numbers by name.

nanoGPT and its descendants, torchtitan with colors, Hugging Face's dicts, tqdm's and Keras' bars, mmengine, detectron2,
fairseq, Megatron, Lightning, and ``key: number`` or ``key=number`` in general. With ``--pattern`` the named groups of a
regular expression are used instead.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from torchdoctor.errors import SourceError
from torchdoctor.sources.boxes import Box
from torchdoctor.sources.cells import number
from torchdoctor.sources.count_names import TOTAL, counts, is_epoch
from torchdoctor.sources.encodings import is_binary
from torchdoctor.sources.headings import Phases
from torchdoctor.sources.json_lines import loaded
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import LINE_LIMIT, beginning, lines, uncoloured
from torchdoctor.sources.phases import is_run
from torchdoctor.sources.printed_table import PrintedTable
from torchdoctor.sources.rewriting import clean
from torchdoctor.sources.several import runs_of
from torchdoctor.sources.single_names import RULES
from torchdoctor.sources.table import Table
from torchdoctor.sources.text_line import LineReader
from torchdoctor.sources.words import REWARD, is_measure, listed, taken_apart

PROBE = 2**22
"""Characters of a file within which a line of numbers must come: some logs begin with the whole source code."""
PATTERN_LINE = 2000
"""Most characters of a line that a user's pattern is applied to."""
BEFORE = 8
"""Rows before the first one with a count, some of which may belong to the same step."""
OVERFLOW = "OVERFLOW!"
"""What DeepSpeed prints for a skipped step."""
SELDOM, MANY = 3, 20
"""Lines in which a name must occur if another occurs in many; an uninformative name must occur in a twentieth."""
_DECIMAL_COMMA = re.compile(r"(?<![\d,])0,\d{2,}(?!\d*,)")
_DECIMAL_POINT = re.compile(r"\d\.\d")
_EPOCH = listed("epoch epochs")
_LIGHTNING = "v_num"
"""Marks Lightning's bar: it shows the means of the last epoch throughout the next one."""
_SUM = ("total",)
"""A name for the loss in some tables."""
_DOCUMENT = re.compile(r'\s*(?:\{\s*"|\[\s*[{\[])')
_UNFINISHED = re.compile(r"\s*(\d+)/(?!\1\D)\S+\s*(?:\[[=>. #-]+\]|━)|\s*\d+/\d+\s\[=+\] - ETA:")
"""Keras' bar within an epoch: it shows the mean since the start of the epoch."""


def recognises(path: Path) -> bool:
    """Whether two or more lines give a loss or a metric by name, or one line a loss that is not finite."""
    text = beginning(path, PROBE)
    if is_binary(text) or _breaks_off(text):
        return False
    reader, table = LineReader(_has_comma(path)), PrintedTable()
    found = 0
    for line in _first_lines(path, text):
        row = table.read(uncoloured(line))
        names = reader.read(line) if row is None else row
        found += any(map(_is_judged, names)) or (
            bool(row) and any(taken_apart(name, 0).words == _SUM for name in names)
        )
        if found >= 2 or (found and (_is_broken(names) or OVERFLOW in line)):
            return True
    return False


def _first_lines(path: Path, text: str) -> Iterator[str]:
    """The lines at the beginning of a file, of which `text` is the very first; a line beyond the limit is skipped."""
    found = text.splitlines()
    if max(map(len, found), default=0) <= LINE_LIMIT:
        yield from found
        return
    left = PROBE
    for _, line in lines(path):
        if not line.startswith("\0"):
            yield line
            left -= len(line)
        if left < 0:
            return


def _is_broken(row: Mapping[str, float]) -> bool:
    """Whether a line gives a non-finite loss, which is enough by itself."""
    return any(taken_apart(name, 0).is_loss and not math.isfinite(value) for name, value in row.items())


def _breaks_off(text: str) -> bool:
    """Whether this is a JSON document over several lines, which is damaged because it was not read as JSON."""
    return _DOCUMENT.match(text) is not None and loaded(text.lstrip().partition("\n")[0]) is None


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in a printed log, or its stages."""
    table = Table()
    wanted = frozenset(wish.mapping.values()) if wish is not None else frozenset[str]()
    rows = _matched(path, wish.pattern, table) if wish is not None and wish.pattern else _printed(path, table, wanted)
    for row in _fresh(rows):
        table.add(row)
    if not table.rows and wish is not None and wish.pattern:
        raise SourceError(
            f"no line of {path} matches --pattern {wish.pattern!r}, or its groups hold no numbers. "
            r"For example: --pattern 'step (?P<step>\d+) loss (?P<loss>\S+)'."
        )
    table.keep(_comes_often)
    return [part.logged(path, "printed text", wish, name=name) for name, part in runs_of(table, wanted, printed=True)]


def names_in(path: Path) -> list[str]:
    """The names under which lines give numbers repeatedly, the most frequent first."""
    reader, table = LineReader(_has_comma(path)), PrintedTable()
    lines = beginning(path).splitlines()
    rows = (_row(line, reader, table) for line in lines) if not is_binary("".join(lines)) else ()
    times = Counter(name for row in rows for name in row if not counts(name) and not name.endswith(TOTAL))
    return [name for name, many in times.most_common() if many >= SELDOM and name[-1].isalnum()]


def _printed(path: Path, table: Table, wanted: frozenset[str] = frozenset()) -> Iterator[dict[str, float]]:
    """The rows of a log; lines before the first one with a count are source code or settings."""
    reader, printed, phases, box = LineReader(_has_comma(path)), PrintedTable(), Phases(), Box()
    waiting: list[dict[str, float]] = []
    begun = False
    for _, text in table.whole(path):
        row = reader.again(text)
        if row is None:
            row = _row(text, reader, printed)
        row = box.gathered(text, row)
        row = phases.named(row) if row else row
        phases.heading(text)
        if not row:
            continue
        if not begun and any(_is_measure(name) or name in wanted for name in row) and any(map(counts, row)):
            begun = True
            yield from _of_the_same(row, waiting[-BEFORE:])
        if begun:
            yield row
        elif any(_is_telling(name) or name in wanted for name in row):
            waiting.append(row)
    if not begun:
        yield from waiting


def _row(text: str, reader: LineReader, printed: PrintedTable) -> dict[str, float]:
    """The numbers in a line of a new layout."""
    row = printed.read(uncoloured(text))
    if row is not None:
        if not row:  # other names
            reader.forget()
        return row
    line = clean(text)
    row = reader.numbers(line) if not _UNFINISHED.match(line) else {}
    if row and not _tells(row, line):
        row = {}
    reader.learn(text, row)
    return row


def _fresh(rows: Iterator[dict[str, float]]) -> Iterator[dict[str, float]]:
    """Rows without repeated validation values, which a progress bar shows until the next validation."""
    epoch: float | None = None
    shown: dict[str, tuple[float, float]] = {}
    for row in _of_bars(rows):
        epoch = next((value for name, value in row.items() if is_epoch(name)), epoch)
        evaluated = [name for name in row if _is_evaluated(name)] if epoch is not None else []
        if evaluated and epoch is not None:
            stale = {name for name in evaluated if shown.get(name) == (row[name], epoch)}
            shown.update((name, (row[name], epoch)) for name in evaluated)
            row = {name: value for name, value in row.items() if name not in stale}
        if row:
            yield row


def _of_bars(rows: Iterator[dict[str, float]]) -> Iterator[dict[str, float]]:
    """Rows; of Lightning's bar without values from the epoch before, and only the last drawing at its end."""
    whole: dict[str, float] = {}
    over: float | None = None
    held: dict[str, float] = {}
    for row in rows:
        epoch = next((value for name, value in row.items() if is_epoch(name)), None)
        if _LIGHTNING not in row or "batch" not in row or epoch is None:
            yield row
        elif row["batch"] == row.get("batch" + TOTAL):
            if whole and over != epoch:
                yield whole
                whole = {}
            whole, over, held = {**whole, **row}, epoch, {**held, **row}
        elif epoch != over or row["batch"] > 0:  # otherwise the bar of a finished epoch, drawn again
            if whole:
                yield whole
                whole = {}
            yield {name: value for name, value in row.items() if not _is_held(name) or held.get(name) != value}
            held.update(row)
    if whole:
        yield whole


def _of_the_same(row: dict[str, float], before: list[dict[str, float]]) -> list[dict[str, float]]:
    """Rows of the first step printed before the line that begins: from where the same count was given on."""
    counted = {value for name, value in row.items() if counts(name)}
    for place, earlier in enumerate(before):
        if not counted.isdisjoint(value for name, value in earlier.items() if counts(name)):
            return before[place:]
    heading = [title for title in before if any(map(is_run, title))][-1:]
    return heading + [title for title in before[-1:] if _only_counts(title)]


def _tells(row: dict[str, float], text: str) -> bool:
    """Whether a line has values: one with only a count must be a title, not a mention of a step in passing."""
    if not _only_counts(row):
        return True
    first = next(iter(row))
    start = re.sub(r"^[\W_]+", "", text).lower()
    titled = not _EPOCH.isdisjoint(taken_apart(first, 0).words) or text.rstrip().endswith("|") or _is_alone(row, text)
    return titled and start.startswith(first.lower()[:8])


def _is_alone(row: dict[str, float], text: str) -> bool:
    """Whether a line contains nothing else: "[batch=1/80]:"."""
    return _letters(text) == "".join(_letters(name) for name in row if not name.endswith(TOTAL))


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text))


def _only_counts(row: dict[str, float]) -> bool:
    return all(counts(name) or name.endswith(TOTAL) for name in row)


def _comes_often(name: str, times: int, most: int) -> bool:
    return most < MANY or is_run(name) or times >= (SELDOM if _is_telling(name) else max(SELDOM, most // 20))


@lru_cache(maxsize=4096)
def _is_telling(name: str) -> bool:
    known = _is_judged(name) or counts(name) or is_run(name)
    return known or any(rule(taken_apart(name, 0)) is not None for rule in RULES.values())


@lru_cache(maxsize=4096)
def _is_judged(name: str) -> bool:
    part = taken_apart(name, 0)
    return _is_measure(name) or part.is_record or RULES["grad_norm"](part) is not None


@lru_cache(maxsize=4096)
def _is_evaluated(name: str) -> bool:
    return _is_measure(name) and taken_apart(name, 0).split in ("val", "test")


@lru_cache(maxsize=4096)
def _is_held(name: str) -> bool:
    """Whether Lightning's bar may show a value for a whole epoch: of validation, or of training but not per step."""
    part = taken_apart(name, 0)
    return _is_measure(name) and bool(part.split) and not name.endswith("_step")


@lru_cache(maxsize=4096)
def _is_measure(name: str) -> bool:
    part = taken_apart(name, 0)
    return is_measure(name) or part.has(REWARD)


def _has_comma(path: Path) -> bool:
    """Whether numbers are written with a decimal comma."""
    text = beginning(path)
    return len(_DECIMAL_COMMA.findall(text)) > 1 and not _DECIMAL_POINT.search(text)


def _matched(path: Path, pattern: str, table: Table) -> Iterator[dict[str, float]]:
    compiled = compile_pattern(pattern)
    for _, text in table.whole(path):
        found = compiled.search(clean(text)[:PATTERN_LINE])
        if found is not None:
            row = {name: value for name, cell in found.groupdict().items() if (value := number(cell or "")) is not None}
            if row:
                yield row


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A user's pattern, refused if it names no group or could take forever.

    >>> compile_pattern("(?P<loss>(a+)+)b")
    Traceback (most recent call last):
    ...
    torchdoctor.errors.SourceError: --pattern '(?P<loss>(a+)+)b': a repetition inside a repetition can take forever...
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise SourceError(f"--pattern {pattern!r} is not a regular expression: {error}.") from error
    if not compiled.groupindex:
        raise SourceError(
            f"--pattern {pattern!r} names no group. Write (?P<loss>...) around the loss, and (?P<step>...) likewise."
        )
    if _repeats_repetition(pattern):
        raise SourceError(
            f"--pattern {pattern!r}: a repetition inside a repetition can take forever on some lines. "
            r"Write \S+ or [\d.e+-]+ for a number."
        )
    return compiled


def _repeats_repetition(pattern: str) -> bool:
    """Whether a group that contains an unlimited repetition is itself repeated without limit."""
    plain = re.sub(r"\\.", "x", pattern)
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", plain)
    held = [False]
    for place, letter in enumerate(plain):
        endless = letter in "*+" or re.match(r"\{\d*,\}", plain[place:]) is not None
        if letter == "(":
            held.append(False)
        elif letter == ")" and len(held) > 1:
            inside = held.pop()
            if inside and re.match(r"[*+]|\{\d*,\}", plain[place + 1 :]):
                return True
            held[-1] |= inside
        elif endless:
            held[-1] = True
    return False
