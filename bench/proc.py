"""The kernel's word on a process: memory, threads and processor time, as proc(5) describes them."""

import os
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def status(pid: int | str, field: str) -> int:
    """A number of a process's status; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def memory_bytes(pid: int | str, field: str = "VmRSS") -> int:
    """The memory of a process, or the most it had so far (`VmHWM`)."""
    return 1024 * status(pid, field)


def cpu_s(pid: int | str) -> float:
    """The processor time of a process and all its threads; 0 once it is gone."""
    return sum(_times(pid)[1:]) * TICK_S


def family_cpu_s(roots: list[int]) -> float:
    """The processor time of processes and of all their descendants that live."""
    stats = {int(p.name): _times(p.name) for p in Path("/proc").glob("[0-9]*")}
    ticks, family = 0, set(roots)
    for pid, (parent, user, system) in sorted(stats.items()):
        if pid in family or parent in family:
            family.add(pid)
            ticks += user + system
    return ticks * TICK_S


def _times(pid: int | str) -> tuple[int, int, int]:
    """The parent, and ticks in user mode and in the kernel: fields 4, 14 and 15."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0, 0
    return int(fields[1]), int(fields[11]), int(fields[12])
