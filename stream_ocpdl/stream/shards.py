"""Shards: parts of a model that learn on their own, each a dictionary of its share of the input.

Of S shards the one numbered s owns the partitions p of the input with p mod S = s. Shard and S stand in the identity of
its input, which the journal's genesis, every checkpoint and every snapshot carry: with another S they are of another
history. A model with one shard has the identity that it always had.
"""

import re
from collections.abc import Iterable

from stream_ocpdl.errors import LineageError

_NAMED = re.compile(r"(.*), shard (\d+) of (\d+)")


def owned(partitions: Iterable[int], shard: int, shards: int) -> list[int]:
    """The partitions of a shard.

    >>> owned(range(5), 1, 2)
    [1, 3]
    """
    return [partition for partition in partitions if partition % shards == shard]


def named(identity: str, shard: int, shards: int) -> str:
    """The identity of a shard's share of an input.

    >>> named("tensors (6 partitions)", 0, 1), named("tensors (6 partitions)", 1, 2)
    ('tensors (6 partitions)', 'tensors (6 partitions), shard 1 of 2')
    """
    return identity if shards == 1 else f"{identity}, shard {shard} of {shards}"


def shards_in(identity: str) -> int:
    """S, as an identity has it.

    >>> shards_in("tensors (6 partitions), shard 1 of 2"), shards_in("tensors (6 partitions)")
    (2, 1)
    """
    found = _NAMED.fullmatch(identity)
    return int(found[3]) if found else 1


def check_shards(identity: str, shards: int) -> None:
    """Raise if what was learned from this input was learned with another number of shards."""
    begun = shards_in(identity)
    if begun != shards:
        raise LineageError(
            f"the model was begun with shards: {begun}, and is to have {shards} now; a shard is a dictionary of certain"
            f" partitions. Set shards to {begun} again, or give the model another name"
        )
