"""How a model begins, or began."""

from collections.abc import Callable
from dataclasses import dataclass

from stream_ocpdl.errors import ConfigError, LineageError
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Journal
from stream_ocpdl.stream.progress import check_lineage, read_journal
from stream_ocpdl.stream.terms import on_terms
from stream_ocpdl.stream.warm import Warm


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    """How a new model begins; asked only if there is no journal."""

    positions: Callable[[], dict[int, int]]
    warm: Callable[[], Warm | None] = lambda: None


def begun(plan: Plan, journal: Journal) -> Plan | None:
    """The plan on the terms that the model began with, if the journal tells them; none if there is no journal."""
    try:
        first = next(iter(journal.read()), None)
    except LineageError:  # it was trimmed, and says no more of its beginning
        return plan
    if first is None:
        return None
    record = read_journal(first[1])
    if record.event != "genesis":
        return plan
    try:
        base = on_terms(plan, record.terms)
    except ConfigError as error:
        raise LineageError(f"the model began on terms that these settings do not know: {error}") from error
    check_lineage(base, record.lineage)
    return base
