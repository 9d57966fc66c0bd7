"""For operators: write a request to a model, and wait for the answer in its journal."""

import time

from stream_ocpdl.errors import ConfigError, DecodeError, LineageError, Unanswered
from stream_ocpdl.stream.history import Entry, entries, records_of
from stream_ocpdl.stream.kafka import Connection, follow, produce, watermarks
from stream_ocpdl.stream.messages import JournalRecord, Request
from stream_ocpdl.stream.topics import TopicJournal, Topics


def ask(connection: Connection, topics: Topics, request: Request, wait: float, shard: int = 0) -> JournalRecord:
    """What was done. A request that was declined is an error with the reason."""
    start = watermarks(connection, topics.journal, [shard])[shard][1]
    produce(connection, topics.control, [(shard, request.to_bytes())])
    deadline = time.monotonic() + wait
    for record in follow(connection, topics.journal, {shard: start}, lambda: time.monotonic() > deadline):
        answer = _answer(record.value, request.id)
        if answer is not None and answer.event == "declined":
            raise ConfigError(f"declined: {answer.reason}")
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            break
    raise Unanswered(
        f"no service answered within {wait:g} s. The request stays on {topics.control}, and is answered when one runs:"
        " see to it that stream-ocpdl run is running, and do not ask again"
    )


def _answer(value: bytes | None, name: str) -> JournalRecord | None:
    try:
        record = JournalRecord.from_bytes(value)
    except DecodeError:
        return None  # of a later release; not ours to judge
    return record if record.request == name else None


def versions(connection: Connection, topics: Topics, shard: int = 0) -> list[Entry]:
    """The versions in the journal of a model, the present one last."""
    found = list(entries(records_of(TopicJournal(connection, topics.journal, shard))))
    if not found:
        raise LineageError(f"{topics.journal} is empty: the model has not begun")
    return found
