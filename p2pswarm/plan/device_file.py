"""The file of devices that a user writes, as checked values, and the fleet that they make."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.codec_costs import CODEC_CHOICES
from p2pswarm.plan.fleet import BYTES_PER_GBIT, CONNECTIONS_MAX, DeviceFleet
from p2pswarm.plan.network import DeviceNetwork, Floats, RegionNetwork, shipped_network
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.limits import Between, OneOf, Text

DEVICES_MAX = 4096  # a matrix of them is 128 MiB
TFLOPS = 1e12
WINDOW_GBIT = 0.085  # what one connection has on its way over a long road, in the data of `aws`
AGGREGATES = {"skyplane"}
"""Networks whose rates are those of 64 connections together."""

SITE_RTT_S = 0.001  # a local network, between a trainer and the one device beside it

UNKNOWN = math.inf
"""A machine of which only the speed is known can be simulated; to plan takes all."""

Codecs = Annotated[str, OneOf(*CODEC_CHOICES)]
Gbps = Annotated[float, Between(1e-6, 1e5)]
SiteName = Annotated[str, Text(64)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteDevices:
    """Some devices of one kind at one place."""

    name: str = ""
    """Of the kind; empty: `device` and its number in the file."""
    count: Annotated[int, Between(1, DEVICES_MAX)] = 1
    region: SiteName = ""
    """Of the network, or a name of one's own that has links."""
    tflops: Annotated[float, Between(1e-6, 1e6)]
    """What one reaches in training, not what its data sheet says."""
    memory_gib: Annotated[float, Between(1e-3, 1e5)] = UNKNOWN
    access_gbps: Gbps = UNKNOWN
    """What its own line carries, each way."""
    up_gbps: Gbps = UNKNOWN
    """What it carries away, where that is less: as much goes out as comes in."""
    price_per_hour: Annotated[float, Between(0.0, 1e6)] = 0.0
    """What one costs, in any currency."""
    drift: Annotated[float, Between(0.0, 1.0)] = 0.0
    """How much its speed wanders: for `p2pswarm simulate`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteLink:
    """What two devices of two sites get, or two of one site."""

    between: tuple[SiteName, ...]
    rtt_ms: Annotated[float, Between(0.0, 1e5)]
    gbps: Gbps
    """Of one connection."""

    def __post_init__(self) -> None:
        if len(self.between) != 2:  # noqa: PLR2004
            raise ValueError(
                f"between names {len(self.between)} sites: name two, or the same one twice for "
                "devices of one site"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """What the planner may choose."""

    stages: tuple[Annotated[int, Between(1, 256)], ...] = ()
    """One number, or several to choose from; empty: any."""
    codecs: tuple[Codecs, ...] = ("bf16",)
    """Of activations and their gradients, to choose from."""
    connections: Annotated[int, Between(1, CONNECTIONS_MAX)] = 4
    """The most TCP connections of a link."""
    working_gib: Annotated[float, Between(0.0, 1e4)] = 1.0
    """Memory of a server beside weights, moments and sums: `serve.graph_mib`."""
    averaging_overlaps: bool = False
    """Averaging goes on while the next step computes; p2pswarm waits for it."""

    def __post_init__(self) -> None:
        if not self.codecs:
            raise ValueError("codecs is empty: name one at least, or leave the setting out")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFile:
    """The whole file."""

    network: Annotated[str, OneOf("", "aws", "skyplane", "gcp12")] = ""
    """Whose regions are sites and have links; empty: none, every link is given."""
    trainer_region: str = ""
    """For `p2pswarm simulate`."""
    device: tuple[SiteDevices, ...] = ()
    link: tuple[SiteLink, ...] = ()
    plan: PlanOptions = field(default_factory=PlanOptions)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        if not self.device:
            raise ValueError(
                "there is no [[device]]: name the machines that there are, and count if several"
            )
        if sum(entry.count for entry in self.device) > DEVICES_MAX:
            raise ValueError(f"there are more than {DEVICES_MAX} devices: plan a part of them")
        names = self.kinds
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two [[device]] are named {twice[0]!r}: give each a name of its own")

    @property
    def kinds(self) -> list[str]:
        """The names of the kinds of devices, in the file's order."""
        return [entry.name or f"device{number}" for number, entry in enumerate(self.device, 1)]


