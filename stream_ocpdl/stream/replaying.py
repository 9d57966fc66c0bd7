"""All of a journal replayed in order, also what was rolled back later: for those who compare all that was published."""

from collections import Counter
from dataclasses import replace

from stream_ocpdl.ocpdl.state import State
from stream_ocpdl.stream.history import went_back_to
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.progress import Progress, read_journal
from stream_ocpdl.stream.recovery import (
    END,
    Leg,
    Recovered,
    Recovery,
    nearest,
    rebuild,
    replay_leg,
    whole,
)


class States:
    """The states to which a journal goes back later, kept for as long as they are wanted while it is replayed in order.

    Those that lie before all that is replayed are made at once.
    """

    def __init__(self, plan: Plan, world: Recovery, base: int) -> None:
        targets = (went_back_to(read_journal(value)) for _, value in world.journal.read(base + 1))
        self._wanted = Counter(target for target in targets if target is not None)
        self._states: dict[int, tuple[bytes, Progress]] = {}
        quiet = replace(world, on_record=lambda *_: None)
        for offset in sorted(self._wanted):
            if offset <= base:
                self.see(offset, rebuild(plan, quiet, offset).progress)

    def see(self, position: int, progress: Progress) -> None:
        """Keep the state after a record, if it is wanted; the progress itself is consumed by the next step."""
        if self._wanted[position] > 0:
            self._states[position] = (progress.state.to_bytes(), progress)

    def state(self, target: int) -> Progress | None:
        """The progress of a record that came by."""
        if target not in self._states:
            return None
        data, progress = self._states[target]
        self._wanted[target] -= 1
        if self._wanted[target] == 0:
            del self._states[target]
        return replace(progress, state=State.from_bytes(data))


def replay_all(plan: Plan, world: Recovery, until: int = END) -> Recovered:
    """Replay every record behind the furthest checkpoint up to an offset, also what was rolled back later."""
    progress, base, known = nearest(plan, world, until)
    kept = States(plan, world, base)
    progress, offset, replayed = replay_leg(plan, world, progress, Leg(base, END, input=known), kept)
    return whole(plan, progress, offset, replayed, base)
