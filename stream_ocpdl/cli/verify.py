"""`stream-ocpdl verify`: the kill test on one's own broker."""

import json
import sys

import click

from stream_ocpdl.verification import Trial
from stream_ocpdl.verification import verify as run_trial


@click.command()
@click.option("--bootstrap-servers", required=True, envvar="KAFKA_BOOTSTRAP_SERVERS", help="Where the broker is.")
@click.option("--kills", default=10, show_default=True, help="SIGKILLs at random instants.")
@click.option("--partitions", default=3, show_default=True, help="Partitions of the stream.")
@click.option("--linger", is_flag=True, help="Batches that linger, in order of arrival, instead of canonical ones.")
@click.option("--seed", default=0, show_default=True, help="Of the stream and of the instants.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON on standard output.")
def verify(bootstrap_servers: str, kills: int, partitions: int, linger: bool, seed: int, as_json: bool) -> None:
    """Kill the service again and again on your own broker, and prove that nothing was lost or repeated.

    Makes temporary topics and removes them. Takes about four seconds a kill.

    Example: stream-ocpdl verify --bootstrap-servers localhost:9092 --kills 20
    """

    def report(line: str) -> None:
        click.echo(line, err=True)

    verdict = run_trial(Trial(bootstrap_servers, kills, partitions, canonical=not linger, seed=seed, report=report))
    if as_json:
        click.echo(json.dumps(verdict.as_dict(), indent=1))
    else:
        click.echo(
            f"{verdict.inputs} inputs, {verdict.codes} codes, {verdict.dead_letters} dead letters, "
            f"{verdict.steps} steps; "
            f"killed {verdict.random_kills} times at random and at {len(verdict.crash_points)} crash points; "
            f"{verdict.seconds:.0f} s"
        )
        click.echo(
            "\n".join(verdict.failures) or f"verified: nothing lost, nothing repeated, state {verdict.state[:16]}"
        )
    sys.exit(1 if verdict.failures else 0)
