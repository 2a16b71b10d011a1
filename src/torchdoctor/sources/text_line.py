"""Numbers by name from a printed line of any program.

A line is read by its shape: the text without its numbers. Lines of one shape are read alike, so only the first of them
is analyzed.

>>> reader = LineReader()
>>> reader.read("iter 100: loss 2.3021, time 250ms, mfu 12.1%")
{'iter': 100.0, 'loss': 2.3021, 'time': 0.25, 'mfu': 12.1}
>>> reader.read("Epoch [2/5], Step [100/600], Loss: 0.1234")
{'Epoch': 2.0, 'Epoch of': 5.0, 'Step': 100.0, 'Step of': 600.0, 'Loss': 0.1234}
>>> reader.read("Test set: Average loss: 0.0487, Accuracy: 9847/10000 (98%)")
{'test/Average loss': 0.0487, 'test/Accuracy': 0.9847}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchdoctor.sources.cells import UNITS, odd_number
from torchdoctor.sources.count_names import TOTAL, counts, is_epoch
from torchdoctor.sources.rewriting import HOLE, clean, without_moments
from torchdoctor.sources.words import HIGHER, LOWER, REWARD, SPLITS, is_measure, taken_apart, words_of

SHAPES_LIMIT = 4096
"""Most shapes that are remembered."""
LEARNED_LENGTH = 1000
"""Characters of the longest line whose layout is remembered."""
BEFORE = 96
"""Characters before a number that are searched for its name."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NOT_FINITE = r"(?<![A-Za-z_])(?<!of )[-+]?(?:nan|NaN|NAN|[Ii]nf|INF|Infinity)(?=ms|[^A-Za-z_]|$)"
_ZEROS = str.maketrans("123456789", "0" * 9)
_BAR = re.compile(r"\s*\d+/")
_ODD = r"1\.#(?:IND|QNAN|SNAN|INF)0*"
_NUMBER = re.compile(rf"((?<![\w.@-])[-+]?(?:{_ODD}|(?:{_DIGITS}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)|{_NOT_FINITE})")
_DECIMAL_COMMA = re.compile(rf"((?<![\w.@-])[-+]?(?:{_ODD}|\d+(?:[.,]\d*)?(?:[eE][-+]?\d+)?)|{_NOT_FINITE})")
_NAME = re.compile(
    r"([A-Za-z_][\w@./%#+-]{0,63}(?:\([^()]{0,24}\))?(?:[ ][A-Za-z_(][\w@./%()+-]{0,63}){0,6})"
    r"(?:[\"']\s*,|[\"']?\s*(?:[:=|]|->|=>)?)\s*[\"'\[(]*\s*\Z"
)
_LEVEL = re.compile(r"(?:INFO|DEBUG|WARNING|WARN|ERROR|NOTICE)\s+")
"""A logger's prefix before its messages."""
_UNIT = re.compile(r"( ?)([A-Za-z%µ]+)")
_OF = re.compile(r"\s*(?:/|\]\s*/\s*\[)\s*\Z|\s+of\s+\Z")
_AT = re.compile(r"(?i)(?:.*\s)?(?:at|after|on|for|in)\s+((?:global )?(?:step|iteration|iter|epoch|update|episode))\Z")
_BARE = re.compile(r"(?:.*[|\[(:\]━%])?\s*\Z")
_BOTH = re.compile(
    r"(?i)(?P<head>[A-Za-z]*)\s*[(\[]?\btrain(?:ing)?\s*[/,|]\s*(?:val|valid|validation|dev|test|eval)\b[)\]]?"
    r"\s*(?P<tail>[A-Za-z]*)\s*[:=]?\s*\Z"
)
_BETWEEN = re.compile(r"\s*[/,|]\s*\Z")
_GIVEN = re.compile(r"\s*\]?\s*(?:[:=]|is|was|->)\s*\Z")
_PHASE = re.compile(r"(?<![\w./-])([A-Za-z]+)(?![\w/-]|\.\S)")
_COUNTED = re.compile(r"\s+(?:in|samples|examples|images|records|batches|files|on)\b")
"""Text after a number of things: "Train 1792 in 4 s"."""
_THOUSANDS = re.compile(r"([KkM])(?![A-Za-z])")
THOUSANDS = {"k": 1e3, "m": 1e6}
SHORT = {"s": "step", "trl": "train loss", "tel": "val loss", "Ep.": "epoch", "Up.": "update", "Ep": "epoch"}
"""Short names that llm.c and Marian use."""
OTHER_EPOCHS = frozenset({"best", "last", "per", "previous", "early", "stopped", "stopping", "saved", "resumed"})
"""Words before an epoch that is not the current one."""
APART = frozenset({"ms", "gib", "gb", "mib", "mb"})
"""Units that may be separated from their number by a space."""
SIZES = frozenset({"gib", "gb", "mib", "mb", "kib", "kb"})
CONVERTED = APART | SIZES | {"us", "µs"}


