"""Hands a microbatch to a server: one stream with one, and the search for one that has room.

The trainer hands tokens to stage 0 and every server hands activations on, by these lines. A second
server is tried only after a definite refusal. Where the first may or may not have the microbatch,
the search ends, and it is the coordinator's to decide.

Units:   seconds.
Errors:  `hand` raises what the stream raises; `place` returns the reason instead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from p2pswarm.errors import BadMessage, Busy, DialFailed, Refused, SwarmError, TooLarge
from p2pswarm.rpc.base import Priority, Rpc
from p2pswarm.swarm.messages.membership import MemberRecord
from p2pswarm.swarm.messages.microbatch import Push, Receipt
from p2pswarm.swarm.router import Router
from p2pswarm.swarm.view import contact
from p2pswarm.tensors.codecs.registry import EncodedTensor
from p2pswarm.tensors.meta import Grant
from p2pswarm.tensors.transfer import TensorTransfer

PUSH_S = 600.0  # grant, bytes, queue and compute; the trainer's fence comes long before
SEARCH_S = 60.0  # looking for a server that has room; then the trainer decides
REFUSED_S = 0.25  # a server that does not serve this step or attempt is left alone so long
IDLE_S = 0.05  # between two looks while no server is known


@dataclass(frozen=True, slots=True)
class Pusher:
    """What carries a push."""

    rpc: Rpc
    tensors: TensorTransfer

    async def hand(
        self,
        member: MemberRecord,
        push: Push,
        encoded: Sequence[EncodedTensor],
        granted: Callable[[], None],
    ) -> None:
        """Hand over to one server; `granted` is called once it has taken the microbatch on.

        Returns when the server has computed it.
        """

        async def load() -> Sequence[EncodedTensor]:
            granted()
            return encoded

        await self.hand_ahead(member, push, load)

    async def hand_ahead(
        self,
        member: MemberRecord,
        push: Push,
        load: Callable[[], Awaitable[Sequence[EncodedTensor]]],
    ) -> None:
        """As `hand`, but the bytes need to be there only when `load` returns.

        It is called with the grant in hand, so that the grant can be asked for while the
        microbatch is still computed: a round trip less between two stages.
        """
        push = replace(push, incarnation=member.incarnation)
        async with self.rpc.open_stream(contact(member), push, PUSH_S) as stream:
            grant = await stream.receive()
            if not isinstance(grant, Grant):
                raise BadMessage(f"{type(grant).__name__} where a Grant is due")
            encoded = await load()
            if tuple(encoded_tensor.meta for encoded_tensor in encoded) != push.tensors:
                raise Busy("other bytes than were announced", 0.0)  # to be announced anew
            await self.tensors.send(stream, grant, encoded, Priority.TENSOR)
            receipt = await stream.receive()
            if not isinstance(receipt, Receipt):
                raise BadMessage(f"{type(receipt).__name__} where a Receipt is due")


async def push_to_any(
    router: Router, stage: int, hand: Callable[[MemberRecord], Awaitable[float | None]]
) -> str | None:
    """Find a server of `stage` that takes it; None, or why none did or why nobody can know.

    `hand` returns when the bytes were there to be sent, if that was later than it was called.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + SEARCH_S
    reason = f"nobody serves stage {stage}"
    while loop.time() < give_up_s:
        member = router.choose(loop.time())
        if member is None:
            await asyncio.sleep(_wait_s(router, loop.time()))
            continue
        started_s = loop.time()
        try:
            started_s = await hand(member) or started_s
        except Busy as error:
            router.busy(member.peer, loop.time() + error.retry_after_s)
            reason = str(error)
        except TooLarge as error:
            return str(error)
        except Refused as error:
            router.busy(member.peer, loop.time() + REFUSED_S)
            reason = str(error)
        except DialFailed as error:
            router.lost(member.peer)
            reason = str(error)
        except SwarmError as error:
            router.lost(member.peer)
            return str(error)
        else:
            router.settle(member.peer, started_s, loop.time())
            return None
    return reason


def _wait_s(router: Router, now_s: float) -> float:
    """Until a busy server may be asked again, or a view may have brought one."""
    free_s = router.free_at_s()
    return IDLE_S if free_s is None else min(max(free_s - now_s, 0.001), IDLE_S)
