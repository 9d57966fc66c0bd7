"""Apache Kafka: only this package imports confluent_kafka.

What was learned of the broker and is relied on here:

- `init_transactions` with a stable transactional.id fences every predecessor and aborts what it left open; only after
  it does a read see all that was committed. It takes up to a second after a crash.
- A topic is read to its end *as of now* by its high watermark, asked by a read_uncommitted consumer: a read_committed
  one is told the last stable offset, which an open transaction holds back.
- The commit of a transaction answers before its markers are written, and the next transaction then waits for
  `retry.backoff.ms` at its first request: with the library's default ten transactions a second, with 5 ms about 150.
- An aborted transaction is written again from the same bytes. A commit that timed out is asked again, never aborted.
- `flush` on a fenced producer raises SystemError, so nothing is flushed inside of a transaction: the commit does it.
- `send_offsets_to_transaction` does not always keep its timeout while brokers come and go, and cannot be cancelled
  (librdkafka issues 5456, 5511): past all patience the process has to end, and to recover. `abandon` is called then.
"""

from stream_ocpdl.stream.kafka.admin import (
    Described,
    await_topics,
    create_topics,
    delete_topics,
    describe,
    partitions_of,
    partitions_of_topic,
    topic_id,
    topic_names,
)
from stream_ocpdl.stream.kafka.allowed import allowed_group, allowed_topics
from stream_ocpdl.stream.kafka.connection import LARGEST, Connection, check_options, reach
from stream_ocpdl.stream.kafka.election import Election
from stream_ocpdl.stream.kafka.embedded import Embedded, called_embedded
from stream_ocpdl.stream.kafka.partitions import KafkaPartitions, consumed_to, newest_starts, stands
from stream_ocpdl.stream.kafka.reading import (
    KafkaSource,
    Tail,
    committed,
    follow,
    offsets_at,
    read_committed,
    record_of,
    watermarks,
)
from stream_ocpdl.stream.kafka.windows import Window, read_windows, stable_ends, windows
from stream_ocpdl.stream.kafka.writing import MAKE_AGAIN, Row, Sent, Transactions, Writer, Written, produce

__all__ = [
    "LARGEST",
    "MAKE_AGAIN",
    "Connection",
    "Described",
    "Election",
    "Embedded",
    "KafkaPartitions",
    "KafkaSource",
    "Row",
    "Sent",
    "Tail",
    "Transactions",
    "Window",
    "Writer",
    "Written",
    "allowed_group",
    "allowed_topics",
    "await_topics",
    "called_embedded",
    "check_options",
    "committed",
    "consumed_to",
    "create_topics",
    "delete_topics",
    "describe",
    "follow",
    "newest_starts",
    "offsets_at",
    "partitions_of",
    "partitions_of_topic",
    "produce",
    "reach",
    "read_committed",
    "read_windows",
    "record_of",
    "stable_ends",
    "stands",
    "topic_id",
    "topic_names",
    "watermarks",
    "windows",
]
