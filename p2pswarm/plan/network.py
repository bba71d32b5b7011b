"""DeviceNetwork: the devices, and the latency and rate between every two of them.

Units:   seconds, Gbit/s.
Errors:  Unusable, one line that says what to change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pswarm.base.errors import Unusable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ASYMMETRY_MAX = 1e-6  # relative: more is a matrix of another meaning, not rounding


@dataclass(frozen=True, slots=True, eq=False)
class DeviceNetwork:
    """The links between devices, the same both ways; to itself a device sends for nothing."""

    latency_s_nn: Floats
    gbps_nn: Floats

    @classmethod
    def read(
        cls,
        latency_s: Sequence[Sequence[float]],
        gbps: Sequence[Sequence[float]],
        access_gbps: Sequence[float] | None = None,
    ) -> "DeviceNetwork":
        """A network out of numbers that a user wrote; Unusable if they cannot be one.

        `access_gbps`: what each device's own line carries, which bounds each of its links.
        """
        latency_s_nn = _square(latency_s, "latency_s")
        gbps_nn = _square(gbps, "gbps")
        if latency_s_nn.shape != gbps_nn.shape:
            raise Unusable(
                f"latency_s is of {len(latency_s_nn)} devices and gbps of {len(gbps_nn)}: "
                "name the same devices in both"
            )
        _check(latency_s_nn, "latency_s", least=0.0)
        if access_gbps is not None:
            gbps_nn = _within_access(gbps_nn, access_gbps)
        _check(gbps_nn, "gbps", least=np.finfo(np.float64).tiny)
        np.fill_diagonal(latency_s_nn, 0.0)
        np.fill_diagonal(gbps_nn, np.inf)
        return cls(latency_s_nn, gbps_nn)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.gbps_nn)


def alike(costs_xnn: Sequence[Floats], most: int | None = None) -> list[list[int]]:
    """Devices that can change places without any cost changing, as classes in order of device.

    `most`: how many classes are of use; with more it stops, and there is one class over that.
    """
    classes: list[list[int]] = []
    for device in range(len(costs_xnn[0])):
        for members in classes:
            if all(_exchangeable(cost_nn, members, device) for cost_nn in costs_xnn):
                members.append(device)
                break
        else:
            classes.append([device])
            if most is not None and len(classes) > most:
                break
    return classes


def _exchangeable(cost_nn: Floats, members: Sequence[int], device: int) -> bool:
    """Whether a device is linked to all others as the members of a class are, and to them."""
    first = members[0]
    elsewhere = np.ones(len(cost_nn), bool)
    elsewhere[[first, device]] = False
    if not np.array_equal(cost_nn[first][elsewhere], cost_nn[device][elsewhere]):
        return False
    return len(members) == 1 or bool(cost_nn[first, device] == cost_nn[first, members[1]])


def _square(rows: Sequence[Sequence[float]], name: str) -> Floats:
    try:
        matrix_nn: Floats = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        matrix_nn = np.empty(0)
    if matrix_nn.ndim != 2 or matrix_nn.shape[0] != matrix_nn.shape[1]:  # noqa: PLR2004
        lengths = sorted({len(row) if isinstance(row, list | tuple) else 0 for row in rows})
        raise Unusable(
            f"{name} has {len(rows)} rows of {', '.join(map(str, lengths)) or 'no'} numbers: "
            "give one row for each device, with a number for every device in it"
        )
    return matrix_nn


def _check(matrix_nn: Floats, name: str, least: float) -> None:
    """Every link has a number that can be; both directions have the same."""
    links_nn = ~np.eye(len(matrix_nn), dtype=bool)
    for one, other in np.argwhere(links_nn & ~(np.isfinite(matrix_nn) & (matrix_nn >= least))):
        raise Unusable(
            f"{name} between devices {one} and {other} is {matrix_nn[one, other]:g}: "
            "give what was measured, or a low rate for a link that is not there"
        )
    apart_nn = np.abs(matrix_nn - matrix_nn.T) > ASYMMETRY_MAX * np.abs(matrix_nn)
    for one, other in np.argwhere(links_nn & apart_nn):
        raise Unusable(
            f"{name} from {one} to {other} is {matrix_nn[one, other]:g} and back "
            f"{matrix_nn[other, one]:g}: give the mean of both directions"
        )


def _within_access(gbps_nn: Floats, access_gbps: ArrayLike) -> Floats:
    try:
        access_n: Floats = np.asarray(access_gbps, dtype=np.float64)
    except (TypeError, ValueError):
        access_n = np.empty(0)
    if access_n.shape != (len(gbps_nn),):
        raise Unusable(f"access_gbps has {access_n.size} numbers: give one for each device")
    for device in np.flatnonzero(~(np.isfinite(access_n) & (access_n > 0))):
        raise Unusable(
            f"access_gbps of device {device} is {access_n[device]:g}: give a rate over 0"
        )
    return np.minimum(gbps_nn, np.minimum(access_n[:, None], access_n[None, :]))
