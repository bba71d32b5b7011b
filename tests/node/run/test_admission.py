"""Which runs a node may join: open ones, or the one that it is invited to."""

import os
from dataclasses import replace

import pytest
from run.access.harness import ANN, OWNER, STRANGER, bearer

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.invitation_text import invitation_of
from p2pswarm.node.run.run_choice import RunChoice, admits, invited_to, run_choice
from p2pswarm.node.run.run_match import end_key, fitting
from p2pswarm.run.manifest import RunIdentity, read_offer, sign_manifest
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig, ServeConfig

OPEN = RunConfig(name="open", stages=1)
CLOSED = RunConfig(name="closed", stages=1, owner=OWNER.public_key.hex(), strangers="nothing")
OWNED = RunConfig(name="owned", stages=1, owner=OWNER.public_key.hex())
HERE = Address("203.0.113.7", 4000)


def manifest(run: RunConfig):
    return sign_manifest(STRANGER, RunIdentity(run, bytes(32), bytes(16), b"f" * 32), HERE)


def offer(run: RunConfig):
    return read_offer(manifest(run))


def chosen(run: RunConfig, invitation=None):
    choice = RunChoice(ServeConfig(), admits=lambda one: admits(one, invitation))
    found = choice.fitting({STRANGER.peer_id.raw: encode(manifest(run))})
    return [one.config.name for one in found], choice.remarks()


def test_an_open_run_needs_nothing():
    assert chosen(OPEN) == (["open"], [])


@pytest.mark.parametrize("rehearsal", [True, False])
@pytest.mark.parametrize("device", ["emulated", "cpu"])
def test_who_emulates_joins_rehearsals_and_nobody_else_does(rehearsal: bool, device: str):
    """A server that adds ones to the sum of a run that trains would spoil its weights."""
    run = RunConfig(name="one", stages=1, emulated=rehearsal)
    choice = run_choice(NodeConfig(serve=ServeConfig(device=device)), ANN)

    found = choice.fitting({STRANGER.peer_id.raw: encode(manifest(run))})

    fits = rehearsal == (device == "emulated")
    assert [one.config.name for one in found] == ["one"] * fits
    remarks = choice.remarks()
    assert len(remarks) == (not fits)
    assert all("set serve.device to" in remark for remark in remarks)


def test_a_closed_run_is_passed_over_with_the_remedy_in_one_line():
    names, remarks = chosen(CLOSED)

    assert names == []
    assert len(remarks) == 1
    assert "ask its owner for an invitation (p2pswarm invite)" in remarks[0]
    assert str(ANN) in admits(offer(CLOSED), None, ANN), "for the owner's --peer"


def test_who_is_invited_joins_that_run_and_no_other():
    invitation = bearer(run=offer(CLOSED).run)

    assert chosen(CLOSED, invitation) == (["closed"], [])
    names, remarks = chosen(OPEN, invitation)
    assert names == []
    assert "is not the one of the invitation" in remarks[0]


def test_an_invitation_that_the_owner_did_not_make_is_said_before_anybody_is_asked():
    names, remarks = chosen(CLOSED, bearer(run=offer(CLOSED).run, owner=STRANGER))

    assert names == []
    assert "was not made by the owner" in remarks[0]


def test_a_standby_learns_the_owner_from_the_run_that_it_is_invited_to():
    found = {STRANGER.peer_id.raw: encode(manifest(CLOSED)), b"x": b"garbage"}

    assert invited_to(found, bearer(run=offer(CLOSED).run)) == CLOSED
    assert invited_to(found, bearer()) is None
    assert invited_to(found, None) is None


def test_a_standby_without_an_invitation_is_told_of_the_remedy():
    found = {STRANGER.peer_id.raw: encode(manifest(CLOSED))}
    here = RunConfig(name="closed", stages=1)

    assert fitting(found, here, bytes(32), ANN.raw)[0] == []
    assert "p2pswarm invite --role train" in fitting(found, here, bytes(32), ANN.raw)[1]
    assert len(fitting(found, CLOSED, bytes(32), ANN.raw)[0]) == 1


@pytest.mark.parametrize(
    ("there", "here", "stands_by", "said"),
    [
        (OPEN, OPEN, False, "takes no standby: its trainer keeps no owner's key"),
        (OWNED, replace(OWNED, owner=""), False, "only standbys that its owner has invited"),
        (OWNED, OWNED, True, ""),
        (replace(OPEN, strangers="lead"), replace(OPEN, strangers="lead"), True, ""),
    ],
    ids=["nobody invites", "a stranger", "invited", "strangers lead"],
)
def test_a_standby_of_an_open_run_is_one_that_its_owner_has_invited(there, here, stands_by, said):
    found = {STRANGER.peer_id.raw: encode(manifest(there))}

    offers, why = fitting(found, here, bytes(32), ANN.raw)

    assert bool(offers) == stands_by
    assert stands_by or said in why


def test_anybody_joins_an_open_run_that_has_an_owner():
    assert chosen(OWNED) == (["owned"], [])


def test_the_end_of_a_closed_run_is_found_by_who_does_not_know_its_owner():
    here = RunConfig(name="closed", stages=1)

    assert end_key(CLOSED, bytes(32)) == end_key(here, bytes(32))


def test_another_owner_makes_another_run():
    other = RunConfig(name="closed", stages=1, owner=STRANGER.public_key.hex(), strangers="nothing")

    assert len({offer(run).run for run in (CLOSED, other, RunConfig(name="closed", stages=1))}) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_an_invitation_in_a_pipe_is_one_line_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "invitation")

    with pytest.raises(Unusable, match="is a pipe or a device: write what it gives to a file"):
        invitation_of(NodeConfig(invite=str(tmp_path / "invitation")))
