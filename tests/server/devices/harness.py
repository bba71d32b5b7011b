"""What each of several processes runs that form a gloo group, and this one as a group alone."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from procs.fork_server import ForkServer, environment

from p2pswarm.data.samples.target_marks import BEGIN, NO_TARGET
from p2pswarm.models.check.model_check import fill_factors
from p2pswarm.models.compute.base import BackwardSpec, Engine
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.compute.tokens import targets_in
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.document_positions import MARKED
from p2pswarm.server.devices.rank_stage import RankOptions, RankStage
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import TENSOR

CPU = torch.device("cpu")
ALL = BackwardSpec(counting=True, returning=True)
PLENTY = 1 << 30


def by_ranks(
    fork_server: ForkServer, ranks: int, work: Callable[..., None], *given: object
) -> None:
    """Run `work(rank, ranks, *given)` in processes; what it raises in one fails the test."""
    with (
        tempfile.TemporaryDirectory() as folder,
        (Path(folder) / "errors").open("w+") as errors,
        Path(os.devnull).open("r+b") as nothing,
    ):
        group = fork_server.start(
            f"{__name__}:group_of",
            (ranks, str(Path(folder) / "meeting"), work, given),
            (nothing.fileno(), nothing.fileno(), errors.fileno()),
            arguments=["ranks"],
            environment=environment(),
            path=sys.path,
        )
        try:
            code = group.wait()
        finally:
            if group.poll() is None:  # the test was ended
                os.killpg(group.pid, signal.SIGKILL)
        errors.seek(0)
        assert code == 0, errors.read()


def group_of(ranks: int, there: str, work: Callable[..., None], given: tuple[object, ...]) -> int:
    """Run `work(rank, ranks, *given)` in forks of this process, which has all imports.

    Returns how many have failed: when one has, the others are ended, which may wait for it.
    """
    running = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            dist.init_process_group(
                "gloo", init_method=f"file://{there}", rank=rank, world_size=ranks
            )
            work(rank, ranks, *given)
            dist.destroy_process_group()
            return 0
        running[pid] = rank
    failed = 0
    while running:
        pid, status = os.wait()
        del running[pid]
        failed += status != 0
        for other in running if status else ():
            os.kill(other, signal.SIGKILL)
    return failed


@contextmanager
def group_alone(folder: Path) -> Iterator[None]:
    """This process as a group of one."""
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank_results(
    run: RunConfig, stage: int, rank: tuple[int, int], options: RankOptions
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What one microbatch gives in a rank, with all that the ranks tell, and in one process.

    Losses or bundles, gradients that go back, the sum; the ranks' parts are added up.
    """
    alone, shared = engine_alone(run, stage)
    flat, tokens = alone.weights._flat, shared["tokens"]
    given = {k.partition(".")[2]: x for k, x in shared.items() if k.startswith("given.")}
    gradient = {k.partition(".")[2]: x for k, x in shared.items() if k.startswith("gradient.")}

    part = RankStage(run, stage, rank, CPU, shared, options)
    part.take_base()
    part.take_weights()
    part.empty_sums()
    key, last = (0, 0), boundary_above(run, stage) is None
    if last:
        result = alone.stage.finish(tokens, given, ALL)
        nats = torch.tensor(result.loss * targets_in(tokens), dtype=torch.float64)
        theirs = [nats, *result.gradient.values()]
        told = torch.tensor(part.last(differentiate=True), dtype=torch.float64)
    else:
        part.forward(key, keep=True)
        theirs = [*alone.stage.forward(key, tokens, given).values()]
        theirs += alone.stage.backward(key, gradient, ALL).values()
        told = torch.tensor([0.0, *part.backward(key)], dtype=torch.float64)
    part.settle(add=True)
    part.give_sums()
    if options.parallel == TENSOR:
        _require_alike(part)
    theirs += [flat.sum_N, torch.tensor(alone.stage.gradient_norm, dtype=torch.float64)]

    names = [name for name in shared if name.startswith(("made.", "returned."))]
    for name in (*names, "sum"):
        dist.all_reduce(shared[name])
    dist.all_reduce(told)
    ours = [told[0]] if last else [shared[n] for n in names if n.startswith("made.")]
    ours += [shared[n] for n in names if n.startswith("returned.")]
    return [*ours, shared["sum"], told[-1].sqrt()], theirs


def _require_alike(part: RankStage) -> None:
    """What is whole on every rank has the same gradient everywhere, bit by bit."""
    for local, total in zip(part._shards._locals, part._sums, strict=True):
        if local.split is None:
            first = total.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, total)


def engine_alone(run: RunConfig, stage: int) -> tuple[Engine, dict[str, torch.Tensor]]:
    """One process that computes a stage, and what a node would share with ranks."""
    alone = torch_engine(run, stage, CPU, PLENTY)
    alone.weights.reset(draw=True)
    chance = torch.Generator().manual_seed(1)
    shape = run.batch.rows, run.model.sequence_length + 1
    tokens = torch.randint(0, run.model.vocabulary, shape, generator=chance)
    if run.model.document_end >= 0:  # documents of 5 tokens, all but one, and 1
        tokens[:, [5, -2]] = run.model.document_end
    elif run.model.documents == MARKED:  # the same, and half of the tokens are no targets
        tokens[:, [5, -2]] |= BEGIN
        tokens[:, ::2] |= NO_TARGET
    flat = alone.weights._flat
    fill_factors(flat)
    shared = {"params": flat.params_N.detach().clone(), "tokens": tokens}
    shared |= {} if flat.base is None else flat.base.memory
    shared["sum"] = torch.zeros_like(flat.sum_N)
    for boundary, kinds in (
        (boundary_above(run, stage - 1), ("given", "returned")),
        (boundary_above(run, stage), ("gradient", "made")),
    ):
        for tensor in boundary.tensors if boundary else ():
            drawn = torch.randn(tensor.shape, generator=chance, dtype=torch.float64)
            for kind in kinds:
                if tensor.differentiable or kind in {"given", "made"}:
                    made = drawn if kind in {"given", "gradient"} else torch.zeros_like(drawn)
                    shared[f"{kind}.{tensor.key}"] = made.to(tensor.dtype)
    return alone, shared


def apart(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference over the largest number there."""
    assert len(ours) == len(theirs)
    found = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if not other.numel():  # of a stage of which nothing trains
            continue
        largest = other.abs().max().double().clamp_min(1e-30)
        found = max(found, float((one - other).abs().max() / largest))
    return found
