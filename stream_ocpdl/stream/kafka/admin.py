"""Topics as the broker has them: describe, make, remove."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # no __all__
from confluent_kafka.cimpl import NewTopic

from stream_ocpdl.errors import BrokerError
from stream_ocpdl.stream.kafka.connection import Connection

log = logging.getLogger("stream_ocpdl.kafka")


@dataclass(frozen=True, slots=True)
class Described:
    """A topic as the broker has it."""

    partitions: int
    replicas: int
    """Of the partition that has fewest."""
    config: Mapping[str, str] | None
    """Its settings; none if we may not see them."""


def describe(connection: Connection, names: Collection[str]) -> dict[str, Described]:
    """Those of the topics that are there."""
    admin, found = connection.admin(), {}
    topics = admin.describe_topics(TopicCollection(list(names)), request_timeout=connection.patience)
    for name, outcome in topics.items():
        try:
            found[name] = outcome.result().partitions
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                denied = connection.denied(error.args[0], name, "Describe")
                raise denied or BrokerError(f"topic {name} cannot be described: {error.args[0].str()}") from error
    return {
        name: Described(len(partitions), min(len(p.replicas) for p in partitions), _config(connection, admin, name))
        for name, partitions in found.items()
    }


def await_topics(connection: Connection, names: Collection[str]) -> dict[str, Described]:
    """The topics, once all are seen: a broker learns of a new one a moment after it was made."""
    deadline = time.monotonic() + connection.patience
    while len(found := describe(connection, names)) < len(names):
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in names if name not in found)
            raise BrokerError(f"{missing}: made, but not seen within {connection.patience:g} s")
        time.sleep(0.05)
    return found


def _config(connection: Connection, admin: AdminClient, topic: str) -> dict[str, str] | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        answer = admin.describe_configs([resource], request_timeout=connection.patience)[resource]
        return {name: str(entry.value) for name, entry in answer.result().items()}
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return None
        raise BrokerError(f"the settings of topic {topic} cannot be read: {error.args[0].str()}") from error


def create_topics(
    connection: Connection, wanted: Mapping[str, tuple[int, dict[str, str]]], replication: int = -1
) -> list[str]:
    """Make topics, each with its number of partitions and its settings, unless they are there; those that were not."""
    made = []
    new = [NewTopic(name, count, replication, config=config) for name, (count, config) in wanted.items()]
    admin = connection.admin()  # it must live until the outcomes are there
    patience = {"operation_timeout": connection.patience, "request_timeout": connection.patience + 5}
    for name, outcome in admin.create_topics(new, **patience).items():
        try:
            outcome.result()
            made.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                denied = connection.denied(error.args[0], name, "Create")
                raise denied or BrokerError(f"topic {name} cannot be created: {error.args[0].str()}") from error
    return made


def delete_topics(connection: Connection, names: Collection[str]) -> None:
    """Remove topics."""
    admin = connection.admin()
    for outcome in admin.delete_topics(list(names), operation_timeout=connection.patience).values():
        try:
            outcome.result(connection.patience)
        except KafkaException as error:
            log.warning("a topic could not be deleted: %s", error.args[0].str())


def topic_names(connection: Connection) -> Callable[[], set[str]]:
    """Asks for the names of all topics; a client is kept for it."""
    admin = connection.admin()

    def names() -> set[str]:
        try:
            return set(admin.list_topics(timeout=min(5.0, connection.patience)).topics)
        except KafkaException as error:
            raise BrokerError(f"the topics cannot be listed: {error.args[0].str()}") from error

    return names


def partitions_of(client: Consumer, topic: str, connection: Connection) -> list[int]:
    """The partitions of a topic."""
    try:
        found = client.list_topics(topic, timeout=connection.patience).topics[topic]
    except KafkaException as error:
        raise BrokerError(f"no broker answers within {connection.patience:g} s: {error.args[0].str()}") from error
    if found.error is not None:
        if denied := connection.denied(found.error, topic):
            raise denied
        raise BrokerError(f"topic {topic} cannot be read: {found.error.str()}; create it, or correct its name")
    return sorted(found.partitions)


def partitions_of_topic(connection: Connection, topic: str) -> list[int]:
    """The partitions of a topic, for those who have no consumer."""
    with closing(connection.consumer()) as consumer:
        return partitions_of(consumer, topic, connection)


def topic_id(connection: Connection, topic: str) -> str:
    """The broker's own name of a topic: another one after it was deleted and made anew."""
    admin = connection.admin()
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=connection.patience)[topic].result()
    except KafkaException as error:
        denied = connection.denied(error.args[0], topic, "Describe")
        raise denied or BrokerError(f"topic {topic} cannot be described: {error.args[0].str()}") from error
    return str(described.topic_id)
