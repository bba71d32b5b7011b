"""`p2pswarm health` without a node: each a line, and an exit code."""

import socket
import threading

import pytest

from p2pswarm.command_line import main


def test_nobody_answers(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert main(["health", f"127.0.0.1:{free.getsockname()[1]}"]) == 1

    assert "not ready: 127.0.0.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"ok":true}',
        b'HTTP/1.1 503 No\r\nContent-Length: 35\r\n\r\n{"ok":true,"why":"a lie \x1b[31m, red"}',
    ],
)
def test_what_is_no_page_is_not_ready(answer, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once():
            with server.accept()[0] as connection:
                connection.recv(1 << 12)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        assert main(["health", f"127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join()

    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_without_a_node_of_ones_own_the_line_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = tmp_path / "node.toml"
    file.write_text("[serve]\n")

    assert main(["health"]) == 1
    assert main(["health", "--json", str(tmp_path)]) == 1
    assert main(["health", str(file)]) == 1

    none, empty, file_says = capsys.readouterr().out.splitlines()
    assert none.startswith("not ready: you run no node on this machine")
    assert empty.startswith('{"ok":false,"why":"no node runs with ')
    assert "names no `state`" in file_says


@pytest.mark.parametrize("text", ["x", "1.2.3.4", "a:b", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_a_line(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["health", text])

    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
