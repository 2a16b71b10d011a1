"""``torchdoctor skill install DIR``: copies the skills to the folder where a coding agent looks for them."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def skill() -> None:
    """Install instructions and scripts for coding agents."""


@skill.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Also replace skill files that have been changed.")
def install(folder: Path, force: bool) -> None:
    """Copy the skills into DIR/training-diagnostics and DIR/train-debug.

    DIR is the folder where your agent looks for skills. Files that you have changed are
    replaced only with --force; other files in the folder are left alone.
    """
    from torchdoctor.reports.skill_files import copy_skills

    for place, count in copy_skills(folder, force=force):
        click.echo(f"{count} files in {place}")
