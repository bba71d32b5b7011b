"""Makes a Python of Linux look like one of Windows to our package: put this folder on PYTHONPATH.

What Windows lacks is taken away from all, and what it has instead is given to our package alone,
whose `sys.platform` is "win32". Where Windows behaves otherwise, so does this: text mode of
`os.open`, `select` of 512 sockets, the usual loop without readers, loops without signals, a clock
that steps by 16 ms. How NTFS and Winsock behave, it does not show.
"""

import asyncio
import builtins
import ctypes
import errno
import fcntl
import importlib.abc
import importlib.machinery
import math
import os
import select
import selectors
import shutil  # noqa: F401  by what is there before
import signal
import socket
import subprocess
import sys
import tempfile  # noqa: F401
import threading
import time
import types

GONE = {
    socket: "AF_NETLINK AF_PACKET SO_REUSEPORT MSG_DONTWAIT TCP_CONGESTION TCP_NOTSENT_LOWAT "
    "TCP_USER_TIMEOUT TCP_INFO NETLINK_ROUTE SCM_RIGHTS",
    os: "pread pwrite preadv pwritev sched_getaffinity memfd_create getuid geteuid getgid fork "
    "forkpty mkfifo O_NONBLOCK nice setsid killpg getpgid posix_spawn sendfile getloadavg "
    "setpriority getpriority",
    signal: "SIGHUP SIGKILL SIGSTOP SIGCONT SIGUSR1 SIGUSR2 SIGPIPE SIGALRM pthread_kill sigwait "
    "setitimer",
    select: "poll epoll POLLHUP",
    selectors: "EpollSelector PollSelector",
}
SELECTED_MAX = 512
STEP_S = 1 / 64
BINARY = 1 << 30
EXCLUSIVE, SHARE = -5, socket.SO_REUSEPORT
NEW_GROUP = 0x200
BREAK, CONSOLE_CLOSED, KILL = signal.SIGUSR1, signal.SIGUSR2, signal.SIGKILL
CLOSED = 2  # CTRL_CLOSE_EVENT

# locks and files

msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK = 2


def locking(descriptor, mode, nbytes):
    """Locks bytes that nobody may read meanwhile: here, none that a file has."""
    assert (mode, nbytes) == (msvcrt.LK_NBLCK, 1)
    if os.lseek(descriptor, 0, os.SEEK_CUR) < os.fstat(descriptor).st_size:
        raise OSError(errno.EACCES, "others cannot read the file now")
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


msvcrt.locking = locking
in_text_mode = {}
real_open, real_read, real_write = os.open, os.read, os.write


def place(descriptor):
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def text_open(path, flags, mode=0o777, *, dir_fd=None):
    descriptor = real_open(path, flags & ~BINARY, mode, dir_fd=dir_fd)
    in_text_mode.pop(descriptor, None)
    if not flags & BINARY:
        in_text_mode[descriptor] = place(descriptor)
    return descriptor


def is_text(descriptor):
    return in_text_mode.get(descriptor) == place(descriptor)


def text_read(descriptor, nbytes):
    data = real_read(descriptor, nbytes)
    if is_text(descriptor):
        data = data.partition(b"\x1a")[0].replace(b"\r\n", b"\n")
    return data


def text_write(descriptor, data):
    if is_text(descriptor):
        real_write(descriptor, bytes(data).replace(b"\n", b"\r\n"))
        return len(data)
    return real_write(descriptor, data)


os.open, os.read, os.write, os.O_BINARY = text_open, text_read, text_write, BINARY

# sockets and clocks


def receive_into(self, buffer, nbytes=0, flags=0):
    if flags & socket.MSG_TRUNC:
        raise OSError(errno.EOPNOTSUPP, "flags of an answer only")
    return super(socket.socket, self).recv_into(buffer, nbytes, flags)


def set_option(self, level, option, *value):
    if option != EXCLUSIVE:  # Linux has no other way to bind
        super(socket.socket, self).setsockopt(level, option, *value)
    if (level, option) == (socket.SOL_SOCKET, socket.SO_REUSEADDR):
        super(socket.socket, self).setsockopt(level, SHARE, *value)  # even of one who listens


