"""What one member wins by lies about load, capacity or time: its share of work, the run's speed.

Eight servers train in virtual time, in two stages of four or four of two. One of them lies, in one
of the ways of `LIES`. The share is of the microbatches that were pushed to its stage. Its fair part
is a quarter or a half. The speed is that of the same run with eight honest servers. Beside it is
that of a run without the liar, with seven: a liar cannot be made to work.

    python bench/liars.py [--kind NAME] [--stages N] [--seeds N] [--json FILE]
"""

import asyncio
import contextlib
import logging
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from goes_on import WatchedRun
from results import command_line, write_json

from p2pswarm.base.errors import Busy, NotServing
from p2pswarm.base.ids import Contact
from p2pswarm.net.rpc.base import ForwardingRpc, M, Rpc, Stream, StreamHandler
from p2pswarm.net.wire.message import Message
from p2pswarm.progress.events import Report
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.field_limits import Obstacle, Work
from p2pswarm.run.messages.membership import Join, Load
from p2pswarm.run.messages.microbatch import Handed, Push, Receipt, Undelivered
from p2pswarm.settings.config import BatchConfig, ModelConfig
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm_run import small_run
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.meta import Grant
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.reports.reports import RunBegun

SERVERS, MICROBATCHES = 8, 32
FORWARD_S = 0.1
PLAYED_S = 60.0  # of virtual time after the run has begun
SLOW = 0.1  # the speed of a server that claims to be fast
REGIONS = ((0.4, 0.4), (0.6, 0.5))

Answer = Callable[["Liar", Stream, Push], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Lie:
    """One way to lie."""

    push: Answer | None = None
    """How it serves a push; None: honestly."""
    says: Callable[["Liar", Message], list[Message]] = lambda _liar, message: [message]
    """What it says instead of a note to the trainer."""
    receipt: Callable[[Receipt], Receipt] = lambda receipt: receipt
    hides: Callable[[Push], bool] = lambda _push: False
    """Which of its own pushes it makes to nobody."""
    speed: float = 1.0
    moves: bool = False
    """True if servers may be moved between stages."""


class EditedStream:
    """A stream whose messages are changed on their way out."""

    def __init__(self, stream: Stream, edit: Callable[[Message], list[Message]]) -> None:
        self._stream, self._edit = stream, edit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, message: Message) -> None:
        """Send what is said instead."""
        for each in self._edit(message):
            await self._stream.send(each)


