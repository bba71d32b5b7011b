"""Closed runs with real processes: who is invited trains, nobody else, and nothing is inexact."""

import contextlib
import os
import signal

import pytest
import torch
from fuzzing.examples import example
from procs.harness import plain_loop, tensors
from procs.test_checkpoints import HERE, RUN

import p2pswarm as ps
import p2pswarm.node.serve
import p2pswarm.node.train  # with these two all messages of a run are known here
from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.wire import message as wire
from p2pswarm.net.wire.message import Message

OF_A_RUN = (
    "p2pswarm.run.messages",
    "p2pswarm.run.chain.",
    "p2pswarm.discovery.gossip.",
    "p2pswarm.tensors.",
)
BY_ALL = {"Compare", "Deliver"}
"""The directory: everybody in the run answers and sends these."""
BY_TRAINERS = BY_ALL | {
    *("Join", "Enlist", "WhoLeads", "AskStatus", "AskBalance", "AskCapacities"),
    *("AskReachable", "NotHeard", "FetchSaved", "FetchReferences"),
    *("Prepare", "Propose", "Heartbeat", "HandOver", "FetchRecords"),
}
BY_SERVERS = BY_ALL | {
    *("Push", "Shard", "FetchPieces", "FetchBase", "Fence", "Reduce", "Commit", "StillThere"),
}


@pytest.fixture
def run_file(tmp_path, text_folder):
    """A run of one stage whose trainer keeps its state in a folder."""

    def write(state: str = "owner", **values):
        values = {
            "stages": 1,
            "steps": 12,
            "replicas": 1,
            "every": 1000,
            "dtype": "float64",
        } | values
        path = tmp_path / f"run-{state}.toml"
        path.write_text(f'state = "{state}"\n' + RUN.format(**values))
        return path

    return write


@pytest.fixture
def owner(start):
    """Runs one of the owner's commands; returns what it printed."""

    def command(*flags: object, code: int = 0) -> str:
        done = start(*flags, module="p2pswarm")
        assert done.end() == code, done.errors
        return (done.said or done.errors).strip()

    return command


def refused(node) -> str:
    """The one line with which a node ends that cannot go on."""
    assert node.end() != 0
    assert node.errors.count("\n") == 1, node.errors
    return node.errors


@pytest.mark.timeout(300)
def test_friends_train_a_closed_run_and_the_weights_are_those_of_one_loop(
    start, run_file, owner, tmp_path
):
    run = run_file(steps=8, replicas=2)
    trainer = start("train", run, "--closed", *HERE, module="p2pswarm")
    address = trainer.address
    assert trainer.line_with("waiting for")
    invitation = owner("invite", run, "--name", "anna")

    uninvited = start("--bootstrap", address, *HERE)
    assert "is closed: ask its owner for an invitation" in uninvited.line_with("run 'saved'")
    servers = [start("--invite", invitation, *HERE) for _ in range(2)]
    for server in servers:
        assert server.line_with("serving stage 0")

    assert trainer.line_with("done after 8 steps")
    assert trainer.end() == 0, trainer.errors
    assert uninvited.process.poll() is None
    swarm, plain = tensors(next(tmp_path.glob("weights-*.safetensors"))), plain_loop(run)
    assert all(torch.equal(swarm[name], plain[name]) for name in plain)


async def outcomes(node, address: str) -> dict[str, set[str]]:
    """What a node answers a stranger to each kind of message of a run, asked both ways."""
    to, found = Contact(None, Address.parse(address)), {}
    for kind in wire._writers:
        if kind.__module__.startswith(OF_A_RUN):
            for more in (0, 2):
                with contextlib.suppress(ValueError):  # its fields depend on each other
                    found.setdefault(kind.__name__, set()).update(
                        [await answer_to(node, to, example(kind, more), each) for each in (0, 1)]
                    )
    return found


async def answer_to(node, to: Contact, asked: Message, as_stream: int) -> str:
    try:
        if not as_stream:
            return type(await node.rpc.call(to, asked, 20.0)).__name__
        async with node.rpc.open_stream(to, asked, 20.0) as stream:
            return type(await stream.receive()).__name__
    except SwarmError as error:
        return type(error).__name__


