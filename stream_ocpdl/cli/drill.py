"""`stream-ocpdl drill`: deploy, stream, kill, recover, hand over, go back, verify."""

import json
import sys
from dataclasses import asdict

import click

from stream_ocpdl.drill import Done
from stream_ocpdl.drill import drill as go_through


@click.command()
@click.option("--bootstrap-servers", required=True, envvar="KAFKA_BOOTSTRAP_SERVERS", help="Where the broker is.")
@click.option("--json", "as_json", is_flag=True, help="The checklist as JSON on standard output.")
def drill(bootstrap_servers: str, as_json: bool) -> None:
    """Go through a checklist for operators on your own broker: deploy, stream, kill, recover, hand over, verify.

    A model of its own, in temporary topics, served by processes of this machine. Ends with 1 at the first line that is
    not good. It takes a minute or two.

    Example: stream-ocpdl drill --bootstrap-servers localhost:9092
    """

    def tell(done: Done) -> None:
        if not as_json:
            click.echo(f"[{'x' if done.well else ' '}] {done.name:9} {done.what}")

    found = go_through(bootstrap_servers, tell)
    if as_json:
        click.echo(json.dumps([asdict(done) for done in found], indent=1))
    sys.exit(0 if all(done.well for done in found) else 1)
