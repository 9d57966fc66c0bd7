"""Processes that do the same work in a different way, compared on a machine whose speed drifts.

They take turns: while one goes, all threads of the others are stopped (SIGSTOP). So all see the same machine, from one
turn to the next, and the time of a run is that of its turns. What happens elsewhere goes on while a process is stopped:
what should last ten seconds of the own time of each of three must last thirty.

They are forked from one process that has prepared everything, and so have their memory at the same places. Two that
were begun on their own were up to four percent apart with the very same work.
"""

import gc
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

import numpy as np

TURN = 0.03
"""Seconds of a turn, about: a machine that others share changes its speed by a third from one second to the next."""

PAUSE = 0.002
"""Seconds between two turns: what the one before has asked a broker for is done."""

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

Contender: TypeAlias = tuple[Callable[..., Work], Sequence[Any]]
"""Makes its work, of these arguments."""


def nursery(pipes: Sequence[Connection], contenders: Sequence[Contender], processors: set[int]) -> None:
    """What the first process does: prepare all, and fork one for each."""
    if processors:
        os.sched_setaffinity(0, processors)
    works = [prepare(*arguments) for prepare, arguments in contenders]
    gc.collect()
    gc.freeze()  # or a look for garbage of a quarter of a second would be in one run and not in the other
    context = get_context("fork")
    children = [context.Process(target=marked, args=(pipes, k, work)) for k, work in enumerate(works)]
    for child in children:
        child.start()
    for pipe in pipes:
        pipe.close()
    for child in children:
        child.join()


def marked(pipes: Sequence[Connection], mine: int, work: Work) -> None:
    """What the others do: say that they are there, and when they are told to, work; then hand their marks over."""
    for other in {*range(len(pipes))} - {mine}:  # or nobody would notice the end of one of them
        pipes[other].close()
    pipe, marks = pipes[mine], list[Mark]()
    pipe.send(os.getpid())
    pipe.recv()
    work(lambda: marks.append(Mark(time.monotonic(), time.process_time())))
    pipe.send(marks)
    with suppress(EOFError):  # closed when all are done
        pipe.recv()


def race(
    contenders: Sequence[Contender], processors: set[int], begin: Callable[[], None] = lambda: None
) -> list[list[Took]]:
    """What each contender took between its marks, in time of its own; `begin` is called when all are ready."""
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in contenders]
    theirs = [pipe for _, pipe in pipes]
    parent = context.Process(target=nursery, args=(theirs, contenders, processors))
    parent.start()
    for pipe in theirs:
        pipe.close()
    ours = [pipe for pipe, _ in pipes]
    processes = [pipe.recv() for pipe in ours]
    try:
        return taken(ours, processes, begin)
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
        for pipe in ours:
            pipe.close()
        parent.join()


def taken(pipes: Sequence[Connection], processes: Sequence[int], begin: Callable[[], None]) -> list[list[Took]]:
    """Let them go by turns until all are done."""
    turns, marks = [list[Turn]() for _ in pipes], dict[int, list[Mark]]()
    for pipe, process in zip(pipes, processes, strict=True):
        os.kill(process, signal.SIGSTOP)
        pipe.send("go")
    begin()
    random = np.random.default_rng(0)  # or one would always come after the same other
    while left := [k for k in range(len(pipes)) if k not in marks]:
        for k in random.permutation(left):
            turns[k].append(turn(pipes[k], processes[k]))
            if pipes[k].poll(0):
                marks[k] = pipes[k].recv()
            time.sleep(PAUSE)
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
