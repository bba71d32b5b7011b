"""One machine's node: `python -m p2pswarm.node`.

The six flags are frozen; every other knob is in the settings file. The role is taken up
when the node is already in the swarm, by name: so a node that others join through never
loads torch. This is the one place that imports late.

Units:   seconds.
Errors:  one line on stderr; exit code 2 for what the user can mend, 1 for a run that failed.
"""

import argparse
import asyncio
import dataclasses
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from p2pswarm.config import LOG_LEVELS, ROLES, NodeConfig
from p2pswarm.crypto.identity import Identity
from p2pswarm.crypto.key_file import identity_from
from p2pswarm.errors import RunEnded, SwarmError, Unusable
from p2pswarm.flow.exception_group import cause_of
from p2pswarm.net.event_loop import run
from p2pswarm.roles.output import write_line as say
from p2pswarm.roles.stack import NodeStack, open_stack
from p2pswarm.settings import load

SWITCH_S = 0.0005  # with turns of 5 ms, bulk beside a busy Python thread ran at 0.41, not 1 GB/s
LEAVE_S = 4.5  # to drain and say goodbye; together with the rest it stays below 5 s
INTERRUPTED = 130  # 128 + SIGINT, as shells count
FAILED, UNUSABLE = 1, 2

log = logging.getLogger(__name__)


class Farewell:
    """Ctrl-C, SIGTERM, or the end of stdin: the first asks to leave, the second leaves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._loop = loop
        self._begun = False

    def watch_signals(self) -> None:
        """From now on; a signal is served even while the loop is busy."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._signalled())

    def watch_stdin(self) -> None:
        """Leave with the program that holds the other end of our stdin."""
        threading.Thread(target=self._read_stdin, daemon=True).start()

    def _signalled(self) -> None:
        if self._begun:
            os._exit(INTERRUPTED)
        say("leaving; once more to leave at once")
        self._begin()

    def _read_stdin(self) -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        self._begin()

    def _begin(self) -> None:
        self._begun = True
        late = threading.Timer(LEAVE_S, os._exit, (INTERRUPTED,))
        late.daemon = True
        late.start()
        self._loop.call_soon_threadsafe(self.asked.set)


def main(argv: Sequence[str] | None = None) -> int:
    """Live as a node; returns the exit code."""
    begun_s = time.monotonic()
    sys.setswitchinterval(SWITCH_S)
    try:
        config = settings(argv)
        logging.basicConfig(
            level=config.log_level.upper(),
            format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        with identity_from(config.identity) as identity:
            return run(_live(config, identity, begun_s))
    except SwarmError as error:
        return _failed(error)
    except ExceptionGroup as group:
        cause = cause_of(group)
        if not isinstance(cause, SwarmError):
            raise
        return _failed(cause)


def _failed(error: SwarmError) -> int:
    sys.stderr.write(f"error: {error}\n")
    return FAILED if isinstance(error, RunEnded) else UNUSABLE


def settings(argv: Sequence[str] | None) -> NodeConfig:
    """What the flags and the settings file say together; flags go first."""
    flags = _parser().parse_args(argv)
    config = load(flags.config) if flags.config else NodeConfig()
    given = {
        "bootstrap": tuple(flags.bootstrap or ()),
        "listen": flags.listen,
        "role": flags.role,
        "identity": flags.identity,
        "log_level": flags.log_level,
    }
    config = dataclasses.replace(config, **{name: value for name, value in given.items() if value})
    if config.role == "auto":
        config = dataclasses.replace(config, role="stage" if config.bootstrap else "bootstrap")
    if config.role == "trainer" and config.train.data is None:
        raise Unusable("train.data is missing: name a text file or a folder in --config run.toml")
    return config


async def _live(config: NodeConfig, identity: Identity, begun_s: float) -> int:
    """Join, take up the role, leave."""
    farewell = Farewell(asyncio.get_running_loop())
    farewell.watch_signals()
    if config.leave_at_eof:
        farewell.watch_stdin()
    async with open_stack(config, identity) as node:
        _greet(node, time.monotonic() - begun_s)
        module = await asyncio.to_thread(importlib.import_module, f"p2pswarm.roles.{config.role}")
        code: int = await module.run(node, farewell.asked, say)
    return code


def _greet(node: NodeStack, ready_s: float) -> None:
    """Tell who and where we are, and what others type."""
    contact = node.endpoint.contact
    say(f"peer {node.identity.peer_id.short} at {contact.address}, ready after {ready_s:.3f} s")
    if not node.config.bootstrap:
        say("a swarm of one; others join it with")
        say(f"  python -m p2pswarm.node --bootstrap {contact.address}")


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with the flags in one line."""

    def error(self, message: str) -> NoReturn:
        """One line, as every error of ours."""
        self.exit(UNUSABLE, f"error: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m p2pswarm.node",
        description="A node of a swarm. Without flags it starts a swarm; "
        "with --bootstrap it joins one and serves the stage that needs it most.",
    )
    parser.add_argument(
        "--bootstrap", action="append", metavar="HOST:PORT", help="a node of the swarm; repeatable"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="default: 0.0.0.0:4000")
    parser.add_argument("--role", choices=ROLES)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, as in nodes/*.toml")
    parser.add_argument(
        "--identity", type=Path, metavar="FILE", help="keep this node's id here; made if absent"
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
