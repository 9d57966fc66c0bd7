"""Of which product of chains the minibatches are draws, and where another one begins.

With `rows: one-per-chain` a minibatch has one draw of each chain, and is a draw of the product of these chains, for as
long as they are the same. A chain that ends or stalls is missing from then on, and one that begins, or comes back, is
one more: that is another product, and a new epoch begins before the step.

It has to have been a product, though: the same chains at least twice, one step after the other. Where they change from
step to step, as they do with more chains than rows, there is none. So an epoch begins where that begins, none while it
lasts, and one where the same chains come twice again.

All of it follows from the rows of the steps since the epoch began: a replay finds the same, and a checkpoint has it.
"""

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from stream_ocpdl.errors import StateError
from stream_ocpdl.stream.draws import CHAINS, key_of
from stream_ocpdl.stream.messages import Origin

_HEAD = struct.Struct("<QB")
_KEY = 8
"""Bytes of a chain's key."""


class Product(NamedTuple):
    """The chains of the last minibatch that had draws."""

    epoch: int = 0
    chains: frozenset[str] = frozenset()
    times: int = 0
    """How often they came one after the other in this epoch: 1, 2 for more; 0 where they change from step to step."""

    def after(self, rows: Iterable[Origin | None], epoch: int) -> "Product":
        """What it is after a step of an epoch; one without draws changes nothing."""
        chains = chains_of(rows)
        if not chains:
            return self
        if not self._known(epoch):
            return Product(epoch, chains, 1)
        return Product(epoch, chains, min(2, self.times + 1) if chains == self.chains else 0)

    def ended(self, rows: Iterable[Origin | None], epoch: int) -> str | None:
        """Why another one begins with these rows, if it does."""
        chains = chains_of(rows)
        if not chains or not self._known(epoch):
            return None
        if chains == self.chains:
            return f"the same {_many(chains)} come again, which is a product of chains" if self.times == 0 else None
        if self.times < 2:
            return None
        gone, come = len(self.chains - chains), len(chains - self.chains)
        told = [f"{gone} ended or stalled"] if gone else []
        told += [f"{come} began or came back"] if come else []
        return f"another product of chains, {_many(chains)} after {len(self.chains)}: {', '.join(told)}"

    def _known(self, epoch: int) -> bool:
        return bool(self.chains) and self.epoch == epoch

    def to_bytes(self) -> bytes:
        """For a checkpoint; nothing if there were no draws.

        >>> product = Product().after([Origin("run", 0, 5), Origin("run", 1, 5)], 3)
        >>> Product.from_bytes(product.to_bytes()) == product
        True
        """
        if not self.chains:
            return b""
        return _HEAD.pack(self.epoch, self.times) + b"".join(bytes.fromhex(key) for key in sorted(self.chains))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Product":
        """The other way round."""
        if not data:
            return cls()
        keys = data[_HEAD.size :]
        if len(data) < _HEAD.size + _KEY or len(keys) % _KEY or data[_HEAD.size - 1] > 2:
            raise StateError(f"the product of chains in a checkpoint has {len(data)} bytes that make no sense")
        epoch, times = _HEAD.unpack_from(data)
        return cls(epoch, frozenset(keys[k : k + _KEY].hex() for k in range(0, len(keys), _KEY)), times)


def chains_of(rows: Iterable[Origin | None]) -> frozenset[str]:
    """The chains of which rows are draws, by their keys; very many by one key for all."""
    found = frozenset(key_of(origin) for origin in rows if origin is not None)
    if len(found) <= CHAINS:
        return found
    return frozenset({blake2b("".join(sorted(found)).encode(), digest_size=_KEY).hexdigest()})


def _many(chains: frozenset[str]) -> str:
    return "1 chain" if len(chains) == 1 else f"{len(chains)} chains"
