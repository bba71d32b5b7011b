"""A node as a process: it joins a swarm, takes up its role, and leaves when it is told.

The role is taken up, by name, when the node is already in the swarm: so a node that others join
through never loads torch.

Units:   seconds.
Errors:  those of the stack and of the role.
"""

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
import time

from p2pswarm.config import NodeConfig
from p2pswarm.crypto.identity import Identity
from p2pswarm.crypto.key_file import identity_from
from p2pswarm.net.event_loop import run
from p2pswarm.roles.greeting import greeting
from p2pswarm.roles.output import write_line as say
from p2pswarm.roles.stack import open_stack

SWITCH_S = 0.0005  # with turns of 5 ms, bulk beside a busy Python thread ran at 0.41, not 1 GB/s
LEAVE_S = 4.5  # to drain and say goodbye; together with the rest it stays below 5 s
FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells count
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Farewell:
    """The end of a process: asked for by a signal, the end of stdin, or the role itself.

    The first signal asks to leave, the second leaves; who was asked is gone after `LEAVE_S`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._loop = loop
        self._begun = False

    def watch_signals(self) -> None:
        """From now on; a signal is served even while the loop is busy."""
        for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, lambda *_: self._signalled())

    def watch_stdin(self) -> None:
        """Leave with the program that holds the other end of our stdin."""
        threading.Thread(target=self._read_stdin, daemon=True).start()

    async def watch_role(self) -> None:
        """Hold the role to the time limit when it has begun to leave by itself."""
        await self.asked.wait()
        self._begin(FAILED)

    def _signalled(self) -> None:
        if self._begun:
            os._exit(INTERRUPTED)
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
        late = threading.Timer(LEAVE_S, os._exit, (code,))
        late.daemon = True
        late.start()
        self._loop.call_soon_threadsafe(self.asked.set)


def main(config: NodeConfig, begun_s: float) -> int:
    """Live as a node; returns the exit code."""
    sys.setswitchinterval(SWITCH_S)
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    with identity_from(config.identity) as identity:
        return run(_live(config, identity, begun_s))


async def _live(config: NodeConfig, identity: Identity, begun_s: float) -> int:
    """Join, take up the role, leave."""
    farewell = Farewell(asyncio.get_running_loop())
    farewell.watch_signals()
    if config.leave_at_eof:
        farewell.watch_stdin()
    async with open_stack(config, identity) as node, asyncio.TaskGroup() as tasks:
        contact = node.endpoint.contact
        for line in greeting(config, contact, time.monotonic() - begun_s):
            say(line)
        watch = tasks.create_task(farewell.watch_role())
        module = await asyncio.to_thread(importlib.import_module, f"p2pswarm.roles.{config.role}")
        code: int = await module.run(node, farewell.asked, say)
        watch.cancel()
    return code
