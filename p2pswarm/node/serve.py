"""A server: finds a run, serves the stage that needs it, and looks for the next run."""

import asyncio
import contextlib
import ctypes
import functools
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TypeVar

import torch

from p2pswarm.base.errors import RunEnded, Unusable
from p2pswarm.base.problems import Problems
from p2pswarm.base.version import VERSION
from p2pswarm.discovery.gossip.messages import RunRole
from p2pswarm.discovery.gossip.record import Activity, FigureKey, RoleKind, figures
from p2pswarm.models.base_weights.base_layout import base_bytes
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.check.model_check import check_once, check_rows
from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.base import Engine
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.models.compute.stage_emulator import emulated_engine
from p2pswarm.models.compute.torch_device import DeviceLost, computing
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.pretrained import has_files, offer, offer_served
from p2pswarm.models.registry import check_package, trust
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import Rpc
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
from p2pswarm.node.run.discovery import answering, find_run, learn_cards, manifests
from p2pswarm.node.run.run_choice import RunChoice, run_choice
from p2pswarm.node.run.run_folder import RunFolder, make_folder
from p2pswarm.node.run.run_match import genesis_of
from p2pswarm.node.run.run_members import keep_saying, run_directory, trainers_named
from p2pswarm.node.server_page import ServerPage
from p2pswarm.node.shutdown import LeaveRequest, unless
from p2pswarm.node.stack.machine_name import machine_name
from p2pswarm.node.stack.stack import NodeStack, Say
from p2pswarm.plan.arrangement import ENGINE_BYTES_PER_STATE_BYTE, HELD_BYTES_PER_STATE_BYTE
from p2pswarm.progress.printable import printable
from p2pswarm.run.chain.chain_log import VoterRecords, blank
from p2pswarm.run.chain.memory_file import RECORDS_KEPT, MemoryChain
from p2pswarm.run.chain.record import MEMORY_BYTES
from p2pswarm.run.manifest import RunIdentity, RunOffer
from p2pswarm.run.messages.field_limits import NAME_CHARS_MAX
from p2pswarm.run.messages.membership import THREADS_MAX, MemberFacts
from p2pswarm.run.router import Router
from p2pswarm.run.state.base_files import BaseFolder
from p2pswarm.run.state.partial_state import PartialFolder
from p2pswarm.server.devices.device_choice import (
    devices_of,
    free_bytes,
    graph_bytes,
    one_device,
    require_dtypes,
    room_bytes,
)
from p2pswarm.server.devices.group_stage import group_engine
from p2pswarm.server.devices.rank_processes import DeviceGroup
from p2pswarm.server.leadership import Seeker
from p2pswarm.server.member_session import SavingLimits, ServerContext, unheard
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings.config import EMULATED, INT_GRID, RunConfig
from p2pswarm.settings.node_config import TENSOR, NetworkConfig, NodeConfig, ServeConfig
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.self_test import device_fault, use_kernels
from p2pswarm.tensors.transfer import TensorTransfer

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
TRIM_BYTES = 2**31 - 1  # the largest value that the call takes: in effect, never trim
MMAP_BYTES = 32 << 20  # DEFAULT_MMAP_THRESHOLD_MAX: larger blocks go back to the system anyway
ARENAS = 1  # a thread's own arena would give empty heaps back, whatever the threshold
MIB = 1 << 20
GB = 1e9
PAIRS_ALONE = (
    "a run that compares answers is for one device a server: name one in serve.device, and start a "
    "server on each of the others"
)
COMPILED_ALONE = "serve.compiled is for one device: leave it out, or name one device"
END_S = 0.5  # for `Leaving` to reach the trainer

