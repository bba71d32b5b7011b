"""Calls and streams of a closed run, between simulated processes."""

import asyncio
from dataclasses import replace

import pytest
from run.access.harness import (
    ANN,
    BOB,
    DAY_S,
    DOOR,
    EVE,
    FOUNDER,
    NOW_S,
    OWNER,
    RUN,
    STRANGER,
    bearer,
    personal,
)

from p2pswarm.base.errors import NotAdmitted, NotServing, RunEnded, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.run.access.access_list import ASK_EVERY_S, Revocations, sign_list
from p2pswarm.run.access.gate import OTHER_ROLE, REVOKED, UNINVITED, AccessGate
from p2pswarm.run.access.grant import Access, serial_of
from p2pswarm.run.access.messages import ShowToken, TellAccess, TokenShown
from p2pswarm.run.access.rpc_guard import GuardedRpc, RoleRules
from p2pswarm.run.messages.membership import MayLeave, StillThere, WillLeave
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld

RULES = RoleRules({MayLeave: Access.TRAIN}, {MayLeave: Access.SERVE})
INVITED = bearer()


class Closed:
    """The members of a closed run, in one world; each answers calls and streams."""

    door = DOOR
    rules = RULES

    def __init__(self):
        self.net = SimWorld(1)
        self.loop = asyncio.get_running_loop()
        self.members = {}
        self.ended = []
        self.said = []
        self.offset_s = {}

    def clock(self, peer):
        return NOW_S + self.loop.time() + self.offset_s.get(peer, 0.0)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        for member in self.members.values():
            await member.__aexit__(None, None, None)

    async def join(self, peer, invitation=None):
        rpc = self.net.rpc(peer)
        token = invitation.token(peer) if invitation else None
        guard = AccessGate(self.door, peer.raw, token)
        member = GuardedRpc(rpc, guard, self.rules, lambda: self.clock(peer), self.said.append)
        member.serve_unary(StillThere, lambda _peer, asked: asked)
        member.serve_unary(MayLeave, lambda _peer, asked: asked)

        async def attend(stream, opening):
            try:
                await stream.send(opening)
                await asyncio.Event().wait()
            finally:
                self.ended.append((peer, stream.peer, self.loop.time()))

        member.serve_stream(WillLeave, attend)
        self.members[peer] = await member.__aenter__()
        return member


def played(story):
    async def main():
        async with asyncio.timeout(3600), Closed() as closed:
            await story(closed)

    run(main(), 1)


def revoking(version=1, **content):
    return sign_list(OWNER, RUN, version, Revocations(**content))


async def ask(member, other):
    return await member.call(other.contact, StillThere(), 5.0)


def test_members_call_each_other_and_a_stranger_calls_nobody():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        bob = await closed.join(BOB, personal(BOB))
        for one, other in ((ann, founder), (founder, ann), (ann, bob), (bob, ann)):
            assert await ask(one, other) == StillThere()

        stranger = closed.net.rpc(EVE)
        for asked in (StillThere(), MayLeave(True)):
            with pytest.raises(NotAdmitted, match="p2pswarm invite"):
                await stranger.call(ann.contact, asked, 5.0)
        with pytest.raises(NotAdmitted):
            async with stranger.open_stream(ann.contact, WillLeave(1.0), 5.0) as stream:
                await stream.receive()
        assert closed.ended == [], "its handler never ran"

    played(story)


def test_a_member_asks_nothing_of_a_peer_that_is_none():
    async def story(closed):
        ann, eve = await closed.join(ANN, INVITED), closed.net.rpc(EVE)
        asked = []
        eve.serve_unary(ShowToken, lambda _peer, shown: TokenShown(None, "", 0, None))
        eve.serve_unary(StillThere, lambda _peer, said: asked.append(said) or said)

        with pytest.raises(NotAdmitted, match="is no member of this run"):
            await ask(ann, eve)
        assert asked == []

    played(story)