@dataclass(frozen=True)
class _Slot:
    """The meaning of one number of a shape."""

    name: str
    scale: float = 1.0
    share: bool = False
    """Whether it is divided by the number after it."""


@dataclass(frozen=True)
class _Plan:
    """Where lines of one layout have their numbers."""

    slots: tuple[tuple[str, int, int, float], ...]
    fixed: tuple[tuple[int, str], ...]
    """Digits outside numbers: loss_1 is not loss_2."""


class LineReader:
    """Reads lines, and remembers their shapes."""

    def __init__(self, comma: bool = False) -> None:
        self._shapes: dict[str, tuple[_Slot | None, ...]] = {}
        self._plans: dict[str, _Plan] = {}
        self._number = _DECIMAL_COMMA if comma else _NUMBER
        self._value: Callable[[str], float] = _with_comma if comma else _plain

    def read(self, line: str) -> dict[str, float]:
        """The numbers in a line by name; the first one if several share a name."""
        return self.numbers(clean(line))

    def again(self, line: str) -> dict[str, float] | None:
        """The numbers of a line with the same layout, digit by digit, as a learned one; None if there is none."""
        plan = self._plans.get(line.translate(_ZEROS)) if len(line) <= LEARNED_LENGTH else None
        if plan is None or any(line[place] != digit for place, digit in plan.fixed):
            return None
        return {name: self._value(line[start:end]) * scale for name, start, end, scale in plan.slots}

    def learn(self, line: str, row: Mapping[str, float]) -> None:
        """Remember where a line has the numbers that were read from it."""
        if len(line) > LEARNED_LENGTH or len(self._plans) >= SHAPES_LIMIT or _BAR.match(line) or "\x1b" in line:
            return
        blank = without_moments(line)
        places = [(found.start(), found.end()) for found in self._number.finditer(blank)]
        parts = self._number.split(clean(line))
        if [line[start:end] for start, end in places] != parts[1::2]:
            return
        slots = self._shapes.get(HOLE.join(parts[::2]), ()) if row else ()
        plan: dict[str, tuple[str, int, int, float]] = {}
        for slot, (start, end) in zip(slots, places, strict=False):
            if slot is not None and slot.share:
                return
            if slot is not None and slot.name not in plan:
                plan[slot.name] = (slot.name, start, end, slot.scale)
        if plan.keys() == row.keys():
            inside = {place for start, end in places for place in range(start, end)}
            fixed = ((at, letter) for at, letter in enumerate(blank) if letter.isdigit() and at not in inside)
            self._plans[line.translate(_ZEROS)] = _Plan(tuple(plan.values()), tuple(fixed))

    def forget(self) -> None:
        """Forget the layouts of lines, because the following lines are read differently."""
        self._plans.clear()

    def numbers(self, line: str) -> dict[str, float]:
        """The same for a line that is already clean."""
        parts = self._number.split(line)
        numbers = parts[1::2]
        if not numbers:
            return {}
        shape = HOLE.join(parts[::2])
        slots = self._shapes.get(shape)
        if slots is None:
            slots = _slots(shape)
            if len(self._shapes) < SHAPES_LIMIT:
                self._shapes[shape] = slots
        found: dict[str, float] = {}
        for place, (slot, text) in enumerate(zip(slots, numbers, strict=False)):
            if slot is not None and slot.name not in found:
                value = self._value(text)
                if slot.share:
                    value /= self._value(numbers[place + 1]) or 1.0
                found[slot.name] = value * slot.scale
        return found


