"""Normalizes a printed line before it is read: without colors, dates and times, and in English words.

>>> clean("('Losses', {u'ner': 0.25})"), clean("Score at iteration 100 is 1.39")
("('Losses' {'ner_loss': 0.25})", 'loss at iteration 100 is 1.39')
>>> clean("第 3 轮，损失：0.5").split(), clean("Validation: |  | 0/? [00:00<?, ?it/s]Epoch 3: v_loss 0.5")
(['epoch', '3', ',', 'loss:0.5'], 'Epoch 3: v_loss 0.5')
"""

from __future__ import annotations

import re

from torchdoctor.sources.opening import uncoloured

LENGTH = 8192
"""Most characters of a line that are read."""
HOLE = "\x01"
MEANINGS = {
    **{"\uff1a": ":", "\uff0c": ", ", "\uff08": "(", "\uff09": ")", "\uff1d": "=", "\uff05": "%", "\u3001": ", "},
    **{"训练": " train ", "验证": " val ", "测试": " test ", "学習": " train ", "検証": " val ", "훈련": " train "},
    **{
        "验证集": " val ",
        "训练集": " train ",
        "测试集": " test ",
        "검증": " val ",
        "테스트": " test ",
        "テスト": " test ",
    },
    **{"损失": "loss", "损失值": "loss", "損失": "loss", "손실": "loss", "потери": "loss", "лосс": "loss"},
    **{"pérdida": "loss", "学习率": "lr", "学習率": "lr", "학습률": "lr"},
    **{"准确率": "accuracy", "正确率": "accuracy", "正解率": "accuracy", "정확도": "accuracy", "точность": "accuracy"},
    **{
        "précision": "accuracy",
        "轮次": "epoch",
        "エポック": "epoch",
        "에포크": "epoch",
        "эпоха": "epoch",
        "época": "epoch",
    },
    **{
        "époque": "epoch",
        "迭代": "iteration",
        "步数": "step",
        "平均": "mean ",
        "обучение": "train",
        "валидация": "val",
    },
}
"""English words for those in logs in other languages, and their punctuation."""
CALLED = {
    "Score at iteration ": "loss at iteration ",
    "Evaluation metric 'epoch_loss'": "loss",
    "time (data):": "time:",
}
"""What Deeplearning4j and GluonTS call the training loss, and BasicSR the time of a step before that for the data."""
_MEANT = re.compile("|".join(sorted(map(re.escape, MEANINGS), key=len, reverse=True)), re.IGNORECASE)
_ROUND = re.compile(r"第\s*(\d+)\s*(?:轮|回|個?エポック|个?\s*epoch)")
_MOMENTS = re.compile(
    r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?)?Z?|\d{1,2}/\d{1,2}(?:/\d\d)? (?=\d\d:)|"
    r"(?<!\d)\d{1,3}:\d\d(?::\d\d)?(?:[.,]\d+)?(?!\d)|"
    r"\| [A-Z]{4,8} *\| [\w.<>]{1,64}:[\w.<>]{1,64}:\d{1,6} - "  # loguru: where in the code it was said
)
_CYCLE_GAN = re.compile(r"\(epoch: \d+, iters: \d+, time: ")
_PLAYER = re.compile(r"(?<= )([A-Za-z]\w*)(?=: )")
_LAST = re.compile(r"(?i) (?:over |of |in )?(?:the )?(?:last|past|previous) \d{1,9} [a-z]{1,20}(?=\s?[:=])")
"""The span of a mean: "Avg reward last 100 episodes: 3.7"."""
_COUNTED = re.compile(r"(?i)\s*([a-z][a-z ]{0,20})\s?\[(\d+),\s?(\d+)\]\s?(?:\([^()]{0,40}\))?\s?:")
"""A measure before its epoch and batch: "Loss [1, 100](epoch, minibatch): 9.66"."""
_JOINED = re.compile(r"\b(step|loss)_(-?\d[\d.]*)(?=[:\s]|$)")
"""A word joined with its number: "step_20: loss_-4.1"."""
_BEFORE = re.compile(r"(?i)(?<![\w.,/-])(?:\d+-)?(\d+)(epoch|batch|step|iter)(?=:| results\b)")
"""A count written before its word, perhaps with the first one of the span: "2epoch:train:1-200batch:"."""
_VALUE = r"(?:[-+\d.e]+|nan|inf)"
_LIST = re.compile(
    rf"(?i)(?:(?P<named>\blosses['\"]?\s?[:=]?\s*)|(?<=\sINFO\s))\[(?P<values>{_VALUE}(?:, {_VALUE}){{2,15}})\]"
)
"""The parts of a loss in a list, as VITS prints them; a bare list ends with the step and the learning rate."""
_STUCK = re.compile(r"(?i)(?<![\w.-])(epoch|ep|step|iter)(\d+)(?=[:,\s\])|])")
"""A word joined with its number, at the beginning: "epoch1 loss=2.06"."""
_FORMAT = re.compile(r":[<>^+,]?\d{0,2}\.\d[defg%]\}")
"""A number format, in source code at the beginning of a log: f"loss {loss:.4f}"."""
_TUPLE = re.compile(r"(?<=['\"]),(?=\s)|(?<!\w)u(?=['\"])")
"""What Python 2 prints between printed objects."""
_LOSSES = re.compile(r"(?i)(?<![a-z])losses['\"]?\s{0,4}[:=,]?\s{0,4}\{[^{}]{0,2000}\}")
_KEY = re.compile(r"(?<=['\"])(\w{1,64})(?=['\"]\s{0,4}:)")
_COCO = re.compile(
    r".*Average Precision\s+\(AP\) @\[ IoU=0\.50(:0\.95)?\s*\| area=\s*all \| maxDets=\s*\d+ \] = (-?[\d.]+)"
)
"""COCO's results over all areas; its other lines are about parts of them."""
_OTHER_BAR = re.compile(
    r"(?i)\s*(?:valid|val|test|eval)[a-z]{0,8}[^|]{0,24}\|[^|]{0,200}\|\s{0,4}[\d?]+/[\d?]+\s{0,4}\[[^\]]{0,80}\](?=.*\w)"
)
"""A validation progress bar in front of a logger's message."""