def test_a_token_that_a_hostile_member_repeats_ends_its_link():
    async def story(closed):
        ann = await closed.join(ANN, INVITED)
        stolen = []
        eve = closed.net.rpc(EVE)
        eve.serve_unary(
            ShowToken, lambda _peer, shown: stolen.append(shown) or TokenShown(None, "", 0, None)
        )
        with pytest.raises(NotAdmitted):
            await ask(ann, eve)
        bob = await closed.join(BOB, personal(BOB))

        with pytest.raises(SwarmError):
            await eve.call(bob.contact, stolen[0], 5.0)
        with pytest.raises(NotAdmitted):
            await eve.call(bob.contact, StillThere(), 5.0)

    played(story)


def test_orders_are_taken_from_trainers_alone_and_given_to_servers_alone():
    async def story(closed):
        ann = await closed.join(ANN, INVITED)
        trainer = await closed.join(BOB, personal(BOB, role="train"))
        watcher = await closed.join(EVE, personal(EVE, role="watch"))
        assert await trainer.call(ann.contact, MayLeave(True), 5.0) == MayLeave(True)

        with pytest.raises(NotAdmitted, match=OTHER_ROLE[:30]):
            await ann.call(trainer.contact, MayLeave(True), 5.0)
        with pytest.raises(NotAdmitted, match="may not be asked that"):
            await trainer.call(watcher.contact, MayLeave(True), 5.0)
        with pytest.raises(NotAdmitted):
            await ask(watcher, ann)

    played(story)


def test_a_member_that_was_started_again_is_shown_the_token_again():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        assert await ask(ann, founder)

        closed.net.kill(FOUNDER, silent=False)
        again = await closed.join(FOUNDER)
        await asyncio.sleep(1.0)

        assert await ask(ann, again) == StillThere()

    played(story)


def test_who_was_forgotten_shows_its_token_again_and_the_call_succeeds():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        assert await ask(ann, founder)

        founder.gate.__init__(
            founder.gate.door, FOUNDER.raw, None
        )  # as if others had made it forget

        assert await ask(ann, founder) == StillThere()

    played(story)


def test_a_revoked_member_is_out_everywhere_within_seconds_and_knows_it():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        bob = await closed.join(BOB, personal(BOB))
        errors = []

        async def stay(member, other):
            try:
                async with member.open_stream(other.contact, WillLeave(1.0), None) as stream:
                    while await stream.receive() is not None:
                        pass
            except SwarmError as error:
                errors.append(error)

        streams = [
            asyncio.ensure_future(stay(*pair))
            for pair in ((ann, founder), (ann, bob), (bob, ann), (bob, founder), (founder, bob))
        ]
        await asyncio.sleep(5.0)
        begun_s = closed.loop.time()

        founder.learn(revoking(serials=[serial_of(INVITED.grant)]))
        await asyncio.sleep(3.0)

        over = {(here, there) for here, there, when_s in closed.ended if when_s < begun_s + 3.0}
        assert over == {(FOUNDER, ANN), (BOB, ANN), (ANN, BOB)}
        assert [task.done() for task in streams] == [True, True, True, False, False]
        assert ann.gate.own_refusal(closed.clock(ANN)) == REVOKED
        with pytest.raises(RunEnded, match="was revoked"):
            await ask(ann, founder)
        with pytest.raises(NotAdmitted, match="was revoked"):
            await ask(bob, ann)
        assert await ask(bob, founder) == StillThere(), "the others go on"
        assert len(errors) == 3
        for task in streams:
            task.cancel()

    played(story)


def test_a_list_that_was_missed_is_asked_for():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        await ask(ann, founder)
        founder.gate.learn(revoking(version=7), closed.clock(FOUNDER))  # and nobody is told

        await asyncio.sleep(2 * ASK_EVERY_S)

        assert ann.gate.known.version == 7

    played(story)


