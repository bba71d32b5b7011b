"""A node as its user meets it: the command line, its first words, its errors, its leaving."""

import contextlib
import re
import signal
import socket
import threading
from pathlib import Path

import pytest

HERE = ("--listen", "127.0.0.1:0")


@pytest.fixture
def server():
    """Starts a TCP server that does `act(connection)` with whoever connects; its address."""
    with contextlib.ExitStack() as stack:

        def serve(act) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connection = stack.enter_context(listener.accept()[0])
                        act(connection)

            threading.Thread(target=accept, daemon=True).start()
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield serve


def dial(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)))


def assert_one_line(node, *parts: str, code: int = 2) -> None:
    assert node.end() == code
    assert node.errors.startswith("error: ")
    assert node.errors.count("\n") == 1
    for part in parts:
        assert part in node.errors


def test_a_swarm_starts_and_prints_the_line_that_others_paste(start):
    node = start(*HERE)

    line = node.line_with("--bootstrap")

    assert re.fullmatch(r"  python -m p2pswarm.node --bootstrap 127\.0\.0\.1:\d+", line)


@pytest.mark.full
def test_a_node_whose_peers_are_on_this_machine_says_why_it_cannot_know_who_reaches_it(start):
    """It takes two looks for peers elsewhere, ten seconds apart."""
    first = start("--listen", "0.0.0.0:0")
    start("--listen", "0.0.0.0:0", "--bootstrap", first.address)

    line = first.line_with("reachable: ")

    assert line.startswith("reachable: not known: all peers are on this machine")


def test_a_node_that_listens_everywhere_names_an_address_others_can_dial(start):
    node = start("--listen", "0.0.0.0:0")

    address = node.address

    assert not address.startswith("0.0.0.0")
    dial(address).close()


def test_two_nodes_without_flags_live_side_by_side(start):
    first, second = start().address, start().address

    assert first != second


def test_a_node_joins_through_any_of_its_bootstrap_addresses(start, seed_node):
    _, address = seed_node

    node = start(
        *("--role", "bootstrap", *HERE),
        *("--bootstrap", "127.0.0.1:1", "--bootstrap", address, "--bootstrap", "127.0.0.1:2"),
    )

    assert node.address


def test_a_bootstrap_node_needs_no_torch(start, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('a bootstrap node loads torch')\n")

    node = start("--role", "bootstrap", *HERE, fresh=True)

    assert node.line_with("--bootstrap")
    node.interrupt()
    assert node.end() == 130


@pytest.mark.parametrize(
    ("way", "code"), [("ctrl-c", 130), ("sigterm", 143), ("sighup", 129), ("stdin", 143)]
)
def test_a_node_leaves_when_it_is_told(start, tmp_path, way, code):
    (tmp_path / "node.toml").write_text("leave_at_eof = true")
    node = start("--config", tmp_path / "node.toml", *HERE)
    node.line_with("--bootstrap")

    match way:
        case "ctrl-c":
            node.interrupt()
        case "sigterm":
            node.process.terminate()
        case "sighup":
            node.process.send_signal(signal.SIGHUP)
        case "stdin":
            node.process.stdin.close()

    assert node.end() == code
    assert node.errors == ""


@pytest.mark.parametrize("library", ["_socket", "_ssl", "_rust"])
def test_ctrl_c_while_the_node_still_loads_leaves_no_traceback(start, library):
    """It is sent when the process has mapped a library that is loaded early, later, or late."""
    node = start(*HERE, fresh=True)
    while library not in Path(f"/proc/{node.process.pid}/maps").read_text():
        assert node.process.poll() is None

    node.interrupt()

    assert node.end() == 130
    assert node.errors == ""


def test_a_node_listens_at_a_port_of_every_address(start):
    node = start("--listen", ":0")

    port = node.address.rpartition(":")[2]

    dial(f"127.0.0.1:{port}").close()


def test_others_dial_what_a_node_announces(start):
    node = start(*HERE, "--announce", "swarm.example.org:4000")

    assert node.address == "swarm.example.org:4000"
    assert node.line_with("--bootstrap").endswith("--bootstrap swarm.example.org:4000")


def test_a_check_says_what_the_settings_mean_and_does_nothing_else(start, tmp_path):
    (tmp_path / "text").write_text("some text" * 500)
    (tmp_path / "run.toml").write_text("[train]\ndata = 'text'\n[run]\nsteps = 1e3")

    good = start("train", "run.toml", "--check", module="p2pswarm")
    bad = start("--config", "run.toml", "--role", "trainer", "--listen", "4000", "--check")

    assert "1000 of 4,096 tokens: 8 microbatches of 4 sequences" in good.line_with("steps")
    assert good.end() == 0
    assert_one_line(bad, "listen: '4000' is not HOST:PORT")


def test_weights_that_could_not_be_written_are_refused_before_anything_is_joined(start, tmp_path):
    (tmp_path / "text").write_text("some text")
    (tmp_path / "out").mkdir()
    (tmp_path / "run.toml").write_text("[train]\ndata = 'text'\nweights = 'out'")

    node = start("train", "run.toml", "--bootstrap", "127.0.0.1:1", module="p2pswarm")

    assert_one_line(node, "out cannot be written: it is a folder; name another file")


def test_an_identity_file_keeps_the_peer_id(start, tmp_path):
    peers = []
    for _ in range(2):
        node = start("--identity", tmp_path / "identity", *HERE)
        peers.append(node.line_with("peer ").split()[1])
        node.interrupt()
        assert node.end() == 130

    assert peers[0] == peers[1]


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1:1", "Connection refused"), ("host.invalid:1", "host.invalid:1")],
)
def test_a_node_that_is_not_there_yet_may_be_tried_again(start, address, why):
    node = start("--bootstrap", address)

    assert_one_line(node, "no bootstrap address answers", why, code=1)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--bootstrap", "nowhere"), ["bootstrap", "'nowhere' is not HOST:PORT"]),
        (("--listen", "4000"), ["listen", "'4000' is not HOST:PORT"]),
        (("--listen", "203.0.113.1:1"), ["cannot listen on 203.0.113.1:1"]),
        (("--role", "cook"), ["--role", "'bootstrap', 'stage', 'trainer'"]),
        (("--flavour", "sweet"), ["--flavour", "--help"]),
        (("--config", "none.toml"), ["none.toml: cannot be read"]),
        (("--role", "trainer", *HERE), ["train.data", "--config"]),
    ],
)
def test_wrong_input_is_one_line_with_the_remedy(start, flags, parts):
    node = start(*flags)

    assert_one_line(node, *parts)


