"""The command `p2pswarm doctor`: finds out how others reach this machine, and what slows it down.

Errors:  Unusable when an address of the user cannot be read, or we cannot listen.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.commands.arguments import write
from p2pswarm.commands.doctor.doctor_report import (
    FILES_MIN,
    Family,
    Findings,
    RunBan,
    as_json,
    as_lines,
)
from p2pswarm.commands.status.ask import statuses
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run as run_loop
from p2pswarm.net.os.local_network import IPV4, IPV6, is_here, own_host
from p2pswarm.net.os.system_limits import (
    WATCHED_MAX,
    allows_congestion_control,
    raise_file_limit,
    socket_memory_max_bytes,
    usual_congestion_control,
)
from p2pswarm.node.stack.stack import NodeStack, open_stack
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.reach.nat.announcement import on_this_machine_alone
from p2pswarm.reach.nat.reachability import Belief, State, group_of
from p2pswarm.reach.nat.reachability_io import Reachability
from p2pswarm.settings.node_config import NodeConfig

PATIENCE_S = 20.0  # two rounds of dial-backs of 5 s, 10 s apart, and the router
MORE_PEERS_S = 1.0  # one seed has answered: others that were named may be a moment later
if sys.platform == "win32":
    DRIVER = Path(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "nvcuda.dll")
else:
    DRIVER = Path("/proc/driver/nvidia/version")

log = logging.getLogger(__name__)


def main(config: NodeConfig, *, json: bool) -> int:
    """Print what was found and what to change; returns the exit code."""
    log_to_stderr(config.log_level)
    found = findings(config)
    write(as_json(found) + "\n" if json else "".join(f"{x}\n" for x in as_lines(found)))
    return 0


def findings(config: NodeConfig) -> Findings:
    """What can be found out in `PATIENCE_S`, without a word to the user."""
    with identity_from(config.identity) as identity:
        return run_loop(_find(config, identity))


async def _find(config: NodeConfig, identity: Identity) -> Findings:
    failure = ""
    async with contextlib.AsyncExitStack() as blocks:
        try:
            stack = await blocks.enter_async_context(open_stack(config, identity, passing=True))
        except Unusable as error:
            if not config.bootstrap:
                raise
            failure = str(error)
            alone = dataclasses.replace(config, bootstrap=())
            stack = await blocks.enter_async_context(open_stack(alone, identity, passing=True))
        return await _look(stack, failure, named=bool(config.bootstrap))


async def _look(stack: NodeStack, failure: str, *, named: bool) -> Findings:
    """Find out what can be found out now, for `PATIENCE_S` at most."""
    bound = stack.endpoint.listening[0]
    maps = stack.config.network.map_ports and not on_this_machine_alone(bound)
    reach = Reachability(stack.endpoint, stack.rpc, bound, os.urandom, map_ports=maps)
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(stack.reachability.follow(reach))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await reach.known()
                if not reach.best().sure:
                    await asyncio.sleep(MORE_PEERS_S)
                    await reach.known()
        found = _findings(stack, reach, failure, named=named)
        work.cancel()
    banned_by = tuple(stack.endpoint.bans.banned_by.values())
    return dataclasses.replace(found, banned_by=banned_by, bans=await _bans(stack))


async def _bans(stack: NodeStack) -> tuple[RunBan, ...]:
    """Return whom the trainers of the swarm's runs have banned, as far as they tell us."""
    try:
        found = await statuses(stack, "")
    except Unusable as error:  # there is no run
        log.info("no bans are known: %s", error)
        return ()
    return tuple(
        RunBan(run=offer.config.name, peer=str(PeerId(ban.peer)), why=ban.reason, left_s=ban.left_s)
        for offer, status in found
        if status is not None
        for ban in status.bans
    )


def _findings(stack: NodeStack, reach: Reachability, failure: str, *, named: bool) -> Findings:
    mapper = reach.mappers.get(IPV4)
    lease = None if mapper is None else mapper.machine.lease
    peers = [link.remote.host for link in stack.endpoint.links()]
    return Findings(
        port=stack.endpoint.listening[0].port,
        families=tuple(_family(name, family, reach) for name, family in FAMILIES.items()),
        gateway=None if mapper is None else mapper.router,
        lease=None if lease is None else str(lease.external),
        protocol="" if lease is None else lease.protocol.value,
        refusals={} if mapper is None else mapper.machine.refusals,
        relayed=next((str(each) for each in stack.keeper.addresses), None),
        asked_peers=len({group_of(host) for host in reach.clocks_ms}),
        seeds_failure=failure,
        seeds_named=named,
        peers_here=bool(peers) and all(map(is_here, peers)),
        clock_ahead_s=_clock_ahead_s(reach),
        bbr=allows_congestion_control("bbr"),
        congestion_control=usual_congestion_control(),
        send_memory_bytes=socket_memory_max_bytes("tcp_wmem"),
        receive_memory_bytes=socket_memory_max_bytes("tcp_rmem"),
        files=raise_file_limit(FILES_MIN),
        watched_max=WATCHED_MAX,
        disk_free_bytes=shutil.disk_usage(stack.config.state or Path()).free,
        gpus=tuple(torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())),
        driver=DRIVER.exists(),
    )


FAMILIES = {"IPv4": IPV4, "IPv6": IPV6}


def _family(name: str, family: int, reach: Reachability) -> Family:
    standing = reach.beliefs.get(family)
    belief = Belief(State.ABSENT) if standing is None else standing.belief
    return Family(
        name=name, own_host=own_host(family), listening=standing is not None, belief=belief
    )


def _clock_ahead_s(reach: Reachability) -> float | None:
    """Seconds by which our wall clock is ahead of the peers', in the median."""
    began_s = time.time() - asyncio.get_running_loop().time()  # where the loop's clock is 0
    ahead_s = [began_s + at_s - clock_ms / 1000 for clock_ms, at_s in reach.clocks_ms.values()]
    return statistics.median(ahead_s) if ahead_s else None
