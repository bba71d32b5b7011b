"""A node's owner reaches it; other users of the machine, and whoever is mad, do not."""

import asyncio
import json
import os
import socket
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.command_line import main
from p2pswarm.commands import health
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run
from p2pswarm.node.owner_requests import OwnerRequest, OwnerRequests
from p2pswarm.node.owner_socket import (
    ASKING_MAX,
    ENDING,
    HERE,
    LINE_BYTES_MAX,
    RunningNode,
    ask_node,
    owner_socket,
    running_nodes,
)
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.web.health import HealthAnswer, NodeHealth


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch) -> Path:
    """This user's folder of running nodes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime" / "p2pswarm"


class Owned:
    """A node that can be paused, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.health = NodeHealth("stage", 0.0)
        self.requests = OwnerRequests(
            lambda: self.asked.append("drain"), lambda: self.health.answer(1.0).to_json()
        )
        self.requests.pauses(self._pause, self._resume)

    async def _pause(self) -> str:
        self.asked.append("pause")
        return "paused"

    async def _resume(self) -> str:
        self.asked.append("resume")
        raise Unusable("not now: ask later")


def owned(story: Any, state: Path | None = None) -> list[str]:
    """Run a story beside a node that is up; returns what that was asked."""
    node = Owned()

    async def whole() -> None:
        async with owner_socket(NodeConfig(role="stage", state=state), "abcd", node.requests):
            await story()

    run(whole())
    return node.asked


def the_only(folder: Path) -> RunningNode:
    (node,) = running_nodes(folder)
    return node


def test_an_owner_is_answered_by_its_node(runtime):
    async def story() -> None:
        node = the_only(runtime)
        assert await ask_node(node, OwnerRequest.PAUSE) == "paused"
        with pytest.raises(Unusable, match="not now: ask later"):
            await ask_node(node, OwnerRequest.RESUME)
        assert await ask_node(node, OwnerRequest.DRAIN) == "leaving"

    assert owned(story) == ["pause", "resume", "drain"]


def test_only_the_owner_can_read_the_key_and_it_goes_with_the_node(runtime, tmp_path):
    state = tmp_path / "state"

    async def story() -> None:
        for folder in (runtime, state):
            (file,) = folder.glob(f"*{ENDING}")
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
        assert the_only(runtime) == the_only(state)

    owned(story, state)

    assert not list(runtime.iterdir())
    assert not list(state.iterdir())


async def said_to(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HERE, port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"pause\n",
        b"[]\n",
        b"null\n",
        b'{"request": "pause"}\n',
        b'{"key": 7, "request": "pause"}\n',
        b'{"key": "", "request": "pause"}\n',
        '{"key": "é", "request": "pause"}\n'.encode(),
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"x" * (4 * LINE_BYTES_MAX) + b"\n",
    ],
)
def test_who_has_no_key_is_not_answered_and_does_no_harm(runtime, data):
    async def story() -> None:
        node = the_only(runtime)
        assert await said_to(node.port, data) == b""
        assert await ask_node(node, OwnerRequest.PAUSE) == "paused"

    assert owned(story) == ["pause"]


def test_a_request_that_is_none_is_not_answered(runtime):
    async def story() -> None:
        node = the_only(runtime)
        asked = json.dumps({"key": node.key, "request": "delete"}).encode() + b"\n"
        assert await said_to(node.port, asked) == b""

    assert owned(story) == []


def test_connections_that_ask_nothing_hold_no_more_than_their_places(runtime):
    async def story() -> None:
        node = the_only(runtime)
        silent = [await asyncio.open_connection(HERE, node.port) for _ in range(ASKING_MAX)]
        with pytest.raises(Unusable, match="is not there any more"):
            await ask_node(node, OwnerRequest.PAUSE)
        for _, writer in silent:
            writer.close()
        while True:
            try:
                assert await ask_node(node, OwnerRequest.PAUSE) == "paused"
            except Unusable:
                continue
            return

    assert owned(story) == ["pause"]


def test_a_node_that_was_killed_is_named_gone_and_forgotten_by_the_next(runtime):
    runtime.mkdir(parents=True)
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    dead = RunningNode(1, "k", "dead", "stage", os.uname().nodename, ended)
    (runtime / f"{ended}-dead{ENDING}").write_text(json.dumps(asdict(dead)))

    async def story() -> None:
        with pytest.raises(Unusable, match=f"stage dead, process {ended} is not there any more"):
            await ask_node(dead, OwnerRequest.DRAIN)
        assert the_only(runtime).peer == "abcd"

    owned(story)


def test_a_node_that_was_killed_stands_in_the_way_of_no_other(runtime, capsys):
    """A health check that counted it would restart its container for ever."""
    killed = RunningNode(free_port(), "k", "dead", "stage", os.uname().nodename, 1)

    async def story() -> None:
        (runtime / f"1-dead{ENDING}").write_text(json.dumps(asdict(killed)))
        assert await asyncio.to_thread(main, ["drain"]) == 0

    assert owned(story) == ["drain"]
    assert capsys.readouterr().out == "leaving\n"


def test_the_first_process_of_a_container_forgets_the_one_before_it(runtime):
    runtime.mkdir(parents=True)
    before = RunningNode(free_port(), "k", "dead", "stage", os.uname().nodename, os.getpid())
    (runtime / f"{os.getpid()}-dead{ENDING}").write_text(json.dumps(asdict(before)))

    async def story() -> None:
        assert the_only(runtime).peer == "abcd"

    owned(story)


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server((HERE, 0)) as server:
        return int(server.getsockname()[1])


