"""What `torchdoctor gradients` and `torchdoctor activations` print: a table, the verdict, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchdoctor.records import number_text
from torchdoctor.reports.wording import printable

SHOWN = 6
"""Names of a remark that are listed."""


def gradient_text(found: Mapping[str, Any]) -> str:
    """The table of `gradient_statistics`."""
    known = any(item["size"] for item in found["layers"])
    head = ("layer", "norm", *(("mean", "std", "max", "min", "zeros", "size") if known else ()))
    rows = [
        (
            item["name"],
            number_text(item["norm"]),
            *(
                (
                    *(number_text(item[key]) for key in ("mean", "std", "max", "min")),
                    f"{100 * item['zero_share']:.0f} %",
                    f"{item['size']:,}",
                )
                if known
                else ()
            ),
        )
        for item in found["layers"]
    ]
    total = f"Total norm {number_text(found['total_norm'])}"
    if found["ratio_first_last"] is not None:
        total += f", first over last weights {number_text(found['ratio_first_last'])}"
    return "\n".join([table(head, rows), "", f"{total}.", *_ending(found)])


def activation_text(found: Mapping[str, Any]) -> str:
    """The table of `activation_statistics`."""
    head = ("module", "kind", "mean", "std", "rms", "largest", "zeros", "dead", "saturated")
    rows = [
        (
            item["name"],
            item["kind"],
            *(number_text(item[key]) for key in ("mean", "std", "rms", "absmax")),
            *("" if item[key] is None else f"{100 * item[key]:.0f} %" for key in ("zeros", "dead", "saturated")),
        )
        for item in found["layers"]
    ]
    return "\n".join([table(head, rows), "", f"{found['inputs']} inputs.", *_ending(found)])


def _ending(found: Mapping[str, Any]) -> Iterable[str]:
    if not found["remarks"]:
        yield f"Nothing is wrong: {printable(found['verdict'])}."
    for remark in found["remarks"]:
        yield f"{remark['severity']}: {printable(remark['message'])} ({remark['name']})"
        names = [printable(name) for name in remark["where"]]
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            yield f"  where   {', '.join(names[:SHOWN])}{more}"
        yield f"  to do   {remark['advice']}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that line up, the first to the left and numbers to the right.

    >>> print(table(("layer", "norm"), [("fc1.weight", "0.5")]))
    layer       norm
    fc1.weight   0.5
    """
    cells = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        first = f"{row[0]:<{widths[0]}}"
        lines.append("  ".join([first, *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))]))
    return "\n".join(line.rstrip() for line in lines)
