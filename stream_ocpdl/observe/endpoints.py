"""The endpoints, as an ASGI application: what a scraper, a probe, or a person asks of a running service.

/metrics    for Prometheus, OpenMetrics if it is asked for
/live       200 while the loops go round, also in a long replay; 503 with the names of those that are stuck
/ready      200 if it does what it is there for, a standby too; 503 with the reasons. Never because of lag
/version    the release, and the numeric fingerprint
/config     the settings in force, without secrets
/api/status what `/metrics` has, as JSON, with the assumption card in words
/           the live page, and what it asks for (`page.routes`)
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stream_ocpdl.observe.board import Board
from stream_ocpdl.observe.status import status_of
from stream_ocpdl.page.routes import routes

Handler = Callable[[Request], Response | Awaitable[Response]]


class Observed(Protocol):
    """What probes ask."""

    @property
    def role(self) -> str:
        """What the process is at the moment."""
        ...

    def stuck(self, limit: float) -> list[str]:
        """The loops that did not go round for so many seconds."""
        ...

    def unready(self) -> list[str]:
        """Why it is not ready; nothing if it is."""
        ...


def application(
    board: Board, registry: CollectorRegistry, build: Mapping[str, str], config: str, stuck_after: float
) -> Starlette:
    """All endpoints of a learner."""
    own = endpoints_of(board, lambda: status_of(board), registry, build, config, stuck_after)
    return Starlette(routes=[*own, *routes(board)])


def endpoints_of(
    board: Observed,
    told: Callable[[], dict[str, Any]],
    registry: CollectorRegistry,
    build: Mapping[str, str],
    config: str,
    stuck_after: float,
) -> list[Route]:
    """All but the page. Plain functions are called in threads, so that none holds up another.

    What probes ask for takes no time and no thread: a process is not to be ended because many look at its page.
    """

    def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": kind})

    async def live(_: Request) -> Response:
        return verdict("live", board.stuck(stuck_after))

    async def ready(_: Request) -> Response:
        return verdict("ready", board.unready(), role=board.role)

    def version(_: Request) -> Response:
        return JSONResponse(dict(build))

    def shown(_: Request) -> Response:
        return PlainTextResponse(config, media_type="application/yaml")

    def status(_: Request) -> Response:
        return JSONResponse(told())

    handlers: dict[str, Handler] = {
        "/metrics": metrics,
        "/live": live,
        "/ready": ready,
        "/version": version,
        "/config": shown,
        "/api/status": status,
    }
    return [Route(path, handler, methods=["GET"]) for path, handler in handlers.items()]


def verdict(name: str, reasons: list[str], **more: Any) -> Response:
    """200 without reasons, 503 with."""
    body = {name: not reasons, **more, "reasons": reasons}
    return JSONResponse(body, 503 if reasons else 200)
