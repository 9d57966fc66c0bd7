"""The live page's events: a stream of server-sent events for each page that is open and in sight.

Nothing is queued for anybody: a frame is made when the one before it is gone, and says how things are then. Whoever
does not take a frame for a while is let go. The number of streams has a bound.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from stream_ocpdl.observe.board import Board, Shard
from stream_ocpdl.observe.status import shard_of
from stream_ocpdl.page.live import modes_of, plain, rows
from stream_ocpdl.page.meanings import card_of, health_of, integrity_of
from stream_ocpdl.page.views import Json

MOST = 16
"""Streams at a time."""

EVERY = 1.0
"""Seconds between two frames."""

LOOK = 0.1
"""Seconds between two looks at whether the server ends."""

PATIENCE = 10.0
"""Seconds in which a frame has to be taken."""


class Frames:
    """How things are, for all who look; what is the same for all is found out once a second."""

    def __init__(self, board: Board, instance: str) -> None:
        self.board, self.instance = board, instance
        self._lock = threading.Lock()
        self._made: dict[int, tuple[float, Shard, Json]] = {}

    def frame(self, number: int | None, since: float) -> tuple[Json, float]:
        """A frame with the points of the past that are younger, and how old the next ones may be."""
        board = self.board
        shards = dict(board.shards)
        number = min(shards, default=None) if number is None else number
        found: Json = {
            "instance": self.instance,
            "at": time.time(),
            "model": board.model,
            "role": board.role,
            "reasons": board.unready(),
            "shards": sorted(shards),
            "count": board.count,
        }
        shard = shards.get(number) if number is not None else None
        if shard is None:
            return found, since
        shard.spectators.look()
        points = shard.spectators.past.since(since)
        found |= {"shard": number, "status": self._status(shard), "points": rows(points)}
        return found, points[-1].at if points else since

    def _status(self, shard: Shard) -> Json:
        number, now = shard.plan.shard, time.monotonic()
        with self._lock:
            made, of, status = self._made.get(number, (0.0, None, {}))
            if of is not shard or now - made > EVERY / 2:
                status = _status(shard)
                self._made[number] = now, shard, status
            return status


def _status(shard: Shard) -> Json:
    held = shard.spectators.dictionary
    return {
        **plain(shard_of(shard)),
        "modes": modes_of(shard),
        "card": card_of(shard),
        "integrity": integrity_of(shard),
        "health": plain(health_of(shard)),
        "refused": shard.spectators.refused,
        "dictionary": None if held is None else {"t": held.t, "epoch": held.epoch},
    }


@dataclass(slots=True)
class Streams:
    """How many there are. Only the loop of the server counts."""

    open: int = 0


async def events_of(
    frames: Frames, number: int | None, since: float, ending: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Frames, one after the other, until the server ends, of which the last event tells."""
    while not ending():
        found, since = await run_in_threadpool(frames.frame, number, since)
        yield event("frame", found)
        due = time.monotonic() + EVERY
        while time.monotonic() < due and not ending():
            await asyncio.sleep(LOOK)
    yield event("bye", {})


def event(name: str, data: Any) -> bytes:
    """An event, as text/event-stream has it; JSON has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()


class Patient(StreamingResponse):
    """A stream that is counted, and not held open for those who do not read."""

    def __init__(self, streams: Streams, body: AsyncGenerator[bytes, None], **more: Any) -> None:
        super().__init__(body, **more)
        self._streams, self._events = streams, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, for as long as it takes."""
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1

    async def stream_response(self, send: Send) -> None:
        """Send what there is; give up where nobody takes it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._events:
                await asyncio.wait_for(send(_part(chunk, more=True)), PATIENCE)
        except TimeoutError:
            return
        finally:
            await self._events.aclose()
        await send(_part(b"", more=False))


def _part(body: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
