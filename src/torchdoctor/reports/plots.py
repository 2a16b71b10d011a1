"""The pictures: what was measured as figures, and figures as files: PNG (with matplotlib) or one HTML page.

    gradient_figure, activation_figure, lr_range_figure   from the `to_dict` of what the commands compute
    loss_figure, lr_figure, run_figure                    from a recorded run

matplotlib is an extra (`pip install 'torchdoctor[plots]'`) and is imported when a PNG is drawn; HTML needs nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchdoctor.errors import TorchDoctorError
from torchdoctor.records import INFORMATIVE, Symptom
from torchdoctor.reports.drawing import Figure, Line, Mark, Plot, points, short, svg
from torchdoctor.reports.formats import write_whole
from torchdoctor.reports.markup import element
from torchdoctor.reports.page import page as whole_page
from torchdoctor.reports.wording import printable

AVERAGE = 100
"""Steps of the running average."""
COLOURS = ("#2563a8", "#c05a13", "#6b4fb3", "#2b7f78")
MARKS = {"info": "#2563a8", "warning": "#9a6400", "critical": "#c2222e"}
MARKED = 40
"""Episodes that are marked in one figure."""
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""By vital, its steps and values."""


OWN_LOSSES = ("val_", "guess_", "last_position_", "other_position_")
"""Prefixes of losses other than the training loss."""
CLOSE = 0.04
"""Share of the picture's width within which labels would run into each other."""


def running_mean(values: Sequence[float], window: int = AVERAGE) -> list[float]:
    """The mean of the last `window` finite values at each place; of fewer at the beginning.

    >>> running_mean([4.0, 2.0, math.nan, 3.0], window=2)
    [4.0, 3.0, 3.0, 2.5]
    """
    kept: list[float] = []
    found = []
    total = 0.0
    for value in values:
        if math.isfinite(value):
            kept.append(value)
            total += value
            if len(kept) > window:
                total -= kept[-window - 1]
        found.append(total / min(len(kept), window) if kept else math.nan)
    return found


def gradient_figure(found: Mapping[str, Any]) -> Figure:
    """Gradient norms from the first tensor to the last."""
    layers = found["layers"]
    places = list(range(len(layers)))
    norms = Line("norm", places, [item["norm"] if item["norm"] > 0 else math.nan for item in layers])
    largest = [_largest(item) for item in layers]
    names = tuple(item["name"] for item in layers)
    if all(map(math.isnan, largest)):  # a recorded run has norms only
        plots = [Plot("gradient", (norms,), 220, log=True)]
    else:
        zeros = Line("share of exact zeros", places, [item["zero_share"] for item in layers])
        lines = (norms, Line("largest element", places, largest, "faint"))
        plots = [Plot("gradient", lines, 220, log=True), Plot("zeros", (zeros,), 70, share=True)]
    return Figure("Gradient flow", tuple(plots), "layer", x_names=names, notes=_told(found))


def _largest(item: Mapping[str, Any]) -> float:
    largest = max(abs(item["max"]), abs(item["min"]))
    return largest if largest > 0 else math.nan


def activation_figure(found: Mapping[str, Any]) -> Figure:
    """Distributions of activations in the order of the modules, and the shares of zero, dead and saturated ones."""
    layers = found["layers"]
    places = list(range(len(layers)))
    levels = [
        Line(name, places, [item["quantiles"][index] for item in layers], "line" if index == 2 else "faint")
        for index, name in ((2, "median"), (0, "5 %"), (4, "95 %"))
    ]
    scales = (
        Line("root mean square", places, [item["rms"] or math.nan for item in layers]),
        Line("largest", places, [item["absmax"] or math.nan for item in layers], "faint"),
    )
    shares = [Line("zeros", places, [item["zeros"] for item in layers], "faint")]
    for key in ("dead", "saturated"):
        known = [(place, item[key]) for place, item in zip(places, layers, strict=True) if item[key] is not None]
        shares += [Line(key, [place for place, _ in known], [share for _, share in known], "dots")] if known else []
    plots = (
        Plot("scale", scales, 150, log=True),
        Plot("values", tuple(levels), 150, log=False),
        Plot("shares", tuple(shares), 100, share=True),
    )
    names = tuple(f"{item['name']} ({item['kind']})" for item in layers)
    return Figure("Activations", plots, "module", x_names=names, notes=_told(found))


