"""Input that is gone, or no longer the same: what is missing, and how a model goes on without it.

What can be missing:

- records that were never read, because their retention ended first;
- records of steps that have to be replayed, because the newest checkpoint is older than their retention;
- the whole topic, which was made anew under its name;

and partitions can have been added. That is no loss: they are read from their beginning, and the journal notes it.

A loss ends the service with the exact range, unless the policy is "resume": then the journal notes the offsets that are
lost, and the model goes on. Steps that cannot be replayed are lost from the state, though their codes were published:
the state is that of an earlier record, `base`, and only its counts t and N are those of the last step, so that no two
steps have one number. A later recovery goes from `base` straight to the record that notes the loss, and needs none of
the input in between.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from stream_ocpdl.errors import InputLost, LineageError
from stream_ocpdl.stream.messages import Run
from stream_ocpdl.stream.plan import Plan
from stream_ocpdl.stream.ports import Said, Source, Warned
from stream_ocpdl.stream.progress import Progress
from stream_ocpdl.stream.shards import check_shards, shards_in

PARTIALS = "A round without one of its partials is none: begin another model, with this one's dictionary as warm_start"

_IDENTITY = re.compile(r"(.+) \((.+), (\d+) partitions\)(, shard .*)?")


def compared(plan: Plan, known: str | None, source: Source) -> Literal["same", "partitions", "anew"]:
    """How the input differs from the one that the model learned from; raise if it is another, or may not be."""
    if known is None or known == source.identity:
        return "same"
    check_shards(known, shards_in(source.identity))
    before, now = _IDENTITY.fullmatch(known), _IDENTITY.fullmatch(source.identity)
    told = f"the model learned from {known}, the input is {source.identity}"
    if before is None or now is None or before[1] != now[1]:
        raise LineageError(
            f"{told}: positions in one mean nothing in the other. Set input.topic back, or give the model another name"
        )
    if before[2] == now[2] and int(before[3]) < int(now[3]):
        if before[4]:
            raise LineageError(f"{told}: with several shards partitions cannot be added. Give the model another name")
        if plan.rounds is not None:
            raise LineageError(f"{told}: a round has one partial of each partition. Give the model another name")
        return "partitions"
    if plan.on_lost_input == "fail":
        raise LineageError(
            f"{told}: it was deleted and made anew, and what was not learned of the old one is gone. "
            + _to_go_on(plan, "from the beginning of the new one", "; or give the model another name")
        )
    return "anew"


def _to_go_on(plan: Plan, how: str, more: str = "") -> str:
    """What an operator can do."""
    if plan.rounds is not None:
        return PARTIALS
    return f"To go on {how}: --set on_lost_input=resume{more}"


def same_topic(one: str, other: str) -> bool:
    """Whether two identities are of one topic, perhaps with more partitions in one of them.

    >>> same_topic("weather (a, 2 partitions)", "weather (a, 3 partitions)")
    True
    >>> same_topic("weather (a, 2 partitions)", "weather (b, 2 partitions)")
    False
    """
    if one == other:
        return True
    before, now = _IDENTITY.fullmatch(one), _IDENTITY.fullmatch(other)
    return before is not None and now is not None and before.group(1, 2) == now.group(1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Noted:
    """A progress that goes on without what is missing, and what the journal has to take note of."""

    progress: Progress
    event: str
    more: dict[str, Any]
    said: tuple[Said, ...]


def reconcile(
    plan: Plan, progress: Progress, known: str | None, base: tuple[int, int] | None, source: Source
) -> Noted | None:
    """What is missing and what is new since the last record of the journal; raise if it may not be missing.

    `base` is the offset in the journal and the step of the record whose state this is, if steps after it are lost.
    """
    change, earliest = compared(plan, known, source), source.earliest()
    said: list[Said] = []
    if base is not None:
        said.append(
            Warned(
                f"steps {base[1] + 1} to {progress.state.t} are lost from the state: their input is gone", step=base[1]
            )
        )
    if change == "anew":
        said.append(Warned(f"{plan.topic} was made anew: reading from its beginning", topic=plan.topic))
        progress = replace(
            progress, resume=earliest, reached=earliest, open=(), ahead=(), learned=(), cursor=min(earliest)
        )
    elif change == "partitions":
        new = {p: 0 for p in source.partitions if p not in progress.resume}
        what = f"{plan.topic} has new partitions, {', '.join(map(str, new))}: reading them from their beginning"
        codes = "; the topic of the codes must have as many by the next start" if plan.codes else ""
        said.append(Warned(what + codes, topic=plan.topic))
        progress = replace(progress, resume=progress.resume | new, reached=progress.reached | new)
    gaps = tuple(_gaps(progress, earliest))
    if gaps and plan.on_lost_input == "fail":
        raise InputLost(
            f"input is gone that was never learned: {ranges(plan.topic, gaps)}; its retention is shorter than the time"
            " since it was written. " + _to_go_on(plan, "without it, noted in the journal as lost")
        )
    behind = {p: first for p, first in earliest.items() if first > progress.reached[p]}
    if change == "same" and base is None and not behind:
        return None
    refused = {p: first for p, first in behind.items() if p not in {gap[0] for gap in gaps}}
    said += [
        Said(f"{plan.topic}[{p}] begins at {first} now: what is gone was refused before", topic=plan.topic, partition=p)
        for p, first in refused.items()
    ]
    said += [Warned(f"lost: {ranges(plan.topic, (gap,))}", topic=plan.topic, partition=gap[0]) for gap in gaps]
    more: dict[str, Any] = {"lost": gaps} if gaps else {}
    more |= {"base": base} if base is not None else {}
    more |= {"input": source.identity} if change != "same" else {}
    if base is not None:  # versions stay unique
        progress = replace(progress, epoch=progress.epoch + 1)
    event = "partitions" if change == "partitions" and base is None and not behind else "lost"
    return Noted(_behind(progress, behind), event, more, tuple(said))


def ranges(topic: str, gaps: tuple[Run, ...]) -> str:
    """Runs as people read them.

    >>> ranges("weather", ((0, 5, 9), (1, 7, 7)))
    'weather[0] offsets 5 to 9 (5), weather[1] offset 7 (1)'
    """
    names = (f"offset {a}" if a == b else f"offsets {a} to {b}" for _, a, b in gaps)
    return ", ".join(f"{topic}[{p}] {name} ({b - a + 1})" for name, (p, a, b) in zip(names, gaps, strict=True))


def _gaps(progress: Progress, earliest: dict[int, int]) -> Iterator[Run]:
    """The offsets that were neither used nor refused and are gone.

    Pieces of messages that never became whole are missed only where more is.
    """
    for partition, first in sorted(earliest.items()):
        reached = progress.reached[partition]
        if first <= reached:
            continue
        yield from (run for run in progress.open if run[0] == partition)
        for _, low, high in sorted(run for run in progress.ahead if run[0] == partition):
            if reached < min(low, first):
                yield partition, reached, min(low, first) - 1
            reached = max(reached, high + 1)
        if reached < first:
            yield partition, reached, first - 1


def _behind(progress: Progress, behind: dict[int, int]) -> Progress:
    """The same progress where reading of these partitions goes on behind what is gone."""

    def left(runs: tuple[Run, ...]) -> tuple[Run, ...]:
        clipped = ((p, max(low, behind.get(p, 0)), high) for p, low, high in runs)
        return tuple(run for run in clipped if run[1] <= run[2])

    return replace(
        progress,
        resume=progress.resume | behind,
        reached=progress.reached | behind,
        open=tuple(run for run in progress.open if run[0] not in behind),
        ahead=left(progress.ahead),
        learned=left(progress.learned),
    )
