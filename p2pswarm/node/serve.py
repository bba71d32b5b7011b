"""A server: finds a run, serves the stage that needs it, and ends with it or looks for the next."""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TypeVar

import torch

from p2pswarm.base.errors import RunEnded, Unusable
from p2pswarm.base.exit_codes import DONE
from p2pswarm.base.problems import Problems
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.base.version import VERSION
from p2pswarm.discovery.gossip.messages import RunRole
from p2pswarm.discovery.gossip.record import Activity, FigureKey, RoleKind, figures
from p2pswarm.models.compute.torch_device import computing
from p2pswarm.models.pretrained import offer
from p2pswarm.models.registry import check_package
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.node.attendance_io import AttendanceClock
from p2pswarm.node.owner_requests import OwnerRequests
from p2pswarm.node.progress.event_hub import EventHub, numbers_of
from p2pswarm.node.progress.event_log import open_event_log, try_event_log
from p2pswarm.node.progress.output import both
from p2pswarm.node.progress.server_events import ServerEvents
from p2pswarm.node.run.closed_run import (
    is_impostor,
    may_vote_here,
    own_refusal,
    proven_trainers,
    run_calls,
)
from p2pswarm.node.run.discovery import answering, ends, find_run, learn_cards, manifests
from p2pswarm.node.run.run_choice import RunChoice, run_choice
from p2pswarm.node.run.run_end import KnownRun
from p2pswarm.node.run.run_folder import RunFolder, make_folder
from p2pswarm.node.run.run_match import genesis_of
from p2pswarm.node.run.run_members import keep_saying, run_directory, trainers_named
from p2pswarm.node.server_page import ServerPage
from p2pswarm.node.shutdown import LeaveRequest, unless
from p2pswarm.node.stack.machine_name import machine_name
from p2pswarm.node.stack.stack import NodeStack, Say
from p2pswarm.node.stage_engine import COMPILED_ALONE, keep_freed_memory, stage_engine
from p2pswarm.progress.printable import printable
from p2pswarm.run.chain.chain_log import VoterRecords, blank
from p2pswarm.run.chain.memory_file import RECORDS_KEPT, MemoryChain
from p2pswarm.run.chain.record import MEMORY_BYTES
from p2pswarm.run.manifest import RunIdentity, RunOffer
from p2pswarm.run.messages.cost import MachinePrice
from p2pswarm.run.messages.field_limits import NAME_CHARS_MAX
from p2pswarm.run.messages.membership import THREADS_MAX, MemberFacts
from p2pswarm.run.messages.run import RunOver
from p2pswarm.run.router import Router
from p2pswarm.run.state.base_files import BaseFolder
from p2pswarm.run.state.partial_state import PartialFolder
from p2pswarm.server.devices.device_choice import (
    devices_of,
    free_bytes,
    one_device,
)
from p2pswarm.server.leadership import Seeker
from p2pswarm.server.member_session import SavingLimits, ServerContext, unheard
from p2pswarm.server.stage_server import GOODBYE_S, StageServer
from p2pswarm.settings.config import EMULATED
from p2pswarm.settings.node_config import NetworkConfig, NodeConfig, ServeConfig
from p2pswarm.settings.service_hours import leaves_with_run
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer

MIB = 1 << 20
END_S = GOODBYE_S + 0.5  # for the trainer to hear of it

T = TypeVar("T")


class ComputeThread:
    """Implements `Compute`: one thread, so that weights and gradients need no lock.

    What torch cannot do there is our error, whatever the work is: it never ends the process.
    """

    def __init__(self, name: str = "compute") -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def __call__(self, work: Callable[[], T]) -> T:
        """The result of `work`; Refused if torch cannot do it."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, computing()(work))

    def close(self) -> None:
        """Start nothing more; work that is running ends with the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class StageThreads:
    """The threads of a server."""

    compute: ComputeThread = field(default_factory=ComputeThread)
    aside: ComputeThread = field(default_factory=lambda: ComputeThread("aside"))
    """Reads weights for others, while the first computes."""
    background: ComputeThread = field(default_factory=lambda: ComputeThread("digest"))
    """Hashes all weights after each commit; who reads a piece need not wait for that."""

    def close(self) -> None:
        """Start nothing more."""
        self.compute.close()
        self.aside.close()
        self.background.close()


