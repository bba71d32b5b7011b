"""The engine of a stage on this machine's devices, if it has the memory, and the heap around it."""

import contextlib
import ctypes
import functools
import gc
import time
from collections.abc import Callable

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.models.base_weights.base_layout import base_bytes
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.check.model_check import check_once, check_rows
from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.base import Engine
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.models.compute.stage_emulator import emulated_engine
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.pretrained import has_files, offer_served
from p2pswarm.models.registry import trust
from p2pswarm.plan.arrangement import ENGINE_BYTES_PER_STATE_BYTE, HELD_BYTES_PER_STATE_BYTE
from p2pswarm.server.devices.device_choice import (
    devices_of,
    free_bytes,
    graph_bytes,
    require_dtypes,
    room_bytes,
)
from p2pswarm.server.devices.group_stage import group_engine
from p2pswarm.server.devices.rank_processes import DeviceGroup
from p2pswarm.settings.config import EMULATED, INT_GRID, RunConfig
from p2pswarm.settings.node_config import TENSOR, ServeConfig
from p2pswarm.tensors.codecs.self_test import device_fault, use_kernels

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
TRIM_BYTES = 2**31 - 1  # the largest value that the call takes: in effect, never trim
MMAP_BYTES = 32 << 20  # DEFAULT_MMAP_THRESHOLD_MAX: larger blocks go back to the system anyway
ARENAS = 1  # a thread's own arena would give empty heaps back, whatever the threshold
GB = 1e9
PAIRS_ALONE = (
    "a run that compares answers is for one device a server: name one in serve.device, and start a "
    "server on each of the others"
)
COMPILED_ALONE = "serve.compiled is for one device: leave it out, or name one device"


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


def stage_engine(
    run: RunConfig, stage: int, serve: ServeConfig, device: torch.device, before: int = 0
) -> Engine:
    """Return what computes a stage, or takes its time; `before`: as in `Update`."""
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
    return torch_engine(
        run, stage, device, graphs, compiles=serve.compiled, draws=draws, before=before
    )


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
