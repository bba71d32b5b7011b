"""The processes of a node's devices, as the node has them: started, told, and ended together.

All of them are told the same, because torch's sharding needs every rank in every step of it. One
that fails leaves the others waiting inside torch for ever, so then all are ended.

Errors:  Unusable, with the remedy, when a process fails, and DeviceLost when it is gone: its part
         of the sum is lost.
"""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.server.devices.rank_commands import (
    Begin,
    CommandDone,
    RankCommand,
    RankFailed,
    RankMessage,
    SharedPlace,
    framed,
    read_message,
)
from p2pswarm.settings.node_config import ROWS

MEMORY_REMEDY = (
    'set serve.recompute = "block" or lower serve.graph_mib here, or lower run.batch.rows, and '
)
MODULE = "p2pswarm.server.devices.rank"
LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""The ranks of one host meet on the loopback interface, whatever its name leads to."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices of one node, and their use."""

    devices: tuple[str, ...]
    threads: int = 0
    """Of torch in each process; 0: torch chooses."""
    packages: tuple[str, ...] = ()
    """Whose models the processes may import."""
    graph_mib: int = 0
    """For graphs, on each device; 0: by what it has free."""
    by_block: bool = False
    """Make one block's graph at a time."""
    parallel: str = ROWS
    """`serve.parallel`: what the devices share."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One of them, with our ends of its pipes."""

    device: str
    process: subprocess.Popen[bytes]
    commands: int
    answers: int


class Ranks:
    """One process for each device. They end with this object."""

    def __init__(
        self, run: bytes, stage: int, group: DeviceGroup, places: Sequence[SharedPlace]
    ) -> None:
        """`run`: its settings as JSON."""
        folder = tempfile.mkdtemp(prefix="p2pswarm-ranks-")
        meeting = str(Path(folder) / "meeting")
        self._ranks: list[RankProcess] = []
        self._end = weakref.finalize(self, _end_all, self._ranks, folder)
        self._failure: Unusable | None = None
        for device in group.devices:
            self._ranks.append(_started(device, group.threads, [p.descriptor for p in places]))
        devices, packages = group.devices, group.packages
        options = group.graph_mib, group.by_block, group.parallel
        begins = [
            Begin(run, stage, rank, devices, meeting, packages, *options, tuple(places))
            for rank in range(len(devices))
        ]
        begun = self._each(begins)
        self.keep_bytes = min(answer.graph_bytes for answer in begun)
        """For graphs, on each device."""
        self.weight_bytes = tuple(answer.weight_bytes for answer in begun)
        """Of the weights, on each device."""

    def call(self, method: str, half: int = 0, **arguments: Any) -> list[CommandDone]:
        """Call a method of `RankStage` on all ranks; their answers, in order."""
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        return self._each([RankCommand(method, arguments, half)] * len(self._ranks))

    def end(self) -> None:
        """End all processes now."""
        self._end()

    def _each(self, commands: Sequence[RankMessage]) -> list[CommandDone]:
        answers: dict[int, CommandDone] = {}
        with selectors.DefaultSelector() as selector:
            for number, (rank, command) in enumerate(zip(self._ranks, commands, strict=True)):
                selector.register(rank.answers, selectors.EVENT_READ, number)
                self._tell(rank, command)
            while len(answers) < len(self._ranks):
                for ready, _ in selector.select():
                    answers[ready.data] = self._answer(self._ranks[ready.data])
                    selector.unregister(ready.fd)
        return [answers[number] for number in range(len(self._ranks))]

    def _tell(self, rank: RankProcess, command: RankMessage) -> None:
        data = framed(command)
        try:
            while data:
                data = data[os.write(rank.commands, data) :]
        except BrokenPipeError:
            return  # its answer, or the lack of it, says why

    def _answer(self, rank: RankProcess) -> CommandDone:
        try:
            answer = read_message(partial(os.read, rank.answers))
        except EOFError:
            raise self._gave_up(rank, "its process is gone", DeviceLost) from None
        match answer:
            case CommandDone():
                return answer
            case RankFailed(reason=reason, refused=True):
                self.end()
                self._failure = Unusable(reason)
                raise self._failure
            case RankFailed(reason=reason, out_of_memory=memory):
                raise self._gave_up(rank, reason, remedy=MEMORY_REMEDY if memory else "")
            case _:
                raise self._gave_up(rank, f"it said {type(answer).__name__}")

    def _gave_up(
        self, rank: RankProcess, reason: str, kind: type[Unusable] = Unusable, remedy: str = ""
    ) -> Unusable:
        """End all; what the user is told."""
        self.end()
        why = f"device {rank.device} failed, {remedy}start this node again: {reason}"
        self._failure = kind(why)
        return self._failure


def _started(device: str, threads: int, descriptors: Sequence[int]) -> RankProcess:
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    with _signals_blocked():
        process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", MODULE, str(command_end), str(answer_end)],
            env={**os.environ, **LOCAL, **({"OMP_NUM_THREADS": str(threads)} if threads else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what goes wrong is in its answers, and on stderr
            pass_fds=(command_end, answer_end, *descriptors),
            start_new_session=True,  # Ctrl-C is the node's, which ends us in its own time
        )
    os.close(command_end)
    os.close(answer_end)
    return RankProcess(device, process, commands, answers)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block what asks a process to end, in this thread and in what it starts meanwhile.

    Launchers send SIGTERM to all processes of a job. The node leaves in order only if its devices
    stay until then; they end with their pipe.
    """
    if sys.platform == "win32":  # nothing is started there: its devices are refused
        yield
    else:
        ending = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_all(ranks: list[RankProcess], folder: str) -> None:
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.wait()
        os.close(rank.commands)
        os.close(rank.answers)
    ranks.clear()
    shutil.rmtree(folder)
