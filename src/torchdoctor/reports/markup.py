"""Elements of HTML and SVG that escape whatever is put into them."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from torchdoctor.reports.wording import printable

Child = Element | str | None


def element(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """An element with its children; texts and attributes may hold anything, ``class_`` and ``font_size`` are spelt so.

    >>> render(element("p", "a < b", element("b", "<script>"), class_="note"))
    '<p class="note">a &lt; b<b>&lt;script&gt;</b></p>'
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(
                name.rstrip("_").replace("_", "-"), f"{value:.6g}" if isinstance(value, float) else printable(value)
            )
    for child in children:
        put(made, child)
    return made


def put(parent: Element, child: Child) -> None:
    """Add an element or a text at the end; None adds nothing."""
    if child is None:
        return
    if isinstance(child, Element):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + printable(child, lines=True)
    else:
        parent.text = (parent.text or "") + printable(child, lines=True)


def render(made: Element) -> str:
    """The element as HTML."""
    return tostring(made, encoding="unicode", method="html")
