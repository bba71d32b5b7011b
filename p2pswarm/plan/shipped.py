"""The networks that ship with the program: regions of clouds, as others have measured them.

`networks/*.json` has the numbers, and says of each where it is from. What two machines of two
regions get is one rate, however many pairs send at once: none of the measurements says more.

Units:   seconds, Gbit/s.
Errors:  Unusable, one line, for a network or a region that is not there.
"""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from p2pswarm.base.errors import Unusable

FOLDER = "networks"
MS_A_SECOND = 1000
NAMES_MAX = 12  # of regions, in one line


@dataclass(frozen=True, slots=True)
class RegionNetwork:
    """Regions, and what two machines of them get; the same both ways."""

    name: str
    about: str
    """Where the numbers are from, in a sentence or two."""
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
            there = hint or f"there are {self._some_names()}"
            raise Unusable(f"network {self.name} has no region {region!r:.60}: {there}") from None

    def _some_names(self) -> str:
        more = len(self.regions) - NAMES_MAX
        names = ", ".join(self.regions[:NAMES_MAX])
        return names + (f" and {more} more" if more > 0 else "")

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
    text = (files(__package__) / FOLDER / f"{name}.json").read_text()
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
