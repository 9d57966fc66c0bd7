"""Who writes which shard: a consumer group on the journal topic elects, and Kafka enforces.

A replica is a member. Whoever is assigned partition s of the journal is the one writer of shard s, until the group
takes the partition back; nothing of it is read here. What was learned of the group and is relied on:

- Only one thread touches the consumer: its methods wait for each other. It publishes the token (the group's metadata)
  of every generation to the terms; a transaction that shows an old one is refused. A token without a generation would
  be accepted unfenced, so it is never shown.
- The generation changes before the callbacks come. A shard that stays is written with the new token, from the same
  bytes; one that goes is finished inside of the callback, while the group waits, for so long as the budget allows.
- With cooperative-sticky assignment a partition has no owner in between: its old one has let it go, or has been
  declared dead, before another gets it. Should the dead one still write, the transactional id fences it.
- Assign first, then pause: so nothing is ever fetched.
"""

import logging
import struct
import time

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from stream_ocpdl.errors import BrokerError
from stream_ocpdl.stream.kafka.backoff import Backoff
from stream_ocpdl.stream.kafka.connection import Connection, timeouts
from stream_ocpdl.stream.tenure import Term, await_end

log = logging.getLogger("stream_ocpdl.kafka")

BUDGET = 10.0
"""Seconds that a shard has to be finished in when the group takes it back."""

REFUSED = {
    KafkaError.INVALID_SESSION_TIMEOUT: "; set another session.timeout.ms in kafka.extra: a broker takes those between"
    " its group.min.session.timeout.ms (6 s) and group.max.session.timeout.ms",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: ": a consumer that is none of ours is in this group",
}
"""What does not mend itself, and what may be wrong."""


class Election:
    """Membership in the group of a model. To be polled by one thread, all the time."""

    def __init__(
        self, connection: Connection, topic: str, group: str, budget: float = BUDGET, what: str = "shard"
    ) -> None:
        """`what` is the word for what a partition of this topic stands for."""
        self._topic, self._budget, self._patience, self._what = topic, budget, connection.patience, what
        self._connection, self._group = connection, group
        self.terms: dict[int, Term] = {}
        self.rebalances = 0
        self._token, self._member = b"", False
        self._down, self._since = False, 0.0
        self._backoff = Backoff("the group")
        self._consumer: Consumer = connection.consumer(
            **{
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "error_cb": self._heard,
                **timeouts(connection.options),
            }
        )
        self.rejoin()

    @property
    def joined(self) -> bool:
        """Whether this process is a member, with shards or without."""
        return bool(self._token)

    def poll(self, timeout: float) -> None:
        """Take part. Terms begin and end here, and nowhere else."""
        message = self._consumer.poll(timeout)
        error = message.error() if message is not None else None
        if error is not None:
            self._judge(error)
        if self._down:
            self._probe()
        self._renew()

    def leave(self) -> None:
        """Give everything back; the terms end in the next polls."""
        self._member = False
        self._consumer.unsubscribe()

    def rejoin(self) -> None:
        """Take part again."""
        self._member = True
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lose)

    def close(self) -> None:
        """Leave for good: the others need not wait until we are missed."""
        self._consumer.close()

    # ── in the callbacks ───────────────────────────────────────────────────────────────────────────────────────

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = [TopicPartition(self._topic, p.partition, OFFSET_END) for p in partitions]
        consumer.incremental_assign(places)
        if places:
            consumer.pause(places)
        self._renew()
        for place in places:
            self.terms[place.partition] = Term(place.partition, self._token, name=f"{self._what} {place.partition}")

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._renew()  # the generation has changed already, and the last commits need it
        ending = self._without(partitions)
        for term in ending:
            term.finish()
        await_end(ending, self._budget)
        self._end(ending, consumer, partitions)

    def _lose(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.warning("the group has missed us, and has given our %ss away", self._what)
        self._end(self._without(partitions), consumer, partitions)

    def _without(self, partitions: list[TopicPartition]) -> list[Term]:
        return [self.terms.pop(p.partition) for p in partitions if p.partition in self.terms]

    def _end(self, terms: list[Term], consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for term in terms:
            if not term.idle.is_set() and term.finishing:
                log.warning("%s was not finished in %g s, and is given up", term.name, self._budget)
            term.lose()
        consumer.incremental_unassign(partitions)

    # ── who we are ─────────────────────────────────────────────────────────────────────────────────────────────

    def _renew(self) -> None:
        """Let the terms have the token of the present generation."""
        token = self._consumer.consumer_group_metadata()
        token = token if self._member and generation(token) >= 0 else b""
        if token == self._token:
            return
        self._token = token
        self.rebalances += bool(token)
        for term in self.terms.values() if token else ():
            term.token = token

    # ── what goes wrong ────────────────────────────────────────────────────────────────────────────────────────

    def _judge(self, error: KafkaError) -> None:
        about = self._group if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED else self._topic
        if denied := self._connection.denied(error, about):
            raise denied
        if error.fatal() or error.code() in REFUSED:
            advice = REFUSED.get(error.code(), "")
            raise BrokerError(f"the group on {self._topic} does not take us: {error.str()}{advice}")
        log.warning("the group on %s: %s", self._topic, error.str())

    def _heard(self, error: KafkaError) -> None:
        """Called from within a poll when no connection is left."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._down:
            self._down, self._since = True, time.monotonic()

    def _probe(self) -> None:
        """Ask for a broker; past all patience give up."""
        try:
            self._consumer.list_topics(self._topic, timeout=0.5)
        except KafkaException as error:
            if time.monotonic() - self._since > self._patience:
                raise BrokerError(f"no broker answers for {self._patience:g} s: {error.args[0].str()}") from error
            self._backoff.wait("no broker answers", self._since)
        else:
            self._down = False
            self._backoff.worked()


def generation(token: bytes) -> int:
    r"""The generation in the client's metadata of a group; −1 for one who is no member.

    >>> generation(b"CGMDv2:\x05\x00\x00\x00weather\x00"), generation(b"?")
    (5, -1)
    """
    if not token.startswith(b"CGMDv2:"):
        return -1
    return int(struct.unpack_from("=i", token, 7)[0])