def prepare(config: NodeConfig, identity: Identity, say: Say) -> torch.device:
    """The device; Unusable for one that torch has not, and for weights that are not there."""
    del identity, say
    serve = config.serve
    device = chosen_device(serve)
    _check_compiled(serve)
    if serve.pretrained is not None:
        offer(serve.pretrained)
    return device


def check(config: NodeConfig, problems: Problems) -> None:
    """Tell `problems` all that would keep this role from beginning, or from serving some run."""
    serve = config.serve
    with problems.noted():
        try_event_log(serve.log, "serve.log")
    with problems.noted():
        chosen_device(serve)
        _check_compiled(serve)
    with problems.noted():
        if serve.pretrained is not None:
            offer(serve.pretrained)
    for package in serve.packages:
        with problems.noted():
            check_package(package)


def _check_compiled(serve: ServeConfig) -> None:
    if serve.compiled and serve.device != EMULATED and len(devices_of(serve.device)) > 1:
        raise Unusable(COMPILED_ALONE)


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run that this node has served, until one of them ended it."""

    offer: RunOffer
    server: StageServer
    reason: str
    """Why it is over."""
    no_member: str
    """Why this node is no member of its closed run any more; empty if it is."""

    @property
    def over(self) -> bool:
        """True if the run has come to its end, for sure; false if only this server's part has."""
        end, trainer = self.server.seeker.end, self.server.seeker.trainer.peer
        if end is None or end.version is None:
            return False
        if end.proved:
            return True
        said_by = None if trainer is None else trainer.raw
        known = known_run(self.offer, self.server)
        return known.is_over(said_by, self.offer.run, end.version, on_purpose=end.on_purpose)


def known_run(offer: RunOffer, server: StageServer) -> KnownRun:
    """What this node's server knows of a run."""
    head = server.leadership.head or genesis_of(offer.identity).head()
    return KnownRun(offer.run, offer.config.steps, server.version, head)


async def run(
    stack: NodeStack, device: torch.device, leaving: LeaveRequest, say: Say, owner: OwnerRequests
) -> int | None:
    """Serve run after run; None if asked to leave, and an exit code at an end of its own."""
    keep_freed_memory()
    attendance = AttendanceClock(stack.config.serve, datetime.now)
    owner.pauses(attendance.pause, attendance.resume)
    threads = StageThreads()
    hub, logs = EventHub(numbers_of(b"", stack.identity.peer_id)), contextlib.ExitStack()
    try:
        hub.listen(logs.enter_context(open_event_log(stack.config.serve.log, "serve.log")))
        shown, events = shown_server(stack, device, hub)
        say = both(events.on_line, say)
        here = _ServingNode(stack, threads, device, say, attendance, events, shown.begin)
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(attendance.keep())
            code = await here.attend(leaving)
            keeping.cancel()
        return code
    finally:
        owner.pauses(None, None)
        threads.close()
        await asyncio.to_thread(logs.close)


def shown_server(
    stack: NodeStack, device: torch.device, hub: EventHub
) -> tuple[ServerPage, ServerEvents]:
    """What says of a server that it serves, to its page and to probes, and its events."""
    clock, me = asyncio.get_running_loop().time, stack.identity.peer_id.short
    shown = ServerPage(stack, machine_facts(stack.config, device).processor, clock)
    if stack.page is not None:
        hub.show_on(stack.page.page, clock)
        hub.listen(shown.on_event)
    return shown, ServerEvents(hub, me, machine_name(stack.config), VERSION)


