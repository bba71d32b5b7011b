"""What a standby that is asked who leads tells the coordinator, by real trainers and servers."""

import asyncio

import pytest
from trainer.several import ManyTrainers
from trainer.test_several_trainers import after_step, check_exact, ended, play, start

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import StandsBy
from p2pswarm.run.messages.trainers import SILENCE_S, WhoLeads
from p2pswarm.trainer.reports.reports import MemberLost

ASK_S = 1.0
SERVER = 2
MANY = 1000  # records, of which a server knows more than a trainer


def lost_after_a_question(asked_in: str) -> tuple[Incarnation, list[Incarnation]]:
    """A member that lacks nothing asks the standby who leads; who asks, and who is lost."""
    asking: list[Incarnation] = []

    async def story(many: ManyTrainers) -> None:
        await start(many)
        begun = asyncio.Event()
        after_step(many, 0, lambda name: begun.set())
        await begun.wait()
        context = many.serving[SERVER]._context
        member = many.trainers["a"].trainer.coordinator.members.of_peer(context.me)
        assert member is not None
        asking.append(member.incarnation)
        await asyncio.sleep(SILENCE_S)  # virtual: nobody has just begun a life
        number = member.incarnation.number
        said = {"this": number, "a former": number - 1, "none": None}[asked_in]
        to = many.trainers["b"].rpc.contact
        await context.rpc.call(to, WhoLeads(many.run_id, said), ASK_S)
        await ended(many, "a", "b")

    many = play(story)
    check_exact(many, "a", "b")
    return asking[0], [report.incarnation for _, report in many.of_kind(MemberLost)]


def test_a_trainer_that_has_left_begins_nothing_when_it_is_asked_who_leads():
    """A member that hears no coordinator, and knows more records, may ask at that very moment."""
    answers = []

    async def story(many: ManyTrainers) -> None:
        await start(many)
        begun = asyncio.Event()
        after_step(many, 0, lambda name: begun.set())
        await begun.wait()
        left = many.trainers["b"]
        left.leave.set()
        await left.task
        rpc = many.serving[SERVER]._context.rpc
        question = WhoLeads(many.run_id, 1, str(rpc.contact.address), records=MANY)
        answers.append(await rpc.call(left.rpc.contact, question, ASK_S))
        await ended(many, "a")

    many = play(story)

    check_exact(many, "a")
    assert [type(answer) for answer in answers] == [StandsBy]


@pytest.mark.parametrize("asked_in", ["a former", "none"])
def test_a_question_that_was_asked_in_no_life_or_in_a_former_one_costs_a_member_nothing(asked_in):
    _, lost = lost_after_a_question(asked_in)

    assert lost == []


def test_a_member_that_asks_in_its_present_life_is_as_good_as_silent():
    asking, lost = lost_after_a_question("this")

    assert lost == [asking]