def _plain(text: str) -> float:
    return float(text.replace(",", "")) if "#" not in text else odd_number(text)


def _with_comma(text: str) -> float:
    return float(text.replace(",", ".")) if "#" not in text else odd_number(text)


def _slots(shape: str) -> tuple[_Slot | None, ...]:
    """The meaning of each number of a shape."""
    texts = shape.split(HOLE)
    slots: list[_Slot | None] = [*_leading(texts)]
    line = _Line("val" if texts[0].startswith(" * ") else "")
    for place in range(len(slots), len(texts) - 1):
        if place < len(slots):
            continue
        before, after = texts[place], texts[place + 1]
        both = _BOTH.search(before[-BEFORE:])
        if both and place + 2 < len(texts) and _BETWEEN.match(after):  # "loss (train/val): 0.5 / 0.6"
            name = (both["head"] or both["tail"]).strip() or "loss"
            slots += [_Slot(f"train/{name}"), _Slot(f"val/{name}")]
        elif place and _OF.match(before):
            slots.append(_total(slots[-1]))
        else:
            own = before[_unit(before)[1] if place else 0 :][-BEFORE:]
            of = place + 2 < len(texts) and _OF.match(after) is not None
            if of and texts[place + 2].startswith("][") and own.endswith("["):  # "Train: [0/300][10/100]"
                line.slot(own, after, of)
                slots.append(_Slot("epoch"))
            else:
                slots.append(line.slot(own, after, of))
    return tuple(slots)


@dataclass
class _Line:
    """How far a line has been understood: the phase of the numbers that come next."""

    phase: str = ""
    """The phase that the line states."""
    hint: str = ""
    """The phase in the name before: "val loss 0.6, acc 0.8"."""
    lost: bool = False
    """Whether the line gave a loss of its own: "Loss: 0.5, Train: 0.9, Val: 0.8"."""
    waiting: str = ""
    """The measure that was named before a count, and whose value comes after it."""

    def slot(self, own: str, after: str, of: bool) -> _Slot | None:
        """The meaning of a number, from the text before and after it."""
        name, outside = (None, own) if after.startswith("%|") else _named(own, of)
        self.phase = _phase(outside) or self.phase
        if self.waiting and _GIVEN.match(own):
            return _Slot(self.waiting)  # "Loss after epoch 3: 0.5"
        self.waiting = ""
        if name is not None and not taken_apart(name, 0).words:  # only a phase
            if after.startswith("%"):
                return None
            if of or after.lstrip().startswith("["):  # "Train: 0 [  50/1251" and "Test: [ 10/48]"
                self.phase = taken_apart(name, 0).split
                return self._counted() if of else _Slot("epoch")
            self.hint = taken_apart(name, 0).split
            return (
                _Slot(f"{name} loss") if not self.lost and not _COUNTED.match(after) else None
            )  # "train 0.12 val 0.34"
        if name is not None and words_of(name)[-1:] == ("loader",):  # "Validation DataLoader 0:  50%|##| 5/10"
            self.phase = taken_apart(name, 0).split or self.phase
            return None
        if name is None and own.endswith("[") and after.startswith("] "):
            return _Slot("iteration")  # "... logging_writer.py:48] [100] loss=2.3"
        if name is None:
            return self._counted() if of and _BARE.match(own) else None
        if counts(name):
            self.waiting = _measure_at_the_end(outside)
            self.phase = taken_apart(name, 0).split or self.phase
            if of and self.phase in ("val", "test") and not is_epoch(name):
                return _Slot(f"{self.phase}/{name}")  # possibly validation batches: the clock decides
            thousands = _THOUSANDS.match(after)
            return _Slot(_without_split(name), THOUSANDS[thousands[1].lower()] if thousands else 1.0)
        return self._measured(name, after, of) if not name.endswith(".py") else None

    def _counted(self) -> _Slot | None:
        """Batches of training; validation batches are not a clock."""
        return _Slot("batch") if self.phase in ("", "train") else None

    def _measured(self, name: str, after: str, of: bool) -> _Slot:
        part = taken_apart(name, 0)
        self.lost |= part.is_loss and not part.split
        measure = part.is_loss or part.has(HIGHER | LOWER)
        phase = (self.hint or self.phase) if measure else self.phase.replace("train", "")
        if measure and part.split and " " in name:
            self.hint = part.split
        elif phase and not part.split:
            name = f"{phase}/{name}"
        if of and part.has(HIGHER):
            return _Slot(name, share=True)
        scale, _, size = _unit(after)
        return _Slot(f"{name} (bytes)" if size else name, scale)