def lr_range_figure(found: Mapping[str, Any]) -> Figure:
    """Loss over learning rate, with what was suggested."""
    lrs = found["lrs"]
    first = found["measured"][0] if found["measured"] else 1.0
    top = first + max(abs(first), 1e-12)  # what diverged would flatten the rest
    lines = [
        Line("loss of each step", lrs, [min(value, top) for value in found["losses"]], "faint"),
        Line("smoothed", lrs[: len(found["smoothed"])], [min(value, top) for value in found["smoothed"]]),
    ]
    if found["trials"]:
        tried = [(lr, min(loss, top)) for lr, loss in found["trials"] if lr <= lrs[-1] * 4]
        lines.append(Line("after a trial", [lr for lr, _ in tried], [loss for _, loss in tried], "dots"))
    names = (("steepest", "info"), ("suggestion", "warning"), ("maximum", "critical"))
    marks = tuple(
        Mark(found[name], f"{name} {found[name]:.2g}", severity)  # type: ignore[arg-type]
        for name, severity in names
        if found[name] is not None
    )
    notes = tuple(found["notes"])
    return Figure(
        "Learning-rate range test",
        (Plot("loss", tuple(lines), 300, log=False),),
        "learning rate",
        True,
        (),
        marks,
        notes,
    )


def _told(found: Mapping[str, Any]) -> tuple[str, ...]:
    return (found["verdict"], *(remark["advice"] for remark in found["remarks"]))


def loss_plot(series: Series) -> Plot:
    """The loss as it was, its average over a hundred steps, and validation."""
    lines = []
    others = [name for name in series if name.endswith("loss") and not name.startswith(OWN_LOSSES)]
    for name in ["loss"] if "loss" in series else others[:2]:
        steps, values = series[name]
        lines.append(Line(name, steps, values, "faint"))
        lines.append(Line(f"{name}, {AVERAGE}-step average", steps, running_mean(values)))
    if "val_loss" in series:
        lines.append(Line("validation", *series["val_loss"], "dots" if len(series["val_loss"][0]) < 60 else "line"))
    return Plot("loss", tuple(lines), 240)


def lr_plot(series: Series) -> Plot:
    """The learning rate of up to four groups."""
    names = [name for name in series if name == "lr" or name.startswith("lr/")][:4]
    return Plot("learning rate", tuple(Line(name, *series[name]) for name in names), 90, log=False)


def norm_plot(series: Series) -> Plot:
    """The gradient norm."""
    lines: tuple[Line, ...] = ()
    if "grad_norm" in series:
        steps, values = series["grad_norm"]
        lines = (
            Line("gradient norm", steps, values, "faint"),
            Line(f"{AVERAGE}-step average", steps, running_mean(values)),
        )
    return Plot("gradient norm", lines, 150, log=True)


def loss_figure(series: Series, symptoms: Sequence[Symptom] = ()) -> Figure:
    """`loss_curve.png`: raw and smoothed, with episodes."""
    return Figure("Loss", (loss_plot(series),), marks=episode_marks(symptoms))


def lr_figure(series: Series, symptoms: Sequence[Symptom] = ()) -> Figure:
    """`lr_loss_correlation.png`: the loss above the learning rate."""
    return Figure("Loss and learning rate", (loss_plot(series), lr_plot(series)), marks=episode_marks(symptoms))


def run_figure(series: Series, symptoms: Sequence[Symptom] = ()) -> Figure:
    """Everything in one: loss, gradient norm, learning rate."""
    plots = (loss_plot(series), norm_plot(series), lr_plot(series))
    return Figure("Curves of the run", plots, marks=episode_marks(symptoms))


def episode_marks(symptoms: Sequence[Symptom]) -> tuple[Mark, ...]:
    """Where findings began and how long they lasted; the severe ones where there are many."""
    order = {"critical": 0, "warning": 1, "info": 2}
    told = sorted((item for item in symptoms if item.name not in INFORMATIVE), key=lambda item: order[item.severity])
    return tuple(
        Mark(item.first_step, f"{item.code} {item.name}", item.severity, item.last_step) for item in told[:MARKED]
    )


def can_draw_png() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def save(figure: Figure, path: Path) -> Path:
    """Write a figure: .png or .html, by its suffix."""
    if figure.is_empty:
        raise TorchDoctorError(
            f"{figure.title}: no values to draw. `torchdoctor diagnose RUN` says what was read of the run."
        )
    return _png(figure, path) if drawable(path).suffix.lower() == ".png" else write_whole(path, page([figure]))


