"""How much memory a device has free, where the system says so.

Units:   bytes.
Errors:  none; None where nobody can tell.
Source:  proc_meminfo(5), `MemAvailable`.
"""

import contextlib
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
KIB = 1024


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
