"""The least that the account of a service must be allowed to do, and whether it is.

`needed` is the whole list of a learner, `coding` that of an encoder: with these ACLs, and no other, it runs
(tests/test_acls.py). A broker is asked for what it allows before anything is begun, so that everything that is missing
is said at once; only of transactional ids it tells nothing, and who may not use its own hears so when it opens one.
"""

from collections.abc import Iterator, Sequence

from stream_ocpdl.errors import Denied
from stream_ocpdl.stream.kafka import Connection, allowed_group, allowed_topics
from stream_ocpdl.stream.permissions import Permission, own_ids
from stream_ocpdl.stream.topics import Topics

THERE = "it has to be there"


def needed(
    model: str, topics: Topics, in_topic: bool = True, warm: str | None = None, codes: bool = True
) -> list[Permission]:
    """What a learner needs.

    Checkpoints may be in a directory, loadings come from another model's snapshots, and codes be left to encoders.
    """
    return [
        Permission("Read", "topic", topics.input, "it is learned"),
        _codes(topics, codes),
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


def coding(group: str, topics: Topics) -> list[Permission]:
    """What an encoder needs, of this group and with its part of the topics."""
    codes = Permission("Write", "topic", topics.codes, "its codes")
    letters = Permission("Write", "topic", topics.dead_letters, "what could not be coded")
    partials = topics.partials if topics.partials is not None and topics.uses(topics.partials) else None
    return [
        Permission("Read", "topic", topics.input, "it is coded"),
        *([codes] if topics.uses(topics.codes) else []),
        *([Permission("Write", "topic", partials, "sums for the learner")] if partials is not None else []),
        *([letters] if topics.uses(topics.dead_letters) else []),
        Permission("Read", "topic", topics.snapshots, "the dictionaries"),
        Permission("Describe", "topic", topics.journal, "the number of shards"),
        Permission("Read", "group", group, "who has which partition, and the positions"),
        own_ids(group),
    ]


def useful(topics: Topics) -> list[Permission]:
    """What it does without: to see whether topics are as they must be, and to make those that are missing."""
    names = (topics.input, *topics.outputs(1))
    return [
        *(Permission("DescribeConfigs", "topic", name, "are its settings right?") for name in names),
        *(Permission("Create", "topic", name, "unless it is there") for name in topics.outputs(1)),
    ]


def _codes(topics: Topics, written: bool) -> Permission:
    if written:
        return Permission("Write", "topic", topics.codes, "a code for every tensor")
    return Permission("Describe", "topic", topics.codes, THERE)


def _checkpoints(topics: Topics, in_topic: bool) -> Iterator[Permission]:
    if in_topic:
        yield Permission("Read", "topic", topics.state, "checkpoints")
        yield Permission("Write", "topic", topics.state, "checkpoints")
    else:
        yield Permission("Describe", "topic", topics.state, THERE)


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