def test_a_port_in_use_is_named(start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        node = start("--listen", f"127.0.0.1:{port}")

        assert_one_line(node, f"127.0.0.1:{port}", "in use", "--listen")


def test_an_identity_open_to_others_is_refused_with_the_remedy(start, tmp_path):
    path = tmp_path / "identity"
    path.write_bytes(bytes(32))
    path.chmod(0o644)

    node = start("--identity", path, *HERE)

    assert_one_line(node, "open to other users", f"chmod 600 {path}")


def test_an_identity_in_use_is_refused(start, tmp_path):
    path = tmp_path / "identity"
    assert start("--identity", path, *HERE).address

    node = start("--identity", path, *HERE)

    assert_one_line(node, "in use by another node")


def test_a_settings_file_that_is_wrong_is_named_with_key_and_choices(start, tmp_path):
    path = tmp_path / "node.toml"
    path.write_text("[run.codecs]\nactivation = 'zip'")

    node = start("--config", path)

    assert_one_line(node, str(path), "run.codecs.activation is one of raw, fp16", '"zip"')


def test_a_bootstrap_node_that_speaks_something_else_is_named(start, server):
    address = server(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 40))

    node = start("--bootstrap", address, *HERE)

    assert_one_line(node, "no bootstrap address is a node that we can join", address)


def test_a_bootstrap_node_that_says_nothing_is_named(start, server):
    address = server(lambda _: None)

    node = start("--bootstrap", address, *HERE)

    assert_one_line(node, "no bootstrap address is a node that we can join", address, "stalled")


GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00" * 4096,
    b"\xff" * 100_000,
    b"p2ps\x01" + b"\xff" * 4096,
    b"p2ps\xff" + b"\x00" * 64,
]


def test_peers_that_speak_garbage_or_stall_do_no_harm(start, seed_node):
    node, address = seed_node
    with contextlib.ExitStack() as stack:
        for garbage in GARBAGE:
            connection = stack.enter_context(dial(address))
            with contextlib.suppress(OSError):  # it may hang up before we are through
                connection.sendall(garbage)

        joined = start("--role", "bootstrap", *HERE, "--bootstrap", address)

        assert joined.address
    node.interrupt()
    assert node.end() == 130
    assert "Traceback" not in node.errors


def test_a_server_waits_for_a_run_says_so_and_leaves_when_told(start, seed_node):
    _, address = seed_node
    node = start("--bootstrap", address, *HERE)

    assert node.line_with("no run yet")
    node.interrupt()

    assert node.end() == 130
    assert node.errors == ""


def test_a_second_ctrl_c_leaves_at_once(start, seed_node):
    """While torch is imported nothing can be drained: the first waits, the second does not."""
    _, address = seed_node
    node = start("--bootstrap", address, *HERE, fresh=True)
    assert node.address

    node.interrupt()
    assert node.line_with("once more to leave at once")
    node.interrupt()

    assert node.end() == 130


def test_a_device_that_is_not_there_is_named(start, seed_node, tmp_path):
    _, address = seed_node
    path = tmp_path / "node.toml"
    path.write_text("[serve]\ndevice = 'cuda:77'")

    node = start("--config", path, "--bootstrap", address, *HERE)

    assert_one_line(node, "serve.device 'cuda:77'")
