"""What travels on the topics. `docs/messages.md` is the specification, `schemas/` has it for machines."""

from typing import Any

from stream_ocpdl.stream.messages.chunk import CHUNK, Chunk, split
from stream_ocpdl.stream.messages.control import Request
from stream_ocpdl.stream.messages.draft import Draft
from stream_ocpdl.stream.messages.fields import MODES
from stream_ocpdl.stream.messages.framing import FOREIGN, MAGIC, OWN, VERSION, Payload, brief, checksum, frame, unframe
from stream_ocpdl.stream.messages.journal import (
    ANSWERS,
    GENESIS,
    JournalRecord,
    Refused,
    Target,
    input_hash,
    link,
    runs,
)
from stream_ocpdl.stream.messages.manifest import Manifest, Place
from stream_ocpdl.stream.messages.partial import Partial
from stream_ocpdl.stream.messages.records import Headers, Output, Position, Record, Run, Version
from stream_ocpdl.stream.messages.results import SOFTWARE, Code, Codes, DeadLetter, Snapshot
from stream_ocpdl.stream.messages.tensor import DTYPES, Draw, Mould, Origin, Tensor, raw
from stream_ocpdl.stream.messages.terms import CHANGES, Terms

KINDS: dict[str, Any] = {
    "tensor": Tensor,
    "draw": Draw,
    "chunk": Chunk,
    "code": Code,
    "snapshot": Snapshot,
    "dead-letter": DeadLetter,
    "journal": JournalRecord,
    "checkpoint": Manifest,
    "partial": Partial,
    "control": Request,
}
"""Every kind of message, and the class that reads and writes it."""

__all__ = [
    "ANSWERS",
    "CHANGES",
    "CHUNK",
    "DTYPES",
    "FOREIGN",
    "GENESIS",
    "KINDS",
    "MAGIC",
    "MODES",
    "OWN",
    "SOFTWARE",
    "VERSION",
    "Chunk",
    "Code",
    "Codes",
    "DeadLetter",
    "Draft",
    "Draw",
    "Headers",
    "JournalRecord",
    "Manifest",
    "Mould",
    "Origin",
    "Output",
    "Partial",
    "Payload",
    "Place",
    "Position",
    "Record",
    "Refused",
    "Request",
    "Run",
    "Snapshot",
    "Target",
    "Tensor",
    "Terms",
    "Version",
    "brief",
    "checksum",
    "frame",
    "input_hash",
    "link",
    "raw",
    "runs",
    "split",
    "unframe",
]