def few_selected(readable, writable, _exceptional, timeout=None):
    if max(len(readable), len(writable)) > SELECTED_MAX:
        raise ValueError("too many file descriptors in select()")
    return real_select(readable, writable, [], timeout)


real_select, real_monotonic, real_info = select.select, time.monotonic, time.get_clock_info
socket.socket.recv_into, socket.socket.setsockopt = receive_into, set_option
socket.SO_EXCLUSIVEADDRUSE = EXCLUSIVE
selectors.SelectSelector._select = staticmethod(few_selected)
selectors.DefaultSelector = selectors.SelectSelector


def coarse_info(name):
    info = real_info(name)
    if name == "monotonic":
        info.resolution = STEP_S
    return info


time.monotonic = lambda: math.floor(real_monotonic() / STEP_S) * STEP_S
time.get_clock_info = coarse_info

# event loops and processes


def refuse(*_arguments, **_named):
    raise NotImplementedError


class SelectorEventLoop(asyncio.SelectorEventLoop):
    """Starts no processes."""

    add_signal_handler = remove_signal_handler = refuse

    async def _make_subprocess_transport(self, *_arguments, **_named):
        raise NotImplementedError


class ProactorEventLoop(asyncio.SelectorEventLoop):
    """Watches no sockets."""

    add_signal_handler = remove_signal_handler = refuse
    add_reader = remove_reader = add_writer = remove_writer = refuse


asyncio.SelectorEventLoop, asyncio.ProactorEventLoop = SelectorEventLoop, ProactorEventLoop
for policy in ("DefaultEventLoopPolicy", "_DefaultEventLoopPolicy"):
    if hasattr(asyncio.unix_events, policy):
        getattr(asyncio.unix_events, policy)._loop_factory = ProactorEventLoop

subprocess.CREATE_NEW_PROCESS_GROUP = NEW_GROUP
real_begin = subprocess.Popen.__init__


def begin(self, *arguments, creationflags=0, **named):
    assert creationflags in (0, NEW_GROUP)
    real_begin(self, *arguments, **named)


def terminate(self):
    self.send_signal(KILL)


subprocess.Popen.__init__ = begin
subprocess.Popen.kill = subprocess.Popen.terminate = terminate

# the console

signal.SIGBREAK = BREAK
console_handlers = []


class Kernel32:
    """Calls handlers as Windows does: each in a thread of its own, when the window is closed."""

    @staticmethod
    def SetConsoleCtrlHandler(handler, _add):  # noqa: N802
        console_handlers.append(handler)
        signal.signal(
            CONSOLE_CLOSED,
            lambda *_: [
                threading.Thread(target=each, args=(CLOSED,), daemon=True).start()
                for each in console_handlers
            ],
        )
        return 1


class IpHelper:
    """Knows no route."""

    @staticmethod
    def GetBestRoute2(*_arguments):  # noqa: N802
        return 1168


ctypes.WINFUNCTYPE = ctypes.CFUNCTYPE
ctypes.WinDLL = lambda name: {"kernel32": Kernel32, "iphlpapi": IpHelper}[name]

# what our package sees


class Pretended(types.ModuleType):
    """`sys` of Windows."""

    platform = "win32"

    def __getattr__(self, name):
        return getattr(sys, name)

    def __setattr__(self, name, value):
        setattr(sys, name, value)


OURS = {"sys": Pretended("sys"), "msvcrt": msvcrt}


def imported(name, *rest):
    return OURS[name] if name in OURS else builtins.__import__(name, *rest)


class Loader(importlib.machinery.SourceFileLoader):
    """Runs a module of ours with imports of its own."""

    def exec_module(self, module):
        module.__builtins__ = {**vars(builtins), "__import__": imported}
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds our modules."""

    @staticmethod
    def find_spec(name, path, target=None):
        if name.partition(".")[0] != "p2pswarm":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, Finder)
for module, names in GONE.items():
    for each in names.split():
        if hasattr(module, each):
            delattr(module, each)
for each in ("fcntl", "resource", "termios", "pwd", "grp", "tty"):
    sys.modules[each] = None
