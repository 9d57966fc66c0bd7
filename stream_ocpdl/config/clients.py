"""The settings of the Kafka clients: security, and raw settings of librdkafka that cannot break exactly-once.

Only this file and `stream.kafka` know librdkafka's spelling. A secret is a `SecretStr`: it does not show in a repr, and
`options` alone reveals it, to the client. Whatever decides delivery is the service's own business and is refused here.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, WithJsonSchema, field_validator

from stream_ocpdl.errors import ConfigError

REFUSED = {
    "bootstrap.servers": "the setting is bootstrap_servers",
    "metadata.broker.list": "the setting is bootstrap_servers",
    "security.protocol": "the setting is kafka.security_protocol",
    "sasl.mechanism": "the setting is kafka.sasl_mechanism",
    "sasl.mechanisms": "the setting is kafka.sasl_mechanism",
    "sasl.username": "the setting is kafka.sasl_username",
    "sasl.password": "the setting is kafka.sasl_password_file, or kafka.sasl_password from the environment",
    "ssl.ca.location": "the setting is kafka.ssl_ca",
    "ssl.certificate.location": "the setting is kafka.ssl_certificate",
    "ssl.key.location": "the setting is kafka.ssl_key",
    "ssl.key.password": "the setting is kafka.ssl_key_password_file, or kafka.ssl_key_password from the environment",
    "enable.auto.commit": "positions are committed with the step that used them, or inputs would be lost or repeated",
    "auto.commit.*": "positions are committed with the step that used them, or inputs would be lost or repeated",
    "enable.auto.offset.store": "positions are committed with the step that used them",
    "offset.store.*": "positions are committed with the step that used them",
    "auto.offset.reset": "input that is gone is an error, never skipped in silence",
    "isolation.level": "only committed records may be read, or steps would be learned that never happened",
    "transactional.id": "it is the model's name: by it a successor fences its predecessor",
    "transaction.timeout.ms": "the service commits in time for its own",
    "enable.idempotence": "without it a record that is sent again is there twice",
    "acks": "a step is committed when all replicas in sync have it",
    "request.required.acks": "a step is committed when all replicas in sync have it",
    "max.in.flight*": "idempotence sets it, or records would change their order",
    "retries": "idempotence sets it, or a record would be given up in the middle of a transaction",
    "message.send.max.retries": "idempotence sets it, or a record would be given up in the middle of a transaction",
    "message.max.bytes": "it is what the journal needs",
    "delivery.report.only.error": "a checkpoint needs the offset of the step that it is of",
    "partitioner*": "the pieces of a large message must meet in one partition",
    "group.id": "it is the model's name: its positions are committed under it",
    "group.instance.id": "replicas have the same settings, and with one name they would fence each other",
    "group.protocol": "shards are moved one by one, as the service chooses",
    "group.remote.assignor": "shards are moved one by one, as the service chooses",
    "partition.assignment.strategy": "shards are moved one by one, as the service chooses",
    "allow.auto.create.topics": "a topic that makes itself has the wrong settings",
    "enable.partition.eof": "the end of a partition is not an error",
    "test.mock.*": "a mock cluster throws transactions away",
    "default.topic.config": "give the settings of topics directly",
    "log.queue": "the service reads the client's log itself",
    "opaque": "the service has its own",
    "*_cb": "a callback is code, not a setting",
}
"""Settings of librdkafka that an operator may not pass through, as patterns, and why not."""

HIDDEN = ("*password*", "*passphrase*", "*secret*", "*key.pem", "sasl.oauthbearer.config")
"""Settings of librdkafka whose values are secrets."""

Raw: TypeAlias = Annotated[
    bool | int | float | str | SecretStr, WithJsonSchema({"type": ["boolean", "number", "string"]})
]


def lower(value: Any) -> Any:
    """Texts in small letters."""
    return value.lower() if isinstance(value, str) else value


def hidden(name: str) -> bool:
    """Whether the value of a setting of librdkafka is a secret.

    >>> hidden("sasl.oauthbearer.client.secret"), hidden("linger.ms")
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in HIDDEN)


