"""Open runs with real processes: strangers compute, and nothing else."""

import asyncio
import contextlib
import dataclasses
import os
import signal

import pytest
from procs.test_checkpoints import HERE, RUN
from procs.test_closed_runs import outcomes
from torch import nn

import p2pswarm as ps
from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.discovery import manifests
from p2pswarm.node.run.run_match import readable
from p2pswarm.run.manifest import RUNS_KEY, RunIdentity, sign_manifest

ORDERS = {
    *("Enlist", "Fence", "Reduce", "Commit", "Prepare", "Propose", "Heartbeat", "HandOver"),
    *("AskReachable", "NotHeard"),
}
"""What only a trainer may say."""


@pytest.fixture
def run_file(tmp_path, text_folder):
    """An open run of one stage; `state` is the trainer's folder."""

    def write(state: str, **values):
        values = {
            "stages": 1,
            "steps": 1_000_000,
            "replicas": 1,
            "every": 1_000_000,
            "dtype": "float32",
        } | values
        path = tmp_path / f"run-{state}.toml"
        path.write_text(f'state = "{state}"\n' + RUN.format(**values))
        return path

    return write


def invited(start, run, *flags: str) -> str:
    """The line that the run's owner prints for somebody."""
    done = start("invite", run, *flags, module="p2pswarm")
    assert done.end() == 0, done.errors
    return done.said.strip()


@pytest.mark.timeout(300)
async def test_a_stranger_gives_no_order_in_an_open_run_and_the_run_goes_on(start, run_file):
    trainer = start("train", run_file("owner"), *HERE, module="p2pswarm")
    at_trainer = trainer.address
    server = start("--bootstrap", at_trainer, *HERE)
    at_server = server.address
    assert server.line_with("serving stage 0")

    async with ps.Node(bootstrap=[at_trainer], listen="127.0.0.1:0") as stranger:
        by_both = await outcomes(stranger, at_trainer), await outcomes(stranger, at_server)

    for answers in by_both:
        assert not {kind for kind in ORDERS if answers[kind] - {"NotAdmitted", "NotServing"}}
    assert {
        kind for kind in ORDERS if any("NotAdmitted" in each[kind] for each in by_both)
    } == ORDERS
    for _ in range(3):  # said every tenth step
        assert trainer.line_with("held-out loss")
    assert server.process.poll() is None


async def pretend(stranger: ps.Node, run: RunIdentity) -> None:
    """Sign a manifest of somebody's run, and call ourselves its trainer."""
    stack = stranger.stack
    manifest = sign_manifest(stack.identity, run, stack.endpoint.contact.address)
    await stack.dht.put(RUNS_KEY, stack.identity.peer_id.raw, encode(manifest), 600.0)


@pytest.mark.timeout(300)
async def test_peers_that_call_themselves_the_trainer_keep_no_server_from_its_run(start, run_file):
    trainer = start("train", run_file("owner"), *HERE, module="p2pswarm")
    at = trainer.address
    assert trainer.line_with("waiting for")
    async with contextlib.AsyncExitStack() as blocks:
        strangers = [
            await blocks.enter_async_context(ps.Node(bootstrap=[at], listen="127.0.0.1:0"))
            for _ in range(4)
        ]
        found = [readable(value) for value in (await manifests(strangers[0].stack)).values()]
        (ours,) = [offer.identity for offer in found if offer is not None]
        invented = dataclasses.replace(ours, nonce=b"x" * len(ours.nonce))
        for stranger, run in zip(strangers, (ours, ours, invented, invented), strict=True):
            await pretend(stranger, run)

        servers = [start("--bootstrap", at, *HERE) for _ in range(2)]
        for server in servers:
            assert await asyncio.to_thread(server.line_with, "serving stage 0")
        assert await asyncio.to_thread(trainer.line_with, "held-out loss")


@pytest.mark.full
@pytest.mark.timeout(300)
def test_whom_the_owner_of_an_open_run_has_invited_stands_by_votes_and_takes_over(start, run_file):
    run = run_file("owner")
    first = start("train", run, *HERE, module="p2pswarm")
    join = ("--bootstrap", first.address, *HERE)
    plain = start(*join)
    assert plain.line_with("serving stage 0")
    uninvited = start("train", run_file("none"), "--standby", *join, module="p2pswarm")
    assert uninvited.line_with("takes only standbys that its owner has invited")

    invitation = invited(start, run, "--role", "train")
    second = start(
        *("train", run_file("second"), "--standby", "--invite", invitation, *HERE),
        module="p2pswarm",
    )
    assert second.line_with("standing by for run")
    assert first.line_with("no standby can take over yet")
    voter = start("--invite", invited(start, run, "--name", "lab"), *HERE)
    assert voter.line_with("serving stage 0")
    for _ in range(3):  # all three vote by then
        assert first.line_with("held-out loss")
    os.killpg(first.process.pid, signal.SIGKILL)

    assert second.line_with("this trainer coordinates the run")
    for _ in range(2):
        assert second.line_with("held-out loss")
    assert [node.process.poll() for node in (plain, voter, uninvited)] == [None] * 3


@ps.models.register("strangers-own")
def strangers_own(config: ps.models.GPT) -> nn.Sequential:
    """A model that only this process knows."""
    width, tokens = config.d_model, config.vocabulary
    return nn.Sequential(nn.Embedding(tokens, width), nn.Linear(width, tokens))


@pytest.mark.timeout(300)
async def test_a_run_that_a_server_cannot_serve_is_said_once_and_the_next_one_is_served(
    start, run_file, text_folder
):
    """Anybody may offer a run of a model that nobody else has."""
    model = ps.models.GPT(family="strangers-own", d_model=16, layers=1, sequence_length=32)
    theirs = ps.Run("theirs", model=model, stages=1, steps=1_000_000)
    async with (
        ps.Node(listen="127.0.0.1:0") as stranger,
        ps.Trainer(stranger, theirs, data=ps.data.Bytes(text_folder)),
    ):
        join = ("--bootstrap", str(stranger.contact.address), *HERE)
        server = start(*join)
        line = await asyncio.to_thread(server.line_with, "cannot be served here")
        assert "run 'theirs'" in line
        assert "waiting for another run" in line

        honest = start("train", run_file("honest", steps=4), *join, module="p2pswarm")
        assert await asyncio.to_thread(server.line_with, "serving stage 0")
        assert await asyncio.to_thread(honest.line_with, "done after 4 steps")
        assert await asyncio.to_thread(honest.end) == 0, honest.errors
    assert server.end() == 0, server.errors  # with the run that it served
