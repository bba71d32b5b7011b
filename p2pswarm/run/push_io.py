"""Pushes a microbatch: one stream with each server that a `PushProgress` chooses.

The trainer pushes tokens to stage 0. A server pushes activations to the next stage, and
gradients back to the server that their microbatch came from.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from p2pswarm.base.errors import BadMessage, Busy, SwarmError
from p2pswarm.base.signal import Signal
from p2pswarm.net.rpc.base import Priority, Rpc
from p2pswarm.net.rpc.stream import within
from p2pswarm.run.member_view import contact
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Push, Receipt
from p2pswarm.run.push import Candidates, PushProgress
from p2pswarm.tensors.codecs.meta import Grant
from p2pswarm.tensors.codecs.registry import EncodedTensor
from p2pswarm.tensors.transfer import TensorTransfer

GRANT_S = 4.0  # a server grants or refuses at once: it has memory or is Busy; as for silence
PUSH_S = 7200.0  # grant, bytes, queue and compute: as long as an attempt may ever take

PushOnce = Callable[[MemberRecord, PushProgress], Awaitable[None]]
"""Pushes to one server, and returns when that server has computed."""


@dataclass(frozen=True, slots=True)
class Pusher:
    """What a push needs: calls, and transfers of tensors."""

    rpc: Rpc
    tensors: TensorTransfer
    on_sending: Callable[[bool], None] = lambda _begins: None
    """Told when the bytes set out, and when they are all with the server or will not come."""

    async def push(
        self,
        member: MemberRecord,
        push: Push,
        load: Callable[[], Awaitable[Sequence[EncodedTensor]]],
        progress: PushProgress,
    ) -> None:
        """Push to one server; returns when that server has computed.

        `load` gives the bytes. It is called after the grant has come. So the grant is requested
        while the bytes are still being computed, which saves a round trip between two stages.
        """
        loop = asyncio.get_running_loop()
        push = replace(push, incarnation=member.incarnation)
        async with self.rpc.open_stream(contact(member), push, PUSH_S) as stream:
            async with within(GRANT_S, "a grant"):
                grant = await stream.receive()
            if not isinstance(grant, Grant):
                raise BadMessage(f"{type(grant).__name__} where a Grant is due")
            progress.granted(loop.time())
            encoded = await load()
            started_s = loop.time()
            if tuple(each.meta for each in encoded) != push.tensors:
                raise Busy("the tensors differ from the announced ones", 0.0)  # none were sent
            with self._sending():
                await self.tensors.send(stream, grant, encoded, Priority.TENSOR)
            progress.sent(started_s)
            receipt = await stream.receive()
            if not isinstance(receipt, Receipt):
                raise BadMessage(f"{type(receipt).__name__} where a Receipt is due")
            progress.computed(loop.time(), receipt)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        self.on_sending(True)
        try:
            yield
        finally:
            self.on_sending(False)


async def push_to_any(
    candidates: Candidates,
    nobody: str,
    view_changed: Signal,
    push_once: PushOnce,
    keeper: MemberRecord | None = None,
) -> str | None:
    """Push to one server after another; returns the reason why none has computed, if any.

    A server that failed has told the coordinator itself. `nobody` is the reason if no server was
    ever asked; `view_changed` fires when there may be one. `keeper` is asked first.
    """
    loop = asyncio.get_running_loop()
    progress = PushProgress(candidates, nobody, loop.time(), keeper=keeper)
    while not progress.over:
        member = progress.choose(loop.time())
        if member is not None:
            try:
                await push_once(member, progress)
            except SwarmError as error:
                progress.failed(error, loop.time())
            finally:
                progress.ended(loop.time())
        elif not progress.over:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(progress.next_deadline_s()):
                    await view_changed.wait()
    return progress.reason
