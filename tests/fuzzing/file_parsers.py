"""The parsers of files of a user or of this node, as functions of bytes: settings to events."""

import contextlib
import json
import math
from dataclasses import asdict
from random import Random

import numpy as np
from fuzzing.base import joined, parser, parts, placed, slow_parser
from run.access.harness import ANN, NOW_S, OWNER, RUN

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.names import is_ours, parse_folder
from p2pswarm.commands.node import EXAMPLES
from p2pswarm.commands.plan import dtfm
from p2pswarm.commands.plan.devices import read_devices
from p2pswarm.data.samples.references import References
from p2pswarm.data.token_file import TAG, TRAILER, open_prepared
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.local_network import gateway6_in, gateway_in
from p2pswarm.net.os.web_socket import dialler_of
from p2pswarm.net.wire.message import encode
from p2pswarm.node.progress.curves import HEADER, try_curves
from p2pswarm.node.run.owner_folder import ADDRESS_FILE, OwnerFolder
from p2pswarm.node.run.run_folder import RUN_FILE, RunFolder, SavedRun
from p2pswarm.plan.device_file import fleet_of, region_network
from p2pswarm.plan.dtfm import LinkCosts
from p2pswarm.progress.event_lines import EventNumbers, EventReader, to_line
from p2pswarm.progress.events import (
    Begun,
    Departure,
    Ended,
    Event,
    HeldOut,
    Joined,
    LeadershipTaken,
    Left,
    MachineFacts,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Relocated,
    RolledBack,
    Serving,
    Started,
    Stepped,
    Waiting,
    Why,
)
from p2pswarm.progress.history import RunHistory
from p2pswarm.progress.view import RunView
from p2pswarm.run.access.access_list import Revocations, sign_list
from p2pswarm.run.access.invitation_book import InvitationBook, InvitationEntry
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import load
from p2pswarm.sim.traces import read_trace, stays

MARK = b"f" * 32
DEVICES_MAX = 64
"""A fuzzer's devices are linked if they are fewer: a matrix of thousands is no parser's matter."""
HOURS = 0.1


@slow_parser
def settings_file(data: bytes) -> None:
    """A node's settings."""
    with contextlib.suppress(Unusable):
        load(placed("run.toml", data))


@slow_parser
def device_file(data: bytes) -> None:
    """The devices of a plan or a simulation, and the links between them."""
    with contextlib.suppress(Unusable):
        given = read_devices(placed("devices.toml", data))
        if sum(entry.count for entry in given.device) <= DEVICES_MAX:
            with contextlib.suppress(Unusable):
                fleet_of(given)
            region_network(given)


@slow_parser
def link_matrix(data: bytes) -> None:
    """The links and the task of a plan by DT-FM's cost."""
    with contextlib.suppress(Unusable):
        task, network = dtfm._read(placed("matrix.json", data))
        costs = LinkCosts.of(network, task)
        assert math.isfinite(float(costs.data_s_nn.max()))


@slow_parser
def trace_file(data: bytes) -> None:
    """The machines that come and go, and the stays of a fleet by it."""
    with contextlib.suppress(Unusable):
        stays(read_trace(placed("trace.json", data)), 4, HOURS, Random(1))


@parser
def run_event(data: bytes) -> None:
    """Events of a trainer, a line each, as the demo and a page read them."""
    history, view, reader = RunHistory(), RunView(), EventReader()
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if (told := reader.on_line(line, "a log", number)) is not None:
            assert isinstance(told.event.text, str)
            assert isinstance(to_line(told), str)
            history.on_event(told.event)
            view.on_event(told)
    json.dumps(view.to_json(view.newest_at or 0.0), allow_nan=False)
    assert len(reader.drain()) <= len(data)
    assert history.counts.counted is not None
    assert history.seconds is not None
    assert isinstance(history.ready(0), tuple)


@slow_parser
def run_file(data: bytes) -> None:
    """Which run a trainer's state is of."""
    with contextlib.suppress(Unusable):
        found = RunFolder(placed(RUN_FILE, data).parent).read()
        assert found is None or found.identity.corpus


