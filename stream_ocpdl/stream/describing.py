"""Any record of any of our topics, in a few plain values: what it is, or why it cannot be read. Never a whole tensor.

Whoever can write to a topic decides what its bytes are, so nothing is believed of them but what a decoder has checked.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from stream_ocpdl.errors import OcpdlError
from stream_ocpdl.ocpdl.arrays import BigArray, Sparse
from stream_ocpdl.stream.formats import Format
from stream_ocpdl.stream.messages import (
    KINDS,
    OWN,
    Chunk,
    Code,
    DeadLetter,
    Draw,
    JournalRecord,
    Manifest,
    Partial,
    Record,
    Request,
    Run,
    Snapshot,
    Tensor,
    brief,
    unframe,
)

HEAD = 6
"""Numbers that are shown of an array."""

Fields = dict[str, Any]


def described(record: Record, form: Format | None = None, shape: tuple[int, ...] = ()) -> Fields:
    """A record: where and when, and what its value is. `form` is the format of an input that is not ours."""
    found: Fields = {
        "partition": record.position.partition,
        "offset": record.position.offset,
        "time": moment(record.timestamp) if record.timestamp >= 0 else None,
        "key": None if record.key is None else text(record.key),
        "bytes": None if record.value is None else len(record.value),
    }
    try:
        return found | contents(record.value, form, shape)
    except OcpdlError as error:
        return found | {"kind": "unreadable", "error": type(error).__name__, "reason": " ".join(str(error).split())}


def contents(value: bytes | None, form: Format | None, shape: tuple[int, ...]) -> Fields:
    """What a value is; an OcpdlError says why it is nothing that we read."""
    if form is not None and form.name != "native":
        return {"kind": "tensor"} | _tensor(form.read(value, shape))
    header, _ = unframe(value, OWN)
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return {"kind": "unreadable", "error": "DecodeError", "reason": f"kind is {brief(kind)}, which nobody knows"}
    return {"kind": kind} | _DESCRIBE[kind](KINDS[kind].from_bytes(value))


def summary(array: BigArray | Sparse) -> Fields:
    """An array in a few numbers: least, mean and largest of those that are finite."""
    values = array.values if isinstance(array, Sparse) else array
    found: Fields = {"shape": [int(n) for n in array.shape], "dtype": values.dtype.str}
    found |= {"nonzero": len(values)} if isinstance(array, Sparse) else {}
    flat = values.reshape(-1)
    finite = np.isfinite(flat)
    good = flat if finite.all() else flat[finite]
    with np.errstate(all="ignore"):
        figures = (good.min(), good.mean(dtype=np.float64), good.max()) if good.size else (None, None, None)
    found |= {name: _plain(x) for name, x in zip(("min", "mean", "max"), figures, strict=True)}
    found |= {"not_finite": int(flat.size - good.size)} if good.size < flat.size else {}
    return found | {"head": [_plain(x) for x in flat[:HEAD]]}


def _plain(x: Any) -> Any:
    """A number as JSON has it, which has none that is not finite."""
    if x is None:
        return None
    number = x.item()
    if isinstance(number, bool):
        return int(number)
    return number if np.isfinite(number) else str(number)


def _tensor(tensor: Tensor) -> Fields:
    axes = {} if tensor.axes is None else {"axes": list(tensor.axes)}
    return summary(tensor.array) | axes


def _draw(draw: Draw) -> Fields:
    origin = {"run": draw.run, "chain": draw.chain, "draw": draw.draw, "tuning": draw.tuning, "sampler": draw.sampler}
    return origin | _tensor(draw.tensor)


def _chunk(chunk: Chunk) -> Fields:
    return {"id": chunk.id, "index": chunk.index, "count": chunk.count, "size": chunk.size}


def _code(code: Code) -> Fields:
    atoms = np.argsort(-np.abs(code.code), kind="stable")[:HEAD]
    judged: Fields = {} if code.residual is None else {"residual": code.residual}
    judged |= {} if code.quantiles is None else {"quantiles": list(code.quantiles)}
    judged |= {} if code.change is None else {"change": code.change}
    return judged | {
        "input": list(code.position),
        "step": code.step,
        "dictionary": str(code.dictionary),
        "loss": code.loss,
        "rank": len(code.code),
        "atoms": {str(r): _plain(code.code[r]) for r in atoms if code.code[r] != 0},
    }


def _snapshot(snapshot: Snapshot) -> Fields:
    return {
        "version": str(snapshot.version),
        "tensors": snapshot.tensors,
        "weight": snapshot.weight,
        "rank": snapshot.rank,
        "axes": None if snapshot.axes is None else list(snapshot.axes),
        "modes": list(snapshot.modes),
        "loadings": [summary(U) for U in snapshot.loadings],
    }


def _letter(letter: DeadLetter) -> Fields:
    record = letter.record
    return {
        "input": list(record.position),
        "topic": letter.topic,
        "error": letter.error,
        "reason": letter.reason,
        "refused_bytes": None if record.value is None else len(record.value),
        "refused_head": None if record.value is None else record.value[:16].hex(" "),
    }


def _journal(record: JournalRecord) -> Fields:
    """What happened, how much of the input it took; of long lists the length."""
    found: Fields = {"event": record.event, "step": record.t, "epoch": record.epoch or 0, "tensors": record.N}
    found |= {"used": _runs(record.used), "refused": [f"{p}:{k} {e}: {why}" for p, k, e, why in record.refused[:3]]}
    found |= {"used_records": count(record.used), "refused_records": len(record.refused)}
    for name in ("weight", "request", "reason", "state", "lineage", "fingerprint", "input"):
        value = getattr(record, name)
        found |= {} if value in (None, 0.0) else {name: value}
    found |= {"target": list(record.target)} if record.target else {}
    found |= {"lost": _runs(record.lost), "lost_records": count(record.lost)} if record.lost else {}
    return found | ({"resume": {str(p): k for p, k in sorted(record.resume.items())}})


def _runs(runs: tuple[Run, ...]) -> list[str]:
    return [f"{p}:{first}" if first == last else f"{p}:{first}-{last}" for p, first, last in runs[:HEAD]]


def count(runs: tuple[Run, ...]) -> int:
    """Records in runs.

    >>> count(((0, 4, 5), (1, 9, 9)))
    3
    """
    return sum(last - first + 1 for _, first, last in runs)


def _manifest(manifest: Manifest) -> Fields:
    names = ("model", "t", "N", "journal_offset", "size", "sha256", "fingerprint")
    return {name: getattr(manifest, name) for name in names}


def _partial(partial: Partial) -> Fields:
    found: Fields = {"dictionary": str(partial.dictionary), "count": partial.count, "energy": partial.energy}
    found |= {"round": partial.round} if partial.round is not None else {}
    return found | {"A": summary(partial.A), "B": summary(partial.B)}


def _request(request: Request) -> Fields:
    found: Fields = {"id": request.id, "action": request.action}
    if request.action == "rollback":
        return found | {"step": request.t, "epoch": request.epoch, "present": request.present}
    return found | {"change": request.change}


_DESCRIBE: Mapping[str, Callable[[Any], Fields]] = {
    "tensor": _tensor,
    "draw": _draw,
    "chunk": _chunk,
    "code": _code,
    "snapshot": _snapshot,
    "dead-letter": _letter,
    "journal": _journal,
    "checkpoint": _manifest,
    "partial": _partial,
    "control": _request,
}


def text(data: bytes, most: int = 80) -> str:
    """Bytes that may be text, in one short line."""
    return data[:most].decode(errors="replace") + ("…" if len(data) > most else "")


def printable(said: str) -> str:
    r"""Text for a terminal: what would move the cursor or change its colours is shown, not done.

    >>> printable("a\x1b[31m b\n")
    'a\\x1b[31m b\\n'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said)


def moment(milliseconds: int) -> str:
    """A time as people write it; one that no calendar has as the number that it is.

    >>> moment(1_700_000_000_000), moment(2**62)
    ('2023-11-14T22:13:20.000Z', '4611686018427387904 ms')
    """
    try:
        when = datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)
        return f"{when.isoformat(timespec='milliseconds')}Z"
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