@pytest.mark.timeout(300)
async def test_a_stranger_reaches_no_handler_of_a_closed_run(start, run_file, owner):
    run = run_file(steps=1_000_000)
    trainer = start("train", run, "--closed", *HERE, module="p2pswarm")
    at_trainer = trainer.address
    assert trainer.line_with("waiting for")
    server = start("--invite", owner("invite", run), *HERE)
    at_server = server.address
    assert server.line_with("serving stage 0")

    async with ps.Node(bootstrap=[at_trainer], listen="127.0.0.1:0") as stranger:
        by_trainer = await outcomes(stranger, at_trainer)
        by_server = await outcomes(stranger, at_server)

    for answers, served in ((by_trainer, BY_TRAINERS), (by_server, BY_SERVERS)):
        assert {kind for kind, said in answers.items() if "NotAdmitted" in said} >= served
        answered = {kind for kind, said in answers.items() if said - {"NotAdmitted", "NotServing"}}
        assert answered <= {"OtherVersion"}
    assert trainer.process.poll() is None
    assert server.process.poll() is None


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_revoked_server_stops_and_the_run_goes_on_and_stays_exact(
    start, run_file, owner, tmp_path
):
    run = run_file(steps=300, replicas=2)
    trainer = start("train", run, "--closed", *HERE, module="p2pswarm")
    assert trainer.line_with("waiting for")
    invitations = {name: owner("invite", run, "--name", name) for name in ("anna", "bert")}
    anna, bert = (start("--invite", text, *HERE) for text in invitations.values())
    for server in (anna, bert):
        assert server.line_with("serving stage 0")
    assert trainer.line_with("loss")

    said = owner("revoke", run, "bert")

    assert said == (
        "invitation 'bert' is revoked; 1 trainer knows, and all members will within seconds"
    )
    assert "this invitation was revoked by the run's owner" in refused(bert)
    listed = owner("invitations", run)
    assert "bert: serve, revoked" in listed
    assert "anna: serve, until" in listed
    assert trainer.line_with("done after 300 steps")
    assert trainer.end() == 0, trainer.errors
    swarm, plain = tensors(next(tmp_path.glob("weights-*.safetensors"))), plain_loop(run)
    assert all(torch.equal(swarm[name], plain[name]) for name in plain)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_tokens_hold_when_the_trainer_is_killed_and_a_standby_takes_over(start, run_file, owner):
    run = run_file(steps=1_000_000)
    boot = start(*HERE)
    join = ("--bootstrap", boot.address, *HERE)
    trainer = start("train", run, "--closed", *join, module="p2pswarm")
    assert trainer.line_with("waiting for")
    friend = owner("invite", run, "--name", "friend", *join[:2])
    partner = owner("invite", run, "--name", "partner", "--role", "train", *join[:2])
    plain = start("train", run_file("c", steps=1_000_000), "--standby", *join, module="p2pswarm")
    assert plain.line_with("is closed: ask its owner for an invitation")
    plain.kill()
    standby = start(
        "train",
        run_file("b", steps=1_000_000),
        "--standby",
        "--invite",
        partner,
        *join,
        module="p2pswarm",
    )
    assert standby.line_with("standing by for run")
    server = start("--invite", friend, *join)
    assert trainer.line_with("stands by")
    for _ in range(3):
        assert trainer.line_with("loss")

    os.killpg(trainer.process.pid, signal.SIGKILL)

    assert standby.line_with("coordinates the run")
    late = start("--invite", friend, *join)
    assert late.line_with("serving stage 0")
    assert standby.line_with("loss")
    assert server.process.poll() is None


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_run_goes_on_closed_when_its_trainer_is_started_again_without_the_flag(
    start, run_file, owner
):
    run = run_file(steps=1_000_000)
    boot = start(*HERE)
    join = ("--bootstrap", boot.address, *HERE)
    trainer = start("train", run, "--closed", *join, module="p2pswarm")
    assert trainer.line_with("waiting for")
    text = owner("invite", run, *join[:2])
    server = start("--invite", text, *join)
    assert server.line_with("serving stage 0")
    assert trainer.line_with("loss")
    os.killpg(trainer.process.pid, signal.SIGKILL)
    assert "nobody was told" in owner(
        "revoke", run, "guest-1", "--bootstrap", "127.0.0.1:1", code=1
    )

    again = start("train", run, *join, module="p2pswarm")

    assert again.line_with("going on with run")
    assert "this invitation was revoked by the run's owner" in refused(server)
    late = start("--invite", text, *join)
    assert "this invitation was revoked by the run's owner" in refused(late)


@pytest.mark.timeout(300)
def test_what_is_mistyped_or_of_another_kind_is_said_in_one_line(start, run_file, owner, tmp_path):
    run = run_file("a", steps=1_000_000)
    trainer = start("train", run, "--closed", *HERE, module="p2pswarm")
    address = trainer.address
    assert trainer.line_with("waiting for")
    text = owner("invite", run)

    wrong = text[:40] + ("A" if text[40] != "A" else "B") + text[41:]
    assert "has a wrong character" in owner("node", "--invite", wrong, code=2)
    assert "neither a text that begins" in owner("node", "--invite", "invite.txt", code=2)
    stateless = run_file()
    stateless.write_text(stateless.read_text().replace('state = "owner"', ""))
    assert "names no `state`" in owner("invite", stateless, code=2)
    for peer in ("nonsense", "a" * 51):
        assert owner("invite", run, "--peer", peer, code=2).startswith("error: --peer")
    other = owner("invite", run, "--peer", "b" * 51 + "a")
    assert "invitation is a grant for" in refused(start("--invite", other, *HERE))
    (tmp_path / "invite.txt").write_text(text + "\n")
    status = owner("status", "--invite", "invite.txt")
    assert "step 0 of 1,000,000" in status
    assert "not invited" in owner("status", "--bootstrap", address)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_revoked_standby_ends_with_one_line(start, run_file, owner):
    run = run_file(steps=1_000_000)
    trainer = start("train", run, "--closed", *HERE, module="p2pswarm")
    assert trainer.line_with("waiting for")
    partner = owner("invite", run, "--name", "partner", "--role", "train")
    second = run_file("b", steps=1_000_000)
    standby = start("train", second, "--standby", "--invite", partner, *HERE, module="p2pswarm")
    assert trainer.line_with("stands by")

    owner("revoke", run, "partner")

    assert "this invitation was revoked by the run's owner" in refused(standby)
    assert trainer.process.poll() is None