@slow_parser
def owner_file(data: bytes) -> None:
    """Invitations, access list and address of a closed run's owner; a part each."""
    book, access, address, *_ = [*parts(data), b"", b"", b""]
    name = f"owner/{RUN.hex()}"
    folder = OwnerFolder(placed(f"owner/{ADDRESS_FILE}", address).parent)
    placed(f"{name}.invitations", book)
    placed(f"{name}.access", access)
    with contextlib.suppress(Unusable):
        found = folder.book(RUN)
        with contextlib.suppress(Unusable):
            found.revoke("guest-1")
        with contextlib.suppress(Unusable):
            found.renew("guest-1", int(NOW_S) + 10)
        sign_list(OWNER, RUN, *found.next_list(NOW_S))
        json.dumps(asdict(found))
    with contextlib.suppress(Unusable):
        folder.access(RUN)
    folder.trainer_address()


@slow_parser
def key_file(data: bytes) -> None:
    """An identity, or an owner's key."""
    path = placed("key", data)
    path.chmod(0o600)
    with contextlib.suppress(Unusable), identity_from(path) as identity:
        assert identity.peer_id


@slow_parser
def prepared_text(data: bytes) -> None:
    """A text that was prepared before."""
    with contextlib.suppress(Unusable):
        texts = open_prepared(placed("text.prepared", data), MARK)
        for text in texts or ():
            assert len(text[: len(text)]) == len(text)


@slow_parser
def references_file(data: bytes) -> None:
    """The references of a run of dpo, which then grow."""
    with contextlib.suppress(Unusable):
        found = References(placed("references.bin", data), MARK, 2, 6)
        assert found.known <= len(found) == len(found.part(0, 9))
        found.keep(3, [-1.0, -2.0])
        again = References(found.path, MARK, 2, 6)
        assert again.known == found.known
        assert not np.isnan(again.part(3, 2)).any()


@slow_parser
def curves_file(data: bytes) -> None:
    """A file of curves that goes on."""
    with contextlib.suppress(Unusable):
        try_curves(placed("curves.csv", data))


@parser
def checkpoint_name(data: bytes) -> None:
    """The names in a target of checkpoints."""
    name = data.decode(errors="replace")
    found = parse_folder(name)
    assert found is None or found.of_run
    is_ours(name)


@parser
def routes(data: bytes) -> None:
    """The kernel's routes, and the host that a proxy names."""
    text = data.decode(errors="replace")
    gateway_in(text)
    gateway6_in(text)
    dialler_of("127.0.0.1", text)


def _events() -> bytes:
    counts = MicrobatchCounts(8, 7, 1)
    peer = PeerLine("abcd", 0, ready=True, queued=1, rate_per_s=2.5)
    events: list[Event] = [
        Begun("r", "trainer", "attic", "0.1.0", 9, 2, (1, 1), 8, 2, 64, 1000, "gpt", "adamw"),
        MachineFacts("abcd", "cellar", "cpu", 8, "Berlin", "0.1.0"),
        Joined("abcd", 0, "cellar"),
        Serving("abcd", 0),
        Waiting((0, 1)),
        Started(1000),
        Stepped(1, 2.5, 100.0, 1e-3, 0.5, counts, seconds=1.5),
        HeldOut(1, 2.25, seconds=2.0),
        Peers((peer, peer)),
        Relocated("abcd", 0, 1, 0.2, 3.0, 1),
        Left("abcd", 0, Departure.LOST, "no answer", 3),
        Why("all are as long", (2.5, 3.0), 0),
        LeadershipTaken(3, 1),
        RolledBack(0, 1),
        Note("said"),
        Ended(1, "done", failed=False, tokens_per_s=9.0, counts=counts),
    ]
    numbers = EventNumbers("5f0c", "k7f2", lambda: 1_764_105_600.0)
    return "\n".join(numbers.stamp(event).line for event in events).encode()


def _run_files() -> list[bytes]:
    config = RunConfig()
    plain = RunIdentity(config, b"c" * 32, b"n" * 16, ANN.raw)
    origin = RunOrigin(b"r" * 16, 7, b"m" * 32)
    later = RunIdentity(config, b"c" * 32, b"n" * 16, ANN.raw, origin)
    found = []
    for identity in (plain, later):
        path = placed(RUN_FILE, b"")
        RunFolder(path.parent).write(SavedRun(identity, finished=False))
        found.append(path.read_bytes())
    return found


