"""`stream-ocpdl verify`: the kill test on one's own broker."""

import json
import math
import signal
import sys

import click

from stream_ocpdl.storm import PAUSE, quantile
from stream_ocpdl.stream.kafka import Connection, reach
from stream_ocpdl.verification import Trial
from stream_ocpdl.verification import verify as run_trial


@click.command()
@click.option("--bootstrap-servers", required=True, envvar="KAFKA_BOOTSTRAP_SERVERS", help="Where the broker is.")
@click.option(
    "--kills", type=click.IntRange(0), help="SIGKILLs at random instants; without it 10, and none in a storm."
)
@click.option("--partitions", type=click.IntRange(1), default=3, show_default=True, help="Partitions of the stream.")
@click.option("--shards", type=click.IntRange(1), default=1, show_default=True, help="Of the model.")
@click.option("--replicas", type=click.IntRange(1), default=3, show_default=True, help="Processes at once, in a storm.")
@click.option(
    "--storm",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    metavar="SECONDS",
    help="Let replicas come and go for so long.",
)
@click.option(
    "--pause",
    type=click.FloatRange(0.1, 600),
    metavar="SECONDS",
    help=f"Mean time between two events of a storm, {PAUSE:g} without it; with 7 standbys have the time to get warm.",
)
@click.option(
    "--zombies",
    type=click.IntRange(0),
    default=0,
    help="Freeze the owner of a shard so often, until it is missed, and wake it up.",
)
@click.option(
    "--session-ms",
    type=click.IntRange(500),
    default=6000,
    show_default=True,
    help="After which a replica that is silent is given up.",
)
@click.option("--linger", is_flag=True, help="Batches that linger, in order of arrival, instead of canonical ones.")
@click.option("--seed", default=0, show_default=True, help="Of the stream and of the instants.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON on standard output.")
def verify(
    bootstrap_servers: str,
    kills: int | None,
    partitions: int,
    shards: int,
    replicas: int,
    storm: float,
    pause: float | None,
    zombies: int,
    session_ms: int,
    linger: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Kill the service again and again on your own broker, and prove that nothing was lost or repeated.

    Makes temporary topics and removes them. Takes about ten seconds a kill: a successor waits until it is missed.

    Example: stream-ocpdl verify --bootstrap-servers localhost:9092 --kills 20

    Example: stream-ocpdl verify --bootstrap-servers localhost:9092 --shards 2 --storm 60 --zombies 3
    """

    def report(line: str) -> None:
        click.echo(line, err=True)

    if shards > partitions:
        raise click.BadParameter(f"there are {partitions} partitions, and {shards} shards would have to share them")
    if pause is not None and not storm:
        raise click.BadParameter("--pause is between the events of a --storm, and there is none")
    if math.isnan(storm) or math.isnan(pause or 0.0):  # which is in every range
        raise click.BadParameter("--storm and --pause are seconds")
    trial = Trial(
        bootstrap_servers,
        kills=(0 if storm or zombies else 10) if kills is None else kills,
        partitions=partitions,
        canonical=not linger,
        seed=seed,
        shards=shards,
        replicas=replicas,
        storm=storm,
        pause=PAUSE if pause is None else pause,
        zombies=zombies,
        session_ms=session_ms,
        report=report,
    )
    reach(Connection(bootstrap_servers))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and topics are removed
    try:
        verdict = run_trial(trial)
    finally:
        signal.signal(signal.SIGTERM, before)
    if as_json:
        click.echo(json.dumps(verdict.as_dict(), indent=1))
    else:
        click.echo(
            f"{verdict.inputs} inputs, {verdict.codes} codes, {verdict.dead_letters} dead letters, "
            f"{verdict.steps} steps; "
            f"killed {verdict.random_kills} times at random and at {len(verdict.crash_points)} crash points; "
            f"{verdict.seconds:.0f} s"
        )
        for end, count in verdict.ends.items():
            click.echo(f"replicas {end}: {count}")
        for kind, times in verdict.takeovers.items():
            half, most = (quantile(times, share) for share in (0.5, 0.99))
            click.echo(f"takeovers, {kind}: {len(times)}, p50 {half:.2f} s, p99 {most:.2f} s from election to ready")
        click.echo(
            "\n".join(verdict.failures) or f"verified: nothing lost, nothing repeated, state {verdict.state[:16]}"
        )
    sys.exit(1 if verdict.failures else 0)
