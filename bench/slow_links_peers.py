"""What a user would pick instead on slow links: torch's pipeline, DDP, DiLoCo; a process of each.

All train the run of a trainer's settings file: the blocks of our GPT as ordinary modules, from the
same first weights, with the same microbatches, clipping, optimizer and rates. Each process tells
the trainer's events; the losses of a step are those of the processes that tell it.

    python bench/slow_links_peers.py --config run.toml --system gloo-ddp --rank 0 --address A B

    gloo-1f1b, gloo-gpipe   `torch.distributed.pipelining`, a stage a process
    gloo-ddp                `DistributedDataParallel`: each has all blocks and a share of a step
    hivemind-diloco         steps of its own in each, then an average by hivemind's averager and a
                            step of Nesterov; it runs in .venv-peers
    hivemind-local          the same without Nesterov: all go on from the average itself

The others send float32; half of its bits with `-bf16` or `-fp16` behind a name. DDP's own hook for
bfloat16 refuses gloo, so it has the other.

Shapes:  N elements of all weights.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.models.blocks import block_count, stage_blocks
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters, squared_norm
from p2pswarm.models.compute.optimizer import optimizer_of
from p2pswarm.models.losses.cross_entropy import nats_of
from p2pswarm.node.run.run_text import read_corpus
from p2pswarm.progress.event_lines import EventNumbers
from p2pswarm.progress.events import MicrobatchCounts, Started, Stepped
from p2pswarm.run.schedule import clip_scale, learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import load

PORT = 29_500  # torch's own; each process has a network of its own
DEVICE = "wan0"  # of a host in the lab
CPU = torch.device("cpu")
OUTER = {"hivemind-diloco": (0.7, 0.9), "hivemind-local": (1.0, 0.0)}
"""The rate and the momentum of what is done with an average; DiLoCo's: arXiv 2311.08105."""
GROUP_S = 120.0  # for all members of an average to find each other
START_S = 60.0  # for hivemind's daemon
HALVES = ("-bf16", "-fp16")


class TrainedBlocks:
    """Blocks of a run as a module of torch, with the run's optimizer."""

    def __init__(self, run: RunConfig, numbers: range) -> None:
        self._run = run
        self.flat = FlatParameters(run, numbers, CPU)
        self.flat.draw()
        self.module = nn.Sequential(*self.flat.blocks)
        for leaf, total in zip(self.flat.parameters, self.flat.sums, strict=True):
            leaf.grad = total
        self._optimizer = optimizer_of(run.optimizer, self.flat)

    def squares(self) -> float:
        """Of the gradient, its squared norm."""
        return squared_norm(self.flat.sum_N)

    def update(self, step: int, squares: float) -> None:
        """Clip and apply the gradient, and empty it; `squares`: of all blocks of the model."""
        scale = clip_scale(self._run.optimizer, math.sqrt(squares))
        update = Update(step + 1, scale, learning_rate(self._run, step))
        self._optimizer.step(self.flat.sum_N, update)
        self.flat.sum_N.zero_()


class BFloat16Ends(nn.Module):
    """A stage whose activations and gradients cross links in bfloat16."""

    def __init__(self, stage: nn.Module, *, first: bool, last: bool) -> None:
        super().__init__()
        self._stage, self._first, self._last = stage, first, last

    def forward(self, x: Tensor) -> Tensor:
        """Convert what came, and what goes."""
        made: Tensor = self._stage(x if self._first else x.float())
        return made if self._last else made.bfloat16()


class Member:
    """One of the processes that train together."""

    def __init__(self, options: argparse.Namespace) -> None:
        config = load(options.config)
        self.run: RunConfig = config.run
        self.corpus: Corpus = read_corpus(config)
        self.rank: int = options.rank
        self.addresses: Sequence[str] = options.address
        self.count = len(self.addresses)
        self._begun_s = 0.0

    def numbers(self, step: int) -> range:
        """The microbatches of a step, by their numbers in the run."""
        size = self.run.batch.microbatches
        return range(step * size, (step + 1) * size)

    def share(self, step: int) -> Sequence[int]:
        """Those that are this member's, if microbatches are dealt out in turn."""
        return self.numbers(step)[self.rank :: self.count]

    def tokens(self, number: int) -> Tensor:
        """A microbatch."""
        return torch.from_numpy(self.corpus.microbatch(number)).to(torch.int64)

    def begin(self) -> None:
        """Start the clock: all are ready."""
        self._begun_s = time.monotonic()
        self._events = EventNumbers("", "peer", time.time)
        print(self._events.stamp(Started(0)).line, flush=True)

    def tell(self, step: int, losses: Sequence[float]) -> None:
        """A step is done."""
        seconds, done = time.monotonic() - self._begun_s, (step + 1) * self.run.batch.microbatches
        tokens = done * self.run.batch.rows * self.run.model.sequence_length
        rate, loss = learning_rate(self.run, step), sum(losses) / len(losses)
        counts = MicrobatchCounts(done, done, 0)
        event = Stepped(step + 1, loss, tokens / seconds, rate, 0.0, counts, seconds=seconds)
        print(self._events.stamp(event).line, flush=True)


