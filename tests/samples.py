"""One message of each kind, the same for ever: what the golden bytes, the round trips and the fuzz begin with."""

import numpy as np

from stream_ocpdl import Sparse
from stream_ocpdl.ocpdl.diagnostics import Assumption, Standing
from stream_ocpdl.ocpdl.reshape import Layout, Scaling
from stream_ocpdl.stream.messages import (
    GENESIS,
    Chunk,
    Code,
    DeadLetter,
    Draw,
    JournalRecord,
    Manifest,
    Partial,
    Place,
    Position,
    Record,
    Refused,
    Request,
    Snapshot,
    Target,
    Tensor,
    Terms,
    Version,
)

ARRAY = np.arange(6.0).reshape(3, 2)
CARD = (
    Assumption("(A1)", Standing.OPEN, "the data come from a mixing Markov chain"),
    Assumption("(A3)", Standing.HOLDS, "the exponent is above 3/4"),
)
RECORD = Record(Position(2, 41), b"sensor \xff", b"\x00bytes", (("trace", b"\x01"), ("none", None)), 1_700_000_000_000)

SAMPLES = {
    "tensor": Tensor(ARRAY, ("row", "column")).to_bytes(crc=True),
    "tensor-sparse": Tensor(Sparse((3, 2), np.array([0, 5]), np.array([1, 7], np.int16))).to_bytes(),
    "draw": Draw(Tensor(ARRAY.astype(np.float32)), "run 7", 3, 1000, True, "nuts").to_bytes(),
    "chunk": Chunk("b1946ac92492d2347c6235b4d2611184", 1, 3, 250, bytes(range(100))).to_bytes(),
    "code": Code(Version("weather", 41), 42, Position(1, 7), 0.125, np.array([0.5, 0.0])).to_bytes(),
    "code-judged": Code(
        Version("weather", 41), 42, Position(1, 7), 0.125, np.array([0.5, 0.0]), 0.75, (0.995, 0.25), "structure"
    ).to_bytes(),
    "snapshot": Snapshot(
        Version("weather", 42),
        1344,
        [ARRAY, ARRAY[:2]],
        ("row", "column"),
        0.25,
        "PowerLaw(beta=0.76, delta=0.0)",
        CARD,
        (0, 1),
        "weather.tensors (id, 2 partitions)",
        {0: 700, 1: 650},
        "stream_ocpdl 0.1.0",
    ).to_bytes(),
    "snapshot-layout": Snapshot(
        Version("weather", 42),
        1344,
        [np.vstack([ARRAY, ARRAY]), ARRAY[:2]],
        ("city", "hour", "measurement"),
        0.25,
        "PowerLaw(beta=0.76, delta=0.0)",
        CARD,
        (0, 1),
        "weather.tensors (id, 2 partitions)",
        {0: 700, 1: 650},
        "stream_ocpdl 0.1.0",
        Layout((3, 2, 2), ((0, 2), (1,)), Scaling(2, (0.5, 0.001))),
    ).to_bytes(),
    "dead-letter": DeadLetter("weather.tensors", RECORD, "DataError", "X[0, 1] = nan", "stream_ocpdl 0.1.0").to_bytes(),
    "dead-letter-tombstone": DeadLetter(
        "t", Record(Position(0, 0), None, None), "DecodeError", "value is missing", "stream_ocpdl 0.1.0"
    ).to_bytes(),
    "journal": JournalRecord(
        "step",
        "ab" * 32,
        t=42,
        N=1344,
        weight=0.25,
        used=((0, 690, 705), (1, 640, 655)),
        refused=(Refused(0, 699, "DecodeError", "kind is 'x', not 'tensor'"),),
        resume={0: 700, 1: 656},
        reached={0: 706, 1: 656},
        open=((0, 700, 700), (0, 702, 703)),
        ahead=((0, 710, 712),),
        cursor=1,
        checksum=12345,
        axes=("row", "column"),
        state="cd" * 32,
    ).to_bytes(),
    "journal-genesis": JournalRecord(
        "genesis",
        GENESIS,
        resume={0: 0},
        reached={0: 0},
        input="t (id)",
        lineage="ef" * 32,
        fingerprint="01" * 8,
        checksum=0,
    ).to_bytes(),
    "checkpoint": Manifest(
        "weather", 42, 1344, 43, "ab" * 32, "t (id)", "ef" * 32, "01" * 8, 1000, "cd" * 32, Place(2, 17)
    ).to_bytes(),
    "checkpoint-senses": Manifest(
        "weather", 42, 1344, 43, "ab" * 32, "t (id)", "ef" * 32, "01" * 8, 1000, "cd" * 32, senses=bytes(range(16))
    ).to_bytes(),
    "checkpoint-product": Manifest(
        "weather", 42, 1344, 43, "ab" * 32, "t (id)", "ef" * 32, "01" * 8, 1000, "cd" * 32, product=bytes(range(17))
    ).to_bytes(),
    "journal-reconfigure": JournalRecord(
        "reconfigure",
        "ab" * 32,
        t=42,
        N=1344,
        resume={0: 700},
        reached={0: 706},
        epoch=2,
        terms=Terms(0.5, 0.0, "power 0.76", None),
        control=3,
        request="6f1c2d",
        checksum=0,
    ).to_bytes(),
    "journal-rollback": JournalRecord(
        "rollback",
        "ab" * 32,
        t=40,
        N=1280,
        weight=0.25,
        resume={0: 700},
        reached={0: 706},
        state="cd" * 32,
        fingerprint="01" * 8,
        epoch=1,
        control=4,
        request="6f1c2e",
        target=Target(0, 40, 41),
        checksum=0,
    ).to_bytes(),
    "journal-epoch": JournalRecord(
        "epoch",
        "ab" * 32,
        t=42,
        N=1344,
        resume={0: 700},
        reached={0: 706},
        state="cd" * 32,
        fingerprint="02" * 8,
        epoch=1,
        reason="numeric fingerprint",
        figures=(10.5, 0.25, 3.0, 1.5),
        checksum=0,
    ).to_bytes(),
    "journal-warm": JournalRecord(
        "genesis",
        GENESIS,
        resume={0: 0},
        reached={0: 0},
        input="t (id)",
        lineage="ef" * 32,
        fingerprint="01" * 8,
        terms=Terms(0.0, 0.0, "balanced", "auto"),
        reason="weather/0/0/42",
        loadings=ARRAY.tobytes(),
        checksum=0,
    ).to_bytes(),
    "journal-xxh3": JournalRecord(
        "step",
        "ab" * 32,
        t=42,
        N=1344,
        weight=0.25,
        used=((0, 690, 705),),
        resume={0: 706},
        reached={0: 706},
        xxh3=2**64 - 1,
    ).to_bytes(),
    "control": Request("6f1c2d", "reconfigure", {"sparsity": 0.5, "radius": None}).to_bytes(),
    "control-rollback": Request("6f1c2e", "rollback", t=40, epoch=0, present=1).to_bytes(),
    "partial": Partial(Version("weather", 41), 64, 10.5, 3.25, np.eye(2), np.ones((3, 2, 2), np.float32)).to_bytes(),
    "partial-round": Partial(
        Version("weather", 41), 64, 10.5, 3.25, np.eye(2), np.ones((3, 2, 2)), 42, (1, 640, 707), 2.5, 3
    ).to_bytes(),
}


def kind(name):
    """The kind of a sample."""
    return next(k for k in ("dead-letter", name, name.split("-")[0]) if name.startswith(k) and k in KINDS)


KINDS = ("tensor", "draw", "chunk", "code", "snapshot", "dead-letter", "journal", "checkpoint", "partial", "control")