@dataclass(frozen=True, slots=True)
class _ServingNode:
    """A node that serves one run after another."""

    stack: NodeStack
    threads: StageThreads
    device: torch.device
    say: Say
    attendance: AttendanceClock
    events: ServerEvents
    begins: Callable[[StageServer], None]
    """Told of each server that begins."""

    async def attend(self, leaving: LeaveRequest) -> int | None:
        """Serve as the attendance has it; as `run`."""
        choice = run_choice(self.stack.config, self.stack.identity.peer_id)
        while not leaving.is_set():
            if end := self.attendance.end:
                self.say(end)
                return DONE
            if why := self.attendance.rests:
                self.say(why)
                await unless(leaving, self.attendance.until_serving())
                continue
            served = await self._serve_while_present(choice, leaving)
            if served is None or leaving.is_set():
                continue
            if served.no_member:
                raise Unusable(served.no_member)
            if _is_done(self.stack, choice, served, self.say):
                return DONE
        return None

    async def _serve_while_present(
        self, choice: RunChoice, leaving: LeaveRequest
    ) -> ServedRun | None:
        """As `serve_next`, but None also if the server is to rest, or ends by itself."""
        leave = LeaveRequest()
        async with asyncio.TaskGroup() as tasks:
            following: list[asyncio.Task[None]] = []

            def follow(server: StageServer) -> None:
                self.begins(server)
                while following:
                    following.pop().cancel()
                following.append(tasks.create_task(self.attendance.follow(server.seeker)))

            passing = tasks.create_task(self.attendance.pass_on(leaving, leave))
            self.attendance.entered()
            try:
                served = await serve_next(
                    *(self.stack, choice, self.threads, self.device, leave, self.say),
                    follow,
                    self.events,
                )
            finally:
                self.attendance.left()
                for task in (passing, *following):
                    task.cancel()
        return None if leave.is_set() else served


def _is_done(stack: NodeStack, choice: RunChoice, served: ServedRun, say: Say) -> bool:
    """Say how a run has ended; returns whether this node ends with it."""
    offer, seeker = served.offer, served.server.seeker
    if seeker.gave_up:
        choice.give_up(offer)
    else:
        choice.over(offer)
        choice.over(replace(offer, trainer=seeker.trainer))  # it may have come back as it
    if not served.over:
        say(f"out of run {offer.config.name!r}: {served.reason}; looking for a run")
        return False
    done = leaves_with_run(stack.config.serve.leave)
    then = "this server ends (serve.leave)" if done else "looking for another"
    say(f"run {offer.config.name!r} is over: {served.reason}; {then}")
    return done


async def serve_next(
    stack: NodeStack,
    choice: RunChoice,
    threads: StageThreads,
    device: torch.device,
    leaving: LeaveRequest,
    say: Say,
    begins: Callable[[StageServer], None] = lambda _server: None,
    events: ServerEvents | None = None,
) -> ServedRun | None:
    """Serve the next run that can be served here, to its end; None if asked to leave before.

    A run that cannot be served is passed over: whoever offers one may say what they like in it. But
    no stranger can offer the run that this node is invited to: what is wrong with that, or with
    this machine, is raised. `begins` is told of each try, and `events` of what comes of it.
    """
    clock = asyncio.get_running_loop().time
    while (offer := await unless(leaving, find_run(stack, choice, say))) is not None:
        say(f"joining run {offer.config.name!r} of {offer.trainer.address}")
        async with (
            run_calls(stack, offer.identity, say) as rpc,
            run_directory(stack, rpc, offer.run),
        ):
            if await is_impostor(rpc, offer.trainer):
                choice.over(offer)
                continue
            server = stage_server(stack, offer, threads, device, rpc, say, events)
            begins(server)
            if events is not None:
                events.on_run(offer.run, offer.config)
            end = await serve_run(stack, rpc, choice, server, offer, leaving, say, events)
            no_member = own_refusal(rpc)
        if not isinstance(end, Unusable):
            return ServedRun(offer, server, end, no_member)
        if stack.config.invite or isinstance(end, DeviceLost):
            raise end
        choice.refuse(offer, str(end), clock())
    return None


def chosen_device(serve: ServeConfig) -> torch.device:
    """The device of the settings; sets the number of torch's threads too."""
    if serve.threads:
        torch.set_num_threads(serve.threads)
    if serve.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    devices = devices_of(serve.device)
    if serve.device == EMULATED or len(devices) > 1:
        return torch.device("cpu")  # where the weights are; several devices are others' processes
    return one_device(devices[0])


