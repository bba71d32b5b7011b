"""A page that is served, and raw requests to it."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from p2pswarm.base.ids import Address
from p2pswarm.progress.event_lines import EventNumbers
from p2pswarm.progress.events import (
    Begun,
    Event,
    Joined,
    MicrobatchCounts,
    PeerLine,
    Peers,
    Serving,
    Started,
    Stepped,
)
from p2pswarm.web.gate import PageGate
from p2pswarm.web.health import NodeHealth
from p2pswarm.web.page_server import PageServer, listening
from p2pswarm.web.run_page import RunPage

TOKEN = "a-token-of-a-test-that-nobody-guesses"
RUN = "5f0c5f0c5f0c5f0c"
MICROBATCHES = 8


class WallClock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_764_000_000.0

    def __call__(self) -> float:
        return self.at


@dataclass
class FedPage:
    """A page whose events a test tells."""

    page: RunPage
    numbers: EventNumbers
    wall: WallClock
    clock: Callable[[], float]
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    server: PageServer | None = None

    def tell(self, *events: Event, after_s: float = 0.0) -> None:
        for event in events:
            self.wall.at += after_s
            told = self.numbers.stamp(event)
            self.page.view.on_event(told)
            self.page.on_line(told, self.clock())

    @property
    def link(self) -> str:
        return f"http://{self.address}/?t={TOKEN}"

    async def asked(self, request: str) -> str:
        """The whole answer to a request, as it came; the connection is closed by it."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        writer.write(request.encode())
        answer = await reader.read()
        writer.close()
        return answer.decode()

    async def got(self, path: str, **headers: str) -> str:
        fields = {
            "Host": str(self.address),
            "Connection": "close",
            "Authorization": f"Bearer {TOKEN}",
        }
        lines = [f"{name}: {value}" for name, value in (fields | headers).items() if value]
        return await self.asked(f"GET {path} HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n")


def fed_page(clock: Callable[[], float], role: str = "trainer") -> FedPage:
    wall = WallClock()
    return FedPage(
        RunPage(NodeHealth(role, clock()), wall, secrets.token_hex(4)),
        EventNumbers(RUN, "k7f2", wall),
        wall,
        clock,
    )


@contextlib.asynccontextmanager
async def served_page(port: int = 0, role: str = "trainer") -> AsyncIterator[FedPage]:
    fed = fed_page(asyncio.get_running_loop().time, role)
    listener = listening("127.0.0.1", port)
    async with PageServer(fed.page, lambda port: PageGate(TOKEN, port), listener) as server:
        fed.address, fed.server = server.address, server
        yield fed


def begun(stages: int = 2, servers: int = 4) -> list[Event]:
    each = [(f"peer{number}", number % stages, f"machine-{number}") for number in range(servers)]
    return [
        Begun(
            "shakespeare",
            "trainer",
            "attic",
            "0.1.0",
            steps=2_000,
            stages=stages,
            cut=(3,) * stages,
            microbatches=MICROBATCHES,
            rows=2,
            sequence_length=128,
            parameters=10_000_000,
            model="gpt",
            optimizer="adamw",
            codecs=("raw", "raw", "raw"),
        ),
        *(Joined(*one) for one in each),
        *(Serving(*one) for one in each),
        Started(10_000_000),
    ]


def stepped(step: int, took_s: float = 1.0) -> Stepped:
    done = MICROBATCHES * step
    return Stepped(
        step,
        3.0 + 3.0 / step,
        18_400.0,
        1e-3,
        0.5,
        MicrobatchCounts(done, done, step // 10),
        took_s=took_s,
        equal=4,
        compared=4,
        height=step,
        head="9f3aab12",
    )


def peers(stages: int = 2, servers: int = 4) -> Peers:
    return Peers(
        tuple(
            PeerLine(
                f"peer{number}",
                number % stages,
                True,
                number,
                1.5,
                direct=2,
                relayed=number % 2,
                forward_s=0.1,
                backward_s=0.2,
                queue_s=0.2,
                up_bytes_per_s=2e7,
                down_bytes_per_s=1e7,
                free_bytes=18 * 10**9,
            )
            for number in range(servers)
        )
    )
