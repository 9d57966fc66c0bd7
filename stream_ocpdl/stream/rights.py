"""The least that the account of a service must be allowed to do, and whether it is.

`needed` is the whole list: with these ACLs, and no other, a service runs (tests/test_acls.py). A broker is asked for
what it allows before anything is begun, so that everything that is missing is said at once; only of transactional ids
it tells nothing, and a service that may not use its own hears so when it is elected.
"""

from collections.abc import Iterator, Sequence

from stream_ocpdl.errors import Denied
from stream_ocpdl.stream.kafka import Connection, allowed_group, allowed_topics
from stream_ocpdl.stream.permissions import Permission
from stream_ocpdl.stream.topics import Topics


def needed(model: str, topics: Topics, in_topic: bool = True, warm: str | None = None) -> list[Permission]:
    """What a service needs; checkpoints may be in a directory, and loadings come from another model's snapshots."""
    return [
        Permission("Read", "topic", topics.input, "it is learned"),
        Permission("Write", "topic", topics.codes, "a code for every tensor"),
        Permission("Write", "topic", topics.snapshots, "the dictionary"),
        Permission("Write", "topic", topics.dead_letters, "what could not be learned"),
        Permission("Read", "topic", topics.journal, "recovery"),
        Permission("Write", "topic", topics.journal, "the steps"),
        Permission("Read", "topic", topics.control, "requests of operators"),
        *_checkpoints(topics, in_topic),
        *([Permission("Read", "topic", warm, "the loadings to begin with")] if warm else []),
        Permission("Read", "group", model, "the election, and the positions"),
        *_transactions(model, topics.shards, in_topic),
    ]


def useful(topics: Topics) -> list[Permission]:
    """What it does without: to see whether topics are as they must be, and to make those that are missing."""
    names = (topics.input, *topics.outputs(1))
    return [
        *(Permission("DescribeConfigs", "topic", name, "are its settings right?") for name in names),
        *(Permission("Create", "topic", name, "unless it is there") for name in topics.outputs(1)),
    ]


def _checkpoints(topics: Topics, in_topic: bool) -> Iterator[Permission]:
    if in_topic:
        yield Permission("Read", "topic", topics.state, "checkpoints")
        yield Permission("Write", "topic", topics.state, "checkpoints")
    else:
        yield Permission("Describe", "topic", topics.state, "it has to be there")


def _transactions(model: str, shards: int, in_topic: bool) -> Iterator[Permission]:
    for shard in range(shards):
        yield Permission("Write", "transactional-id", f"{model}.steps.{shard}", "exactly once")
        if in_topic:
            yield Permission("Write", "transactional-id", f"{model}.checkpoints.{shard}", "checkpoints")


def check_rights(connection: Connection, wanted: Sequence[Permission]) -> None:
    """Raise what is missing, a line each. What is not there yet, or not told, is passed over."""
    lines = [lack.missing(connection.bootstrap_servers, connection.principal) for lack in lacks(connection, wanted)]
    if lines:
        raise Denied("\n".join(lines))


def lacks(connection: Connection, wanted: Sequence[Permission]) -> Iterator[Permission]:
    """What the broker says that we may not do."""
    topics = allowed_topics(connection, {one.name for one in wanted if one.kind == "topic"})
    groups = {one.name: allowed_group(connection, one.name) for one in wanted if one.kind == "group"}
    for one in wanted:
        told = (topics if one.kind == "topic" else groups).get(one.name)
        if told is not None and one.operation not in told:
            yield one
