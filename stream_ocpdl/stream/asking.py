"""For operators: write a request to a model, and wait for the answer in its journal."""

import time
from collections.abc import Mapping

from stream_ocpdl.errors import ConfigError, DecodeError, LineageError, Unanswered
from stream_ocpdl.stream.history import Entry, entries, records_of
from stream_ocpdl.stream.kafka import Connection, follow, produce, watermarks
from stream_ocpdl.stream.messages import JournalRecord, Request
from stream_ocpdl.stream.topics import TopicJournal, Topics


def ask(connection: Connection, topics: Topics, request: Request, wait: float, shard: int = 0) -> JournalRecord:
    """What was done. A request that was declined is an error with the reason."""
    answers = ask_shards(connection, topics, {shard: request}, wait)
    return done(answers.get(shard), topics, wait)


def ask_shards(
    connection: Connection, topics: Topics, requests: Mapping[int, Request], wait: float
) -> dict[int, JournalRecord]:
    """The answers of the shards that answered in time. All are asked before any is waited for: what one of them does,
    the others are to do as well, whoever answers.
    """
    starts = {shard: high for shard, (_, high) in watermarks(connection, topics.journal, list(requests)).items()}
    produce(connection, topics.control, [(shard, request.to_bytes()) for shard, request in requests.items()])
    deadline, answers = time.monotonic() + wait, dict[int, JournalRecord]()
    for record in follow(connection, topics.journal, starts, lambda: time.monotonic() > deadline):
        shard = record.position.partition
        answer = _answer(record.value, requests[shard].id)
        if answer is not None:
            answers[shard] = answer
        if len(answers) == len(requests) or time.monotonic() > deadline:
            break
    return answers


def done(answer: JournalRecord | None, topics: Topics, wait: float) -> JournalRecord:
    """An answer that says that it was done; any other, and none, is an error."""
    if answer is None:
        raise Unanswered(
            f"no service answered within {wait:g} s. The request stays on {topics.control}, and is answered when one"
            " runs: see to it that stream-ocpdl run is running, and do not ask again"
        )
    if answer.event == "declined":
        raise ConfigError(f"declined: {answer.reason}")
    return answer


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
