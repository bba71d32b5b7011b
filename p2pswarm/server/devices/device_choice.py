"""The devices that `serve.device` names, and the memory that each has free for graphs.

Errors:  Unusable, with what is allowed, for names of which torch has no device.
Source:  proc_meminfo(5), `MemAvailable`.
"""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.torch_device import first_line
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.settings.config import RunConfig

BF16 = "bf16"
ALL = "cuda:all"
KINDS = ("cuda", "cpu")  # what torch's sharding has collectives for; cpu: to try it
MEMINFO = Path("/proc/meminfo")
KIB, MIB = 1 << 10, 1 << 20
GRAPH_MIB = 1_024  # of a host, which other processes need as well
GRAPH_SHARE = 0.5  # of a GPU; the rest: what a forward needs for a moment, codecs, other programs
ROOM_SHARE = 0.5  # of a GPU: the rest of it; of a host: other programs


def devices_of(setting: str, gpus: int | None = None) -> tuple[str, ...]:
    """The names in a setting; `gpus`: how many this host has, left out: as torch says."""
    gpus = torch.cuda.device_count() if gpus is None else gpus
    if setting == ALL:
        if not gpus:
            raise Unusable(f"serve.device {setting!r}: torch sees no GPU here")
        return tuple(f"cuda:{number}" for number in range(gpus))
    names = tuple(name.strip() for name in setting.split(","))
    if len(names) > 1:
        _check(setting, names, gpus)
    return names


def one_device(setting: str) -> torch.device:
    """The device of that name, which torch can use here."""
    remedy = 'set it to "auto", "cpu" or "cuda:0"'
    try:
        device = torch.empty(0, device=setting).device
    except Exception as error:  # for a device that it was not built for torch raises anything
        raise Unusable(f"serve.device {setting!r}: {first_line(error)}: {remedy}") from error
    if device.type == "meta":
        raise Unusable(f"serve.device {setting!r} has no memory and computes no numbers: {remedy}")
    return device


def require_dtypes(
    run: RunConfig, device: torch.device, make: Callable[..., object] = torch.empty
) -> None:
    """Raise Unusable for a device that lacks a dtype of the run; `make` makes a tensor."""
    due = {run.model.dtype: f"run.model.dtype is {run.model.dtype}"}
    if run.precision == BF16:
        due.setdefault("bfloat16", f"run.precision is {BF16}")
    for dtype, why in due.items():
        try:
            make(1, dtype=DTYPES[dtype], device=device)
        except (RuntimeError, TypeError) as error:
            raise Unusable(
                f"serve.device {device}: {dtype} is a dtype the device lacks ({why}): set "
                f"serve.device to another one ({first_line(error)})"
            ) from error


def _check(setting: str, names: tuple[str, ...], gpus: int) -> None:
    """Raise Unusable for several names that cannot compute together."""
    for name in names:
        kind, _, number = name.partition(":")
        if kind not in KINDS or (kind == "cuda") != number.isdecimal():
            raise Unusable(
                f"serve.device {setting!r}: {name!r} cannot share a stage: write {ALL}, or some as "
                "in cuda:0,cuda:1"
            )
        if kind == "cuda" and int(number) >= gpus:
            raise Unusable(f"serve.device {setting!r}: torch sees {gpus} GPUs here, not {name!r}")
        if kind == "cuda" and names.count(name) > 1:
            raise Unusable(f"serve.device {setting!r}: {name} stands there twice")
    if len({name.partition(":")[0] for name in names}) > 1:
        raise Unusable(f"serve.device {setting!r}: devices that share a stage are of one kind")


def free_bytes(device: torch.device, meminfo: Path = MEMINFO) -> int | None:
    """The free memory of a CUDA device by its driver, or of the host by its kernel (Linux only).

    What torch has taken from the driver and does not use is free, too.
    """
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # a device that is lost has other errors to tell
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return int(torch.cuda.mem_get_info(device)[0]) + cached
        return None
    if device.type != "cpu":
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):  # another system, another format
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB
    return None


def graph_bytes(asked_mib: int, device: torch.device, free: int | None, engine_bytes: float) -> int:
    """The memory for graphs: as asked, else (0) of the free bytes what `engine_bytes` leave."""
    if asked_mib:
        return asked_mib * MIB
    if device.type != "cuda" or free is None:
        return GRAPH_MIB * MIB
    return max(0, int(GRAPH_SHARE * (free - engine_bytes)))


def room_bytes(free: int | None, engine_bytes: float) -> float:
    """The room for one graph that is made for a backward at once, beside those that are kept.

    A larger one is made block by block: a host has no error to tell when its memory is gone.
    """
    return math.inf if free is None else max(0.0, ROOM_SHARE * (free - engine_bytes))