def tensors_within(network: NetworkConfig, device: torch.device) -> TensorTransfer:
    """The transfer of tensors, within the memory limits of the settings."""
    return TensorTransfer(Budget(network.peer_mib * MIB, network.total_mib * MIB), device)


def stage_server(
    stack: NodeStack,
    offer: RunOffer,
    threads: StageThreads,
    device: torch.device,
    rpc: Rpc,
    say: Say,
    events: ServerEvents | None = None,
) -> StageServer:
    """A server of the run in `offer`, on this node; `rpc`: the run's calls."""
    serve, config, origin = stack.config.serve, offer.config, offer.identity.origin
    before = 0 if origin is None else origin.before
    context = ServerContext(
        rpc=rpc,
        cards=stack.cards,
        tensors=tensors_within(stack.config.network, device),
        run=config,
        run_id=offer.run,
        trainer=offer.trainer,
        compute=threads.compute,
        aside=threads.aside,
        make_engine=lambda stage: stage_engine(config, stage, serve, device, before),
        make_router=functools.partial(Router, Random(os.urandom(32))),
        stage=serve.stage,
        planned_stage=serve.planned_stage,
        say=say,
        background=threads.background,
        secret=os.urandom(32),
        voter=voter_records(
            stack.config.state if may_vote_here(stack, config) else None, offer.identity, say
        ),
        origin=origin,
        free_bytes=functools.partial(free_bytes, device),
        kept_bytes=serve.kept_mib * MIB,
        saving=SavingLimits(
            serve.checkpoints, serve.checkpoint_targets, serve.checkpoint_mib * MIB
        ),
        partials=kept_pieces(stack.config.state),
        bases=kept_blocks(stack.config.state),
        price=MachinePrice(serve.price_per_hour, serve.currency, serve.spot),
        facts=machine_facts(stack.config, device),
        on_load=events.on_load if events is not None else unheard,
    )
    return StageServer(context)


def machine_facts(config: NodeConfig, device: torch.device) -> MemberFacts:
    """Return what the trainer's user is told of this machine."""
    serve, kind = config.serve, device.type
    if serve.device == EMULATED:
        kind = EMULATED
    elif len(names := devices_of(serve.device)) > 1:
        kind = f"{len(names)} devices"
    elif kind == "cuda":
        kind = torch.cuda.get_device_name(device)
    threads = min(torch.get_num_threads(), THREADS_MAX)
    name, region = machine_name(config), config.region
    return MemberFacts(name, printable(kind[:NAME_CHARS_MAX]), threads, region, VERSION)


def kept_pieces(state: Path | None) -> PartialFolder | None:
    """Return where pieces of weights are kept for the process after this one."""
    if state is None:
        return None
    folder = PartialFolder(state)
    folder.remove_old(time.time())
    return folder


def kept_blocks(state: Path | None) -> BaseFolder | None:
    """Return where frozen weights are kept that came from members."""
    if state is None:
        return None
    folder = BaseFolder(state)
    folder.remove_old(time.time())
    return folder


def voter_records(state: Path | None, identity: RunIdentity, say: Say) -> VoterRecords:
    """Return where this server's voter keeps its promises for a run, and what it kept before.

    Without a folder it is another voter each time. Raises Unusable for a file that cannot be used.
    """
    genesis, memory = genesis_of(identity), os.urandom(MEMORY_BYTES)
    if state is None:
        return VoterRecords(MemoryChain(memory, records_max=RECORDS_KEPT), blank(genesis))
    make_folder(state)
    file, restored = RunFolder(state).open_chain(genesis, memory)
    if file.warning is not None:
        say(file.warning)
    return VoterRecords(file, restored)


