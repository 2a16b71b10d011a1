"""The error that ended the run of a printed log, in the words of Python, the shell or the cluster."""

from __future__ import annotations

import re
from pathlib import Path

from torchdoctor.sources.encodings import Decoder
from torchdoctor.sources.opening import DAMAGED, opened, uncoloured

TAIL = 2**14
"""Bytes at the end that are examined."""
AFTER = 12
"""Most lines after an error that may still belong to it, such as a launcher's."""
LENGTH = 160
_TRACE = "Traceback (most recent call last):"
_RAISED = re.compile(
    r"(?:\[?rank\d+\]?:\s*)?(?P<said>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)"
)
_KILLED = re.compile(
    r"(?i)(?:.*: line \d+:\s+\d+ )?(?:killed|terminated|aborted|segmentation fault|bus error)\b.{0,80}\Z"
    r"|.*\b(?:oom[-_ ]?kill|due to time limit|out of memory: killed)\b.*"
)


def last_words(path: Path) -> str:
    """The error that a log ends with; empty if the log continues after it, or ends otherwise.

    >>> import tempfile
    >>> log = Path(tempfile.mkdtemp()) / "train.log"
    >>> _ = log.write_text(f"step 7 loss 2\\n{_TRACE}\\n  File 'a.py', line 3\\nValueError: expected 3 channels\\n")
    >>> last_words(log)
    'ValueError: expected 3 channels'
    """
    lines = _last_lines(path)
    starts = [place for place, line in enumerate(lines) if _TRACE in line]
    if starts:
        said = [
            (place, found["said"])
            for place, line in enumerate(lines[starts[-1] :], starts[-1])
            if (found := _RAISED.match(line))
        ]
        if said and len(lines) - said[0][0] <= AFTER:
            return said[0][1][:LENGTH]
    return next((line[:LENGTH] for line in lines[-2:] if _KILLED.match(line)), "")


def _last_lines(path: Path) -> list[str]:
    """The last lines with content; none of a compressed file, which would have to be read to its end."""
    try:
        with opened(path) as file:
            if not file.seekable() or hasattr(file, "mtime"):
                return []
            file.seek(max(0, path.stat().st_size - TAIL))
            data = file.read()
    except DAMAGED:
        return []
    text = Decoder().decode(data, final=True).replace("\0", "")
    return [uncoloured(line).strip() for line in text.splitlines() if line.strip()]
