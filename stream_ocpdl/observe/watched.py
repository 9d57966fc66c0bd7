"""The ways out, with a clock beside them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from stream_ocpdl.observe.board import Shard
from stream_ocpdl.stream.checkpoint import Candidate, CheckpointStore
from stream_ocpdl.stream.messages import Manifest, Output
from stream_ocpdl.stream.ports import Outbox

_stream = attrgetter("stream")


class WatchedOutbox:
    """An outbox whose commits are counted."""

    def __init__(self, outbox: Outbox, board: Shard) -> None:
        self._outbox, self._board = outbox, board

    def open(self) -> None:
        """Fence every predecessor."""
        self._outbox.open()

    def commit(self, outputs: Sequence[Output], positions: Mapping[int, int]) -> int:
        """One transaction."""
        board = self._board
        began = board.now()
        offset = self._outbox.commit(outputs, positions)
        board.committing.add(board.now() - began)
        board.written.update(map(_stream, outputs))
        return offset


class WatchedStore:
    """A store whose checkpoints are counted."""

    def __init__(self, store: CheckpointStore, board: Shard) -> None:
        self._store, self._board = store, board

    def open(self) -> None:
        """Fence every predecessor."""
        self._store.open()

    def save(self, manifest: Manifest, parts: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Keep a checkpoint."""
        board = self._board
        began = board.now()
        self._store.save(manifest, parts)
        board.checkpointing.add(board.now() - began)
        board.saved(manifest.t, manifest.size)

    def candidates(self) -> Iterator[Candidate]:
        """The checkpoints there are."""
        return self._store.candidates()

    def discard(self, manifest: Manifest) -> None:
        """Use this one no more."""
        self._store.discard(manifest)