def drawable(path: Path) -> Path:
    """The place of a picture, if one can be drawn there."""
    suffix = path.suffix.lower()
    if suffix not in (".png", ".html"):
        raise TorchDoctorError(f"cannot draw {path.name!r}: its suffix must be .png or .html.")
    if suffix == ".png" and not can_draw_png():
        raise TorchDoctorError("drawing a .png needs matplotlib: pip install 'torchdoctor[plots]', or write .html.")
    return path


def page(figures: Sequence[Figure]) -> str:
    """One page with the figures in it: no script, no request."""
    parts = []
    for figure in figures:
        notes = (element("p", note) for note in figure.notes)
        drawn = element("div", svg(figure), class_="scroll")
        parts.append(element("section", element("h2", figure.title), drawn, *notes))
    title = f"Training Doctor: {figures[0].title.lower()}"
    return whole_page(title, element("div", *parts, class_="torchdoctor healthy"))


def _png(figure: Figure, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    plots = [plot for plot in figure.plots if any(points(line) for line in plot.lines)]
    heights = [plot.height for plot in plots]
    drawing = Canvas(figsize=(11, 1.2 + sum(heights) / 60), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(len(plots), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, plot in zip(axes, plots, strict=True):
        _paint(axis, plot)
        for mark in figure.marks:
            axis.axvline(mark.x, color=MARKS[mark.severity], linestyle="--", linewidth=0.9)
            if mark.end is not None and mark.end > mark.x:
                axis.axvspan(mark.x, mark.end, color=MARKS[mark.severity], alpha=0.1, linewidth=0)
    for row, (x, label, colour) in enumerate(_labels(figure)):
        style = {"fontsize": 7, "color": colour, "va": "bottom", "ha": "left"}
        place = axes[0].get_xaxis_transform()
        axes[0].annotate(label, (x, 1.0), (2, 2 + 8 * (row % 3)), xycoords=place, textcoords="offset points", **style)
    if figure.x_log:
        axes[-1].set_xscale("log")
    if figure.x_names:
        every = math.ceil(len(figure.x_names) / 40)
        shown = range(0, len(figure.x_names), every)
        names = [_plain(short(figure.x_names[index])) for index in shown]
        axes[-1].set_xticks(list(shown), names, rotation=45, ha="right", fontsize=7)
    axes[-1].set_xlabel(figure.x_label)
    drawing.suptitle(figure.title, fontsize=11, x=0.01, ha="left")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks
            drawing.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise TorchDoctorError(f"cannot write {path}: {error.strerror or error}.") from error
    return path


def _labels(figure: Figure) -> list[tuple[float, str, str]]:
    """Labels of the first dozen marks: names, or codes if several marks are close together."""
    marks = sorted(figure.marks[:12], key=lambda mark: mark.x)
    every = [x for plot in figure.plots for line in plot.lines for x, _ in points(line)]
    near = CLOSE * (max(every) - min(every)) if every and not figure.x_log else 0.0
    groups: list[list[Mark]] = []
    for mark in marks:
        if groups and mark.x - groups[-1][-1].x <= near:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    labels = []
    for group in groups:
        codes = " · ".join(dict.fromkeys(mark.label.split()[0] for mark in group))
        text = group[0].label if len(group) == 1 else codes
        worst = next(mark for mark in figure.marks if mark in group)  # marks come worst first
        labels.append((group[0].x, _plain(text), MARKS[worst.severity]))
    return labels


def _paint(axis: Any, plot: Plot) -> None:
    every: list[float] = []
    for index, line in enumerate(plot.lines):
        found = points(line)
        colour = COLOURS[index % len(COLOURS)]
        marker = "o" if line.style == "dots" or len(found) < 60 else ""
        style = {"color": colour, "alpha": 0.35 if line.style == "faint" else 1.0, "linewidth": 1.2, "markersize": 3}
        width = {"linestyle": "none"} if line.style == "dots" else {}
        axis.plot(
            [x for x, _ in found], [y for _, y in found], label=_plain(line.name), marker=marker, **style, **width
        )
        every += [y for _, y in found]
    spans = bool(every) and min(every) > 0 and max(every) > 30 * min(every)
    if any(y > 0 for y in every) and (plot.log if plot.log is not None else spans):
        axis.set_yscale("log")
    if plot.share:
        axis.set_ylim(0, 1.05)
    axis.set_ylabel(plot.title)
    axis.grid(True, alpha=0.3)
    axis.legend(loc="best", fontsize=8, frameon=False)


def _plain(text: str) -> str:
    """A name without unprintable characters, and with `$` escaped, which matplotlib would read as a formula."""
    return printable(text).replace("$", r"\$")
