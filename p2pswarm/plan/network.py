"""DeviceNetwork: the devices, and the latency and rate between every two of them."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

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
        """Return how many devices there are."""
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
    except (TypeError, ValueError, OverflowError):
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
    except (TypeError, ValueError, OverflowError):
        access_n = np.empty(0)
    if access_n.shape != (len(gbps_nn),):
        raise Unusable(f"access_gbps has {access_n.size} numbers: give one for each device")
    for device in np.flatnonzero(~(np.isfinite(access_n) & (access_n > 0))):
        raise Unusable(
            f"access_gbps of device {device} is {access_n[device]:g}: give a rate over 0"
        )
    return np.minimum(gbps_nn, np.minimum(access_n[:, None], access_n[None, :]))


FOLDER = "networks"
MS_A_SECOND = 1000
NAMES_MAX = 12  # of regions, in one line


@dataclass(frozen=True, slots=True)
class RegionNetwork:
    """Regions of a cloud, as others have measured them; the same both ways.

    Two machines of two regions get one rate, however many pairs send at once: none of the
    measurements says more.
    """

    name: str
    about: str
    """The source of the numbers, in a sentence or two."""
    regions: tuple[str, ...]
    rtt_s: tuple[tuple[float, ...], ...]
    """Round trips; on the diagonal between two machines of one region."""
    gbps: tuple[tuple[float, ...], ...]

    def index(self, region: str) -> int:
        """The place of a region in the rows; Unusable if the network does not have it."""
        try:
            return self.regions.index(region)
        except ValueError:
            small = {known.casefold(): known for known in self.regions}
            near = difflib.get_close_matches(region.casefold(), small, 1)
            hint = f"did you mean {small[near[0]]!r}?" if near else ""
            more = len(self.regions) - NAMES_MAX
            names = ", ".join(self.regions[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
            there = hint or f"there are {names}"
            raise Unusable(f"network {self.name} has no region {region!r:.60}: {there}") from None

    def only(self, regions: Sequence[str]) -> "RegionNetwork":
        """The same network, with these regions alone and in this order."""
        places = [self.index(region) for region in regions]
        return RegionNetwork(
            self.name,
            self.about,
            tuple(regions),
            tuple(tuple(self.rtt_s[a][b] for b in places) for a in places),
            tuple(tuple(self.gbps[a][b] for b in places) for a in places),
        )


def shipped_names() -> tuple[str, ...]:
    """The names of the networks, in order."""
    folder = files(__package__) / FOLDER
    found = (file.name for file in folder.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


@lru_cache
def shipped_network(name: str) -> RegionNetwork:
    """The network of this name; Unusable lists those that there are."""
    if name not in shipped_names():
        raise Unusable(
            f"no network {name!r:.60} ships with p2pswarm: there are {', '.join(shipped_names())}"
        )
    text = (files(__package__) / FOLDER / f"{name}.json").read_text(encoding="utf-8")
    found = json.loads(text)
    return RegionNetwork(
        name,
        found["about"],
        tuple(found["regions"]),
        _filled(found["rtt_ms"], found["within_rtt_ms"], MS_A_SECOND),
        _filled(found["gbps"], found["within_gbps"], 1),
    )


def _filled(
    rows: Sequence[Sequence[float | None]], within: float, parts: int
) -> tuple[tuple[float, ...], ...]:
    """The rows in a unit of so many parts, with what holds within a region on the diagonal."""
    return tuple(
        tuple((within if a == b or value is None else value) / parts for b, value in enumerate(row))
        for a, row in enumerate(rows)
    )
