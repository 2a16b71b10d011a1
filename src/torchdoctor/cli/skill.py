"""``torchdoctor skill install DIR``: puts the skills where a coding agent looks for them."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def skill() -> None:
    """Instructions and scripts for coding agents."""


@skill.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Replace files that were changed since they were installed.")
def install(folder: Path, force: bool) -> None:
    """Copy the skills into DIR/training-diagnostics and DIR/train-debug.

    DIR is the folder in which your agent looks for skills. What is there already is replaced only where it is
    the same, or with --force; other files in the folder are left alone.
    """
    from torchdoctor.reports.skill_files import copy_skills

    for place, count in copy_skills(folder, force=force):
        click.echo(f"{count} files in {place}")