def fleet_of(given: DeviceFile) -> DeviceFleet:
    """The devices one by one, with a link between every two; Unusable names what lacks."""
    for number, entry in enumerate(given.device):
        known = {"region": "", "memory_gib": UNKNOWN, "access_gbps": UNKNOWN}
        if lacks := [name for name, value in known.items() if getattr(entry, name) == value]:
            raise Unusable(f"device[{number}].{lacks[0]} is missing: a plan needs it")
    entries = [entry for entry in given.device for _ in range(entry.count)]
    named = list(zip(given.kinds, given.device, strict=True))
    names = tuple(
        kind if entry.count == 1 else f"{kind}-{number}"
        for kind, entry in named
        for number in range(1, entry.count + 1)
    )
    sites = list(dict.fromkeys(entry.region for entry in entries))
    rtt_s_ss, gbps_ss = _links(given, sites, AGGREGATES)
    site_n = [sites.index(entry.region) for entry in entries]
    pick = np.ix_(site_n, site_n)
    latency_s_nn, gbps_nn = rtt_s_ss[pick] / 2, gbps_ss[pick]
    np.fill_diagonal(latency_s_nn, 0.0)
    np.fill_diagonal(gbps_nn, 1.0)
    network = DeviceNetwork.read(latency_s_nn.tolist(), gbps_nn.tolist())
    return DeviceFleet(
        names,
        tuple(kind for kind, entry in named for _ in range(entry.count)),
        np.array([entry.tflops for entry in entries]) * TFLOPS,
        np.array([entry.memory_gib for entry in entries]) * 2.0**30,
        np.array([min(entry.access_gbps, entry.up_gbps) for entry in entries]) * BYTES_PER_GBIT,
        network,
        given.plan.connections,
        frozenset(n for n, entry in enumerate(entries) if entry.up_gbps < entry.access_gbps),
        prices if any(prices := tuple(entry.price_per_hour for entry in entries)) else (),
    )


def region_network(given: DeviceFile) -> RegionNetwork:
    """The sites of the devices and of the trainer, with the file's own links among them."""
    trainer = (given.trainer_region,) if given.trainer_region else ()
    sites = list(dict.fromkeys([*(entry.region for entry in given.device), *trainer]))
    rtt_s_ss, gbps_ss = _links(given, sites, frozenset())
    np.fill_diagonal(rtt_s_ss, np.nan_to_num(rtt_s_ss.diagonal(), nan=SITE_RTT_S))
    rows = (tuple(map(tuple, matrix_ss.tolist())) for matrix_ss in (rtt_s_ss, gbps_ss))
    return RegionNetwork(given.network or "of the file", "the file's links", tuple(sites), *rows)


def _links(
    given: DeviceFile, sites: list[str], aggregates: Collection[str]
) -> tuple[Floats, Floats]:
    """Round trips (s) and rates (Gbit/s) between sites.

    `aggregates`: networks of whose rates the part of one connection is wanted.
    """
    count = len(sites)
    rtt_s_ss, gbps_ss = np.full((2, count, count), np.nan)
    if given.network:
        shipped = shipped_network(given.network)
        own = {site for link in given.link for site in link.between}
        known = [site for site in sites if site in shipped.regions or site not in own]
        places = [shipped.index(site) for site in known]
        here = [sites.index(site) for site in known]
        rtt_s_ss[np.ix_(here, here)] = np.array(shipped.rtt_s)[np.ix_(places, places)]
        rates_ss = np.array(shipped.gbps)[np.ix_(places, places)]
        if given.network in aggregates:
            rates_ss = np.minimum(rates_ss, WINDOW_GBIT / rtt_s_ss[np.ix_(here, here)])
        gbps_ss[np.ix_(here, here)] = rates_ss
    for link in given.link:
        for site in link.between:
            if site not in sites:
                raise Unusable(
                    f"a [[link]] names the site {site!r}, where no [[device]] is: correct the "
                    "name, or drop the link"
                )
        a, b = (sites.index(site) for site in link.between)
        rtt_s_ss[a, b] = rtt_s_ss[b, a] = link.rtt_ms / 1e3
        gbps_ss[a, b] = gbps_ss[b, a] = link.gbps
    _require_all(given, sites, gbps_ss)
    return rtt_s_ss, gbps_ss


def _require_all(given: DeviceFile, sites: list[str], gbps_ss: Floats) -> None:
    counts = dict.fromkeys(sites, 0)
    for entry in given.device:
        counts[entry.region] += entry.count
    for a, b in np.argwhere(np.isnan(gbps_ss)):
        one, other = sites[a], sites[b]
        if a == b and counts[one] <= 1:
            gbps_ss[a, b] = 1.0  # of a device to itself; or to a simulated trainer beside it
            continue
        raise Unusable(
            f"there is no link between {one!r} and {other!r}: add [[link]] with between = "
            f'["{one}", "{other}"], its rtt_ms and gbps'
        )
