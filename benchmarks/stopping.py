"""Two processes that do the same work in a different way, compared on a machine whose speed drifts.

They take turns of half a second: while one goes, all threads of the other are stopped (SIGSTOP). So both see the same
machine, from one half of a second to the next, and the time of a run is that of its turns. What happens elsewhere goes
on while a process is stopped: what should last ten seconds of its own time must last twenty.
"""

import gc
import os
import signal
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

TURN = 0.5
"""Seconds of a turn: no shorter than what a background thread rests."""

Turn: TypeAlias = tuple[float, float]
"""When it began and when it ended, by the monotonic clock, which all processes share."""


class Mark(NamedTuple):
    """A moment of a process: the monotonic clock, and the CPU that all of its threads have had."""

    clock: float
    cpu: float


class Took(NamedTuple):
    """Seconds between two marks."""

    wall: float
    cpu: float


Work: TypeAlias = Callable[[Callable[[], None]], None]
"""Called with a function that marks a moment."""


def marked(pipe: Connection, prepare: Callable[..., Work], arguments: Sequence[Any], processors: set[int]) -> None:
    """What a process does: prepare, say so, and when it is told to, work; then hand its marks over."""
    if processors:
        os.sched_setaffinity(0, processors)
    work, marks = prepare(*arguments), list[Mark]()
    gc.collect()
    gc.freeze()  # or a look for garbage of a quarter of a second would be in one run and not in the other
    pipe.send(os.getpid())
    pipe.recv()
    work(lambda: marks.append(Mark(time.monotonic(), time.process_time())))
    pipe.send(marks)
    pipe.recv()


def race(
    contenders: Sequence[tuple[Callable[..., Work], Sequence[Any]]],
    processors: set[int],
    begin: Callable[[], None] = lambda: None,
) -> list[list[Took]]:
    """What each contender took between its marks, in time of its own; `begin` is called when all are ready."""
    context = get_context("spawn")
    pipes, turns, marks = list[Connection](), [list[Turn]() for _ in contenders], dict[int, list[Mark]]()
    for prepare, arguments in contenders:
        ours, theirs = context.Pipe()
        context.Process(target=marked, args=(theirs, prepare, arguments, processors), daemon=True).start()
        pipes.append(ours)
        theirs.close()
    processes = [pipe.recv() for pipe in pipes]
    for pipe, process in zip(pipes, processes, strict=True):
        os.kill(process, signal.SIGSTOP)
        pipe.send("go")
    begin()
    while len(marks) < len(pipes):
        for k, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
            if k not in marks:
                turns[k].append(turn(pipe, process))
                if pipe.poll(0):
                    marks[k] = pipe.recv()
    for pipe, process in zip(pipes, processes, strict=True):
        os.kill(process, signal.SIGCONT)
        pipe.send("end")
    return [between(marks[k], turns[k]) for k in range(len(pipes))]


def turn(pipe: Connection, process: int) -> Turn:
    """Let a process go for a while, or until it has something to say."""
    began = time.monotonic()
    os.kill(process, signal.SIGCONT)
    pipe.poll(TURN)
    os.kill(process, signal.SIGSTOP)
    return began, time.monotonic()


def between(marks: Sequence[Mark], turns: Sequence[Turn]) -> list[Took]:
    """From mark to mark, without the time for which the process was stopped.

    >>> between([Mark(0.0, 1.0), Mark(3.5, 2.0)], [(0.0, 1.0), (3.0, 4.0)])
    [Took(wall=1.5, cpu=1.0)]
    """
    return [Took(overlap(turns, a.clock, b.clock), b.cpu - a.cpu) for a, b in pairwise(marks)]


def overlap(turns: Sequence[Turn], begin: float, end: float) -> float:
    """Seconds of turns between two moments."""
    return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in turns)
