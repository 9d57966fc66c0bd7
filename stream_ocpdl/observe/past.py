"""The past of a shard in a few hundred points, however long it is.

Points keep a distance in time. When there is no more room, every second one goes and the distance doubles: so memory is
constant, the whole life is there, and what a point costs is paid a few times a second, however short steps are.
"""

from typing import NamedTuple

CAPACITY = 600
"""Points, at most."""

SPACING = 0.05
"""Seconds between two of them, at first."""


class Point(NamedTuple):
    """A step, and where the shard stood after it."""

    at: float
    """Seconds since 1970."""
    t: int
    tensors: int
    """Learned in this life of the process."""
    surrogate: float
    prequential: float
    weight: float
    movements: tuple[float, ...]
    radii: tuple[float, ...]
    lag: int | None
    """Records that were not done with; none if that was not known."""
    lag_seconds: float


class Past:
    """Points in the order of their steps. One thread writes; a reader takes the list as it is."""

    def __init__(self, spacing: float = SPACING, capacity: int = CAPACITY) -> None:
        self.points: list[Point] = []
        self.due = float("-inf")
        """When the next point may come, by the clock of who writes."""
        self.spacing, self._capacity = spacing, capacity

    def add(self, point: Point, now: float) -> None:
        """One more."""
        if len(self.points) >= self._capacity:
            self.points = self.points[::2]  # another list: a reader may be in this one
            self.spacing *= 2
        self.points.append(point)
        self.due = now + self.spacing

    def forget_from(self, t: int) -> None:
        """The model went back: steps from t on have not been."""
        self.points = [point for point in self.points if point.t < t]

    def since(self, at: float) -> list[Point]:
        """Points that are younger than this."""
        points = self.points[:]
        first = len(points)
        while first > 0 and points[first - 1].at > at:
            first -= 1
        return points[first:]
