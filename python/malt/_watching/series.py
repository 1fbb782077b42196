"""The values that a rank has reported by malt.report(), thinned out to a bounded number."""

from __future__ import annotations

from typing import NamedTuple

MOST_POINTS = 2000  # of each name and process


class Point(NamedTuple):
    """A value that a rank reported. The time is nanoseconds of the monotonic clock."""

    time: int
    update: int  # of the rank's last scatter, or its allreduces if it never scattered
    value: float  # finite or not


class Series:
    """The values of one name, oldest first.

    Whenever `most` are kept, every second one of them is dropped, and from then on half as
    many of the new ones are kept. So the points are spread evenly over all that were reported.

    Attributes:
        points: those kept.
        last: the newest value reported, kept or not.
        count: how many were reported.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self.points: list[Point] = []
        self.last = Point(0, 0, 0.0)
        self.count = 0
        self._stride = 1

    def add(self, point: Point) -> None:
        self.last = point
        if self.count % self._stride == 0:
            self.points.append(point)
            if len(self.points) == self._most:
                del self.points[1::2]
                self._stride *= 2
        self.count += 1
