"""What the live page asks for, read off the board as plain values. All work is done here, by those who ask."""

import threading
import time
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from stream_ocpdl.observe.board import Shard
from stream_ocpdl.observe.past import Point
from stream_ocpdl.observe.spectators import Coded, Dictionary, Spectators
from stream_ocpdl.ocpdl.arrays import Array
from stream_ocpdl.ocpdl.revival import DEAD
from stream_ocpdl.page.views import Json, atoms
from stream_ocpdl.stream.messages import Snapshot
from stream_ocpdl.stream.plan import Plan

DRAWN = 36
"""Atoms that are drawn unless more are asked for."""

MOST = 200
"""Atoms that are drawn at most."""

SLICES, ALONE = 4, 12
"""Pictures of an atom that has to be cut: of one among many, and of one that was chosen."""

POSITIONS = 20
"""Tensors that are named for an atom."""


def history_of(shard: Shard) -> Json:
    """The past of a shard, column by column."""
    points = shard.spectators.past.points[:]
    return {"modes": modes_of(shard), "spacing": shard.spectators.past.spacing, "points": rows(points)}


def modes_of(shard: Shard) -> list[str]:
    """The names of the modes as views have them: those that tensors brought along, too."""
    held, groups = shard.spectators.dictionary, shard.plan.layout.groups if shard.plan.layout else None
    names = (held.axes if held else None) or shard.plan.axes or [f"mode {i + 1}" for i in range(len(shard.plan.shape))]
    return [" × ".join(names[i] for i in group) for group in groups or [(i,) for i in range(len(names))]]


def rows(points: Sequence[Point]) -> list[Json]:
    """Points by name; JSON has no infinity."""
    return [plain(point._asdict()) for point in points]


def plain(value: Any) -> Any:
    """The same with nothing in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def letters_of(shard: Shard) -> Json:
    """The last dead letters, the newest first."""
    seen = shard.spectators
    letters = [
        {"at": at, "topic": shard.plan.topic, **refused._asdict()} for at, refused in reversed(list(seen.letters))
    ]
    return {"refused": seen.refused, "letters": letters}


class Gallery:
    """The dictionaries of all shards as they are shown; each is made ready once, however many look at it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[Dictionary, list[Json]]] = {}
        self._shown: dict[int, tuple[Dictionary, int, Json]] = {}

    def dictionary(self, shard: Shard, count: int = DRAWN) -> Json:
        """The dictionary, its most used atoms first; so many of them with pictures."""
        held, s = shard.spectators.dictionary, shard.plan.shard
        if held is None:
            return {"t": None, "atoms": []}
        with self._lock:
            dictionary, drawn, found = self._shown.get(s, (None, 0, {}))
            if dictionary is not held or drawn != count:
                found = self._drawn(shard, held, count)
                self._shown[s] = held, count, found
            return found

    def _drawn(self, shard: Shard, held: Dictionary, count: int) -> Json:
        began = time.perf_counter()
        told = self._told(shard, held)
        drawn = [one["atom"] for one in told[: min(count, MOST)]]
        views = {one["atom"]: one["views"] for one in pictures(shard.plan, held, drawn, SLICES)}
        shown = [one | ({"views": views[one["atom"]]} if one["atom"] in views else {}) for one in told]
        return {**_standing(shard, held), "seconds": time.perf_counter() - began, "atoms": shown}

    def atom(self, shard: Shard, r: int) -> Json | None:
        """One atom, and who used it; none if there is no such atom."""
        held = shard.spectators.dictionary
        if held is None or not 0 <= r < len(held.uses):
            return None
        with self._lock:
            told = next(one for one in self._told(shard, held) if one["atom"] == r)
        [drawn] = pictures(shard.plan, held, [r])
        coded, norms = shard.spectators.coded, np.sqrt(energies(held, np.ones(len(held.uses))))
        return {**_standing(shard, held), **told, **drawn, "positions": users(coded, norms, r, shard.plan.topic)}

    def _told(self, shard: Shard, held: Dictionary) -> list[Json]:
        dictionary, told = self._known.get(shard.plan.shard, (None, []))
        if dictionary is not held:
            told = numbers(shard.plan, shard.spectators, held)
            self._known[shard.plan.shard] = held, told
        return told


