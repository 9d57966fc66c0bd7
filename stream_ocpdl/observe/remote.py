"""Running services, seen from outside by their endpoint /api/status. What answers there is not believed blindly."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from math import isfinite
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from stream_ocpdl.errors import ConfigError

LARGEST = 10_000_000
"""Bytes of an answer."""

TIMEOUT = 2.0
"""Seconds to wait for it."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a service said at a moment, or why it said nothing."""

    url: str
    at: float
    status: Mapping[str, Any] | None = None
    gone: str = ""

    @property
    def shards(self) -> dict[str, Mapping[str, Any]]:
        """Those that it writes."""
        found = (self.status or {}).get("shards")
        return {str(s): shard for s, shard in _map(found).items() if isinstance(shard, dict)}


@dataclass(frozen=True, slots=True)
class Row:
    """A shard in a few numbers; none where one is not known."""

    shard: str
    doing: str
    epoch: float | None
    step: float | None
    seen: float | None
    """Tensors of all lives."""
    tensor_rate: float | None
    step_rate: float | None
    lag: float | None
    """Records of all partitions."""
    lag_seconds: float | None
    loss: float | None
    """Prequential."""
    surrogate: float | None
    refused: float
    checkpoint: float | None
    checkpoint_age: float | None


def address(url: str) -> str:
    """The endpoint of a service.

    >>> address("127.0.0.1:9464"), address("http://h:1/")
    ('http://127.0.0.1:9464/api/status', 'http://h:1/api/status')
    """
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or not full.isascii() or not full.isprintable() or " " in full:
        raise ConfigError(f"{url[:100]!r} must be the address of a service, such as http://127.0.0.1:9464")
    return full.rstrip("/").removesuffix("/api/status") + "/api/status"


_OPENER = build_opener(ProxyHandler({}))
"""Services are near: nobody stands between."""


def look(url: str, timeout: float = TIMEOUT) -> Look:
    """Ask a service."""
    where = address(url)
    try:
        with _OPENER.open(where, timeout=timeout) as answer:
            body = answer.read(LARGEST + 1)
        status = json.loads(body) if len(body) <= LARGEST else None
    except HTTPError as error:
        return Look(url, time.monotonic(), gone=f"it answers with {error.code}: is this a service of ours?")
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        return Look(
            url, time.monotonic(), gone=str(getattr(reason, "strerror", None) or reason or type(error).__name__)
        )
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("shards"), dict):
        return Look(url, time.monotonic(), gone="what answers there is no service of ours")
    return Look(url, time.monotonic(), status)


def rows(now: Look, before: Look | None = None) -> list[Row]:
    """The shards of a service; rates from one look to the next."""
    earlier = {} if before is None else before.shards
    seconds = now.at - before.at if before is not None else 0.0
    return [_row(name, shard, earlier.get(name, {}), seconds) for name, shard in sorted(now.shards.items())]


def _row(name: str, shard: Mapping[str, Any], before: Mapping[str, Any], seconds: float) -> Row:
    def rate(counter: str) -> float | None:
        more, less = _number(shard.get(counter)), _number(before.get(counter))
        return (more - less) / seconds if None not in (more, less) and more >= less and seconds > 0 else None  # type: ignore[operator]

    return Row(
        shard=name,
        doing=str(shard.get("doing", "?")),
        epoch=_number(shard.get("epoch")),
        step=_number(shard.get("step")),
        seen=_number(shard.get("seen_tensors")),
        tensor_rate=rate("tensors"),
        step_rate=rate("steps"),
        lag=_sum(shard.get("lag_records")),
        lag_seconds=_number(shard.get("lag_seconds")),
        loss=_number(shard.get("prequential_loss")),
        surrogate=_number(shard.get("surrogate_loss")),
        refused=_sum(shard.get("dead_letters")) or 0.0,
        checkpoint=_number(shard.get("checkpoint_step")),
        checkpoint_age=_number(shard.get("checkpoint_age_seconds")),
    )


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and isfinite(value)
    return float(value) if good else None


def _sum(value: Any) -> float | None:
    """Of what is known by label; none if nothing is."""
    known = [x for x in map(_number, _map(value).values()) if x is not None]
    return sum(known) if known else None


def _map(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
