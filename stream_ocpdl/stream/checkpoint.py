"""Checkpoints: a state in bytes, with the place in the journal that it belongs to.

A checkpoint is a manifest and the canonical bytes of the state. The manifest names size and SHA-256 of those bytes, and
the journal's link and offset at that step: where reading goes on, the journal says. A store keeps the newest few,
writes each whole or not at all, and hands them out newest first; whether one is acceptable is for `recovery` to say.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from stream_ocpdl.errors import Fenced, OcpdlError, StateError, StoreError
from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream.messages import OWN, Manifest, unframe
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress

log = logging.getLogger("stream_ocpdl.checkpoint")

KEPT = 3
"""How many checkpoints a store keeps: the newest may be damaged, and one more may be half written."""


def manifest_of(plan: Plan, progress: Progress, journal_offset: int, identity: str) -> Manifest:
    """The manifest of a progress whose last record is committed at this offset of the journal."""
    state, sha, size = progress.state, hashlib.sha256(), 0
    for part in state.parts():
        sha.update(part)
        size += len(part)
    return Manifest(
        model=plan.model,
        t=state.t,
        N=state.N,
        journal_offset=journal_offset,
        link=progress.link,
        input=identity,
        lineage=plan.lineage(),
        fingerprint=progress.fingerprint,
        size=size,
        sha256=sha.hexdigest(),
        chains=progress.draws.known or None,
        draws=progress.draws.counts if any(progress.draws.counts) else None,
        senses=progress.senses.to_bytes() or None,
        product=progress.product.to_bytes() or None,
    )


def state_of(manifest: Manifest, data: bytes | bytearray) -> State:
    """The state that a checkpoint holds; its bytes must be those that the manifest names."""
    if len(data) != manifest.size or hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise StateError(
            f"the checkpoint of step {manifest.t} is damaged: its bytes do not have the hash of its manifest"
        )
    return State.from_bytes(data)


class Candidate(NamedTuple):
    """A checkpoint found in a store; its bytes are read when they are wanted."""

    manifest: Manifest
    load: Callable[[], bytes | bytearray]


class CheckpointStore(Protocol):
    """Where checkpoints are kept."""

    def open(self) -> None:
        """Fence every predecessor."""
        ...

    def save(self, manifest: Manifest, parts: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Keep a checkpoint, whole or not at all; the bytes may be asked for more than once."""
        ...

    def candidates(self) -> Iterator[Candidate]:
        """The checkpoints there are, newest first; those that cannot even be read are passed over."""
        ...

    def discard(self, manifest: Manifest) -> None:
        """Use this one no more: it is the first to be overwritten."""
        ...


class NoStore:
    """Keeps nothing: a recovery with it replays the whole journal."""

    def open(self) -> None:
        """Nothing to do."""

    def save(self, manifest: Manifest, parts: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Forget it."""

    def candidates(self) -> Iterator[Candidate]:
        """None."""
        return iter(())

    def discard(self, manifest: Manifest) -> None:
        """It is not there."""


class ReadOnly:
    """The checkpoints of a store, for those who may not touch it."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def open(self) -> None:
        """Nobody is fenced."""

    def save(self, manifest: Manifest, parts: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Refuse."""
        raise StateError("checkpoints are only looked at here")

    def candidates(self) -> Iterator[Candidate]:
        """Those of the store."""
        return self._store.candidates()

    def discard(self, manifest: Manifest) -> None:
        """It stays where it is."""


class DirectoryStore:
    """Checkpoints of a model, or of a shard, as files of a directory of its own: one each, named by its place in the
    journal.

    A file is written under another name, flushed to the disk and renamed, and then the directory is flushed: after a
    power cut there is the old set of files or the new one.
    """

    def __init__(
        self, directory: Path, model: str, at: Callable[[str], None] = lambda _: None, shard: int | None = None
    ) -> None:
        self._directory = directory / model if shard is None else directory / model / f"shard-{shard}"
        self._at = at

    def open(self) -> None:
        """Make the directory, and remove what a crash left half written."""
        with self._in_order():
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in self._directory.glob("*.writing"):
                path.unlink()

    def save(self, manifest: Manifest, parts: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """Write, flush, rename, flush; then remove all but this one and the newest of the others."""
        final = self._path(manifest)
        temporary = final.with_suffix(".writing")
        with self._in_order(temporary):
            with temporary.open("wb") as file:
                file.write(manifest.to_bytes())
                self._at("in-checkpoint")
                for part in parts():
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            try:
                temporary.rename(final)
            except FileNotFoundError:
                raise Fenced(f"{temporary} was removed: another process writes this model now") from None
            _flush_directory(self._directory)
            for old in [path for path in self._files() if path != final][KEPT - 1 :]:
                old.unlink()

    def candidates(self) -> Iterator[Candidate]:
        """The files, the furthest in the journal first."""
        for path in self._files():
            try:
                manifest, offset = _read_manifest(path)
            except (OcpdlError, OSError) as error:
                log.warning("%s is not usable: %s", path, error)
                continue
            yield Candidate(manifest, partial(_read_state, path, offset))

    def discard(self, manifest: Manifest) -> None:
        """Rename the file: an operator may want to look at it."""
        path = self._path(manifest)
        with self._in_order():
            if path.exists():
                path.rename(path.with_suffix(".refused"))

    @contextmanager
    def _in_order(self, half: Path | None = None) -> Iterator[None]:
        """What the system refuses is for the operator to mend; what is half written is in the way until then."""
        try:
            yield
        except OSError as error:
            with suppress(OSError):
                if half is not None:
                    half.unlink()
            raise StoreError(
                f"checkpoints: {self._directory} cannot be written: {error.strerror or error}. Nothing is lost: make"
                " room or mend the directory, and start again"
            ) from error

    def _path(self, manifest: Manifest) -> Path:
        return self._directory / f"{manifest.journal_offset:020d}.checkpoint"

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("*.checkpoint"), reverse=True)


def _read_manifest(path: Path) -> tuple[Manifest, int]:
    """The manifest at the head of a file, and where the state begins."""
    with path.open("rb") as file:
        head = file.read(1 << 20)
    return Manifest.from_bytes(head), len(head) - len(unframe(head, OWN)[1])


def _read_state(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
