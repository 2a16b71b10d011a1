"""The command: one file per sub-command, loaded when it is called; nothing here does the work itself."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

import click

from torchdoctor import __version__
from torchdoctor.errors import TorchDoctorError, did_you_mean

COMMANDS = (
    "activations",
    "check",
    "clinic",
    "compare",
    "consult",
    "demo",
    "diagnose",
    "explain",
    "gradients",
    "lr-range",
    "plot",
    "report",
    "rules",
    "skill",
    "watch",
)
"""Sub-commands: each is a function in a module of the same name, with `_` for `-`."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, by convention; 1 would mean a finding."""


class Commands(click.Group):
    """A group that imports a sub-command when it is called, and suggests the nearest one for a misspelled name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name."""
        if name not in COMMANDS:
            return None
        place = name.replace("-", "_")
        command: click.Command = getattr(import_module(f"torchdoctor.cli.{place}"), place)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The requested command."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"there is no command {args[0]!r}. {did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run it; our own errors become one sentence and exit code 2."""
        try:
            return super().invoke(ctx)
        except TorchDoctorError as error:
            from torchdoctor.reports.wording import printable  # names and paths in it may come from anywhere

            lines = getattr(error, "lines", False)  # a table, whose cells are printable already
            raise Refusal(printable(error, lines=lines)) from error
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise Refusal("this needs torch: pip install 'torchdoctor[torch]'.") from error
        except (BrokenPipeError, SystemExit) as end:
            if not isinstance(end.__context__ if isinstance(end, SystemExit) else end, BrokenPipeError):
                raise
            # The reader closed the pipe, as `| head` does: not an error, and the rest has nowhere to go.
            _drop_output()
            ctx.exit(0)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:  # such as a full disk behind `> file`
            _drop_output()
            raise Refusal(f"{error.filename or 'cannot write the output'}: {error.strerror or error}.") from error


def _drop_output() -> None:
    """Let what is still buffered for stdout go nowhere, so that its failure is not met again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Refusal(click.ClickException):
    """Input that cannot be used, or a missing library."""

    exit_code = 2


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="torchdoctor")
def group() -> None:
    """Training Doctor tells you what is wrong with a training run, where and why, and what to change."""


def main() -> None:
    """The entry point."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal's encoding lacks must not raise
            stream.reconfigure(errors="backslashreplace")
    try:
        group(prog_name="torchdoctor")
    except Exception:  # noqa: BLE001 - a mistake of ours; Python's exit code for it, 1, would mean a finding
        traceback.print_exc()
        sys.exit(Refusal.exit_code)
