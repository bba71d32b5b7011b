"""CircuitNet: a network whose `dial` also leads through relays. Seam 1 round another one.

Errors:  DialFailed with the relay's reason, BadHandshake if it is no relay; as in `net/os/base.py`.
Source:  docs/relays.md.
"""

from contextlib import AbstractContextManager

from p2pswarm.base.errors import DialFailed, LinkLost, NobodyThere
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.endpoint.preface import CIRCUIT_ANSWER_BYTES, CircuitRequest, check_circuit_answer
from p2pswarm.net.os.base import BulkMachine, BulkPipe, Connection, ControlMachine, Listener, Net


class CircuitConnection:
    """A connection that a relay has joined: it names the circuit as its other end."""

    def __init__(self, inner: Connection, remote: Address) -> None:
        self._inner = inner
        self._remote = remote

    @property
    def remote(self) -> Address:
        """The address through the relay."""
        return self._remote

    async def receive(self, n: int) -> bytes:
        """Exactly `n` bytes."""
        return await self._inner.receive(n)

    async def send(self, data: bytes) -> None:
        """Write all of `data`."""
        await self._inner.send(data)

    async def become_control(self, user: ControlMachine) -> None:
        """Push all further bytes to `user`."""
        await self._inner.become_control(user)

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """Drive `machine` from now on."""
        return self._inner.become_bulk(machine)

    def close(self) -> None:
        """End the connection, unless it has become a pipe."""
        self._inner.close()


class CircuitNet:
    """A network with relays in it: implements `Net`.

    To dial an address of a circuit is to connect to the relay, to ask for the peer, and to wait
    until the relay has joined us with it. What follows is a connection like any other.
    """

    def __init__(self, net: Net) -> None:
        """`net`: the one in which relays are dialled."""
        self._net = net

    async def listen(self, at: Address) -> Listener:
        """Bind and listen."""
        return await self._net.listen(at)

    def lock(self) -> AbstractContextManager[object]:
        """A lock for state that bulk machines share."""
        return self._net.lock()

    async def dial(self, to: Address, from_port: int = 0) -> Connection:
        """Connect, through the relay if the address has one."""
        if not to.circuit:
            return await self._net.dial(to, from_port)
        return await self._ask(CircuitRequest(peer=to.circuit), to)

    async def take(self, relay: Address, ticket: bytes, us: PeerId) -> Connection:
        """The circuit that waits at `relay` for us: whoever dialled it is at its other end."""
        return await self._ask(CircuitRequest(ticket=ticket), relay.through(us))

    async def _ask(self, request: CircuitRequest, to: Address) -> Connection:
        try:
            connection = await self._net.dial(to.place)
        except NobodyThere as error:  # the relay has ended: that says nothing of the peer
            raise DialFailed(f"relay {error}") from error
        try:
            await connection.send(request.raw)
            check_circuit_answer(await connection.receive(CIRCUIT_ANSWER_BYTES), str(to.place))
        except LinkLost as error:
            connection.close()
            raise DialFailed(f"relay {to.place} closed the connection: {error}") from error
        except BaseException:
            connection.close()
            raise
        return CircuitConnection(connection, to)