T = TypeVar("T")


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory; False where it cannot be set. Threads start later.

    glibc gives the top of its heap back to the system whenever a microbatch's graph is freed, and
    requests it again a moment later. The kernel then clears each page again. If glibc keeps the
    memory, a server of a small model (128 wide) spends 5 % less processor time on a microbatch,
    and its memory stays at its peak (mallopt(3); glibc's malloc/malloc.c).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    wanted = {M_ARENA_MAX: ARENAS, M_MMAP_THRESHOLD: MMAP_BYTES, M_TRIM_THRESHOLD: TRIM_BYTES}
    return all(mallopt(option, value) == 1 for option, value in wanted.items())


def _give_back_freed_memory() -> None:
    """Have the C library give the system what it keeps, where it can be told so."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


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


async def run(stack: NodeStack, device: torch.device, leaving: LeaveRequest, say: Say) -> int:
    """Serve run after run until asked to leave."""
    keep_freed_memory()
    choice = run_choice(stack.config, stack.identity.peer_id)
    threads, me = StageThreads(), stack.identity.peer_id.short
    hub, logs = EventHub(numbers_of(b"", stack.identity.peer_id)), contextlib.ExitStack()
    try:
        hub.listen(logs.enter_context(open_event_log(stack.config.serve.log, "serve.log")))
        shown = None
        if stack.page is not None:
            clock = asyncio.get_running_loop().time
            shown = ServerPage(stack.page, machine_facts(stack.config, device).processor, clock)
            hub.show_on(stack.page.page, clock)
            hub.listen(shown.on_event)
        events = ServerEvents(hub, me, machine_name(stack.config), VERSION)
        say = both(events.on_line, say)
        while (
            served := await serve_next(
                stack,
                choice,
                threads,
                device,
                leaving,
                say,
                begins=(lambda _server: None) if shown is None else shown.begin,
                events=events,
            )
        ) is not None:
            if leaving.is_set():
                return 0
            if served.no_member:
                raise RunEnded(served.no_member)
            offer, seeker = served.offer, served.server.seeker
            say(f"run {offer.config.name!r} is over: {served.reason}")
            if not seeker.gave_up:
                choice.over(offer)
                choice.over(replace(offer, trainer=seeker.trainer))  # it may have come back as it
        return 0
    finally:
        threads.close()
        await asyncio.to_thread(logs.close)


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
    serve, config = stack.config.serve, offer.config
    context = ServerContext(
        rpc=rpc,
        cards=stack.cards,
        tensors=tensors_within(stack.config.network, device),
        run=config,
        run_id=offer.run,
        trainer=offer.trainer,
        compute=threads.compute,
        aside=threads.aside,
        make_engine=lambda stage: stage_engine(config, stage, serve, device),
        make_router=functools.partial(Router, Random(os.urandom(32))),
        stage=serve.stage,
        planned_stage=serve.planned_stage,
        say=say,
        background=threads.background,
        secret=os.urandom(32),
        voter=voter_records(
            stack.config.state if may_vote_here(stack, config) else None, offer.identity, say
        ),
        origin=offer.identity.origin,
        free_bytes=functools.partial(free_bytes, device),
        kept_bytes=serve.kept_mib * MIB,
        saving=SavingLimits(
            serve.checkpoints, serve.checkpoint_targets, serve.checkpoint_mib * MIB
        ),
        partials=kept_pieces(stack.config.state),
        bases=kept_blocks(stack.config.state),
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


def stage_engine(run: RunConfig, stage: int, serve: ServeConfig, device: torch.device) -> Engine:
    """Return what computes a stage, or takes its time."""
    check_codecs(run, device)
    if serve.device == EMULATED:
        return emulated_engine(run, stage, serve.emulated_forward_s, time.sleep)
    trust(serve.packages)
    run = offer_served(run, serve)
    draws = has_files(run) or not run.has_base  # else its weights, too, come from members
    check_once(run)
    numbers = stage_blocks(run, stage)
    layout, frozen_bytes = layout_of(run, numbers), base_bytes(run, numbers)
    if len(devices := devices_of(serve.device)) > 1:
        if run.objective.prefers:
            raise Unusable(PAIRS_ALONE)
        if serve.compiled:
            raise Unusable(COMPILED_ALONE)
        if serve.parallel != TENSOR:
            check_rows(run)
        host = functools.partial(free_bytes, torch.device("cpu"))  # it has the state and the base
        free_for_stage(run, stage, layout.state_bytes, host, frozen_bytes)
        group = DeviceGroup(
            devices,
            serve.threads,
            serve.packages,
            serve.graph_mib,
            by_block=serve.recompute == "block",
            parallel=serve.parallel,
        )
        return group_engine(run, stage, group, draws=draws)
    require_dtypes(run, device)
    engine_bytes = ENGINE_BYTES_PER_STATE_BYTE * layout.state_bytes + frozen_bytes
    there = functools.partial(free_bytes, device)
    free = free_for_stage(run, stage, layout.state_bytes, there, frozen_bytes)
    graphs = GraphLimits(
        graph_bytes(serve.graph_mib, device, free, engine_bytes),
        room_bytes(free, engine_bytes),
        serve.recompute,
    )
    return torch_engine(run, stage, device, graphs, compiles=serve.compiled, draws=draws)


def check_codecs(run: RunConfig, device: torch.device) -> None:
    """Raise DeviceLost if a codec of the run does not do on this device what it should.

    Codecs that do use compiled loops from then on, where there are any.
    """
    if (fault := device_fault(run.codecs.names, device)) is not None:
        other = "install another build of torch"
        if device.type != "cpu":
            other = f'set serve.device to another one, as "cpu", or {other}'
        raise DeviceLost(f"{fault}: {other}")
    use_kernels(run.codecs.names if device.type == "cpu" else run.codecs.names & {INT_GRID})


def free_for_stage(
    run: RunConfig,
    stage: int,
    state_bytes: int,
    free_bytes: Callable[[], int | None],
    frozen_bytes: int = 0,
) -> int | None:
    """Return the free memory; Unusable if a stage does not fit, before any of it is made.

    A host without memory ends a process without a word, and maybe others with it.
    """
    free = free_bytes()
    least = int(HELD_BYTES_PER_STATE_BYTE * state_bytes) + frozen_bytes
    if free is not None and least > free:
        gc.collect()  # the stage before this one may still hold some
        _give_back_freed_memory()
        free = free_bytes()
    if free is not None and least > free:
        raise Unusable(
            f"stage {stage} of run {run.name!r} takes {least / GB:.1f} GB of memory at least, and "
            f"{free / GB:.1f} GB are free: free some, serve on a larger machine, or have the run "
            "cut into more stages (run.stages)"
        )
    return free


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
            tasks.create_task(follow_run(stack, choice, offer, server.seeker, rpc)),
        ]
        if (directory := stack.directories.get(offer.run)) is not None:
            directory.enter_through([offer.trainer])
            beside.append(tasks.create_task(keep_saying(directory, lambda: standing_of(server))))
        await asyncio.wait((work,))
        for task in beside:
            task.cancel()
    return "left" if work.cancelled() else work.result()


async def follow_run(
    stack: NodeStack, choice: RunChoice, lost: RunOffer, seeker: Seeker, rpc: Rpc
) -> None:
    """Look a run up again whenever its server looks for a trainer; until cancelled.

    `rpc`: the calls of the run, by which trainers prove that they are some.

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
        others = [o for o in offers if o.run != lost.run and o.trainer in there]
        if ours:
            seeker.found(ours)
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
