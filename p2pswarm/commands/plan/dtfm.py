"""The command `p2pswarm plan`: reads what a user measured, searches, and says what was found.

Units:   seconds, Gbit and Gbit/s.
"""

import json
import time
from pathlib import Path
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target, read_small, write_answer
from p2pswarm.commands.arguments import say
from p2pswarm.net.os.system_limits import usable_processors
from p2pswarm.plan.dtfm import DtfmTask, LinkCosts
from p2pswarm.plan.dtfm_search import Plan, SearchBudget, search
from p2pswarm.plan.network import DeviceNetwork

DEVICES_MAX = 4096  # a matrix of them is 128 MiB
FILE_BYTES_MAX = 2 * DEVICES_MAX**2 * 24  # two matrices, each number with all of its digits


def main(matrix: Path, seconds: float, seed: int, out: Path | None) -> int:
    """Search, and print what was found; returns the exit code."""
    if out is not None:
        check_target(out)
    task, network = _read(matrix)
    effort = SearchBudget(seconds, seed, time.monotonic, usable_processors())
    found = search(LinkCosts.of(network, task), task, effort)
    say("\n".join(_lines(found)))
    if out is not None:
        written = write_answer(out, json.dumps(_as_json(found)) + "\n")
        say(f"plan: {written}")
    return 0


def _read(path: Path) -> tuple[DtfmTask, DeviceNetwork]:
    """The task and the network of a file; Unusable says what is wrong with it."""
    given = _TaskFile(path)
    task = DtfmTask(
        given.whole("stages"),
        given.whole("pipelines"),
        given.number("gradient_gbit"),
        given.number("activation_gbit"),
    )
    if task.stages * task.pipelines > DEVICES_MAX:
        raise Unusable(f"{path} asks for more than {DEVICES_MAX} devices: plan a part of them")
    access = given.rows("access_gbps") if given.has("access_gbps") else None
    return task, DeviceNetwork.read(given.rows("latency_s"), given.rows("gbps"), access)


class _TaskFile:
    """The file that a user wrote, field by field."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = read_small(path, FILE_BYTES_MAX, "it is no matrix")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unusable(f"{path} is no JSON: {error}; see p2pswarm plan --help") from error
        if not isinstance(fields, dict):
            raise Unusable(f"{path} is no JSON object: see p2pswarm plan --help")
        self._fields: dict[str, Any] = fields

    def has(self, name: str) -> bool:
        """Return whether a field is there."""
        return self._fields.get(name) is not None

    def rows(self, name: str) -> list[Any]:
        """A field that is a list."""
        value = self._get(name)
        if not isinstance(value, list):
            raise Unusable(f"{name} in {self._path} is no list: give the numbers of each device")
        return value

    def whole(self, name: str) -> int:
        """A field that is a whole number."""
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unusable(f"{name} in {self._path} is {value!r:.40}: give a whole number")
        return value

    def number(self, name: str) -> float:
        """A field that is a number."""
        value = self._get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Unusable(f"{name} in {self._path} is {value!r:.40}: give a number")
        try:
            return float(value)
        except OverflowError as error:
            raise Unusable(f"{name} in {self._path} is {value!r:.40}...: too large") from error

    def _get(self, name: str) -> Any:
        if not self.has(name):
            raise Unusable(f"{self._path} has no {name}: see p2pswarm plan --help")
        return self._fields[name]


def _lines(found: Plan) -> list[str]:
    """Return what was found, for people."""
    stages = [
        f"  stage {number:3d}  devices {' '.join(map(str, devices))}"
        for number, devices in enumerate(found.stages)
    ]
    if found.proven:
        quality = "no plan costs less: proven"
    elif found.lower_bound_s > 0:
        above = found.seconds / found.lower_bound_s - 1
        quality = f"{100 * above:.0f} % above {found.lower_bound_s:.3f} s, which no plan is under"
    else:
        quality = "nothing is known of the best"
    return [f"{found.seconds:.3f} s an iteration; {quality}", *stages]


def _as_json(found: Plan) -> dict[str, Any]:
    return {
        "seconds_per_step": found.seconds,
        "lower_bound": found.lower_bound_s,
        "proven": found.proven,
        "stages": [list(devices) for devices in found.stages],
        "objective": "dtfm",
        "evaluations": found.evaluations,
    }
