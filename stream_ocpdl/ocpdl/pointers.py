"""Arrays by their addresses: the rows of a minibatch lie in as many messages, and one call reads them all.

A call for each would ask for the interpreter as often, and wait for it wherever another thread has it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.core import imputils

from stream_ocpdl.ocpdl.arrays import BigArray, Indices
from stream_ocpdl.ocpdl.compiled import intrinsic

TOOLS: Any = imputils


def addresses(rows: Sequence[BigArray]) -> Indices:
    """Where each begins; they have to be kept for as long as somebody reads there."""
    return np.array([row.__array_interface__["data"][0] for row in rows], np.int64)


_BYTES = bytes.__basicsize__ - 1
"""Where in a bytes object of CPython its bytes begin: it ends with the first of them."""


def addresses_in(values: Sequence[bytes], start: int) -> Indices:
    """Where, in each of these, the bytes from `start` on are; kept likewise.

    >>> value = bytes(100)
    >>> addresses_in([value], 16).tolist() == addresses([np.frombuffer(value, np.uint8)[16:]]).tolist()
    True
    """
    if not set(map(type, values)) <= {bytes}:
        raise TypeError("only of bytes is it known where they are")
    return np.array(list(map(id, values)), np.int64) + (_BYTES + start)


@intrinsic
def there(_: Any, address: Any, like: Any) -> Any:
    """The array at an address, of the size and the kind of another one."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.return_type)(context, builder, args[1])
        array.data = builder.inttoptr(args[0], array.data.type)
        return TOOLS.impl_ret_borrowed(context, builder, sig.return_type, array._getvalue())

    return like(address, like), lower