class NowhereStream:
    """A stream to nobody: it grants everything, and never answers."""

    def __init__(self, tensors: int) -> None:
        self._grant: Grant | None = Grant(tuple(range(tensors)))

    async def receive(self) -> Message:
        """Grant, and then nothing."""
        grant, self._grant = self._grant, None
        return grant or await asyncio.get_running_loop().create_future()

    async def send(self, message: Message) -> None:
        """Send it nowhere."""

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send it nowhere."""


class Server(ForwardingRpc):
    """Counts the microbatches that are pushed to one server."""

    def __init__(self, rpc: Rpc, number: int, swarm: "LiarSwarm") -> None:
        super().__init__(rpc)
        self.number, self.swarm = number, swarm

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """As `Rpc.serve_stream`."""
        if opening is not Push:
            super().serve_stream(opening, handler)
            return

        async def push(stream: Stream, message: Any) -> None:
            await self.serve_push(stream, message, handler)

        super().serve_stream(Push, push)

    async def serve_push(self, stream: Stream, push: Push, honest: StreamHandler[Any]) -> None:
        """Serve it as it should be."""
        await honest(self.counted(stream, push), push)

    def counted(self, stream: Stream, push: Push) -> Any:
        """A stream on which a grant counts."""

        def edit(message: Message) -> list[Message]:
            if isinstance(message, Grant) and push.work == Work.FORWARD:
                self.swarm.pushed[self.number] += 1
            return self.edit(message)

        return EditedStream(stream, edit)

    def edit(self, message: Message) -> list[Message]:
        """What is said instead of a message of a push."""
        return [message]


class Liar(Server):
    """A server that lies."""

    def __init__(self, rpc: Rpc, number: int, swarm: "LiarSwarm", lie: Lie) -> None:
        super().__init__(rpc, number, swarm)
        self.lie = lie
        self.tensors = TensorTransfer(Budget())
        self.honest: StreamHandler[Any]

    async def serve_push(self, stream: Stream, push: Push, honest: StreamHandler[Any]) -> None:
        """Serve it as the lie says."""
        self.honest = honest
        if self.lie.push is None:
            await honest(self.counted(stream, push), push)
        else:
            await self.lie.push(self, self.counted(stream, push), push)

    def edit(self, message: Message) -> list[Message]:
        """What is said instead of a message of a push."""
        return [self.lie.receipt(message) if isinstance(message, Receipt) else message]

    def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AbstractAsyncContextManager[Stream]:
        """As `Rpc.open_stream`."""
        if isinstance(opening, Push) and self.lie.hides(opening):
            return contextlib.nullcontext(NowhereStream(len(opening.tensors)))
        opened = super().open_stream(to, opening, timeout_s)
        return self._edited(opened) if isinstance(opening, Join) else opened

    @asynccontextmanager
    async def _edited(self, opened: AbstractAsyncContextManager[Stream]) -> AsyncIterator[Any]:
        async with opened as stream:
            yield EditedStream(stream, lambda message: self.lie.says(self, message))


async def swallow(liar: Liar, stream: Stream, push: Push) -> None:
    """Take the bytes."""
    async with liar.tensors.accept(stream, push.tensors) as coming:
        await stream.send(coming.grant)
        await coming.tensors()


async def silent(liar: Liar, stream: Stream, push: Push) -> None:
    """Take it, and answer nothing."""
    await swallow(liar, stream, push)
    await asyncio.sleep(1e6)


async def receipts(liar: Liar, stream: Stream, push: Push) -> None:
    """Take it, and say that it is computed."""
    await swallow(liar, stream, push)
    await stream.send(Receipt(0.0, 0.0))


async def half(liar: Liar, stream: Stream, push: Push) -> None:
    """Compute each second microbatch, and say so of all."""
    if push.work == Work.FORWARD and push.microbatch % 2:
        await receipts(liar, stream, push)
    else:
        await liar.honest(stream, push)


def busy(retry_s: float) -> Answer:
    """Be busy, always."""

    async def refuse(_liar: Liar, _stream: Stream, _push: Push) -> None:
        raise Busy("no", retry_s)

    return refuse


async def late_busy(liar: Liar, stream: Stream, push: Push) -> None:
    """Be busy once the bytes are here."""
    await swallow(liar, stream, push)
    raise Busy("no", 0.0)


async def refuses(_liar: Liar, _stream: Stream, _push: Push) -> None:
    """Serve nothing."""
    raise NotServing("no")


async def no_gradients(liar: Liar, stream: Stream, push: Push) -> None:
    """Do the forwards, and be busy for their gradients."""
    if push.work == Work.BACKWARD:
        raise Busy("no", 3600.0)
    await liar.honest(stream, push)


async def ever_later(liar: Liar, stream: Stream, push: Push) -> None:
    """Take three times as long as the step before for each microbatch."""
    if push.work == Work.FORWARD:
        await asyncio.sleep(min(1e3, FORWARD_S * 1.5 ** (push.step + 1)))
    await liar.honest(stream, push)


def odd_forward(push: Push) -> bool:
    """Each second microbatch that it is to hand on."""
    return push.work == Work.FORWARD and push.microbatch % 2 == 1


def odd_gradient(push: Push) -> bool:
    """Each second gradient."""
    return push.work == Work.BACKWARD and push.microbatch % 2 == 1


def hands_to_one(liar: Liar, note: Message) -> list[Message]:
    """Say of all that one server of the next stage has them."""
    leader = liar.swarm.watched.swarm.trainers.leader
    if isinstance(note, Handed) and leader is not None:
        members = leader.trainer.coordinator.members
        me = members.of_peer(liar.contact.peer.raw)
        if me is not None and (ready := members.ready(me.stage + 1)):
            one = ready[0].incarnation
            return [replace(note, peer=one.peer, incarnation=one.number)]
    return [note]


def complains(_liar: Liar, note: Message) -> list[Message]:
    """Say of each second that it was handed on to nobody."""
    if isinstance(note, Handed) and note.microbatch % 2:
        what = note.step, note.microbatch, note.attempt
        return [note, Undelivered(*what, "the road is broken", Obstacle.ROAD)]
    return [note]


def measures(factor: float) -> Callable[[Liar, Message], list[Message]]:
    """Say that it takes so many times as long as it does."""

    def edit(_liar: Liar, note: Message) -> list[Message]:
        if isinstance(note, Load):
            told: Capacity = note.capacity
            if told.forward_s is not None:
                told = replace(told, forward_s=told.forward_s * factor)
            if told.backward_s is not None:
                told = replace(told, backward_s=told.backward_s * factor)
            return [replace(note, capacity=replace(told, error_s=0.0))]
        return [note]

    return edit


def looks_fast(receipt: Receipt) -> Receipt:
    """All of the time was the queue's."""
    return Receipt(receipt.queue_s + receipt.compute_s, 0.0, 0.0)


