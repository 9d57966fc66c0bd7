"""An Apache Kafka that asks who comes, and what he may do: every way in, and an authorizer behind all of them.

    PLAINTEXT   for the tests themselves: whoever comes is a super user
    GUARDED     a password (PLAIN) without TLS; `weather` is a super user
    TLS         the broker shows a certificate for 127.0.0.1, and nothing is asked of the client
    MUTUAL      the client shows one, too; its name is the principal
    SASL        over TLS: SCRAM-SHA-512, PLAIN, or a token of the issuer
    EXPIRED     as TLS, with a certificate that is no longer valid

`learner` may come in by MUTUAL and SASL, and may do what it is given an ACL for. Whoever comes in by SASL is counted,
each time: the address that the broker tells of that door is the counter's.
"""

import tempfile
from datetime import timedelta
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.broker.certificates import Authority
from tests.broker.cluster import Cluster
from tests.broker.issuer import AUDIENCE, Issuer
from tests.broker.jars import free_ports
from tests.broker.proxy import Counting

PASSWORD = "correct-horse-battery"
ACCOUNT, SECRET = "learner", "canary-4f1d9c7e"
HERE = "IP:127.0.0.1"
DOORS = {
    "GUARDED": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "SASL": "SASL_SSL",
    "EXPIRED": "SSL",
}
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}


class Guarded(Cluster):
    """A node with a door for everybody, and others that ask."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self._ports_of = dict(zip(DOORS, free_ports(len(DOORS)), strict=True))
        self.counted = Counting(f"127.0.0.1:{self._ports_of['SASL']}")
        self._files = tempfile.TemporaryDirectory()
        place = Path(self._files.name)
        self.authority = Authority(place)
        self.ca = str(self.authority.certificate)
        self.issuer = Issuer(place, {ACCOUNT: SECRET})
        self._valid = self._keystore("broker", timedelta(days=1))
        self._expired = self._keystore("stale", timedelta(days=-1))

    @classmethod
    def start(cls, *parts):
        running = super().start(*parts)
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        running.admin = AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
        wanted = [UserScramCredentialUpsertion(ACCOUNT, credentials, SECRET.encode())]
        done(running.admin.alter_user_scram_credentials(wanted))
        return running

    def at(self, door, host="127.0.0.1"):
        """The address of a door."""
        return f"{host}:{self.counted.port if door == 'SASL' else self._ports_of[door]}"

    @property
    def door(self):
        return self.at("GUARDED")

    def allow(self, permissions):
        """Let the account do this."""
        done(self.admin.create_acls([_binding(AclBinding, one) for one in permissions]))

    def forbid(self, permissions):
        """Take it away again."""
        done(self.admin.delete_acls([_binding(AclBindingFilter, one) for one in permissions]))

    def close(self):
        super().close()
        self.counted.close()
        self.issuer.close()
        self._files.cleanup()

    def _keystore(self, name, until):
        """A certificate of the broker and its key, as Kafka wants to have them: in one file."""
        cert, key = (Path(path) for path in self.authority.sign(name, HERE, until))
        both = cert.with_suffix(".store")
        both.write_text(key.read_text() + cert.read_text())
        return both

    def _options(self):
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.issuer.url}/keys"
        return (allowed,)

    def _node_settings(self, node):
        settings = super()._node_settings(node)
        doors = "".join(f",{door}://127.0.0.1:{port}" for door, port in self._ports_of.items())
        told = "".join(f",{door}://{self.at(door)}" for door in DOORS)
        protocols = "".join(f",{door}:{protocol}" for door, protocol in DOORS.items())
        security = "org.apache.kafka.common.security"
        plain = f'{security}.plain.PlainLoginModule required user_weather="{PASSWORD}" user_{ACCOUNT}="{SECRET}";'
        sasl, guarded = "listener.name.sasl", "listener.name.guarded"
        stores = {
            f"listener.name.{door.lower()}.ssl.{what}": value
            for door, protocol in DOORS.items()
            if protocol.endswith("SSL")
            for what, value in {
                "keystore.type": "PEM",
                "keystore.location": self._expired if door == "EXPIRED" else self._valid,
                "truststore.type": "PEM",
                "truststore.location": self.ca,
            }.items()
        }
        return settings | stores | {
            "listeners": settings["listeners"] + doors,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}{told}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}",
            f"{guarded}.sasl.enabled.mechanisms": "PLAIN",
            f"{guarded}.plain.sasl.jaas.config": plain,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            f"{sasl}.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            f"{sasl}.plain.sasl.jaas.config": plain,
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
            f"{sasl}.oauthbearer.sasl.jaas.config": f"{security}.oauthbearer.OAuthBearerLoginModule required;",
            f"{sasl}.oauthbearer.sasl.server.callback.handler.class": (
                f"{security}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "sasl.oauthbearer.jwks.endpoint.url": f"{self.issuer.url}/keys",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": self.issuer.url,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:weather",
        }  # fmt: skip


def done(outcomes):
    """Wait for what an administrator was asked for."""
    for outcome in outcomes.values():
        outcome.result(20)


def _binding(kind, permission):
    operation = getattr(AclOperation, _upper(permission.operation))
    pattern = ResourcePatternType.PREFIXED if permission.prefixed else ResourcePatternType.LITERAL
    where = (_KINDS[permission.kind], permission.name, pattern)
    return kind(*where, f"User:{ACCOUNT}", "*", operation, AclPermissionType.ALLOW)


def _upper(operation):
    return {"DescribeConfigs": "DESCRIBE_CONFIGS"}.get(operation, operation.upper())
