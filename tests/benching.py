"""What tests of the experiments share: the command, and the numbers of a comparison."""

from click.testing import CliRunner

from stream_ocpdl.cli import main


def invoke(*arguments):
    """`stream-ocpdl bench …`, and what came of it."""
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def numbers(found):
    """All errors of a case, step by step."""
    return {row["contender"]: [[(t, e) for t, _, e in curve] for curve in row["curves"]] for row in found["rows"]}
