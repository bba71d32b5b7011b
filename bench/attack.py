"""Attacks on a real node process, and how an honest peer beside them fares.

    python bench/attack.py [--only NAME,...] [--seconds 12] [--dials 100] [--rtt 0.15]
                           [--listen 0.0.0.0,[::],127.0.0.1] [--json FILE] [--logs FOLDER]

Each row: a fresh `python -m p2pswarm.node`, an honest peer that dials it over a delaying proxy
(`--rtt`) and calls it over a link that stays, first in peace and then under the attack of another
process (bench/attacks.py). A dial ends with the answer to a first call. A row tells how many got
through and how much longer they and the longest pause between two answers were than in peace, the
node's memory, threads and files, what the attack did, what the node's log complains of, and which
of the stated limits do not hold.

Ratios are against the same peer in the same run: the attacker shares this machine's processors, so
the times under attack have its own cost in them. The exit status is 1 if a limit does not hold.
"""

import argparse
import asyncio
import contextlib
import ipaddress
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import attacks
import proc
from attacks import Announce, raise_limits
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from results import command_line, write_json

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.messages import Get, Got, Ping, Pong, Store, Stored
from p2pswarm.discovery.dht.records import sign
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.os.web_net import WebNet
from p2pswarm.net.rpc.link_rpc import LinkRpc

