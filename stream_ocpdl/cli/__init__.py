"""The command line. Commands only wire parts together; `errors` has the exit codes."""

import sys
from importlib import import_module

import click

from stream_ocpdl import interrupts
from stream_ocpdl.errors import OcpdlError

INTERRUPTED = 130
"""What a shell says of a command that was ended by Ctrl-C."""


class Commands(click.Group):
    """Commands that are imported when they are called, and errors in one line with their exit code."""

    names = (
        *("run", "encode", "config", "validate", "topics", "produce", "tap", "explain", "top", "dlq", "snapshot"),
        *("reconfigure", "replay", "report", "verify", "drill", "plan", "demo", "bench"),
    )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them."""
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The one of this name."""
        if cmd_name not in self.names:
            return None
        command: click.Command = getattr(import_module(f"stream_ocpdl.cli.{cmd_name}"), cmd_name)
        interrupts.heard()
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an error of ours is one readable line, or one for each thing that is wrong."""
        try:
            return super().invoke(ctx)
        except OcpdlError as error:
            lines = [f"stream-ocpdl: {line}" for line in str(error).splitlines()]
            click.echo("\n".join([*lines, *getattr(error, "__notes__", ())]), err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)  # not 1, which says that something was found to be wrong
        finally:
            interrupts.quiet()


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stream-ocpdl")
def main() -> None:
    """Learn an online nonnegative CP-dictionary of the tensors that stream in.

    Ends with 0 if all is well, 2 for a setting that is wrong, 3 for the data, 4 for the history, 6 for the broker or
    a directory that cannot be written, 9 if too much was refused, and 1 for a bug; docs/settings.md says more.
    """
