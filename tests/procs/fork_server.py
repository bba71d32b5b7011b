"""Processes that start in milliseconds: forks of one that has imported torch and p2pswarm.

A fork has a session, an environment, a folder and three streams of its own, like any process. It
runs the command line from its first flag, and ends as an interpreter does. Only the imports, which
take seconds, are shared. The server has a single thread, or a fork could inherit a lock that nobody
will release.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

PRELOADED = ("p2pswarm.command_line", "p2pswarm.node.serve", "p2pswarm.node.train")
MOST_BYTES = 1 << 17  # of a request: flags and environment
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

    def start(self, flags: list[str], folder: Path, errors: IO[bytes]) -> "Forked":
        """Start `p2pswarm` with these flags."""
        process = Forked()
        request = json.dumps([flags, str(folder), environment()]).encode()
        assert len(request) <= MOST_BYTES
        theirs = [*process.theirs, errors.fileno()]
        socket.send_fds(self._control, [request], theirs)
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
        self._parent, their_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self.stdin, self.stdout = open(write_in, "w"), open(read_out)  # noqa: SIM115, PTH123
        self.theirs = [their_parent.detach(), read_in, write_out]
        self.pid = 0

    def begin(self) -> None:
        """Wait until it lives."""
        for each in self.theirs:
            os.close(each)
        said = self._parent.recv(EXIT_BYTES)
        assert said, "the fork server has ended"
        self.pid = int(said)

    def poll(self) -> int | None:
        """The exit code, as of `Popen`; None while it runs."""
        if self.returncode is None and select.select([self._parent], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        if self.returncode is None:
            said = self._parent.recv(EXIT_BYTES)
            assert said, "the parent of the process was killed"
            self.returncode = int(said)
            self._parent.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is over."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


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
        request, received, _, _ = socket.recv_fds(control, MOST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            flags, folder, variables = json.loads(request)
            parent, *streams = received
            with socket.socket(fileno=parent) as to_asker:
                watch(to_asker, streams)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(variables)
            sys.argv[:] = ["p2pswarm", *flags]
            sys.path[0] = folder  # as `python -m` has it
            cli = importlib.import_module("p2pswarm.cli")
            sys.exit(cli.main(flags))
        for each in received:
            os.close(each)


def watch(to_asker: socket.socket, streams: list[int]) -> None:
    """Fork once more: the child returns, as a process of its own; the parent tells how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        to_asker.send(b"%d" % os.getpid())  # by the child: from now on its group may be killed
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return
    for each in (*streams, 0, 1, 2):
        os.close(each)
    with contextlib.suppress(OSError):  # the asker was killed
        _, status = os.waitpid(pid, 0)
        to_asker.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        serve(asked)
