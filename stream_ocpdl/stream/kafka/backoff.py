"""Pauses between attempts. They grow with the time for which nothing has worked, and so do those between log lines."""

import logging
import time

log = logging.getLogger("stream_ocpdl.kafka")

LEAST, MOST = 0.05, 3.0
"""Seconds of a pause."""

SELDOM = 10.0
"""Seconds between two lines of librdkafka of one kind: with a broker away it has a hundred to say each second."""

QUIET = 1.0
"""Seconds of trouble that nobody has to hear about."""


class Backoff:
    """Pauses of a fifth of the time since it last worked: each is longer than the one before by that factor."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._since: float | None = None
        self._next_said = QUIET
        self._said = False

    def wait(self, why: str, began: float) -> None:
        """Something that was begun at this time has failed: pause; now and then say why."""
        if self._since is None:
            self._since, self._next_said, self._said = began, QUIET, False
        trouble = time.monotonic() - self._since
        if trouble >= self._next_said:
            log.warning("%s: for %.0f s: %s; trying again", self._who, trouble, why)
            self._next_said, self._said = 3 * trouble, True
        time.sleep(min(max(trouble / 5, LEAST), MOST))

    def worked(self) -> None:
        """It works; say so if somebody was told that it does not."""
        if self._since is not None and self._said:
            log.info("%s: works again after %.0f s", self._who, time.monotonic() - self._since)
        self._since = None


class Seldom(logging.Filter):
    """Lets a line of librdkafka pass if none of its kind has for a while; it says how many did not."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Kinds are told by the first word, such as FAIL or TXNERR."""
        said, now = record.getMessage(), time.monotonic()
        kind = said.partition(" ")[0]
        since, dropped = self._kinds.get(kind, (now - SELDOM, 0))
        if now - since < SELDOM:
            self._kinds[kind] = since, dropped + 1
            return False
        self._kinds[kind] = now, 0
        if dropped:
            record.msg, record.args = f"{said} (and {dropped} more of the kind before)", ()
        return True


class Fences(logging.Filter):
    """Makes warnings of what librdkafka calls fatal when a producer is fenced: that is how a zombie is to end."""

    def filter(self, record: logging.LogRecord) -> bool:
        """All lines pass."""
        if record.levelno > logging.WARNING and any(word in record.getMessage() for word in ("fenced", "old epoch")):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


client_log = logging.getLogger("stream_ocpdl.kafka.client")
"""For what librdkafka says."""
client_log.addFilter(Fences())
client_log.addFilter(Seldom())
