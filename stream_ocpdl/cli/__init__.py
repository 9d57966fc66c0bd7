"""The command line. Commands only wire parts together."""

import click

from stream_ocpdl.cli.demo import demo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stream-ocpdl")
def main() -> None:
    """Learn an online nonnegative CP-dictionary of the tensors that stream in."""


main.add_command(demo)