def _owner_files() -> list[bytes]:
    times = int(NOW_S), int(NOW_S) + 1000
    entries = [
        InvitationEntry("ab" * 8, "guest-1", "serve", 0, *times),
        InvitationEntry("cd" * 8, "guest-2", "all", 1, *times, str(ANN), renewed=True),
    ]
    book = json.dumps(asdict(InvitationBook(3, entries, [str(PeerId(b"p" * 32))]))).encode()
    access = encode(sign_list(OWNER, RUN, 1, Revocations([b"s" * 8], [ANN.raw])))
    return [joined(book, access, b"203.0.113.7:4000\n")]


def _devices() -> list[bytes]:
    small = (
        b'trainer_region = "a"\n[[device]]\nname = "x"\ncount = 2\nregion = "a"\ntflops = 10\n'
        b'memory_gib = 16\naccess_gbps = 1\n[[device]]\nregion = "b"\ntflops = 1.5\n'
        b'memory_gib = 8\naccess_gbps = 0.1\n[[link]]\nbetween = ["a", "b"]\nrtt_ms = 20\n'
        b'gbps = 0.5\n[[link]]\nbetween = ["a", "a"]\nrtt_ms = 1\ngbps = 1\n'
        b"[plan]\nstages = [2]\n[run]\nsteps = 3\n"
    )
    shipped = (
        b'network = "aws"\n[[device]]\nregion = "us-east-1"\ntflops = 1\nmemory_gib = 1\n'
        b'access_gbps = 1\n[[device]]\nregion = "eu-west-1"\ntflops = 1\ndrift = 0.1\n'
    )
    return [small, shipped]


def _references() -> list[bytes]:
    place = placed("kept.bin", b"")
    place.unlink()
    kept = References(place, MARK, 2, 6)
    kept.keep(0, [-1.5, -2.0])
    kept.keep(2, [-3.0])
    return [place.read_bytes(), kept.as_bytes]


ROUTES = (
    b"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    b"eth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
)
ROUTES6 = (
    b"00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
    b"fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n"
)
MATRIX = (
    b'{"latency_s":[[0,0.1],[0.1,0]],"gbps":[[0,2],[2,0]],"access_gbps":[1,1.5],"stages":2,'
    b'"pipelines":1,"gradient_gbit":3,"activation_gbit":0.5}'
)
CURVES = ",".join(HEADER).encode()
FILE_SEEDS = {
    "settings_file": lambda: [
        (EXAMPLES / "stage.toml").read_bytes(),
        (EXAMPLES / "trainer.toml").read_bytes()[:4000].rpartition(b"\n")[0],
        b'role = "trainer"\n[train]\ndata = "t"\ntokenizer = "hf:o/n"\n[run]\nmodel = "hf:o/n"\n',
        b'[[train.mixture]]\ndata = "a"\nweight = 2\n[[train.mixture]]\ndata = "b"\nweight = 1\n',
    ],
    "device_file": _devices,
    "link_matrix": lambda: [MATRIX],
    "trace_file": lambda: [
        b'{"counts":[[0,3],[60,2],[3600,4]],"seconds":7200}',
        b'{"events":[[0,"+",3],[60,"-","i-1"],[90,"+",2]]}',
    ],
    "run_event": lambda: [_events(), *_events().splitlines()],
    "run_file": _run_files,
    "owner_file": _owner_files,
    "key_file": lambda: [b"k" * 32],
    "prepared_text": lambda: [b"trained on" + b"held" + TRAILER.pack(TAG, MARK, 10, 4, 10, 4)],
    "references_file": _references,
    "curves_file": lambda: [b"", CURVES + b"\r\n", CURVES + b"\r\nrow,1,2\r\ntorn"],
    "checkpoint_name": lambda: [
        b"first-run.0123456789ab.step-000000012.89abcdef",
        b"run.0123456789ab.step-000000012",
        b"stage-000-of-002.abcdefgh.safetensors.abcdefgh.part",
        b"manifest.json",
    ],
    "routes": lambda: [ROUTES, ROUTES6, b"203.0.113.7, ::1"],
}