def _standing(shard: Shard, held: Dictionary) -> Json:
    """Of which moment a dictionary is, and what its numbers were taken from."""
    coded, older = shard.spectators.coded, shard.spectators.snapshots[:1]
    window = {"tensors": sum(len(one.H) for one in coded), "first": coded[0].t, "last": coded[-1].t} if coded else None
    return {
        "t": held.t,
        "N": held.N,
        "epoch": held.epoch,
        "at": held.at,
        "rank": len(held.uses),
        "compared_with": older[0][0] if older else None,
        "window": window,
    }


def pictures(plan: Plan, held: Dictionary, which: Sequence[int], slices: int = ALONE) -> list[Json]:
    """Atoms drawn as what they are."""
    return atoms(outward(plan, held), plan.layout, held.axes, which, slices)


def outward(plan: Plan, held: Dictionary) -> Sequence[Array]:
    """The loadings in the units of the data."""
    return held.loadings if plan.layout is None else plan.layout.outward(held.loadings, held.factors)


def numbers(plan: Plan, seen: Spectators, held: Dictionary) -> list[Json]:
    """Use, age and drift of every atom, the most used first."""
    e, lately, drift = energies(held, held.uses), recent(seen.coded, held), drifted(plan, seen, held)
    total, dead = float(e.sum()), e < DEAD * e.mean()
    found = []
    for r in np.argsort(-e, kind="stable").tolist():
        born = seen.revived.get(r)
        found.append(
            {
                "atom": r,
                "use": float(e[r]) / total if total > 0 else 0.0,
                "lately": None if lately is None else float(lately[r]),
                "dead": bool(dead[r]),
                "age": held.t - (seen.known_from if born is None else born),
                "at_least": born is None and seen.known_from > 0,
                "drift": None if drift is None else plain(float(drift[r])),
            }
        )
    return found


def energies(held: Dictionary, squares: Array) -> Array:
    """(R,): the mean energy of each atom, with these mean squares of its codes (`ocpdl.revival`)."""
    return np.asarray(squares * np.prod([np.einsum("ir,ir->r", U, U, dtype=np.float64) for U in held.loadings], axis=0))


def recent(coded: Sequence[Coded], held: Dictionary) -> Array | None:
    """(R,): the share of each atom in the energy of a tensor, on the average over the last ones; none without any."""
    sizes = energies(held, np.ones(len(held.uses)))
    shares = [_shares(one.H, sizes) for one in coded]
    return np.concatenate(shares).mean(axis=0) if shares else None


def _shares(H: Array, sizes: Array) -> Array:
    """(b, R): the energy of each atom's part in each tensor, relative to that of all atoms' parts."""
    parts = H * H * sizes
    total = parts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(parts, total, out=np.zeros_like(parts), where=total > 0))


def drifted(plan: Plan, seen: Spectators, held: Dictionary) -> Array | None:
    """(R,): by how many degrees each atom has turned since the snapshot before the last; none without one.

    An atom keeps its place in the dictionary, so nothing has to be matched.
    """
    if not seen.snapshots:
        return None
    before = Snapshot.from_bytes(seen.snapshots[0][1]).loadings
    cosines = np.ones(len(held.uses))
    for U, V in zip(before, outward(plan, held), strict=True):
        with np.errstate(invalid="ignore", divide="ignore"):  # an atom that is zero points nowhere
            norms = np.linalg.norm(U, axis=0) * np.linalg.norm(V, axis=0)
            cosines *= np.abs(np.einsum("ir,ir->r", U, V)) / norms
    return np.asarray(np.degrees(np.arccos(np.minimum(cosines, 1.0))))


def users(coded: Sequence[Coded], norms: Array, r: int, topic: str) -> list[Json]:
    """The tensors of the last steps of which an atom has the largest part, the largest first."""
    if not coded:
        return []
    H = np.concatenate([one.H for one in coded])
    shares = _shares(H, norms * norms)[:, r]
    places = [(one.t, position) for one in coded for position in one.positions]
    strength = np.abs(H[:, r]) * norms[r]
    order = [k for k in np.argsort(-strength, kind="stable")[:POSITIONS].tolist() if strength[k] > 0]
    return [
        {
            "topic": topic,
            "partition": places[k][1].partition,
            "offset": places[k][1].offset,
            "step": places[k][0],
            "code": float(H[k, r]),
            "share": float(shares[k]),
        }
        for k in order
    ]