def test_a_node_of_another_machine_that_shares_the_folder_is_asked_there(runtime):
    async def story() -> None:
        far = replace(the_only(runtime), host="far\x1b[1maway")
        with pytest.raises(Unusable, match=r"runs on far\?\[1maway: give the command there"):
            await ask_node(far, OwnerRequest.DRAIN)

    assert owned(story) == []


def test_a_node_is_up_though_its_owner_has_no_folder(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))

    async def story() -> None:
        assert not list(tmp_path.glob(f"**/*{ENDING}"))

    assert owned(story) == []


def test_a_node_that_cannot_be_paused_says_what_can_be_done():
    async def story() -> None:
        requests = OwnerRequests(lambda: None, str)
        with pytest.raises(Unusable, match="only a server can be paused; p2pswarm drain"):
            await requests.carry_out(OwnerRequest.PAUSE)

    run(story())


def commanded(capsys, *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    return code, "".join(capsys.readouterr())


def test_the_command_finds_the_only_node_and_prints_its_answer(capsys):
    async def story() -> None:
        assert await asyncio.to_thread(commanded, capsys, "pause") == (0, "paused\n")

    assert owned(story) == ["pause"]


def test_the_command_asks_the_only_node_whether_it_does_its_work(capsys):
    node = Owned()

    async def story() -> None:
        async with owner_socket(NodeConfig(role="stage"), "abcd", node.requests):
            assert await asyncio.to_thread(commanded, capsys, "health") == (
                1,
                "not ready: a stage that joins the swarm\n",
            )
            live = await asyncio.to_thread(commanded, capsys, "health", "--live")
            assert live == (0, "ready: the loop turns\n")
            node.health.of_role = lambda: HealthAnswer(ok=True, why="serves")
            ready = await asyncio.to_thread(commanded, capsys, "health", "--json")
            assert ready == (0, '{"ok":true,"why":"serves"}\n')

    run(story())


def test_a_node_that_answers_late_or_something_else_is_not_ready(capsys, monkeypatch):
    node = Owned()
    monkeypatch.setattr(health, "ANSWER_S", 0.2)

    async def story() -> None:
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(node.requests, "carry_out", lambda _request: answered)
        async with owner_socket(NodeConfig(role="stage"), "abcd", node.requests):
            late = await asyncio.to_thread(commanded, capsys, "health", "--live")
            answered.set_result("nothing of that kind")
            other = await asyncio.to_thread(commanded, capsys, "health")
        assert late[0] == other[0] == 1
        assert "does not answer within" in late[1]
        assert "answers something else" in other[1]

    run(story())


def test_a_folder_that_machines_share_names_the_node_of_this_one(tmp_path, capsys):
    elsewhere = RunningNode(1, "k", "efgh", "stage", "another-machine", 1)
    (tmp_path / f"1-efgh{ENDING}").write_text(json.dumps(asdict(elsewhere)))

    async def story() -> None:
        paused = await asyncio.to_thread(commanded, capsys, "pause", str(tmp_path))
        assert paused == (0, "paused\n")

    assert owned(story, tmp_path) == ["pause"]


def test_of_several_nodes_one_is_to_be_named(capsys, tmp_path):
    file, other = tmp_path / "node.toml", Owned()
    file.write_text('state = "mine"\n')

    async def story() -> None:
        state = tmp_path / "mine"
        config = NodeConfig(role="bootstrap", state=state)
        async with owner_socket(config, "efgh", other.requests):
            code, said = await asyncio.to_thread(commanded, capsys, "drain")
            assert code == 2
            assert "2 nodes run: " in said
            assert "stage abcd" in said
            assert await asyncio.to_thread(commanded, capsys, "drain", str(state)) == (
                0,
                "leaving\n",
            )
            assert await asyncio.to_thread(commanded, capsys, "pause", str(file)) == (0, "paused\n")

    assert owned(story) == []
    assert other.asked == ["drain", "pause"]


def test_a_node_without_state_is_known_by_its_identity(capsys, tmp_path):
    file, other = tmp_path / "node.toml", Owned()
    file.write_text('identity = "node.identity"\n')
    assert "cannot be read" in commanded(capsys, "drain", str(file))[1]

    async def story() -> None:
        with identity_from(tmp_path / "node.identity") as identity:
            config = NodeConfig(role="bootstrap")
            async with owner_socket(config, identity.peer_id.short, other.requests):
                drained = await asyncio.to_thread(commanded, capsys, "drain", str(file))
                assert drained == (0, "leaving\n")

    assert owned(story) == []
    assert other.asked == ["drain"]


def test_without_a_node_the_line_says_what_to_do(capsys, tmp_path):
    file = tmp_path / "node.toml"
    file.write_text("[serve]\n")

    assert commanded(capsys, "pause")[1].startswith("error: you run no node on this machine: start")
    assert "names no `state`" in commanded(capsys, "pause", str(file))[1]
    assert "no node runs with" in commanded(capsys, "resume", str(tmp_path))[1]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"port": "x"}', "\x00" * 5_000])
def test_a_file_that_is_no_nodes_is_passed_over(tmp_path, text):
    (tmp_path / f"1-a{ENDING}").write_text(text)

    assert running_nodes(tmp_path) == []