def test_a_newcomer_gets_the_list_with_the_first_token_and_gives_one_that_is_newer():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        bob = await closed.join(BOB, personal(BOB))
        founder.learn(revoking(version=3))
        bob.learn(revoking(version=9))

        await ask(ann, founder)
        assert ann.gate.known.version == 3
        await ask(bob, founder)
        await asyncio.sleep(1.0)

        assert founder.gate.known.version == 9

    played(story)


def test_who_is_refused_learns_nothing_of_the_members_but_its_own_revocation():
    async def story(closed):
        founder = await closed.join(FOUNDER)
        good, used = personal(BOB), bearer(uses=1)
        founder.learn(revoking(version=3, serials=[serial_of(INVITED.grant)], peers=[BOB.raw]))

        async def shows(peer, token):
            return await closed.net.rpc(peer).call(founder.contact, ShowToken(RUN, token, 0), 5.0)

        assert (await shows(ANN, used.token(ANN))).access is not None, "a member gets the list"
        strangers = [await shows(EVE, None), await shows(EVE, used.token(EVE))]
        revoked = await shows(BOB, good.token(BOB))

        assert all(answer.refusal for answer in strangers)
        assert [(a.token, a.version, a.access) for a in strangers] == [(None, 0, None)] * 2
        assert (revoked.refusal, revoked.token) == (REVOKED, None)
        assert revoked.access == founder.gate.known.newest, "the owner's word to it, signed"

    played(story)


def test_a_stranger_may_carry_the_owners_list_but_cannot_make_one():
    async def story(closed):
        founder, eve = await closed.join(FOUNDER), closed.net.rpc(EVE)
        await eve.call(founder.contact, TellAccess(revoking(version=2)), 5.0)
        assert founder.gate.known.version == 2

        forged = sign_list(STRANGER, RUN, 3, Revocations(peers=[ANN.raw]))
        with pytest.raises(SwarmError):
            await eve.call(founder.contact, TellAccess(forged), 5.0)
        assert founder.gate.known.version == 2

    played(story)


def test_an_invitation_that_expires_ends_its_streams_and_its_member_says_so_before():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, bearer(days=2))

        async def stay():
            async with ann.open_stream(founder.contact, WillLeave(1.0), None) as stream:
                while await stream.receive() is not None:
                    pass

        async with asyncio.timeout(None) as long:
            long.reschedule(closed.loop.time() + 3 * DAY_S)
            with pytest.raises(RunEnded, match="expired on"):
                await stay()

        assert [line for line in closed.said if "p2pswarm renew" in line] == closed.said[:1]

    async def main():
        async with Closed() as closed:
            await story(closed)

    run(main(), 1)


def test_five_minutes_between_clocks_harm_nobody_and_an_hour_is_named():
    async def story(closed):
        founder = await closed.join(FOUNDER)
        for offset_s in (-299.0, 299.0):
            closed.offset_s[ANN] = offset_s
            ann = await closed.join(ANN, bearer())
            assert await ask(ann, founder) == StillThere()
            await ann.__aexit__(None, None, None)
            closed.net.kill(ANN, silent=False)
        closed.offset_s[ANN] = -3600.0
        ann = await closed.join(ANN, bearer())
        with pytest.raises(RunEnded, match="clocks"):
            await ask(ann, founder)

    played(story)


def test_a_member_without_a_token_says_so_itself():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN)
        with pytest.raises(RunEnded, match=UNINVITED[:20]):
            await ask(ann, founder)

    played(story)


def test_a_run_that_was_left_answers_nothing_any_more():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        await founder.__aexit__(None, None, None)

        with pytest.raises(NotServing):
            await ask(ann, founder)
        with pytest.raises(NotServing):
            await closed.net.rpc(EVE).call(founder.contact, TellAccess(revoking()), 5.0)

    played(story)