RECEIVE = "--receive"
MIB = 1 << 20
CALM_S = 4.0
WATCH_EVERY_S = 0.2
READY_S = 120.0  # for an attack to have its full size: 1,024 handshakes on a busy machine
DIALS_SHARE = 0.99
SURVIVORS_SHARE = 0.95
STORE_BYTES = 64 * MIB
SLOW_DIAL_S = 1.0
SLOW_WEB_DIAL_S = 2.0  # TLS and HTTP take a round trip each
HANDSHAKES = (
    "slow-one", "slow-500", "empty-100", "empty-own", "first-messages", "garbage",
)  # fmt: skip
SECURE_WEB = ("tls-one", "tls-500")
WEB = (*SECURE_WEB, "web-one", "web-500")
LINKS = ("idle-one", "idle-1024", "unread", "bulk")
TENSORS = ("tensors", "bombs")
STORES = ("store-links", "store-empty", "store-large", "store-66", "hot-key")
EVERYTHING = (*HANDSHAKES, *WEB, *LINKS, *TENSORS, *STORES)
HONEST_HOST = "127.90.9.9"
HONEST_HOSTS = [f"127.{network}.9.9" for network in range(1, 91)]
"""Newcomers each come from a network of their own, where the attack is not from theirs."""
LOCALHOST = ipaddress.ip_address("127.0.0.1")
CALL_EVERY_S = 0.01
TIMEOUT_S = 10.0
RECORDS = 200
PUBLISHERS = 20


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What a process holds."""

    resident_bytes: int = 0
    threads: int = 0
    files: int = 0

    @classmethod
    def of(cls, pid: int) -> Self:
        """The figures of a process that lives."""
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(proc.memory_bytes(pid), proc.status(pid, "Threads"), files)

    def most(self, other: Self) -> Self:
        """The larger of each."""
        return type(self)(*map(max, astuple(self), astuple(other)))


@contextlib.asynccontextmanager
async def distant(at: Address, rtt_s: float, sources: Sequence[str]) -> AsyncIterator[Address]:
    """An address on this host from which `at` is `rtt_s` away; dials come from `sources` in turn.

    The connection to `at` is made when a dialler's acknowledgement and first bytes would arrive:
    one and a half round trips after its dial.
    """
    carrying: set[asyncio.Task[None]] = set()
    turns = itertools.cycle(sources)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carrying.add(task)
        try:
            await asyncio.sleep(1.5 * rtt_s)
            source = (next(turns), 0)
            there, back = await asyncio.open_connection(at.host, at.port, local_addr=source)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_carry(reader, back, rtt_s / 2, 0.0))
                tasks.create_task(_carry(there, writer, rtt_s / 2, rtt_s / 2))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            carrying.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2], web=at.web)
    finally:
        server.close()
        for task in list(carrying):
            task.cancel()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float, first_s: float
) -> None:
    """Carry bytes, each `delay_s` after it came, but the first after `first_s`."""
    loop = asyncio.get_running_loop()
    late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        after_s = first_s
        while data := await reader.read(65_536):
            late.put_nowait((loop.time() + after_s, data))
            after_s = delay_s
        late.put_nowait((loop.time() + delay_s, b""))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        while True:
            at_s, data = await late.get()
            await asyncio.sleep(max(0.0, at_s - loop.time()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def honest_rpc(identity: Identity | None = None) -> AsyncIterator[LinkRpc]:
    """A peer that cannot be dialled."""
    async with (
        WebNet(SocketNet()) as net,
        Endpoint(identity or Identity.generate(), net, TransportConfig(), os.urandom) as endpoint,
        LinkRpc(endpoint) as rpc,
    ):
        yield rpc


class Honest:
    """Dials, a link that stays, and calls on it all the time."""

    def __init__(self, far: Address, near: Address) -> None:
        """`far`: where dials go, over the delaying proxy; `near`: where calls go."""
        self._far, self._near = far, near
        self._longest_s = 0.0
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        rpc = await self._stack.enter_async_context(honest_rpc())
        calling = asyncio.create_task(self._call_all_the_time(rpc))
        self._stack.callback(calling.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def dials(self, count: int, within_s: float) -> list[float | None]:
        """Dial so many times, each a new peer, evenly spread; the times, None for a failure."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self._longest_s = 0.0
        async with asyncio.TaskGroup() as tasks:
            dialling = []
            for number in range(count):
                await asyncio.sleep(max(0.0, begun_s + number * within_s / count - loop.time()))
                dialling.append(tasks.create_task(self._dial()))
        return [each.result() for each in dialling]

    async def _dial(self) -> float | None:
        begun_s = time.monotonic()
        async with honest_rpc() as rpc:
            try:
                await rpc.call(Contact(None, self._far), Ping(), timeout_s=TIMEOUT_S)
            except SwarmError as error:
                print(f"    honest dial: {error!r}", file=sys.stderr)
                return None
        return time.monotonic() - begun_s

    def longest_pause(self) -> float:
        """The longest time that a call took since `dials` began."""
        return self._longest_s

    async def _call_all_the_time(self, rpc: LinkRpc) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                await rpc.call(Contact(None, self._near), Ping(), timeout_s=TIMEOUT_S)
            except SwarmError as error:
                print(f"    honest call: {error!r}", file=sys.stderr)
            self._longest_s = max(self._longest_s, time.monotonic() - begun_s)
            await asyncio.sleep(CALL_EVERY_S)


@dataclass(frozen=True, slots=True)
class HonestRecords:
    """Records that were stored before an attack."""

    keys: tuple[bytes, ...]

    async def survivors(self, at: Address) -> float:
        """The share of them that the node still has."""
        found = 0
        async with honest_rpc() as rpc:
            for key in self.keys:
                asked = Get(key, b"", False, 0)
                got = await rpc.call(Contact(None, at), asked, timeout_s=TIMEOUT_S)
                found += isinstance(got, Got) and len(got.records) == 1
        return found / len(self.keys)


