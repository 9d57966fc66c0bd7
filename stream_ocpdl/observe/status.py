"""What is known of a running service, in names that people read, as JSON has it."""

from dataclasses import asdict
from math import isfinite
from typing import Any

from stream_ocpdl.observe.board import Board, Shard
from stream_ocpdl.observe.catalogue import CATALOGUE, Seen


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
