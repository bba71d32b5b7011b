"""Whom a server obeys when its coordinator is lost, or silent, and another trainer leads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.test_lifecycle import (
    REJOIN_S,
    STANDBY,
    THIRD,
    TRAINER,
    server,
    serving,
)
from server.test_lifecycle_trainers import asks

from p2pswarm.base.errors import BadMessage, LinkLost
from p2pswarm.base.ids import Address, Contact
from p2pswarm.run.chain.record import first_number, term_of
from p2pswarm.run.messages.membership import Assigned, Load, StandsBy
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.trainers import SILENCE_S, Alive, Trainers, Whereabouts
from p2pswarm.server.lifecycle import Lifecycle, ServerState
from p2pswarm.server.trainer_search import (
    ASK_AGAIN_S,
    HINTS_MAX,
    REJOIN_FIRST_S,
    STEADY_S,
    CoordinatorWatch,
    TrainerSearch,
)

RUN = b"r" * 16


def assigned(term: int) -> Assigned:
    return Assigned(1, first_number(term) + 7, 0, keep=False)


def trainers(*contacts: Contact) -> Trainers:
    return Trainers(RUN, 1, tuple(map(Whereabouts.of, contacts)), ())


def names(leader: Contact | None, term: int) -> StandsBy:
    return StandsBy(leader.peer.raw, str(leader.address), term) if leader else StandsBy(b"", "")


def led(term: int, *known: Contact, now_s: float = 0.0) -> Lifecycle:
    """A server whose coordinator leads `term`."""
    one = server(TRAINER, *known)
    asks(one, now_s)
    one.answered(assigned(term))
    one.prepared()
    one.loaded()
    return one


def test_a_trainer_of_a_lower_term_is_not_joined_and_the_next_one_is_asked():
    one = led(5, STANDBY)
    one.session_lost("the link was lost", 1.0)

    assert asks(one, 2.0) == STANDBY
    with pytest.raises(LinkLost, match="leads term 4, and another leads term 5"):
        one.answered(assigned(4))
    one.session_lost("an old term", 2.0)

    assert asks(one, 2.0) == TRAINER
    assert one.answered(assigned(5)) == assigned(5)


def test_after_a_lost_coordinator_the_others_are_asked_at_once_and_before_it():
    one = led(5, STANDBY, THIRD)

    one.session_lost("the link was lost", STEADY_S + 1)

    now_s = STEADY_S + 1
    assert asks(one, now_s) == STANDBY
    one.session_lost("stands by", now_s)
    assert asks(one, now_s) == THIRD
    one.session_lost("stands by", now_s)
    assert asks(one, now_s) == TRAINER
    one.session_lost("does not answer", now_s)
    assert one.next_deadline_s() == now_s + REJOIN_FIRST_S


def test_while_a_takeover_may_be_under_way_the_pauses_stay_short():
    one = led(5, STANDBY)
    one.session_lost("the link was lost", 100.0)
    pauses, now_s = [], 100.0
    while now_s < 108.0:
        asks(one, now_s)
        one.session_lost("stands by", now_s)
        pauses.append(one.next_deadline_s() - now_s)
        now_s = one.next_deadline_s()

    assert sum(pauses) == pytest.approx(now_s - 100.0)
    assert [p for p in pauses if p][:19] == [REJOIN_FIRST_S] * 19
    assert [p for p in pauses if p][20:] == [0.25, 0.5, 1.0, 2.0][: len(pauses)]


def test_a_server_that_is_thrown_out_again_and_again_pauses_between():
    one = server(TRAINER, STANDBY)
    pauses, now_s = [], 0.0
    for _ in range(4):
        one.on_deadline(now_s)
        one.joining(now_s)
        one.answered(assigned(1))
        one.session_lost("evicted", now_s)
        pauses.append(one.next_deadline_s() - now_s)
        now_s = one.next_deadline_s()

    assert pauses == [0.25, 0.5, 1.0, 2.0]


def test_the_voter_of_a_server_ends_its_session_with_a_coordinator_of_a_lower_term():
    one = led(5, STANDBY)

    assert not one.led(5, TRAINER, 1.0)
    assert not one.led(4, STANDBY, 1.0)
    assert one.led(6, STANDBY, 1.0)
    one.session_lost("another leads", 1.0)

    assert asks(one, 2.0) == STANDBY
    with pytest.raises(LinkLost):
        one.answered(assigned(5))


def test_a_leader_whose_address_is_not_known_ends_the_session_all_the_same():
    one = led(5, STANDBY)

    assert one.led(6, None, 1.0)


def test_a_server_that_looks_for_a_trainer_asks_the_new_leader_at_once():
    one = led(5, STANDBY, THIRD)
    one.session_lost("the link was lost", 1.0)
    asks(one, 2.0)

    assert not one.led(6, STANDBY, 2.0), "it is asked already"
    assert one.led(7, THIRD, 2.0), "it asks another one just now"
    one.session_lost("does not answer", 2.0)
    assert asks(one, 2.0) == THIRD
    one.session_lost("does not answer", 3.0)

    assert not one.led(7, STANDBY, 3.1)
    assert one.next_deadline_s() <= 3.1


def test_the_word_of_another_trainer_moves_a_server_and_does_not_bind_it():
    one = led(5, STANDBY)

    assert not one.named(names(None, 0), 9.0)
    assert not one.named(names(THIRD, 5), 9.0)
    assert one.named(names(THIRD, 2**30 - 1), 9.0)
    one.session_lost("another leads", 9.0)

    assert asks(one, 10.0) == THIRD
    one.session_lost("nobody is there", 10.0)
    asks(one, 10.0)
    assert one.answered(assigned(5)) == assigned(5)


def test_the_term_of_a_leader_that_was_never_found_is_forgotten_when_all_are_gone():
    one = led(5)
    one.led(2**30 - 1, None, 1.0)
    one.session_lost("another leads", 1.0)
    refused, now_s = 0, 1.0
    while now_s < 1.0 + 2 * REJOIN_S:
        asks(one, now_s)
        try:
            one.answered(assigned(5))
        except LinkLost as error:
            refused += 1
            one.session_lost(str(error), now_s)
            now_s = one.next_deadline_s()
        else:
            break

    assert refused > 1
    assert 1.0 + REJOIN_S <= now_s < 1.0 + 2 * REJOIN_S


def test_a_server_whose_run_is_over_follows_nobody():
    one = serving()
    one.on_message(Finished("done"))

    assert not one.led(9, STANDBY, 1.0)
    assert not one.named(names(STANDBY, 9), 1.0)
    assert one.state is ServerState.OVER


def test_the_coordinator_tells_whom_to_ask_after_it():
    one = led(5)
    moved = Contact(STANDBY.peer, Address("10.9.9.9", 1))

    told = one.on_message(trainers(STANDBY, TRAINER, THIRD))

    assert told == trainers(STANDBY, TRAINER, THIRD)
    assert one.trainers.beside(TRAINER) == [STANDBY, THIRD]
    one.on_message(trainers(TRAINER, moved))
    assert one.trainers.beside(TRAINER) == [moved, THIRD]
    assert one.trainers.find(STANDBY.peer.raw) == moved
    assert one.trainers.find(b"?" * 32) is None
    assert one.trainer == TRAINER


def test_an_address_that_cannot_be_read_is_left_out():
    one = led(5)

    one.on_message(Trainers(RUN, 1, (Whereabouts(STANDBY.peer.raw, "nowhere"),), ()))

    assert not one.trainers.several


def test_a_sign_of_life_is_taken_and_another_word_is_not():
    one = led(5)

    assert one.on_message(Alive()) == Alive()
    with pytest.raises(BadMessage, match="a Load from the trainer"):
        one.on_message(Load(0, 0.0, 0.0, 0.0, 0))


def test_a_coordinator_that_is_told_of_by_its_name_alone_stays_the_first():
    nameless = Contact(None, Address("10.0.0.9", 4000))
    search = TrainerSearch([nameless])

    search.on_trainers([TRAINER])

    assert search.present == nameless
    assert search.beside(nameless) == [TRAINER]
    assert search.find(TRAINER.peer.raw) == TRAINER


def test_a_server_knows_for_how_long_its_coordinator_has_said_nothing():
    watch = CoordinatorWatch()
    assert watch.unheard_s(99.0) == 0.0

    watch.on_word(10.0)
    assert watch.unheard_s(16.5) == 6.5

    watch.ended()
    assert watch.unheard_s(99.0) == 0.0


def test_a_silent_coordinator_is_asked_after_until_it_speaks():
    watch = CoordinatorWatch()
    assert watch.next_deadline_s is None
    assert not watch.on_deadline(99.0)

    watch.on_word(10.0)
    assert not watch.on_deadline(10.0 + SILENCE_S - 0.1)
    asked = [now_s for now_s in range(10, 18) if watch.on_deadline(float(now_s))]
    assert asked == list(range(10 + int(SILENCE_S), 18))
    assert watch.silent
    assert watch.next_deadline_s == 17.0 + ASK_AGAIN_S

    watch.on_word(17.5)
    assert not watch.silent
    assert watch.next_deadline_s == 17.5 + SILENCE_S
    watch.ended()
    assert watch.next_deadline_s is None


def test_other_trainers_are_asked_while_one_does_not_take_the_stream():
    watch = CoordinatorWatch()

    watch.on_try(10.0)

    asked_s = [10.0 + 0.1 * tenth for tenth in range(30) if watch.on_deadline(10.0 + 0.1 * tenth)]
    assert asked_s == pytest.approx([10.5, 11.0, 11.5, 12.0, 12.5], abs=0.11)
    assert (watch.silent, watch.unheard_s(13.0)) == (False, 0.0)
    watch.on_word(13.0)
    assert not watch.on_deadline(13.0 + SILENCE_S - 0.1)


def test_a_try_is_given_up_for_a_trainer_that_leads_by_now_and_that_one_is_asked_at_once():
    one = led(5, STANDBY)
    one.session_lost("the link was lost", 20.0)
    asks(one, 20.0)
    one.session_lost("it stands by", 20.0)
    assert asks(one, 20.0) == TRAINER

    assert one.named(names(STANDBY, 6), 20.5)
    one.session_lost("it did not answer", 20.5)

    assert one.next_deadline_s() == 20.5
    assert asks(one, 20.5) == STANDBY


def test_no_try_is_given_up_for_the_coordinator_that_was_lost():
    """A standby that has not heard of the takeover names it."""
    one = led(5, STANDBY)
    one.session_lost("the link was lost", 20.0)
    assert asks(one, 20.0) == STANDBY

    assert not one.named(names(TRAINER, 5), 20.5)
    assert one.named(names(THIRD, 6), 20.5)


def test_whoever_names_ever_other_leaders_ends_a_few_tries_in_a_row():
    one = led(5, STANDBY, THIRD)
    one.session_lost("the link was lost", 20.0)
    given_up = []
    for number in range(2 * HINTS_MAX + 2):
        asked = asks(one, 20.0 + number)
        other = Contact(asked.peer, Address("10.9.9.9", 1 + number))
        given_up.append(one.named(names(other, 9), 20.0 + number))
        one.session_lost("it did not answer", 20.0 + number)

    assert given_up == [*[True] * HINTS_MAX, False, *[True] * HINTS_MAX, False]


@given(
    st.lists(
        st.tuples(st.sampled_from(["assign", "lose", "led", "named", "wait"]), st.integers(0, 6))
    )
)
def test_a_server_obeys_no_lower_term_than_its_own_voter_and_coordinators_had(inputs):
    """Until nobody has answered for `rejoin_s`, which this world does not wait for."""
    one, highest, now_s = server(TRAINER, STANDBY, THIRD), 0, 0.0
    for kind, term in inputs:
        now_s += 0.1
        one.on_deadline(now_s)
        if one.may_join:
            one.joining(now_s)
        seeking = one.seeking
        if kind == "assign" and one.state is ServerState.JOINING:
            try:
                one.answered(assigned(term))
            except LinkLost:
                assert term < highest
                one.session_lost("an old term", now_s)
            else:
                assert term >= highest
                highest = term
        elif kind == "lose" and one.state is not ServerState.OUT:
            one.session_lost("lost", now_s)
        elif kind == "led":
            ended = one.led(term, STANDBY, now_s)
            assert not ended or term > highest or seeking
            highest = max(highest, term) if seeking or ended else highest
            if ended:
                one.session_lost("another leads", now_s)
        elif kind == "named" and one.named(names(THIRD, term), now_s):
            one.session_lost("another leads", now_s)
    assert term_of(first_number(highest)) == highest
