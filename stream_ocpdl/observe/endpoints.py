"""The endpoints, as an ASGI application: what a scraper, a probe, or a person asks of a running service.

/metrics    for Prometheus, OpenMetrics if it is asked for
/live       200 while the loops go round, also in a long replay; 503 with the names of those that are stuck
/ready      200 if it does what it is there for, a standby too; 503 with the reasons. Never because of lag
/version    the release, and the numeric fingerprint
/config     the settings in force, without secrets
/api/status what `/metrics` has, as JSON, with the assumption card in words
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stream_ocpdl.observe.board import Board, Shard
from stream_ocpdl.observe.catalogue import CATALOGUE, Seen

Handler = Callable[[Request], Response]


def application(
    board: Board, registry: CollectorRegistry, build: Mapping[str, str], config: str, stuck_after: float
) -> Starlette:
    """All endpoints. They are plain functions, so that the server calls them in threads, and none holds up another."""

    def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": kind})

    def live(_: Request) -> Response:
        return verdict("live", board.stuck(stuck_after))

    def ready(_: Request) -> Response:
        return verdict("ready", board.unready(), role=board.role)

    def version(_: Request) -> Response:
        return JSONResponse(dict(build))

    def shown(_: Request) -> Response:
        return PlainTextResponse(config, media_type="application/yaml")

    def status(_: Request) -> Response:
        return JSONResponse(status_of(board))

    handlers: dict[str, Handler] = {
        "/metrics": metrics,
        "/live": live,
        "/ready": ready,
        "/version": version,
        "/config": shown,
        "/api/status": status,
    }
    return Starlette(routes=[Route(path, handler, methods=["GET"]) for path, handler in handlers.items()])


def verdict(name: str, reasons: list[str], **more: Any) -> Response:
    """200 without reasons, 503 with."""
    body = {name: not reasons, **more, "reasons": reasons}
    return JSONResponse(body, 503 if reasons else 200)


def status_of(board: Board) -> dict[str, Any]:
    """Everything that is known, in names that people read."""
    return {
        "model": board.model,
        "role": board.role,
        "reasons": board.unready(),
        "shards": {str(s): shard_of(shard) for s, shard in sorted(board.shards.items())},
    }


def shard_of(shard: Shard) -> dict[str, Any]:
    """The metrics of a shard by name, those with labels by label."""
    seen = Seen.of(shard)
    found: dict[str, Any] = {"doing": shard.doing, "card": [asdict(line) for line in shard.card]}
    for entry in CATALOGUE:
        if entry.kind == "histogram" or entry.name in ("ocpdl_assumption", "ocpdl_phase"):
            continue
        name = entry.name.removeprefix("ocpdl_")
        samples = {"/".join(labels): number(value) for labels, value in entry.read(seen)}
        found[name] = samples.get("") if not entry.labels else samples
    return found


def number(value: Any) -> float | None:
    """As JSON has numbers: there is no infinity."""
    return value if isfinite(value) else None
