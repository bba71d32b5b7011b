"""Network namespaces that live exactly as long as one process, and the hosts in them.

A host has a device, `wan0`, that leads to the emulator. A namespace without one is for whoever
opened the lab to connect: `tests/natlab` puts hosts behind routers so.

No name under /run/netns is made, so nothing has to be swept up: a namespace
is held by descriptors of this process and by the processes within it, and
those are killed when the lab ends.

Units:   none.
Errors:  OSError with the remedy in its text where the kernel does not allow it.
Source:  unshare(2), user_namespaces(7), network_namespaces(7);
         Documentation/networking/tuntap.rst.
"""

import ctypes
import fcntl
import ipaddress
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

DEVICE = "wan0"
TUN_QUEUE_PACKETS = 10_000  # drops belong to the link's queue: the device must never be the first
SWEEPS_MAX = 50  # each kills what forked meanwhile; far more rounds than any fork bomb of ours

_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6, _TUN_F_TSO_ECN = 0x01, 0x02, 0x04, 0x08
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace, as the emulator holds it."""

    namespace_fd: int
    tun_fd: int
    addresses: tuple[bytes, ...]
    """Where packets for this host go, as in packets; IPv6 where the kernel has it."""


def enter_user_namespace() -> bool:
    """Become root in a user namespace of our own, if we are not root already."""
    if os.geteuid() == 0:
        return False
    uid, gid = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER, "user namespaces are not allowed here; become root, or allow them")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    return True


def make_namespace(sysctls: dict[str, str]) -> int:
    """A descriptor of a new network namespace with nothing in it. This thread ends up inside."""
    if shutil.which("ip") is None:
        raise OSError("the command `ip` is missing: install iproute2")
    _unshare(_CLONE_NEWNET, "network namespaces are not allowed here; become root")
    namespace_fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    for name, value in sysctls.items():
        Path("/proc/sys", *name.split(".")).write_text(value)
    _ip("link set lo up")
    return namespace_fd


def make_host(
    own: Sequence[str], behind: Sequence[str], mtu_bytes: int, sysctls: dict[str, str]
) -> Host:
    """A new namespace with `wan0` in it. This thread ends up inside.

    `own`: the addresses of `wan0`, as ADDRESS/PREFIX; `behind`: what is to be sent there, too.
    """
    namespace_fd = make_namespace(sysctls)
    tun_fd = _open_tun()
    has_ipv6 = Path("/proc/sys/net/ipv6").exists()
    usable = [text for text in own if has_ipv6 or ":" not in text]
    nodad = {text: " nodad" if ":" in text else "" for text in usable}
    _ip(
        f"link set {DEVICE} mtu {mtu_bytes} txqueuelen {TUN_QUEUE_PACKETS} up",
        *(f"addr add {text} dev {DEVICE}{nodad[text]}" for text in usable),
    )
    ours = [ipaddress.ip_interface(text).ip for text in (*usable, *behind)]
    return Host(namespace_fd, tun_fd, tuple(ip.packed for ip in ours))


def kill_inhabitants(namespace_fds: Iterable[int]) -> None:
    """Kill every process whose network is one of these, until none is left."""
    ours = {os.fstat(fd).st_ino for fd in namespace_fds}
    for _ in range(SWEEPS_MAX):
        found = [pid for pid in _all_pids() if pid != os.getpid() and _network_of(pid) in ours]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.sched_yield()


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _network_of(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # gone, a zombie, or not ours


def _unshare(what: int, remedy: str) -> None:
    if _LIBC.unshare(what) != 0:
        raise OSError(f"{remedy} ({os.strerror(ctypes.get_errno())})")


def _open_tun() -> int:
    try:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        remedy = "become root, or let all users read and write it"
        raise OSError(f"/dev/net/tun cannot be opened ({error.strerror}): {remedy}") from error
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6 | _TUN_F_TSO_ECN)
    return fd


def _ip(*lines: str) -> None:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"ip refused to set up a host: {done.stderr.strip()}")