class Section(BaseModel):
    """Settings that belong together. Unknown ones are errors, types are not guessed, and no error repeats a secret."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class Kafka(Section):
    """How the clients reach the broker."""

    security_protocol: Annotated[Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"], BeforeValidator(lower)] = (
        Field("plaintext", description="How the broker is spoken to.")
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = Field(
        None, description="How the service shows who it is, with sasl_plaintext and sasl_ssl."
    )
    sasl_username: str | None = Field(None, description="The name of the service's account.")
    sasl_password: SecretStr | None = Field(None, description="Its password: from the environment only.")
    sasl_password_file: str | None = Field(None, description="A file with its password, and nothing else in it.")
    ssl_ca: str | None = Field(None, description="A file with the certificates to trust; without it the system's.")
    ssl_certificate: str | None = Field(None, description="A file with the service's own certificate.")
    ssl_key: str | None = Field(None, description="A file with the key of that certificate.")
    ssl_key_password: SecretStr | None = Field(None, description="The password of that key: from the environment only.")
    ssl_key_password_file: str | None = Field(None, description="A file with the password of that key.")
    patience_s: float = Field(
        60.0, gt=0, le=3000, description="Seconds after which a broker that does not answer is given up."
    )
    extra: dict[str, Raw] = Field(
        default_factory=dict,
        description="Other settings of librdkafka, but none that would break exactly-once.",
    )

    @field_validator("extra")
    @classmethod
    def _harmless(cls, extra: dict[str, Raw]) -> dict[str, Raw]:
        wrong = [
            f"kafka.extra may not have {name}: {why}"
            for name in extra
            for pattern, why in REFUSED.items()
            if fnmatchcase(name, pattern)
        ]
        if wrong:
            raise ConfigError("\n".join(wrong))
        return {name: SecretStr(str(value)) if hidden(name) else value for name, value in extra.items()}

    def options(self) -> dict[str, Any]:
        """The settings as librdkafka spells them, with the secrets. All that makes no sense is said at once."""
        password, wrong_password = self._secret("sasl_password")
        key_password, wrong_key_password = self._secret("ssl_key_password")
        problems = [*self._out_of_place(password), *self._unreadable(), *wrong_password, *wrong_key_password]
        if problems:
            raise ConfigError("\n".join(problems))
        mine = {
            "security.protocol": self.security_protocol,
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": password,
            "ssl.ca.location": self.ssl_ca,
            "ssl.certificate.location": self.ssl_certificate,
            "ssl.key.location": self.ssl_key,
            "ssl.key.password": key_password,
        }
        return {name: value for name, value in mine.items() if value is not None} | {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in self.extra.items()
        }

    def secrets(self) -> list[str]:
        """Every secret that is known, for those who must not write it."""
        found = [self._secret(name)[0] for name in ("sasl_password", "ssl_key_password")]
        raw = [value.get_secret_value() for value in self.extra.values() if isinstance(value, SecretStr)]
        return [text for text in [*found, *raw] if text]

    def _out_of_place(self, password: str | None) -> Iterator[str]:
        """What does not go with the protocol, and what it lacks."""
        protocol = self.security_protocol
        for prefix, inside in (("sasl_", protocol.startswith("sasl_")), ("ssl_", protocol.endswith("ssl"))):
            given = [name for name in type(self).model_fields if name.startswith(prefix) and getattr(self, name)]
            if given and not inside:
                better = {"ssl_": "ssl or sasl_ssl", "sasl_": "sasl_ssl"}[prefix]
                yield f"kafka.{given[0]} has no effect with kafka.security_protocol {protocol}; set that to {better}"
        if protocol.startswith("sasl_") and self.sasl_mechanism is None:
            yield f"kafka.sasl_mechanism is missing, and kafka.security_protocol is {protocol}; it may be SCRAM-SHA-512"
        if (self.sasl_mechanism or "OAUTHBEARER") != "OAUTHBEARER":
            if not self.sasl_username:
                yield f"kafka.sasl_username is missing, and {self.sasl_mechanism} needs it"
            if not password and not self.sasl_password_file:
                yield (
                    f"kafka.sasl_password is missing, and {self.sasl_mechanism} needs it:"
                    " set OCPDL_KAFKA__SASL_PASSWORD in the environment, or kafka.sasl_password_file"
                )

    def _unreadable(self) -> Iterator[str]:
        for name in ("ssl_ca", "ssl_certificate", "ssl_key"):
            path = getattr(self, name)
            if path is not None:
                try:
                    Path(path).open("rb").close()
                except OSError as error:
                    yield f"kafka.{name}: {path} cannot be read: {error.strerror}"

    def _secret(self, name: str) -> tuple[str | None, list[str]]:
        """A secret, given or from its file; and what is wrong with it."""
        given, path = getattr(self, name), getattr(self, f"{name}_file")
        if given is not None:
            both = [f"kafka.{name} and kafka.{name}_file are both set; take one of them away"] if path else []
            return given.get_secret_value(), both
        if path is None:
            return None, []
        try:
            text = Path(path).read_text().rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a text"
            return None, [f"kafka.{name}_file: {path} cannot be read: {why}"]
        return text, [] if text else [f"kafka.{name}_file: {path} is empty"]
