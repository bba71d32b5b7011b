"""How much memory a device has free, where the system says so, and what of it graphs may take.

Units:   bytes.
Errors:  none; None where nobody can tell.
Source:  proc_meminfo(5), `MemAvailable`.
"""

import contextlib
import math
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
KIB, MIB = 1 << 10, 1 << 20
GRAPH_MIB = 1_024  # of a host, which other processes need as well
GRAPH_SHARE = 0.5  # of a GPU; the rest: what a forward needs for a moment, codecs, other programs
ROOM_SHARE = 0.5  # of a GPU: the rest of it; of a host: other programs


def free_bytes(device: torch.device, meminfo: Path = MEMINFO) -> int | None:
    """Of a CUDA device by its driver, of the host by its kernel (Linux only)."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # a device that is lost has other errors to tell
            return int(torch.cuda.mem_get_info(device)[0])
        return None
    if device.type != "cpu":
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):  # another system, another format
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB
    return None


def graph_bytes(asked_mib: int, device: torch.device, free: int | None, engine_bytes: float) -> int:
    """What graphs may take of a device on which `free` bytes are free.

    `asked_mib`: 0 for what there is room for beside the weights and all else of `engine_bytes`.
    """
    if asked_mib:
        return asked_mib * MIB
    if device.type != "cuda" or free is None:
        return GRAPH_MIB * MIB
    return max(0, int(GRAPH_SHARE * (free - engine_bytes)))


def room_bytes(free: int | None, engine_bytes: float) -> float:
    """What one graph may take that is made for a backward at once, beside those that are kept.

    A larger one is made block by block: a host has no error to tell when its memory is gone.
    """
    return math.inf if free is None else max(0.0, ROOM_SHARE * (free - engine_bytes))
