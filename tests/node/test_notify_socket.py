"""Words for systemd, at a real socket."""

import socket

import pytest

from p2pswarm.node.notify_socket import STARTING_S, STATUS_CHARS, NotifySocket, notify_socket
from p2pswarm.progress.page import SILENCE_MAX_S


@pytest.fixture(params=["file", "abstract"])
def heard(request, tmp_path):
    """A socket that listens, and the value of `NOTIFY_SOCKET`."""
    name = str(tmp_path / "notify")
    place = name if request.param == "file" else f"\0{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        yield manager, place.replace("\0", "@")


def test_a_node_starts_is_ready_says_what_it_does_and_stops(heard):
    manager, place = heard
    one = NotifySocket(place)

    one.starting("still reading the text")
    one.ready("stage 203.0.113.7:4000")
    one.status("serving stage 0")
    one.stopping()

    said = [manager.recv(4096).decode() for _ in range(4)]
    assert said == [
        "EXTEND_TIMEOUT_USEC=180000000\nSTATUS=still reading the text",
        "READY=1\nSTATUS=stage 203.0.113.7:4000",
        "STATUS=serving stage 0",
        "STOPPING=1",
    ]


def test_a_line_that_quotes_a_peer_is_no_word_of_ours(heard):
    manager, place = heard

    NotifySocket(place).status("run 'x\nMAINPID=1' " + "y" * 1000)

    said = manager.recv(4096).decode()
    assert "\n" not in said
    assert len(said) == len("STATUS=") + STATUS_CHARS


@pytest.mark.parametrize(
    "place", [None, "", "/nowhere/at/all", "@nobody-listens", "a" * 500, "a\0b"]
)
def test_where_nobody_listens_nothing_happens(place):
    NotifySocket(place).ready("up")


def test_a_manager_that_reads_nothing_keeps_no_node_waiting(heard):
    _, place = heard
    one = NotifySocket(place)

    for _ in range(10_000):
        one.status("busy " * 30)


def test_the_environment_names_the_socket(heard, monkeypatch):
    manager, place = heard
    monkeypatch.setenv("NOTIFY_SOCKET", place)

    notify_socket().stopping()

    assert manager.recv(4096) == b"STOPPING=1"


def test_a_node_that_reads_for_long_says_so_before_its_manager_gives_up():
    assert 2 * SILENCE_MAX_S < STARTING_S
