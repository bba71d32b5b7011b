"""A node as a process: it joins a swarm, runs its role, and leaves when it is asked to.

The module of the role is imported by name, so a node that others join through never loads torch.
What a role's settings name is read and checked before the node is in a swarm, if it can be
wrong.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from types import FrameType, ModuleType

from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run
from p2pswarm.node.leave_request import INTERRUPTED, LeaveRequest, ending_signals, unless
from p2pswarm.node.leave_request import LEAVE_S as GRACE_S
from p2pswarm.node.progress.banner import greeting
from p2pswarm.node.progress.output import write_line as say
from p2pswarm.node.roles import role_module
from p2pswarm.node.stack.stack import open_stack
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.settings.config import EMULATED, NodeConfig

SWITCH_S = 0.0005  # with 5 ms, bulk beside a busy Python thread ran at 0.41 GB/s instead of 1
LEAVE_S = 4.5  # to leave in order; the whole process then ends within 5 s
FAILED = 1
PLAIN_DEVICES = ("auto", "cpu", EMULATED)
"""Every torch has these, or nothing of torch computes."""


class Shutdown:
    """The end of a process: a signal, the end of stdin, or the role itself asks for it.

    The first signal asks the role to leave, the second ends the process. A process that was asked
    to leave ends after `LEAVE_S` at the latest. SIGTERM is how a machine is told that it will end:
    a stage server then may take the time of its settings to hand over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, config: NodeConfig) -> None:
        self.asked = LeaveRequest()
        self._loop = loop
        self._notice_s = config.serve.grace_s if config.role == "stage" else self.asked.grace_s
        self._begun = False

    def watch_signals(self) -> None:
        """Handle signals from now on, even while the loop is busy."""
        for number in ending_signals():
            signal.signal(number, self._on_signal)

    def watch_stdin(self) -> None:
        """Leave when stdin ends, as it does when the program at its other end ends."""
        threading.Thread(target=self._read_stdin, daemon=True).start()

    async def watch_role(self) -> None:
        """Start the time limit when the role begins to leave by itself."""
        await self.asked.wait()
        self._begin(FAILED)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._begun:
            os._exit(INTERRUPTED)
        if number == signal.SIGTERM:
            self.asked.grace_s = self._notice_s
        self.asked.patient = True
        say("leaving; once more to leave at once")
        self._begin(INTERRUPTED)

    def _read_stdin(self) -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        self._begin(INTERRUPTED)

    def _begin(self, code: int) -> None:
        if self._begun:
            return
        self._begun = True
        limit_s = LEAVE_S + max(0.0, self.asked.grace_s - GRACE_S)
        self._limit(limit_s, code)
        self._loop.call_soon_threadsafe(self.asked.set)

    def _limit(self, seconds: float, code: int) -> None:
        late = threading.Timer(seconds, self._too_late, (code,))
        late.daemon = True
        late.start()

    def _too_late(self, code: int) -> None:
        """End the process, unless what it saves is worth to wait for."""
        if self.asked.saving and self.asked.patient:
            self._limit(LEAVE_S, code)
        else:
            os._exit(code)


def main(config: NodeConfig, begun_s: float) -> int:
    """Run a node; returns the exit code."""
    sys.setswitchinterval(SWITCH_S)
    log_to_stderr(config.log_level, "%(asctime)s %(levelname).1s %(name)s: %(message)s")
    with identity_from(config.key_file) as identity:
        return run(_live(config, identity, begun_s))


def load_role(role: str) -> ModuleType:
    """Import the module of a role; what is there then stays for good.

    Python's search for garbage passes over it from now on. The event loop stands still during a
    full search: for 0.09 s (measured) among the 200,000 objects that come with torch.
    """
    module = role_module(role)
    gc.freeze()
    return module


def told_early(config: NodeConfig) -> bool:
    """Return whether a role's settings may be wrong in what only its module finds.

    Such a node loads its role, mostly torch, before it is in a swarm; any other one meanwhile.
    """
    serve = config.serve
    serves_specially = serve.device not in PLAIN_DEVICES or serve.pretrained is not None
    return config.role == "trainer" or (config.role == "stage" and serves_specially)


def _prepare(config: NodeConfig, identity: Identity) -> tuple[ModuleType, object]:
    """The module of the role, and what it makes of the settings without a network."""
    module = load_role(config.role)
    prepared: object = module.prepare(config, identity, say)
    return module, prepared


async def _live(config: NodeConfig, identity: Identity, begun_s: float) -> int:
    """Prepare the role, join, run it, leave."""
    shutdown = Shutdown(asyncio.get_running_loop(), config)
    shutdown.watch_signals()
    if config.leave_at_eof:
        shutdown.watch_stdin()
    ready: tuple[ModuleType, object] | None = None
    if told_early(config):
        ready = await unless(shutdown.asked, asyncio.to_thread(_prepare, config, identity))
        if ready is None:
            return INTERRUPTED
    async with open_stack(config, identity) as node, asyncio.TaskGroup() as tasks:
        contact = node.endpoint.contact
        for line in greeting(config, contact, time.monotonic() - begun_s):
            say(line)
        watch = tasks.create_task(shutdown.watch_role())
        node.reachability.tell(say)
        if ready is None:
            ready = await asyncio.to_thread(_prepare, config, identity)
        module, prepared = ready
        code: int = await module.run(node, prepared, shutdown.asked, say)
        watch.cancel()
    return code