def clean(line: str) -> str:
    """A line without colors, dates and times of day, cut to the length that is read."""
    line = uncoloured(line[:LENGTH])
    if not line.isascii():
        line = _MEANT.sub(_meaning, _ROUND.sub(r" epoch \1 ", line))
    if "|" in line and (bar := _OTHER_BAR.match(line)):
        line = line[bar.end() :]
    line = _out_of_code(line)
    if "osses" in line and "{" in line:  # spaCy: Losses {'ner': 0.25}
        line = _LOSSES.sub(lambda found: _KEY.sub(r"\1_loss", found[0]), line)
    line = _counted_first(_renamed(line))
    if "ast " in line or "revious " in line:
        line = _LAST.sub("", line)
    if "(epoch: " in line and _CYCLE_GAN.match(line):  # its losses are named D_A, G_A, cycle_A
        head, close, rest = line.partition(")")
        line = head + close + _PLAYER.sub(r"loss_\1", rest)
    elif ("===" in line and "Training Loss (" in line) or "maxDets=" in line:
        return _of_all_areas(line)
    return _MOMENTS.sub(" ", line).replace("tensor(", "(").replace("'s ", " ").replace(HOLE, " ")


def _renamed(line: str) -> str:
    """A line in which a few trainers' own words are replaced, and listed losses are named."""
    for words, meant in CALLED.items():
        if words in line:
            line = line.replace(words, meant)
    return _LIST.sub(_parts, line) if ", " in line and "[" in line else line


def _parts(found: re.Match[str]) -> str:
    """The parts of a loss with names; a bare list without a step among its last two numbers stays as it is."""
    values, rest = found["values"].split(", "), ""
    if not found["named"]:
        if not values[-2].isdigit():
            return found[0]
        rest = f", step: {values[-2]}, lr: {values[-1]}"
        values = values[:-2]
    return ", ".join(f"part{place}_loss: {value}" for place, value in enumerate(values, 1)) + rest


def _out_of_code(line: str) -> str:
    """A line without Python's punctuation around printed objects."""
    if line.startswith(("('", '("')):
        line = _TUPLE.sub("", line)
    return _FORMAT.sub("}", line) if "}" in line and ":" in line else line


def _of_all_areas(line: str) -> str:
    """COCO's results over all boxes, empty for its other lines.

    >>> _of_all_areas(" Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.226")
    'val bbox_mAP: 0.226'
    """
    coco = _COCO.match(line)
    return f"val bbox_mAP{'' if coco[1] else '50'}: {coco[2]}" if coco else ""


def _counted_first(line: str) -> str:
    """A line whose count is a separate word or stands before its measure."""
    if "step_" in line:
        line = _JOINED.sub(r"\1 \2", line)
    if _BEFORE.search(line):  # ESPnet
        line = _BEFORE.sub(r" \2 \1", line).replace(":train:", " train").replace(":valid:", " valid")
    elif (stuck := [*_STUCK.finditer(line)]) and len({found[1] for found in stuck}) == len(stuck):
        line = _STUCK.sub(r"\1 \2", line)
    if "[" in line and (counted := _COUNTED.match(line)):
        line = f"[{counted[2]}, {counted[3]}] {counted[1]}:{line[counted.end() :]}"
    return line


def without_moments(line: str) -> str:
    """A line with blanks for dates and times, so that all characters keep their places."""
    return _MOMENTS.sub(lambda found: " " * len(found[0]), line)


def _meaning(found: re.Match[str]) -> str:
    return MEANINGS[found[0].lower()]