def join_gloo(member: Member) -> Any:
    """Meet the others; torch's module for it."""
    from torch import distributed  # noqa: PLC0415 - hivemind's members do without

    method = f"tcp://{member.addresses[0]}:{PORT}"
    distributed.init_process_group(
        "gloo", init_method=method, rank=member.rank, world_size=member.count
    )
    return distributed


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean nats per token."""
    return nats_of(scores, targets) / targets.numel()


def train_pipeline(member: Member, kind: str, *, narrow: bool) -> None:
    """A stage of torch's pipeline; the last one knows the losses."""
    from torch.distributed import pipelining  # noqa: PLC0415

    distributed = join_gloo(member)
    run, rank, last = member.run, member.rank, member.count - 1
    blocks = TrainedBlocks(run, stage_blocks(run, rank))
    ends = {"first": rank == 0, "last": rank == last}
    module = BFloat16Ends(blocks.module, **ends) if narrow else blocks.module
    schedule_of = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}[kind]
    stage = pipelining.PipelineStage(module, rank, member.count, CPU)
    schedule = schedule_of(stage, run.batch.microbatches, loss_fn=loss_of)
    losses: list[Tensor] = []

    def compute(step: int) -> None:
        tokens = torch.cat([member.tokens(number) for number in member.numbers(step)])
        if rank == 0:
            schedule.step(tokens[:, :-1])
        elif rank == last:
            schedule.step(target=tokens[:, 1:], losses=losses, return_outputs=False)
        else:
            schedule.step()

    distributed.barrier()
    member.begin()
    for step in range(run.steps):
        compute(step)
        squares = torch.tensor(blocks.squares(), dtype=torch.float64)
        distributed.all_reduce(squares)
        blocks.update(step, squares.item())
        if rank == last:
            member.tell(step, [loss.item() for loss in losses])


def accumulate(
    member: Member,
    step: int,
    model: Callable[[Tensor], Tensor],
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[float]:
    """Compute this member's microbatches of a step; `alone` is around all but the last."""
    share, losses = member.share(step), []
    for number in share:
        tokens = member.tokens(number)
        with nullcontext() if number == share[-1] else alone():
            loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
            (loss / len(share)).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
    return losses


def train_ddp(member: Member, *, narrow: bool) -> None:
    """Each member has all blocks, and gradients are averaged."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    distributed = join_gloo(member)
    blocks = TrainedBlocks(member.run, range(block_count(member.run.model)))
    model = DistributedDataParallel(blocks.module)
    if narrow:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    distributed.barrier()
    member.begin()
    for step in range(member.run.steps):
        losses = accumulate(member, step, model, model.no_sync)
        blocks.update(step, blocks.squares())
        member.tell(step, losses)


class HivemindAverage:
    """hivemind's averager for one vector.

    The next group is looked for while the members train, as hivemind's own optimizer does.
    """

    def __init__(self, member: Member, seed: str, vector_N: Tensor) -> None:
        """`seed`: where the first member is; empty for itself, which says it."""
        from hivemind import DHT, DecentralizedAverager  # noqa: PLC0415 - .venv-peers alone has it
        from hivemind.compression import Float16Compression  # noqa: PLC0415

        self._dht = DHT(
            host_maddrs=[f"/ip4/{member.addresses[member.rank]}/tcp/0"],
            initial_peers=[seed] if seed else None,
            start=True,
            startup_timeout=START_S,
        )
        if not seed:
            print(f"at {self._dht.get_visible_maddrs()[0]}", flush=True)
        self._averager = DecentralizedAverager(
            [vector_N.clone()],
            self._dht,
            start=True,
            prefix="diloco",
            target_group_size=member.count,
            min_group_size=member.count,
            compression=Float16Compression(),
        )
        self._look()

    def average(self, vector_N: Tensor) -> None:
        """Put the average of all members' vectors in this one's place."""
        with self._averager.get_tensors() as (shared_N,):
            shared_N.copy_(vector_N)
        self._step.allow_allreduce()
        self._step.result()
        with self._averager.get_tensors() as (shared_N,):
            vector_N.copy_(shared_N)
        self._look()

    def _look(self) -> None:
        self._step = self._averager.step(wait=False, require_trigger=True, timeout=GROUP_S)


def train_diloco(member: Member, seed: str, local_steps: int, outer: tuple[float, float]) -> None:
    """Members train alone for some steps; then all go on from one average.

    `outer`: the rate and the momentum of the step that is made with it.
    """
    rate, momentum = outer
    blocks = TrainedBlocks(member.run, range(block_count(member.run.model)))
    params_N = blocks.flat.params_N
    anchor_N, momentum_N = params_N.clone(), torch.zeros_like(params_N)
    average = HivemindAverage(member, seed, momentum_N)
    average.average(torch.zeros_like(params_N))  # then all are ready
    member.begin()
    for step in range(member.run.steps):
        losses = accumulate(member, step, blocks.module)
        blocks.update(step, blocks.squares())
        if (step + 1) % local_steps == 0:
            learnt_N = anchor_N - params_N
            average.average(learnt_N)
            momentum_N.mul_(momentum).add_(learnt_N)
            anchor_N.sub_(rate * (learnt_N + momentum * momentum_N))
            params_N.copy_(anchor_N)
        member.tell(step, losses)


def main() -> None:
    """Train to the last step, or until this process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--system", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--address", nargs="+", required=True, help="of all members, by rank")
    parser.add_argument("--seed", default="", help="where hivemind's first member is")
    parser.add_argument("--local-steps", type=int, default=10, help="between two averages")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    os.environ["HIVEMIND_LOGLEVEL"] = "ERROR"
    member = Member(options)
    narrow = options.system.endswith(HALVES)
    kind = options.system[:-5] if narrow else options.system
    match kind:
        case "gloo-1f1b" | "gloo-gpipe":
            train_pipeline(member, kind.removeprefix("gloo-"), narrow=narrow)
        case "gloo-ddp":
            train_ddp(member, narrow=narrow)
        case "hivemind-diloco" | "hivemind-local":
            train_diloco(member, options.seed, options.local_steps, OUTER[kind])
        case _:
            parser.error(f"--system: there is no {options.system}")


if __name__ == "__main__":
    main()