def test_who_waits_to_be_out_is_told_why():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        waiting = asyncio.ensure_future(ann.until_out())
        await ask(ann, founder)
        assert not waiting.done()

        ann.learn(revoking(peers=[ANN.raw]))

        assert await waiting == REVOKED

    played(story)


def test_members_that_a_wrong_clock_refused_are_back_when_it_is_right():
    async def story(closed):
        founder, ann = await closed.join(FOUNDER), await closed.join(ANN, INVITED)
        await ask(ann, founder)
        closed.offset_s[FOUNDER] = 30.0 * DAY_S
        with pytest.raises(NotAdmitted, match="expired"):
            await ask(ann, founder)

        closed.offset_s[FOUNDER] = 0.0

        assert await ask(ann, founder) == StillThere()

    played(story)


# An open run: strangers do what needs no role.

OPEN_RULES = RoleRules({WillLeave: Access.TRAIN}, {MayLeave: Access.TRAIN}, others=Access(0))


class Open(Closed):
    """The peers of an open run; EVE and her like are strangers."""

    door = replace(DOOR, open=True)
    rules = OPEN_RULES


def played_open(story, kind=Open):
    async def main():
        async with asyncio.timeout(3600), kind() as run_:
            await story(run_)

    run(main(), 1)


def test_strangers_of_an_open_run_call_each_other_and_show_nothing():
    async def story(run_):
        ann, eve = await run_.join(ANN), await run_.join(EVE)
        bare = run_.net.rpc(BOB)

        assert await ask(ann, eve) == StillThere()
        assert await bare.call(ann.contact, StillThere(), 5.0) == StillThere()
        assert ann.gate.members == eve.gate.members == []

    played_open(story)


def test_an_order_of_a_trainer_is_taken_from_the_founder_and_whom_its_owner_invited():
    async def story(run_):
        founder, ann = await run_.join(FOUNDER), await run_.join(ANN)
        bob = await run_.join(BOB, personal(BOB, role="train"))
        eve = await run_.join(EVE, personal(EVE, role="serve"))
        for trainer in (founder, bob):
            async with trainer.open_stream(ann.contact, WillLeave(1.0), 5.0) as stream:
                assert await stream.receive() == WillLeave(1.0)
        stranger = await run_.join(PeerId(b"z" * 32))
        for other in (eve, stranger):
            with pytest.raises(NotAdmitted):
                async with other.open_stream(ann.contact, WillLeave(1.0), 5.0) as stream:
                    await stream.receive()

    played_open(story)


def test_nobody_asks_a_stranger_what_only_a_trainer_is_asked():
    async def story(run_):
        founder, ann = await run_.join(FOUNDER), await run_.join(ANN)
        bob = await run_.join(BOB, personal(BOB, role="train"))
        assert await ann.call(founder.contact, MayLeave(True), 5.0) == MayLeave(True)
        assert await ann.call(bob.contact, MayLeave(True), 5.0) == MayLeave(True)
        eve, asked = run_.net.rpc(EVE), []
        eve.serve_unary(ShowToken, lambda _peer, shown: TokenShown(None, "", 0, None))
        eve.serve_unary(MayLeave, lambda _peer, said: asked.append(said) or said)

        with pytest.raises(NotAdmitted, match="may not be asked that"):
            await ann.call(eve.contact, MayLeave(True), 5.0)
        assert asked == []

    played_open(story)


def test_where_nobody_can_invite_the_founder_is_the_only_trainer():
    class Ownerless(Open):
        door = replace(DOOR, open=True, owner=b"")

    async def story(run_):
        founder, ann = await run_.join(FOUNDER), await run_.join(ANN)
        bob = await run_.join(BOB, personal(BOB, role="train"))
        assert await ann.call(founder.contact, MayLeave(True), 5.0) == MayLeave(True)
        with pytest.raises(SwarmError):
            async with bob.open_stream(ann.contact, WillLeave(1.0), 5.0) as stream:
                await stream.receive()
        assert run_.ended == [], "its handler never ran"

    played_open(story, Ownerless)
