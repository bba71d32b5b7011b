"""Processes that start in milliseconds: forks of one that has imported torch and p2pswarm.

A fork has a session, an environment, a folder and three streams of its own, like any process. It
calls one function, and ends as an interpreter does. Only the imports, which take seconds, are
shared. The server has a single thread, or a fork could inherit a lock that nobody will release.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

if sys.platform != "win32":
    import fcntl

PRELOADED = (
    *("p2pswarm.cli", "p2pswarm.command_line", "p2pswarm.node.process", "p2pswarm.node.roles"),
    *("p2pswarm.node.serve", "p2pswarm.node.train", "p2pswarm.net.os.event_loop"),
    *("p2pswarm.commands.status.ask", "p2pswarm.server.devices.rank", "p2pswarm.web.page_server"),
    *("torch._dynamo", "cryptography.hazmat.backends.openssl.backend"),  # by first use of theirs
)
COMMAND = "p2pswarm.cli:main"
MOST_BYTES = 1 << 17  # of a request: what it calls, with what, and environment
MOST_DESCRIPTORS = 253  # of a message, on Linux
NO_STREAM = 1 << 9  # above each number that a descriptor had with its asker
EXIT_BYTES = 16


def environment() -> dict[str, str]:
    """The environment of each process: one torch thread, and each line told at once."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class ForkServer:
    """The server, as the program that asks it for processes sees it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment(),
            )

    def command(
        self, flags: list[str], folder: Path, errors: IO[bytes], inside: Sequence[str] = ()
    ) -> "Forked":
        """Start `p2pswarm` with these flags, and with pipes to its streams.

        `inside`: files of the namespaces that it enters.
        """
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        process = self.start(
            *(COMMAND, (flags,), (read_in, write_out, errors.fileno())),
            arguments=["p2pswarm", *flags],
            folder=folder,
            inside=inside,
            environment=environment(),
        )
        process.stdin, process.stdout = open(write_in, "w"), open(read_out)  # noqa: SIM115, PTH123
        os.close(read_in)
        os.close(write_out)
        return process

    def start(
        self,
        function: str,
        given: tuple[Any, ...],
        streams: tuple[int, int, int],
        *,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path | None = None,
        path: Sequence[str] = (),
        inside: Sequence[str] = (),
        descriptors: Sequence[int] = (),
    ) -> "Forked":
        """Start a process that calls `module:function`; its result is the exit code.

        `path`: where it looks for modules, too. `descriptors`: they have the same numbers there.
        """
        process = Forked()
        request = {
            "function": function,
            "given": pickle.dumps(given),
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder or Path.cwd()),
            "path": list(path),
            "inside": list(inside),
            "numbers": list(descriptors),
        }
        asked = pickle.dumps(request)
        assert len(asked) <= MOST_BYTES
        theirs = [process.their_parent, *streams, *descriptors]
        socket.send_fds(self._control, [asked], theirs)
        process.begin()
        return process

    def close(self) -> None:
        """End the server; what it has started lives on."""
        self._control.close()
        self._process.wait()


class Forked:
    """A forked process with what tests use of `subprocess.Popen`."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        self._parent, their_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.their_parent = their_parent.detach()
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.pid = 0

    def begin(self) -> None:
        """Wait until it lives."""
        os.close(self.their_parent)
        said = self._parent.recv(EXIT_BYTES)
        assert said, "the fork server has ended"
        self.pid = int(said)

    def fileno(self) -> int:
        """A descriptor that can be read once the process is over."""
        return self._parent.fileno()

    def poll(self) -> int | None:
        """The exit code, as of `Popen`; None while it runs."""
        if self._waiting.acquire(blocking=False):
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._end(0.0)
            finally:
                self._waiting.release()
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end, in any thread; returns the exit code."""
        with self._waiting:
            return self._end(timeout_s)

    def _end(self, timeout_s: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._parent], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_s or 0.0)
            said = self._parent.recv(EXIT_BYTES)
            assert said, "the parent of the process was killed"
            self.returncode = int(said)
            self._parent.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is over."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its exit code is on its way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def serve(control: socket.socket) -> None:
    """Fork a process for each request, until nobody is left who could ask."""
    for name in PRELOADED:
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 (names are enough)
    assert len(threads) == 1, threads
    gc.collect()
    gc.freeze()  # a fork that looks for garbage, or ends, copies no page of what is there now
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a parent
    while True:
        asked, received, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_DESCRIPTORS)
        if not asked:
            return
        if os.fork() == 0:
            control.close()
            request = pickle.loads(asked)
            with socket.socket(fileno=received[0]) as to_asker:
                watch(to_asker, received[1:], [0, 1, 2, *request["numbers"]])
            sys.exit(called(request))
        for each in received:
            os.close(each)


def called(request: dict[str, Any]) -> Any:
    """Call the function of a request as its first one in a process of its own."""
    for namespace in request["inside"]:
        enter(namespace)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["arguments"]
    sys.path[:1] = [request["folder"], *request["path"]]  # as `python -m` has it
    module, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(*pickle.loads(request["given"]))


def enter(namespace: str) -> None:
    """Enter a namespace, as `nsenter` does. `os.setns` is there from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    if libc.setns(descriptor, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    os.close(descriptor)


def watch(to_asker: socket.socket, descriptors: list[int], numbers: list[int]) -> None:
    """Fork once more: the child returns, as a process of its own; the parent tells how it ends.

    The child has the descriptors at these numbers.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        to_asker.send(b"%d" % os.getpid())  # by the child: from now on its group may be killed
        to_asker.close()  # its number may be asked for
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD, NO_STREAM) for each in descriptors]
        for each in descriptors:
            os.close(each)
        for each, number in zip(moved, numbers, strict=True):
            os.dup2(each, number)
            os.close(each)
        return
    for each in (*descriptors, 0, 1, 2):
        os.close(each)
    with contextlib.suppress(OSError):  # the asker was killed
        _, status = os.waitpid(pid, 0)
        to_asker.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        serve(asked)
