"""The machines that a user could have, as a file lists them for `p2pswarm simulate`.

    network = "aws"
    [[device]]
    count = 8
    tflops = 8.1
    memory_gib = 16
    region = "Virginia"
    drift = 0.1

Units:   tflops: 10^12 floating-point operations a second, as measured in training; GiB.
Errors:  Unusable, one line with the place in the file and what is allowed.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pswarm.errors import Unusable

FILE_BYTES_MAX = 1 << 20  # a line a device; anything larger is another file
DEVICES_MAX = 1_000
DRIFT_MAX = 1.0
KNOWN = frozenset({"name", "count", "tflops", "memory_gib", "region", "drift"})
TOP = frozenset({"network", "trainer_region", "device"})


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One machine."""

    name: str
    tflops: float
    memory_gib: float
    """Infinite if the file does not say."""
    region: str
    """Empty if the file does not say."""
    drift: float


@dataclass(frozen=True, slots=True)
class DeviceList:
    """All of them."""

    devices: tuple[ListedDevice, ...]
    network: str
    """The name of the network that the regions are of; empty if the file does not say."""
    trainer_region: str


def read_devices(path: Path) -> DeviceList:
    """The machines of a file."""
    table = _table(path)
    if wrong := sorted(table.keys() - TOP):
        raise Unusable(f"{path}: {wrong[0]!r:.40} is unknown: there are {', '.join(sorted(TOP))}")
    rows = table.get("device")
    if not isinstance(rows, list) or not rows:
        raise Unusable(f"{path} lists no machine: add [[device]] with tflops, and count if several")
    found: list[ListedDevice] = []
    for number, row in enumerate(rows, 1):
        found += _devices(f"{path}: device {number}", row)
        if len(found) > DEVICES_MAX:
            raise Unusable(
                f"{path} lists more than {DEVICES_MAX} machines: simulate a part of them"
            )
    where = _text(str(path), table, "network"), _text(str(path), table, "trainer_region")
    return DeviceList(tuple(found), *where)


def _table(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise Unusable(f"{path} is larger than {FILE_BYTES_MAX:,} bytes: it lists no machines")
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}; name another file") from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path} is no TOML: {' '.join(str(error).split())}") from error


def _devices(where: str, row: Any) -> list[ListedDevice]:
    if not isinstance(row, Mapping):
        raise Unusable(f"{where} is {row!r:.40}: write [[device]] and its settings below")
    if wrong := sorted(row.keys() - KNOWN):
        known = ", ".join(sorted(KNOWN))
        raise Unusable(f"{where}: {wrong[0]!r:.40} is unknown: there are {known}")
    if "tflops" not in row:
        raise Unusable(f"{where} has no tflops: say how fast it trains, such as 8.1")
    count = row.get("count", 1)
    if type(count) is not int or not 1 <= count <= DEVICES_MAX:
        raise Unusable(
            f"{where}: count {count!r:.40} is not a whole number from 1 to {DEVICES_MAX}"
        )
    device = ListedDevice(
        _text(where, row, "name"),
        _number(where, row, "tflops", math.inf),
        _number(where, row, "memory_gib", math.inf) if "memory_gib" in row else math.inf,
        _text(where, row, "region"),
        _number(where, row, "drift", DRIFT_MAX) if row.get("drift") else 0.0,
    )
    return [device] * count


def _text(where: str, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str):
        raise Unusable(f"{where}: {name} {value!r:.40} is no text: put it in quotes")
    return value


def _number(where: str, row: Mapping[str, Any], name: str, high: float) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unusable(f"{where}: {name} {value!r:.40} is no number")
    if not 0 < value <= high or math.isinf(value):
        limit = f"to {high:g}" if high < math.inf else "and finite"
        raise Unusable(f"{where}: {name} {value:g} is not above 0 {limit}")
    return float(value)
