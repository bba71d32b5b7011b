"""The live lab: real kernels' TCP through the emulator. Skipped where it is not allowed.

What a busy machine can only make slower is tested here; how close the lab
comes to what is set, `python -m tests.wanlab check` measures.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wanlab.lab import Lab, LabUnavailable
from wanlab.link import Link
from wanlab.measure import round_trips_s, tcp_goodput

ROOT = Path(__file__).resolve().parents[2]
PAYLOAD_BYTES = 3_000_000
RECEIVE = """
import hashlib, socket, sys
with socket.create_server((sys.argv[1], 0), family=int(sys.argv[2])) as server:
    print(server.getsockname()[1], flush=True)
    sock, _ = server.accept()
digest = hashlib.sha256()
while data := sock.recv(1 << 20):
    digest.update(data)
print(digest.hexdigest())
"""
SEND = """
import hashlib, random, socket, sys
data = random.Random(3).randbytes(int(sys.argv[3]))
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
    sock.sendall(data)
print(hashlib.sha256(data).hexdigest())
"""


@pytest.fixture
def open_lab():
    """Opens a lab, or skips the test and says why."""
    opened = []

    def open_one(hosts: int, link: Link) -> Lab:
        lab = Lab(hosts, link)
        try:
            opened.append(lab.__enter__())
        except LabUnavailable as reason:
            pytest.skip(str(reason))
        return lab

    yield open_one
    for lab in opened:
        lab.close()


def ends(pidfd: int) -> bool:
    """Wait for the end of a process, 20 s at most: its descriptor is readable then."""
    ended, _, _ = select.select([pidfd], [], [], 20)
    os.close(pidfd)
    return bool(ended)


def transfer(lab: Lab, address: str, family: int) -> tuple[str, str]:
    """Digests of what host 0 sent and what host 1 received."""
    python = (sys.executable, "-c")
    receiver = lab.popen(
        1, [*python, RECEIVE, address, str(family)], stdout=subprocess.PIPE, text=True
    )
    with receiver:
        port = receiver.stdout.readline().strip()
        argv = [*python, SEND, address, port, str(PAYLOAD_BYTES)]
        sent = lab.run(0, argv, capture_output=True, text=True, check=True)
        return sent.stdout.strip(), receiver.stdout.readline().strip()


def test_no_datagram_returns_before_twice_the_delay(open_lab):
    lab = open_lab(3, Link(delay_s=0.02))

    least_s = [round_trips_s(lab, source, to, count=5)[0] for source, to in ((0, 1), (2, 0))]

    assert min(least_s) >= 0.04


def test_each_direction_has_its_own_settings_and_they_change_while_running(open_lab):
    lab = open_lab(2, Link(delay_s=0.0))

    lab.set_link(Link(delay_s=0.1), source=0, to=1)
    one_way_s = round_trips_s(lab, 0, 1, count=3)[0]
    lab.set_link(Link(delay_s=0.0))

    assert one_way_s >= 0.1
    assert lab.link(0, 1).delay_s == 0.0


@pytest.mark.parametrize("family", [2, 10], ids=["ipv4", "ipv6"])
def test_stream_arrives_whole_over_a_link_that_loses_and_drops(open_lab, family: int):
    """Trains are cut at every loss; a wrong checksum or sequence number would show."""
    lossy = Link(rate_bits_per_s=50e6, delay_s=0.005, loss=0.02, queue_bytes=60_000)
    lab = open_lab(2, lossy)
    address = lab.address(1) if family == 2 else lab.address6(1)

    sent, received = transfer(lab, address, family)

    assert sent == received
    counts = lab.counts()[0, 1]
    assert counts.lost > 0
    assert counts.packets - counts.lost > PAYLOAD_BYTES / 1500


def test_tcp_gets_no_more_than_the_rate(open_lab):
    lab = open_lab(2, Link(rate_bits_per_s=20e6, delay_s=0.005))

    got = tcp_goodput(lab, 0, 1, seconds=2.0, warmup_s=0.5)

    # one train may have waited at the begin of the count
    assert 0 < got.bits_per_s <= 20e6 * 1448 / 1514 + 8 * 65536 / 2.0


def test_cut_link_carries_nothing_and_the_others_go_on(open_lab):
    lab = open_lab(3, Link(delay_s=0.001, loss=0.0))
    lab.set_link(Link(loss=1.0), source=0, to=1)
    send = "import socket,sys; socket.socket(2, 2).sendto(b'x', (sys.argv[1], 9))"

    for to in (1, 2):
        lab.run(0, [sys.executable, "-c", send, lab.address(to)], check=True)
    round_trips_s(lab, 0, 2, count=1)

    counts = lab.counts()
    assert (counts[0, 1].packets, counts[0, 1].lost) == (1, 1)
    assert counts[0, 2].lost == 0


def test_exit_code_and_output_of_a_program_come_back(open_lab):
    lab = open_lab(1, Link())

    done = lab.run(0, ["sh", "-c", "ip -o addr show wan0; exit 7"], capture_output=True, text=True)

    assert done.returncode == 7
    assert lab.address(0) in done.stdout


def test_closing_ends_every_program_even_one_that_left_its_session(open_lab):
    lab = open_lab(1, Link())
    stubborn = "trap '' TERM; setsid sleep 1000 & echo $!; exec 1>&-; wait"
    program = lab.popen(0, ["sh", "-c", stubborn], stdout=subprocess.PIPE, text=True)
    with program:
        orphan = int(program.stdout.readline())
        program.kill()
    watch = os.pidfd_open(orphan)

    lab.close()

    assert ends(watch)


def test_killing_the_lab_leaves_no_process(open_lab):
    """SIGKILL gives the lab no chance; its emulator sees the socket close."""
    open_lab(1, Link())
    argv = [sys.executable, "-m", "tests.wanlab", "--hosts", "1", "--"]
    argv += ["sh", "-c", "setsid sleep 1000 & echo $!; wait"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as lab:
        watch = os.pidfd_open(int(lab.stdout.readline()))

        lab.send_signal(signal.SIGKILL)

        assert ends(watch)


def test_host_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"hosts 0\.\.1, not 2"):
        Lab(2, Link()).address(2)


def test_commands_run_side_by_side_with_addresses_put_in(open_lab):
    """By hand: the last command decides; {1} is where host 1 is."""
    open_lab(1, Link())
    argv = [sys.executable, "-m", "tests.wanlab", "--rtt-ms", "2", "--"]
    argv += ["1:", "sleep", "1000", "+", "sh", "-c", "echo {1}; exit 4"]

    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (4, "10.77.0.2\n")
    assert "1 ms one way" in done.stderr


def test_command_line_without_a_command_after_the_host_is_one_line(open_lab):
    open_lab(1, Link())
    argv = [sys.executable, "-m", "tests.wanlab", "--", "1:"]

    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "a command is missing" in done.stderr
    assert "Traceback" not in done.stderr
