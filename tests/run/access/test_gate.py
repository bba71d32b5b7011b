"""Who may take part: tokens, times, roles, uses, revocations."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.access.harness import (
    ANN,
    BOB,
    DAY_S,
    EVE,
    FOUNDER,
    NOW_S,
    OTHER_RUN,
    OWNER,
    RUN,
    STRANGER,
    bearer,
    gate,
    personal,
)

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.run.access.access_list import Revocations, sign_list
from p2pswarm.run.access.gate import OTHER_ROLE, REVOKED, UNINVITED
from p2pswarm.run.access.grant import ANY, Access, serial_of
from p2pswarm.run.access.messages import CLOCK_TOLERANCE_S, WARN_BEFORE_S

MEMBER = Access.SERVE | Access.TRAIN


def revoking(version=1, owner=OWNER, run=RUN, **content):
    return sign_list(owner, run, version, Revocations(**content))


def test_nobody_is_a_member_who_has_shown_nothing_but_the_founder():
    at = gate()

    assert at.refusal(ANN.raw, MEMBER, NOW_S) == UNINVITED
    assert at.show(ANN.raw, None, NOW_S) == UNINVITED
    assert at.refusal(FOUNDER.raw, Access.TRAIN, NOW_S) == ""
    assert at.refusal(ANN.raw, Access(0), NOW_S) == "", "what everybody may ask"


@pytest.mark.parametrize("invitation", [bearer(), personal(ANN)])
def test_who_shows_a_good_token_is_one(invitation):
    at = gate()

    assert at.show(ANN.raw, invitation.token(ANN), NOW_S) == ""

    assert at.refusal(ANN.raw, MEMBER, NOW_S) == ""
    assert at.refusal(BOB.raw, MEMBER, NOW_S) == UNINVITED
    assert at.members == [ANN.raw]


def test_a_token_that_another_peer_repeats_is_an_attack():
    at = gate()
    for token in (bearer().token(ANN), personal(ANN).token(ANN)):
        with pytest.raises(BadMessage):
            at.show(EVE.raw, token, NOW_S)

    assert at.refusal(EVE.raw, ANY, NOW_S) == UNINVITED


def test_a_forged_grant_is_an_attack():
    at, good = gate(), bearer().token(ANN)
    more = replace(good, grant=replace(good.grant, roles=7))
    longer = replace(good, grant=replace(good.grant, not_after=NOW_S + 900 * DAY_S))
    for token in (more, longer, bearer(owner=STRANGER).token(ANN)):
        with pytest.raises(BadMessage):
            at.show(ANN.raw, token, NOW_S)


def test_a_token_of_another_run_is_refused():
    with pytest.raises(BadMessage, match="another run"):
        gate().show(ANN.raw, bearer(run=OTHER_RUN).token(ANN), NOW_S)


@given(st.integers(-10 * DAY_S, 20 * DAY_S))
def test_a_token_is_good_in_its_time_and_five_minutes_around_it(offset_s):
    at, now_s = gate(), NOW_S + offset_s

    refusal = at.show(ANN.raw, bearer(days=7).token(ANN), now_s)

    good = -CLOCK_TOLERANCE_S <= offset_s <= 7 * DAY_S + CLOCK_TOLERANCE_S
    assert (refusal == "") == good
    assert (at.refusal(ANN.raw, MEMBER, now_s) == "") == good
    if offset_s > 8 * DAY_S:
        assert "p2pswarm renew" in refusal
    if offset_s < -DAY_S:
        assert "clocks" in refusal


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("serve", Access.SERVE | Access.WATCH),
        ("train", ANY),
        ("watch", Access.WATCH),
    ],
)
def test_a_role_may_what_it_may(role, may):
    at = gate()
    at.show(ANN.raw, bearer(role=role).token(ANN), NOW_S)

    for needed in (Access.SERVE, Access.TRAIN, Access.WATCH):
        assert at.refusal(ANN.raw, needed, NOW_S) == ("" if needed & may else OTHER_ROLE)


def test_an_expired_member_is_named_once_and_forgotten():
    at = gate()
    at.show(ANN.raw, bearer(days=7).token(ANN), NOW_S)
    at.show(BOB.raw, bearer(b"t" * 16, days=9).token(BOB), NOW_S)
    due_s = at.next_deadline_s()
    assert due_s == NOW_S + 7 * DAY_S + CLOCK_TOLERANCE_S

    at.on_deadline(due_s)
    assert at.barred() == []
    at.on_deadline(due_s + 1)

    assert at.barred() == [ANN.raw]
    assert at.barred() == []
    assert at.members == [BOB.raw]


def test_a_revoked_serial_bars_all_that_use_it_and_nobody_else():
    at, one, other = gate(), bearer(), bearer(b"t" * 16)
    for peer, invitation in ((ANN, one), (BOB, one), (EVE, other)):
        at.show(peer.raw, invitation.token(peer), NOW_S)

    assert at.learn(revoking(serials=[serial_of(one.grant)]), NOW_S)

    assert at.barred() == [ANN.raw, BOB.raw]
    assert at.show(ANN.raw, one.token(ANN), NOW_S) == REVOKED
    assert at.refusal(EVE.raw, MEMBER, NOW_S) == ""


def test_a_revoked_peer_is_barred_whatever_it_shows():
    at = gate()
    at.show(ANN.raw, bearer().token(ANN), NOW_S)

    at.learn(revoking(peers=[ANN.raw, FOUNDER.raw]), NOW_S)

    assert at.barred() == [FOUNDER.raw, ANN.raw]
    assert at.show(ANN.raw, bearer(b"t" * 16).token(ANN), NOW_S) == REVOKED
    assert at.show(FOUNDER.raw, None, NOW_S) == REVOKED
    assert at.refusal(ANN.raw, MEMBER, NOW_S) == REVOKED
    assert at.own_refusal(NOW_S) == REVOKED


def test_an_older_list_changes_nothing_and_is_no_attack():
    at = gate()
    at.learn(revoking(version=5), NOW_S)

    assert not at.learn(revoking(version=4, peers=[ANN.raw]), NOW_S)
    assert not at.learn(revoking(version=5), NOW_S)

    assert at.known.version == 5
    assert at.show(ANN.raw, bearer().token(ANN), NOW_S) == ""


@pytest.mark.parametrize("about", [{"owner": STRANGER}, {"run": OTHER_RUN}])
def test_a_list_that_is_not_the_owners_is_an_attack(about):
    at = gate()

    with pytest.raises(BadMessage):
        at.learn(revoking(peers=[ANN.raw], **about), NOW_S)

    assert at.known.version == 0


def test_a_changed_list_is_an_attack():
    honest = revoking(version=3, peers=[ANN.raw], serials=[b"s" * 8])
    for forged in (
        replace(honest, version=4),
        replace(honest, peers=()),
        replace(honest, peers=(BOB.raw,)),
        replace(honest, serials=(), peers=(ANN.raw,)),
    ):
        with pytest.raises(BadMessage):
            gate().learn(forged, NOW_S)


def test_a_renewed_grant_holds_for_longer_for_all_and_for_ourselves():
    invitation, late_s = bearer(days=1), NOW_S + 5 * DAY_S
    at, ann = gate(), gate(ANN, invitation)
    assert at.show(ANN.raw, invitation.token(ANN), late_s) != ""
    assert "expired" in ann.own_refusal(late_s)

    renewal = revoking(extended={serial_of(invitation.grant): NOW_S + 9 * DAY_S})
    for one in (at, ann):
        one.learn(renewal, late_s)

    assert at.show(ANN.raw, invitation.token(ANN), late_s) == ""
    assert ann.own_refusal(late_s) == ""


def test_a_member_says_once_that_its_invitation_expires_and_again_after_a_renewal():
    invitation = bearer(days=7)
    ann = gate(ANN, invitation)
    end_s = NOW_S + 7 * DAY_S
    assert ann.warning(end_s - WARN_BEFORE_S - 1) is None

    assert ann.warning(end_s - WARN_BEFORE_S) == end_s
    assert ann.warning(end_s - 1) is None
    ann.learn(revoking(extended={serial_of(invitation.grant): end_s + DAY_S}), end_s)
    assert ann.warning(end_s + 10) == end_s + DAY_S
    assert gate().warning(NOW_S) is None, "the founder needs none"


def test_who_has_no_token_knows_itself():
    assert gate(ANN).own_refusal(NOW_S) == UNINVITED
    assert gate().own_refusal(NOW_S) == ""


@given(st.integers(1, 4), st.lists(st.integers(0, 6), max_size=30))
def test_a_limited_invitation_admits_the_first_peers_for_good(uses, comers):
    at, invitation, first = gate(), bearer(uses=uses), []
    for number in comers:
        peer = PeerId(bytes([number]) * 32)
        if peer not in first and len(first) < uses:
            first.append(peer)
        refusal = at.show(peer.raw, invitation.token(peer), NOW_S)
        assert (refusal == "") == (peer in first)
        if refusal:
            assert "--identity" in refusal


def test_an_invitation_that_leaked_forgets_its_own_peers_first():
    at, leaked = gate(proven_max=10), bearer()
    at.show(ANN.raw, bearer(b"t" * 16).token(ANN), NOW_S)
    for number in range(100):
        peer = PeerId(number.to_bytes(32))
        at.show(peer.raw, leaked.token(peer), NOW_S)

    assert len(at.members) == 10
    assert at.refusal(ANN.raw, MEMBER, NOW_S) == ""
    assert at.show((0).to_bytes(32), leaked.token(PeerId((0).to_bytes(32))), NOW_S) == ""
