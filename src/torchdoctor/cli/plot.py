"""``torchdoctor plot RUN``: the curves of a recorded run."""

from __future__ import annotations

from pathlib import Path

import click

from torchdoctor.cli.material import as_json, draw
from torchdoctor.cli.piped import as_file

LOSS = "loss_curve.png"
RATE = "lr_loss_correlation.png"
SERIES = ("loss", "val_loss", "lr", "grad_norm")


@click.command(short_help="Draw a run: loss, learning rate, gradient norm and findings.")
@click.argument("run", metavar="RUN")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"Put everything into one picture, .png or .html; default: {LOSS} and {RATE}.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Folder for the default pictures; default: the current one.",
)
@click.option(
    "--format", "form", type=click.Choice(["full", "json"]), default="full", show_default=True, help="Output format."
)
def plot(run: str, output: Path | None, folder: Path, form: str) -> None:
    """Draw a run: the loss, raw and averaged over 100 steps, learning rate, gradient norm, and findings.

    RUN is a journal folder, any log that `diagnose` reads, or - for standard input.
    """
    from torchdoctor.offline import diagnose
    from torchdoctor.reports import plots
    from torchdoctor.reports.verdict import verdict
    from torchdoctor.sources import read
    from torchdoctor.sources.vital_series import vital_series

    with as_file(run) as place:
        found = read(place)
        series, report = vital_series(found), diagnose(found)
    if output is not None:
        files = [draw(plots.run_figure(series, report.symptoms), output, LOSS)]
    else:
        files = [draw(plots.loss_figure(series, report.symptoms), None, str(folder / LOSS))]
        if plots.lr_plot(series).lines:
            files.append(draw(plots.lr_figure(series, report.symptoms), None, str(folder / RATE)))
    if form == "json":
        curves = {name: {"steps": series[name][0], "values": series[name][1]} for name in series if name in SERIES}
        told: dict[str, object] = {"run": run, "files": [str(file) for file in files], "series": curves}
        if "loss" in series:
            told["loss_average"] = plots.running_mean(series["loss"][1])
        click.echo(as_json(told | {"episodes": [item.to_dict() for item in report.symptoms]}))
    else:
        click.echo(verdict(report))