LIES: dict[str, Lie] = {
    "silent": Lie(silent),
    "receipts": Lie(receipts),
    "half": Lie(half),
    "looks fast": Lie(receipt=looks_fast, speed=SLOW),
    "downstream": Lie(receipt=lambda receipt: replace(receipt, gradient_s=1e-6)),
    "busy 0 s": Lie(busy(0.0)),
    "busy 1 h": Lie(busy(3600.0)),
    "busy late": Lie(late_busy),
    "refuses": Lie(refuses),
    "no gradients": Lie(no_gradients),
    "ever later": Lie(ever_later),
    "hands on nothing": Lie(says=hands_to_one, hides=odd_forward),
    "keeps gradients": Lie(hides=odd_gradient),
    "complains": Lie(says=complains),
    "told fast": Lie(says=measures(1e-3), moves=True),
    "told slow": Lie(says=measures(1e3), moves=True),
    "fast and silent": Lie(silent, says=measures(1e-3), moves=True),
}


class LiarSwarm:
    """One run with one liar, or with none."""

    def __init__(self, seed: int, stages: int, lie: Lie | None, servers: int = SERVERS) -> None:
        self.stages, self.lie = stages, lie
        self.pushed: Counter[int] = Counter()
        """The microbatches that each server was pushed."""
        self.liar = servers - 1
        moves = lie is not None and lie.moves
        self.played_s = PLAYED_S * (2 if moves else 1)
        speeds = [lie.speed if lie and n == self.liar else 1.0 for n in range(servers)]
        devices = tuple(
            SimDevice(speed=speed, stage=None if moves else self.stage_of(n))
            for n, speed in enumerate(speeds)
        )
        self.watched = WatchedRun(
            seed,
            FORWARD_S,
            run=small_run(
                stages=stages,
                steps=100_000,
                min_replicas=1,
                seed=seed,
                model=ModelConfig(d_model=8, layers=4, heads=4, sequence_length=8),
                batch=BatchConfig(microbatches=MICROBATCHES, rows=1, evaluate_every=0),
            ),
            servers=servers,
            devices=devices,
            regions=REGIONS,
            free_bytes=1 << 33,
        )
        self.watched.swarm.between = self._between

    def stage_of(self, number: int) -> int:
        """The last server is of stage 0 of two, or of stage 1 of four."""
        return (number + self.stages // 2) % self.stages

    def _between(self, number: int, rpc: Rpc) -> Rpc:
        if self.lie is not None and number == self.liar:
            return Liar(rpc, number, self, self.lie)
        return Server(rpc, number, self)

    async def play(self) -> float:
        """Train for `played_s`; return steps per second."""
        watched, begun, over = self.watched, asyncio.Event(), asyncio.Event()
        heard = watched.swarm.heard

        def hear(report: Report) -> None:
            heard(report)
            if isinstance(report, RunBegun) and not begun.is_set():
                begun.set()
                asyncio.get_running_loop().call_later(self.played_s, over.set, context=WORLD)

        watched.swarm.heard = hear
        playing = asyncio.create_task(watched.swarm.play())
        await over.wait()
        steps = len(watched.ends_s)
        playing.cancel()
        watched.swarm.trainers.release()
        await asyncio.wait((playing,))
        return steps / self.played_s

    @property
    def share(self) -> float:
        """Of the microbatches that the liar's stage was pushed, the liar's."""
        if self.lie and self.lie.moves:
            return self.pushed[self.liar] * self.stages / self.pushed.total()
        stage = self.stage_of(self.liar)
        here = sum(count for number, count in self.pushed.items() if self.stage_of(number) == stage)
        return self.pushed[self.liar] / here if here else 0.0


def main() -> None:
    """Play each lie, and print its figures."""
    parser = command_line(__doc__)
    parser.add_argument("--kind", choices=LIES, action="append", help="all by default")
    parser.add_argument("--stages", type=int, action="append", choices=(2, 4), help="both")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    options = parser.parse_args()
    logging.getLogger("p2pswarm").addHandler(logging.NullHandler())
    figures: dict[str, dict[str, float]] = {}
    seeds = range(1, options.seeds + 1)
    for stages in options.stages or (2, 4):
        calm = statistics.mean(run(LiarSwarm(s, stages, None).play(), s) for s in seeds)
        less = statistics.mean(
            run(LiarSwarm(s, stages, None, SERVERS - 1).play(), s) for s in seeds
        )
        print(f"{stages} stages: calm {calm:.3f} steps/s, without the liar {less / calm:.2f}")
        for kind in options.kind or LIES:
            shares, speeds = [], []
            for seed in seeds:
                swarm = LiarSwarm(seed, stages, LIES[kind])
                speeds.append(run(swarm.play(), seed) / calm)
                shares.append(swarm.share)
            share, speed = statistics.mean(shares), statistics.mean(speeds)
            print(
                f"liar {kind}: share of work {share:.2f}, steps over calm {speed:.2f}",
                flush=True,
            )
            figures[f"{stages} {kind}"] = {"share": share, "over_calm": speed}
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
