"""The live page, and what it asks for.

/                     the page
/static/NAME          its scripts and styles, and Plotly's, as the package carries it
/api/history          the past of a shard in at most a few hundred points
/api/dictionary       its atoms, the most used first, with pictures of the first ones
/api/atoms/R          one atom, and the positions of the tensors that used it most
/api/dead-letters     the last that was refused, with the reasons
/api/chains           the health of each chain; rank-normalised R̂, bulk and tail ESS of the last draws
/api/events           how things are, every second, as server-sent events

All but the first two take `?shard=`; without it, the first that this process writes is meant. Texts from messages are
JSON here, and text in the page; its policy forbids scripts, style sheets and requests that are not our own.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stream_ocpdl.observe.board import Board, Shard
from stream_ocpdl.page.events import MOST, Frames, Patient, Streams, events_of
from stream_ocpdl.page.live import DRAWN, Gallery, history_of, letters_of, plain
from stream_ocpdl.page.meanings import wellness_of
from stream_ocpdl.page.serving import Files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Plotly sets attributes of style, which run nothing; its style sheets, too, are our own (static/plotly.css)."""

GUARDED = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
LIVE = {"cache-control": "no-store", **GUARDED}

FRESH, WAIT, PAUSE = 3.0, 1.0, 0.02
"""Seconds: how old a dictionary may be, how long a newer one is waited for, and between two looks."""

ROOM = 8
"""Answers about shards that are made at a time: threads are left for those who scrape, however many look."""


def routes(board: Board) -> list[Route]:
    """All of them."""
    files, gallery, streams = Files(), Gallery(), Streams()
    frames, room = Frames(board, uuid.uuid4().hex), asyncio.Semaphore(ROOM)

    def page(request: Request) -> Response:
        return file_of(files, "index.html", request)

    def static(request: Request) -> Response:
        return file_of(files, request.path_params["name"], request)

    def history(shard: Shard, _: Request) -> Any:
        return history_of(shard)

    def dictionary(shard: Shard, request: Request) -> Any:
        wanted = number_in(request, "atoms") or 0
        return gallery.dictionary(shard, wanted if wanted > 0 else DRAWN)

    def atom(shard: Shard, request: Request) -> Any:
        return gallery.atom(shard, request.path_params["r"])

    def letters(shard: Shard, _: Request) -> Any:
        return letters_of(shard)

    def chains(shard: Shard, _: Request) -> Any:
        return plain(wellness_of(shard))

    async def events(request: Request) -> Response:
        if streams.open >= MOST:
            said = {"error": f"{MOST} pages are being watched already"}
            return JSONResponse(said, 503, headers={"retry-after": "5", **LIVE})
        ending = getattr(request.app.state, "ending", lambda: False)
        body = events_of(frames, number_in(request, "shard"), since_in(request), ending)
        return Patient(streams, body, media_type="text/event-stream", headers=LIVE)

    asked = {
        "/api/history": history,
        "/api/dictionary": dictionary,
        "/api/atoms/{r:int}": atom,
        "/api/dead-letters": letters,
        "/api/chains": chains,
    }
    return [
        Route("/", page, methods=["GET"]),
        Route("/static/{name}", static, methods=["GET"]),
        Route("/api/events", events, methods=["GET"]),
        *(
            Route(path, of_shard(board, answer, room, answer in (dictionary, atom)), methods=["GET"])
            for path, answer in asked.items()
        ),
    ]


def of_shard(
    board: Board, answer: Callable[[Shard, Request], Any], room: asyncio.Semaphore, waits: bool
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that is asked of a shard. Who waits takes no thread, and few are answered at a time."""

    def response(shard: Shard | None, request: Request) -> Response:
        found = None if shard is None else answer(shard, request)
        if found is None:
            return JSONResponse({"error": "there is no such thing here"}, 404, headers=LIVE)
        return JSONResponse(found, headers=LIVE)

    async def handler(request: Request) -> Response:
        shards = dict(board.shards)
        number = number_in(request, "shard")
        shard = shards.get(min(shards, default=-1) if number is None else number)
        if waits and shard is not None:
            await await_dictionary(shard)
        async with room:
            return await run_in_threadpool(response, shard, request)

    return handler


def number_in(request: Request, name: str) -> int | None:
    """A number of the query, or none; −1 if it is none."""
    given = request.query_params.get(name)
    if given is None:
        return None
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else -1


def since_in(request: Request) -> float:
    """From when on the page wants points: that of the last that it has, or now."""
    try:
        return float(request.query_params.get("since", ""))
    except ValueError:
        return time.time()


async def await_dictionary(shard: Shard) -> None:
    """Somebody looks: the thread that learns will copy the dictionary soon. It is not waited for for long."""
    seen, deadline = shard.spectators, time.monotonic() + WAIT
    seen.look()
    while time.monotonic() < deadline:
        held = seen.dictionary
        if held is not None and (held.t == shard.t or shard.wall() - held.at < FRESH):
            return
        await asyncio.sleep(PAUSE)


def file_of(files: Files, name: str, request: Request) -> Response:
    """A file of the page, packed, or that nothing has changed."""
    found = files.get(name)
    if found is None:
        return Response("there is no such file", 404, headers=GUARDED)
    headers = {"etag": found.tag, "cache-control": found.caching, "vary": "accept-encoding", **GUARDED}
    if found.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    packed = "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        headers["content-encoding"] = "gzip"
    return Response(found.packed if packed else found.plain, media_type=found.kind, headers=headers)