async def storing(at: Address) -> HonestRecords:
    """Store records of several honest publishers."""
    keys = []
    expires_ms = int(1000 * time.time()) + 3_000_000
    for _ in range(PUBLISHERS):
        identity = Identity.generate()
        own = [os.urandom(32) for _ in range(RECORDS // PUBLISHERS)]
        records = tuple(sign(identity, key, b"", os.urandom(200), 1, expires_ms) for key in own)
        async with honest_rpc(identity) as rpc:
            told = await rpc.call(Contact(None, at), Store(records), timeout_s=TIMEOUT_S)
        assert isinstance(told, Stored)
        assert not any(told.verdicts), told.verdicts
        keys += own
    return HonestRecords(tuple(keys))


@dataclass(slots=True)
class Row:
    """One attack."""

    attack: str
    listen: str
    dials: int = 0
    dials_through: int = 0
    dial_p50_s: float = 0.0
    dial_p99_s: float = 0.0
    dial_ratio_p50: float = 0.0
    dial_ratio_p99: float = 0.0
    longest_pause_s: float = 0.0
    pause_ratio: float = 0.0
    memory_bytes: int = 0
    """More than in peace, at its highest."""
    processor_share: float = 0.0
    """Of one processor, that the node had under the attack: it shares them with the attacker."""
    threads: int = 0
    files: int = 0
    survivors: float | None = None
    """The share of honest records that the node still has."""
    did: dict[str, Any] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    """Errors in the node's log."""
    broken: list[str] = field(default_factory=list)
    """Limits of the issue that do not hold."""

    def line(self) -> str:
        """The row for people."""
        dials = f"dials {self.dials_through} of {self.dials}, p50 x{self.dial_ratio_p50:.1f}"
        late = f"p99 x{self.dial_ratio_p99:.1f} ({self.dial_p99_s:.2f} s)"
        pause = f"pause {1e3 * self.longest_pause_s:.0f} ms (x{self.pause_ratio:.1f})"
        memory = f"memory {self.memory_bytes / MIB:+.0f} MB, {self.threads} threads"
        files = f"{self.files} files, {self.processor_share:.0%} of a processor"
        left = "" if self.survivors is None else f", records left {self.survivors:.0%}"
        did = ", ".join(f"{name} {value}" for name, value in self.did.items())
        verdict = "holds" if not self.broken else "BROKEN: " + "; ".join(self.broken)
        head = f"{self.attack:14} {self.listen:10} {dials}, {late}, {pause}, {memory}, {files}"
        return f"{head}{left} | {did} | {verdict}"

    def judge(self) -> None:
        """Note which limits do not hold; times are of this machine today, so they come last."""
        most = 100 if self.attack in (*LINKS, *STORES) else 50
        if self.attack in STORES:
            most = int(1.1 * STORE_BYTES / MIB) + 8  # 8 for links and the allocator
        wrong = {
            f"{self.dials_through} of {self.dials} dials": self.dials_through
            < DIALS_SHARE * self.dials,
            f"memory +{self.memory_bytes // MIB} MB, {most} allowed": self.memory_bytes
            > most * MIB,
            f"{self.threads} threads": self.threads >= 100,
            f"{len(self.complaints)} errors in the log": bool(self.complaints),
            "honest records are gone": self.survivors is not None
            and self.survivors < SURVIVORS_SHARE,
            f"{self.did.get('failed')}": "failed" in self.did,
            "not all announcements refused": self.did.get("refused", 0)
            < self.did.get("announced", 0),
            f"dials p99 {self.dial_p99_s:.2f} s": self.dial_p99_s
            > (SLOW_WEB_DIAL_S if self.attack in WEB else SLOW_DIAL_S),
        }
        self.broken = [what for what, is_so in wrong.items() if is_so]


class Victim:
    """The node under attack: the real command line, or a process that receives tensors."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._log = log
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        port = said.split(" at ")[-1].split(",")[0].split()[0] if " at " in said else said.strip()
        self.at = Address("127.0.0.1", Address.parse(port).port)

    def complaints(self) -> list[str]:
        """What the node did not expect."""
        lines = self._log.read_text(errors="replace").splitlines()
        signs = ("Traceback", " ERROR", "error:", "never retrieved", "Exception")
        return [line for line in lines if any(sign in line for sign in signs)]

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def victim(attack: str, listen: str, folder: Path, log: Path) -> Victim:
    """A fresh node for one attack."""
    if attack in TENSORS:
        return Victim([sys.executable, __file__, RECEIVE], log)
    flags = ["--role", "bootstrap", "--listen", f"{listen}:0", "--log-level", "warning"]
    if attack in WEB:
        secure, port = attack in SECURE_WEB, free_port()
        settings = folder / "node.toml"
        proof = f'relay_certificate = "{certificate(folder)}"\n' if secure else ""
        settings.write_text(f"[network]\nrelay_web = {port}\n{proof}")
        flags += ["--config", str(settings)]
    found = Victim([sys.executable, "-m", "p2pswarm.node", *flags], log)
    if attack in WEB:
        found.at = Address("127.0.0.1", port, web="wss" if secure else "ws")
    return found


def free_port() -> int:
    """A port that nobody has now, at any address."""
    with socket.socket() as trial:
        trial.bind(("", 0))
        return int(trial.getsockname()[1])


def certificate(folder: Path) -> Path:
    """A file with a certificate of 127.0.0.1 and its key, which this process trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(LOCALHOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(made.public_bytes(Encoding.PEM) + plain)
    os.environ["SSL_CERT_FILE"] = str(pem)
    return pem


@contextlib.asynccontextmanager
async def under_attack(
    attack: str, at: Address, seconds: float, log: Path
) -> AsyncIterator[asyncio.Task[str]]:
    """Another process that attacks; gives the task that waits for its last line."""
    command = [attacks.__file__, attack, str(at), str(seconds), HONEST_HOST]
    with log.open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=subprocess.PIPE, stderr=errors
        )
    assert process.stdout is not None
    lines = process.stdout
    ending = None
    try:
        async with asyncio.timeout(READY_S):
            await lines.readline()
        ending = asyncio.create_task(_last_word(lines))
        yield ending
    finally:
        if ending is not None:
            ending.cancel()
            await asyncio.wait([ending])
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def watch(pid: int, most: ProcessFigures) -> ProcessFigures:
    """The most that a process holds until this is cancelled."""
    while True:
        most = most.most(ProcessFigures.of(pid))
        try:
            await asyncio.sleep(WATCH_EVERY_S)
        except asyncio.CancelledError:
            return most.most(ProcessFigures.of(pid))


async def _last_word(lines: asyncio.StreamReader) -> str:
    return (await lines.read()).decode()


async def measure(attack: str, listen: str, options: argparse.Namespace, logs: Path) -> Row:
    """One row."""
    row = Row(attack, listen)
    name = f"{attack}-{listen.strip('[]').replace(':', '_') or 'any'}"
    node = victim(attack, listen, logs, logs / f"{name}.node")
    try:
        at = node.at
        sources = [HONEST_HOST] if attack == "empty-own" else HONEST_HOSTS
        async with distant(at, options.rtt, sources) as road, Honest(road, at) as honest:
            records = await storing(at) if attack in STORES else None
            calm = await honest.dials(max(10, options.dials // 5), CALM_S)
            if None in calm:
                sys.exit("error: not even in peace does every dial get through: see above")
            calm_pause_s = honest.longest_pause()
            before = ProcessFigures.of(node.process.pid)
            async with under_attack(attack, at, options.seconds, logs / f"{name}.attack") as last:
                watching = asyncio.create_task(watch(node.process.pid, before))
                used_s, begun_s = proc.cpu_s(node.process.pid), time.monotonic()
                dials = await honest.dials(options.dials, options.seconds)
                used_s = proc.cpu_s(node.process.pid) - used_s
                row.processor_share = used_s / (time.monotonic() - begun_s)
                row.longest_pause_s = honest.longest_pause()
                row.did = await figures(last)
                watching.cancel()
                after = await watching
            if records is not None:
                row.survivors = await records.survivors(at)
    finally:
        node.end()
    times = sorted(each for each in dials if each is not None) or [float("inf")]
    row.dials, row.dials_through = len(dials), sum(each is not None for each in dials)
    row.dial_p50_s, row.dial_p99_s = statistics.median(times), times[int(0.99 * (len(times) - 1))]
    peace = sorted(each for each in calm if each is not None) or [float("inf")]
    row.dial_ratio_p50 = row.dial_p50_s / statistics.median(peace)
    row.dial_ratio_p99 = row.dial_p99_s / peace[-1]
    row.pause_ratio = row.longest_pause_s / max(calm_pause_s, 1e-3)
    row.memory_bytes = after.resident_bytes - before.resident_bytes
    row.threads, row.files = after.threads, after.files
    row.complaints = node.complaints()
    row.judge()
    return row


async def figures(last: asyncio.Task[str]) -> dict[str, Any]:
    """What the attack did, by its own word."""
    try:
        async with asyncio.timeout(READY_S):
            lines = (await asyncio.shield(last)).strip().splitlines()
    except TimeoutError:
        return {"failed": f"the attack did not end within {READY_S:g} s"}
    if not lines:
        return {"failed": "the attack itself ended early, see --logs"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def rows(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The attacks to do, and where the node listens: handshakes are done on each address."""
    wanted = options.only.split(",") if options.only else EVERYTHING
    if unknown := [name for name in wanted if name not in EVERYTHING]:
        sys.exit(f"error: no attack is called {unknown[0]}: they are {', '.join(EVERYTHING)}")
    places = options.listen.split(",")
    return [
        (name, place) for name in wanted for place in (places if name in HANDSHAKES else places[:1])
    ]


def main(options: argparse.Namespace) -> int:
    """Do all rows; the exit status."""
    raise_limits()
    done: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        logs = Path(options.logs or scratch)
        logs.mkdir(parents=True, exist_ok=True)
        for attack, listen in rows(options):
            done.append(asyncio.run(measure(attack, listen, options, logs)))
            print(done[-1].line(), flush=True)
            for line in done[-1].complaints[:5]:
                print(f"    {line}")
    write_json(options.json, [asdict(row) for row in done])
    return 1 if any(row.broken for row in done) else 0


def parsed() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--only", help=f"of {', '.join(EVERYTHING)}")
    parser.add_argument("--seconds", type=float, default=12.0, help="that an attack lasts")
    parser.add_argument("--dials", type=int, default=100)
    parser.add_argument("--rtt", type=float, default=0.15, help="of the honest peer's dials")
    parser.add_argument("--listen", default="0.0.0.0,[::]", help="where the node listens")
    parser.add_argument("--logs", help="a folder for what the node and the attack say")
    return parser.parse_args()


async def receive_tensors() -> None:
    """Be the node of the attacks with tensors."""
    import torch  # noqa: PLC0415 - only the receiver needs it

    from p2pswarm.net.rpc.base import Stream  # noqa: PLC0415
    from p2pswarm.tensors.budget import Budget  # noqa: PLC0415
    from p2pswarm.tensors.transfer import TensorTransfer  # noqa: PLC0415

    torch.set_num_threads(1)
    tensors = TensorTransfer(Budget())

    async def take(stream: Stream, opening: Announce) -> None:
        async with tensors.accept(stream, opening.metas) as coming:
            await stream.send(coming.grant)
            await coming.tensors()

    endpoint = Endpoint(Identity.generate(), SocketNet(), TransportConfig(), os.urandom)
    async with endpoint, LinkRpc(endpoint) as rpc:
        rpc.serve_stream(Announce, take)
        rpc.serve_unary(Ping, lambda _peer, _request: Pong())
        bound = await endpoint.listen(Address("127.0.0.1", 0))
        print(bound, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if RECEIVE in sys.argv:
        asyncio.run(receive_tensors())
    sys.exit(main(parsed()))