async def serve_run(
    stack: NodeStack,
    rpc: Rpc,
    choice: RunChoice,
    server: StageServer,
    offer: RunOffer,
    leaving: LeaveRequest,
    say: Say,
    events: ServerEvents | None = None,
) -> str | Unusable:
    """Serve until the run ends, or we leave, or go to another run; returns the reason.

    That is Unusable if the run cannot be served here.
    """
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(_run(server))
        beside = [
            tasks.create_task(_leave(server, work, leaving)),
            tasks.create_task(_tell(server, offer, say, events)),
            tasks.create_task(
                follow_run(
                    *(stack, choice, offer, server.seeker, rpc),
                    lambda: known_run(offer, server),
                )
            ),
        ]
        if (directory := stack.directories.get(offer.run)) is not None:
            directory.enter_through([offer.trainer])
            beside.append(tasks.create_task(keep_saying(directory, lambda: standing_of(server))))
        await asyncio.wait((work,))
        for task in beside:
            task.cancel()
    return "left" if work.cancelled() else work.result()


async def word_of_end(stack: NodeStack, lost: RunOffer, known: KnownRun) -> RunOver | None:
    """The word in the DHT that the run is over, if there is one that is proved."""
    for said_by, over in await ends(stack, lost.config, lost.identity.corpus):
        if known.is_over(said_by, over.run, over.version):
            return over
    return None


async def follow_run(
    stack: NodeStack,
    choice: RunChoice,
    lost: RunOffer,
    seeker: Seeker,
    rpc: Rpc,
    known: Callable[[], KnownRun] | None = None,
) -> None:
    """Look a run up again whenever its server looks for a trainer; until cancelled.

    `rpc`: the calls of the run, by which trainers prove that they are some. `known`: what the
    server knows of it, by which a word of its end is proved.

    The server is told which trainers of its run answer, of those that the DHT and the run's
    directory name. If none does and another run can be joined, a server that may go gives its run
    up.
    """
    while True:
        await asyncio.sleep(await seeker.seeking())
        if not seeker.seeks:
            continue
        offers = choice.instead_of(lost, await manifests(stack))
        learn_cards(stack, offers)
        offered = [o.trainer for o in offers if o.run == lost.run]
        if (directory := stack.directories.get(lost.run)) is not None:
            directory.enter_through(offered)
        peers = {trainer.peer for trainer in offered}
        named = [one for one in trainers_named(stack, lost.run) if one.peer not in peers]
        there = await answering(stack.rpc, [*named, *(offer.trainer for offer in offers)])
        ours = [trainer for trainer in (*offered, *named) if trainer in there]
        ours = await proven_trainers(rpc, ours)
        over = await word_of_end(stack, lost, known()) if known and not ours else None
        others = [o for o in offers if o.run != lost.run and o.trainer in there]
        if ours:
            seeker.found(ours)
        elif over is not None:
            seeker.on_run_over(over.reason, over.version)
        elif others and seeker.may_change_run():
            seeker.give_up(
                f"its trainer does not answer, and that of {others[0].config.name!r} does"
            )


def standing_of(server: StageServer) -> RunRole:
    """Return what a server says of itself in the run's directory."""
    activity = Activity.WORKING if server.version is not None else Activity.LOADING
    if server.seeker.seeks:
        activity = Activity.SEEKING
    version = {} if server.version is None else {FigureKey.VERSION: float(server.version)}
    return RunRole(RoleKind.SERVER, activity, server.stage, figures(version))


async def _run(server: StageServer) -> str | Unusable:
    try:
        return await server.run()
    except RunEnded as error:
        return str(error)
    except Unusable as error:
        return error


async def _leave(
    server: StageServer, work: asyncio.Task[str | Unusable], leaving: LeaveRequest
) -> None:
    await leaving.wait()
    await server.leave(leaving.grace_s)
    await asyncio.wait((work,), timeout=END_S)
    work.cancel()


async def _tell(
    server: StageServer, offer: RunOffer, say: Say, events: ServerEvents | None
) -> None:
    """Say which stage we serve, each time that we begin to: after a move, or out of the run."""
    sessions = 0
    while True:
        sessions = await server.serving(sessions)
        stage, version = server.stage, server.version
        say(f"serving stage {stage} of {offer.config.stages}, weights of step {version}")
        if events is not None and stage is not None:
            events.on_stage(stage)
