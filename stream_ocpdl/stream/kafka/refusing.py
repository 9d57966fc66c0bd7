"""What a broker refuses for good: who we are, or what we want to do. Trying again would only fill its log.

librdkafka says of a certificate that it could not be verified, and not why; so it is looked at once more, by Python.
"""

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError

from stream_ocpdl.errors import Denied
from stream_ocpdl.stream.permissions import Kind, Operation, Permission

LOOK = 5.0
"""Seconds for a look at a certificate."""

ALERT = re.compile(r"alert (?:\w+ )?(?:certificate|unknown ca|bad certificate)[\w ]*", re.IGNORECASE)
"""What the other side of TLS says of our certificate, or of none."""

DENIED: dict[int, tuple[Kind, Operation]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("topic", "Read"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("group", "Read"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional-id", "Write"),
}
"""What is denied, and the operation that is asked for most."""


def turned_away(servers: str, options: Mapping[str, Any], said: Sequence[KafkaError]) -> Denied | None:
    """Whether one of these errors does not mend itself: a line that says what to do."""
    for error in said:
        told = shortened(error.str())
        if error.code() == KafkaError._AUTHENTICATION:
            return Denied(f"the broker at {servers} does not let us in: {told}; see kafka.sasl_…")
        if "certificate verify failed" in told:
            return Denied(f"the certificate of the broker at {servers} is not trusted: {distrusted(servers, options)}")
        if alert := ALERT.search(told):
            return Denied(
                f"the broker at {servers} does not take our certificate, or we show none: {alert[0]};"
                " see kafka.ssl_certificate and kafka.ssl_key"
            )
    return None


def shortened(text: str) -> str:
    """Without how long it took, which is never the same."""
    return re.sub(r" \(after \d+ms.*?\)", "", text)


def distrusted(servers: str, options: Mapping[str, Any]) -> str:
    """Why a certificate is not trusted, and what to do."""
    why = next(filter(None, (_complaint(server.strip(), options) for server in servers.split(","))), "")
    if "expired" in why or "not yet valid" in why:
        return f"{why}; it has to be renewed at the broker"
    if "mismatch" in why:
        return f"{why}; bootstrap_servers has to name the broker as its certificate does"
    return f"{why or 'it could not be verified'}; kafka.ssl_ca has to have the authority that signed it"


def _complaint(server: str, options: Mapping[str, Any]) -> str | None:
    host, _, port = server.rpartition(":") if ":" in server else (server, ":", "9092")
    with suppress(OSError, ValueError):  # an error of TLS is one of these as well
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # no stricter than librdkafka
        name = host.rpartition("//")[2].strip("[]")
        try:
            with socket.create_connection((name, int(port)), LOOK) as line:
                context.wrap_socket(line, server_hostname=name).close()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message.rstrip(".")
    return None


def denied(error: KafkaError, name: str, operation: Operation | None = None, *where: str) -> Denied | None:
    """Whether an error says that an ACL is missing: which one; `where` are servers and principal, if they are known."""
    if error.code() not in DENIED:
        return None
    kind, usual = DENIED[error.code()]
    return Denied(Permission(operation or usual, kind, name).missing(*where))
