"""What an authorizer lets us do, as the broker itself says."""

from collections.abc import Collection, Iterable

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # no __all__

from stream_ocpdl.errors import BrokerError
from stream_ocpdl.stream.kafka.connection import Connection

NOTHING: frozenset[str] = frozenset()


def allowed_topics(connection: Connection, names: Collection[str]) -> dict[str, frozenset[str] | None]:
    """The operations on each topic that is there; none if we may not even see it, None if the broker does not say."""
    admin, found = connection.admin(), dict[str, frozenset[str] | None]()
    asked = {"include_authorized_operations": True, "request_timeout": connection.patience}
    for name, outcome in admin.describe_topics(TopicCollection(list(names)), **asked).items():
        try:
            found[name] = _names(outcome.result().authorized_operations)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = NOTHING
            elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise BrokerError(f"topic {name} cannot be described: {error.args[0].str()}") from error
    return found


def allowed_group(connection: Connection, group: str) -> frozenset[str] | None:
    """The same of a group."""
    admin = connection.admin()
    asked = {"include_authorized_operations": True, "request_timeout": connection.patience}
    try:
        return _names(admin.describe_consumer_groups([group], **asked)[group].result().authorized_operations)
    except KafkaException as error:
        return NOTHING if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED else None


def _names(operations: Iterable[AclOperation] | None) -> frozenset[str] | None:
    """As kafka-acls.sh spells them."""
    found = frozenset(one.name.title().replace("_", "") for one in operations or ())
    return found or None
