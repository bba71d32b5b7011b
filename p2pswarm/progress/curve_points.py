"""ThinnedCurve: a curve of any length in a bounded number of points, each the mean of its part.

Halves its points whenever they are too many, so an hour and a year have as many.
"""

import math
from dataclasses import dataclass

POINTS_MAX = 512  # more than the pixels of a small chart


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The mean of the values of some steps."""

    step: int
    """The last one of them."""
    at: float
    """Its wall clock, in seconds since 1970."""
    value: float
    count: int
    """How many values."""


class ThinnedCurve:
    """Values by step, the oldest first; values that are not finite are left out."""

    def __init__(self) -> None:
        self._points: list[CurvePoint] = []
        self._stride = 1
        """How many values a whole point has."""

    def add(self, step: int, at: float, value: float) -> None:
        """Add a value; one of an earlier step replaces all since."""
        self.cut(step - 1)
        if not math.isfinite(value):
            return
        point, points = CurvePoint(step, at, value, 1), self._points
        if points and points[-1].count < self._stride:
            points[-1] = _joined(points[-1], point)
        else:
            points.append(point)
        if len(points) > POINTS_MAX:
            pairs = zip(points[::2], points[1::2], strict=False)
            odd = points[-1:] if len(points) % 2 else []
            self._points = [_joined(*pair) for pair in pairs] + odd
            self._stride *= 2

    def cut(self, step: int) -> None:
        """Forget what came after a step."""
        while self._points and self._points[-1].step > step:
            self._points.pop()

    @property
    def last(self) -> CurvePoint | None:
        """The newest point."""
        return self._points[-1] if self._points else None

    @property
    def points(self) -> list[CurvePoint]:
        """The points, the oldest first."""
        return list(self._points)


def _joined(a: CurvePoint, b: CurvePoint) -> CurvePoint:
    count = a.count + b.count
    mean = a.value * (a.count / count) + b.value * (b.count / count)
    return CurvePoint(b.step, b.at, mean, count)