def _leading(texts: Sequence[str]) -> tuple[_Slot, ...]:
    """The numbers that a line begins with: "[1, 2000] loss: 2.173", "[10] train-rmse:0.5", "10: learn: 0.5"."""
    if len(texts) < 3:
        return ()
    if not texts[0].strip() and re.match(r":\s", texts[1]):
        darknet = len(texts) > 4 and texts[1].strip() == ":" and texts[3].startswith(" avg")
        return tuple(map(_Slot, ("iteration", "loss", "avg loss", "lr") if darknet else ("iteration",)))
    if texts[0].strip() != "[":
        return ()
    if texts[1].strip() == "," and texts[2].lstrip().startswith("]"):
        return _Slot("epoch"), _Slot("batch")
    return (_Slot("iteration"),) if texts[1].lstrip().startswith("]") else ()


def _named(text: str, of: bool = False) -> tuple[str | None, str]:
    """The name in the text before a number, and the text before that name; `of`: whether a total follows."""
    found = _NAME.search(text)
    if found is None:
        return None, text
    said, _, name = _LEVEL.sub("", found[1].strip()).rpartition(". ")
    outside = text[: found.start()] + said  # "Loader: valid. Accuracy: 0.9"
    if name in SHORT and (name != "s" or not outside.strip()):
        return SHORT[name], outside
    at = _AT.match(name)
    if at is not None:
        return at[1], outside + name[: at.start(1)]
    return ("epoch" if of and _ends_in_epoch(name) else name), outside  # "dino pretrain ep 3/25"


def _ends_in_epoch(name: str) -> bool:
    """Whether a name ends in a count of epochs, such as those of pretraining, but not the best epoch.

    >>> _ends_in_epoch("dino pretrain ep"), _ends_in_epoch("Best epoch")
    (True, False)
    """
    *before, last = words_of(name) or ("",)
    return is_epoch(last) and not is_epoch(name) and OTHER_EPOCHS.isdisjoint(before)


def _measure_at_the_end(outside: str) -> str:
    """The loss or metric named last: "Loss after "."""
    found = re.search(r"([A-Za-z][\w ./-]{0,40}?)\s+(?:at|after|on|for|in)\s+\Z", outside)
    name = found[1].rpartition(" - ")[2] if found else ""
    return name if is_measure(name) or taken_apart(name, 0).has(REWARD) else ""


def _total(before: _Slot | None) -> _Slot | None:
    """The number after a slash: the total of the count before it."""
    return _Slot(before.name + TOTAL) if before is not None and counts(before.name) else None


def _without_split(name: str) -> str:
    """The name without its split: train epoch and test epoch are one count."""
    words = [word for word in words_of(name) if word not in SPLITS]
    return name if len(words) == len(words_of(name)) else " ".join(words)


def _phase(outside: str) -> str:
    if "Saving dict for" in outside:  # TensorFlow's estimators, after an evaluation
        return "val"
    found = [SPLITS[word.lower()] for word in _PHASE.findall(outside) if word.lower() in SPLITS]
    return found[-1] if found else ""


def _unit(after: str) -> tuple[float, int, bool]:
    """The factor of the unit after a number, its length, and whether it is a unit of memory."""
    unit = _UNIT.match(after)
    if unit is None or (unit[1] and unit[2].lower() not in APART):
        return 1.0, 0, False
    word = unit[2].lower()
    return (UNITS[word] if word in CONVERTED else 1.0), unit.end(), word in SIZES
