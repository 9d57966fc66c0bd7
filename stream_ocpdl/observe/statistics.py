"""What librdkafka counts in the client of the input."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class Client:
    """What librdkafka counts, as far as we want it."""

    ends: Mapping[int, int] = field(default_factory=dict)
    """The offset behind the last record of each partition."""
    queued: int = 0
    """Records that were fetched and not asked for."""
    received: int = 0
    """Bytes."""

    @classmethod
    def read(cls, statistics: str) -> Self:
        """The same from librdkafka's JSON. There −1 and −1001 mean that a number is not known."""
        if not statistics:
            return cls()
        told = json.loads(statistics)
        partitions = [
            part
            for topic in told.get("topics", {}).values()
            for name, part in topic.get("partitions", {}).items()
            if name != "-1"
        ]
        ends = {part["partition"]: part.get("ls_offset", -1) for part in partitions}
        return cls(
            {p: end for p, end in ends.items() if end >= 0},
            sum(part.get("fetchq_cnt", 0) for part in partitions),
            told.get("rx_bytes", 0),
        )
