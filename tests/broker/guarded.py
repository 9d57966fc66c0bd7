"""An Apache Kafka with a door that asks for a password."""

from tests.broker.cluster import Cluster
from tests.broker.jars import free_ports

PASSWORD = "correct-horse-battery"


class Guarded(Cluster):
    """A node with a second door that asks for a password."""

    def __init__(self, *parts):
        super().__init__(*parts)
        (self._door,) = free_ports(1)

    @property
    def door(self):
        return f"127.0.0.1:{self._door}"

    def _node_settings(self, node):
        settings = super()._node_settings(node)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        return settings | {
            "listeners": f"{settings['listeners']},GUARDED://{self.door}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
            "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.guarded.plain.sasl.jaas.config": f'{module} user_weather="{PASSWORD}";',
        }
