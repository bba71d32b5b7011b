"""Tests of `trainer/leadership/known_trainers.py`."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.run.chain.chain import ChainHead, Genesis
from p2pswarm.run.chain.electorate import MISSES_MAX, Votes
from p2pswarm.run.chain.record import VoterId
from p2pswarm.run.messages.field_limits import TRAINERS_MAX
from p2pswarm.run.messages.trainers import Trainers, Whereabouts
from p2pswarm.trainer.leadership.known_trainers import (
    HINTS_MAX,
    CoordinatorSearch,
    KnownTrainers,
    longest_serving,
)

RUN = b"r" * 16


def peer(number: int) -> bytes:
    return number.to_bytes(32)


def contact(number: int, port: int = 4000) -> Contact:
    return Contact(PeerId(peer(number)), Address(f"10.0.0.{number}", port))


ME = peer(1)
NAMED = ME, peer(2)


def votes(memories: dict[bytes, bytes]) -> Votes:
    """Peers that have answered with these files."""
    known = Votes()
    for one, memory in memories.items():
        known.on_answer(one, memory)
    return known


def roll(*standbys: int) -> KnownTrainers:
    made = KnownTrainers(contact(1))
    for number in standbys:
        made.on_standby(contact(number))
    return made


def head() -> ChainHead:
    return Genesis.founded(RUN, ME, 1, 1).head()


def test_those_that_stand_by_are_named_behind_those_that_were():
    assert roll(5, 4).next_trainers((peer(9), ME)) == (peer(9), ME, peer(5), peer(4))


def test_of_too_many_trainers_those_are_left_out_that_have_been_gone_for_longest():
    many = roll(*range(2, TRAINERS_MAX + 2))
    many.on_standby_end(peer(3), 10.0)
    many.on_standby_end(peer(7), 5.0)
    named = (ME, *(peer(number) for number in range(2, TRAINERS_MAX + 2)))

    left = many.next_trainers(named)

    assert set(named) - set(left) == {peer(7)}
    assert peer(3) in left


@given(st.lists(st.integers(2, 60), max_size=40, unique=True), st.integers(0, 40))
def test_a_record_has_room_for_its_trainers_and_its_coordinator_is_one(numbers, gone):
    many = roll(*numbers)
    for number in numbers[:gone]:
        many.on_standby_end(peer(number), float(number))

    named = many.next_trainers(tuple(peer(number) for number in numbers[:TRAINERS_MAX]))

    assert len(named) <= TRAINERS_MAX
    assert len(set(named)) == len(named)
    assert ME in named


def test_a_lone_trainer_votes_alone_and_two_have_a_server_vote():
    first = head().voters
    memories = {peer(number): bytes([number]) * 8 for number in (2, 30)} | {ME: first[0].memory}

    assert roll().next_voters(head(), NAMED[:1], votes(memories), [peer(30)]) == first
    three = roll(2).next_voters(head(), NAMED, votes(memories), [peer(30)])
    assert three == (*first, VoterId(peer(2), b"\x02" * 8), VoterId(peer(30), b"\x1e" * 8))


def test_one_that_has_not_answered_is_not_chosen():
    first = head().voters

    assert roll(2).next_voters(head(), NAMED, Votes(), [peer(30)]) == first
    assert roll(2).next_voters(head(), NAMED, votes({peer(2): bytes(8)}), [peer(30)]) == first


def test_one_that_does_not_answer_any_more_is_replaced_and_is_not_chosen():
    memories = {peer(number): bytes([number]) * 8 for number in (2, 30, 31)}
    voters = (*head().voters, *(VoterId(peer(n), bytes([n]) * 8) for n in (2, 30)))
    three = dataclasses.replace(head(), voters=voters)
    known = votes(memories)
    for _ in range(MISSES_MAX):
        known.on_silence(peer(30))

    after = roll(2).next_voters(three, NAMED, known, [peer(30), peer(31)])
    assert after == (*voters[:2], VoterId(peer(31), b"\x1f" * 8))

    for _ in range(MISSES_MAX):
        known.on_silence(peer(31))
    alone = roll(2).next_voters(three, NAMED, known, [peer(30), peer(31)])
    assert alone == head().voters


def test_a_trainer_that_answers_lives_before_it_has_enlisted():
    memories = {peer(number): bytes([number]) * 8 for number in (2, 30, 31, 32, 33)}
    silent = {number: memories[number] for number in memories if number != peer(2)}

    assert roll().wanted_voters(NAMED, votes(memories)) == 3
    assert roll().wanted_voters(NAMED, votes(silent)) == 5


def test_a_voter_that_is_there_and_has_not_answered_yet_stays():
    voters = (*head().voters, VoterId(peer(2), bytes(8)), VoterId(peer(30), bytes(8)))
    three = dataclasses.replace(head(), voters=voters)
    memories = {peer(31): bytes(8)}

    assert roll(2).next_voters(three, NAMED, votes(memories), [peer(30), peer(31)]) == voters
    without = roll(2).next_voters(three, NAMED, votes(memories), [peer(31)])
    assert without == (*voters[:2], VoterId(peer(31), bytes(8)))


def test_voters_that_answer_before_they_are_members_stay_and_the_dead_go():
    """The only trainer was away, and two of the four servers that vote died meanwhile."""
    memories = {peer(number): bytes([number]) * 8 for number in (30, 31, 32, 33)}
    voters = (*head().voters, *(VoterId(*item) for item in memories.items()))
    five = dataclasses.replace(head(), voters=voters)
    known = votes({peer(number): memories[peer(number)] for number in (30, 31)})
    known.on_silence(peer(32))
    known.on_silence(peer(33))

    after = roll().next_voters(five, NAMED, known, [])

    assert after == voters[:3]


def test_a_voter_that_answers_with_another_file_is_replaced_by_itself():
    voters = (*head().voters, VoterId(peer(2), bytes(8)), VoterId(peer(30), bytes(8)))
    three = dataclasses.replace(head(), voters=voters)

    known = votes({peer(30): b"another."})
    after = roll(2).next_voters(three, NAMED, known, [peer(30)])

    assert after == (*voters[:2], VoterId(peer(30), b"another."))


def test_all_are_told_where_trainers_and_voters_are():
    said = roll(2).say(RUN, 3, head(), lambda _: None)

    assert said == Trainers(
        RUN,
        3,
        (Whereabouts.of(contact(1)), Whereabouts.of(contact(2))),
        (Whereabouts.of(contact(1)),),
    )


def test_a_standby_finds_whom_the_coordinator_has_named():
    mine = KnownTrainers(contact(2))
    mine.on_trainers(
        Trainers(
            RUN,
            1,
            (Whereabouts.of(contact(1)), Whereabouts.of(contact(2))),
            (Whereabouts.of(contact(30)), Whereabouts(peer(31), "nowhere")),
        ),
        1.0,
    )

    assert mine.find(peer(1)) == contact(1)
    assert mine.find(peer(30)) == contact(30)
    assert mine.find(peer(31)) is None
    assert mine.find(peer(2)) == contact(2)
    assert mine.contacts() == [contact(1)]
    assert mine.standbys == []


def test_a_trainer_that_has_another_address_is_found_there():
    mine = roll()
    mine.on_trainer(contact(2))
    mine.on_trainer(contact(2, port=5000))
    mine.on_trainer(contact(1))
    mine.on_voter(Whereabouts(peer(30), "10.0.0.30:4000"))
    mine.on_voter(Whereabouts(peer(31), "nowhere"))

    assert mine.find(peer(2)) == contact(2, port=5000)
    assert mine.contacts() == [contact(2, port=5000)]
    assert mine.find(peer(30)) == contact(30)
    assert mine.find(peer(31)) is None


def test_the_servers_that_have_served_longest_may_vote():
    ready = [(900 - number, peer(number)) for number in range(2, 100)]

    assert longest_serving(ready)[0] == peer(99)
    assert len(longest_serving(ready)) == 10
    voters = [VoterId(peer(5), bytes(8))]
    assert longest_serving(ready, voters) == [*longest_serving(ready), peer(5)]


A, B, C = (Contact(PeerId(name * 32), Address("h", 1)) for name in (b"a", b"b", b"c"))


def test_all_are_asked_in_turn_and_then_there_is_a_pause():
    search = CoordinatorSearch()

    assert [search.ask([A, B]) for _ in range(4)] == [A, B, None, A]


def test_the_one_that_is_named_is_asked_at_once():
    search = CoordinatorSearch()
    search.ask([A, B])
    search.on_hint(C)
    search.on_hint(None)

    assert [search.ask([A, B]) for _ in range(2)] == [C, B]


def test_trainers_that_name_each_other_send_a_standby_round_no_circle():
    search = CoordinatorSearch()
    asked = []
    for _ in range(20):
        asked.append(search.ask([A]))
        search.on_hint(B)
        if asked[-1] is None:
            break

    assert asked == [A, *[B] * HINTS_MAX, None]


def test_once_the_coordinator_was_found_all_begins_anew():
    search = CoordinatorSearch()
    search.ask([A, B])
    search.on_coordinator()

    assert search.ask([A, B]) == A
