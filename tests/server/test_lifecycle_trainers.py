"""Which trainer a server asks, and when: one that coordinates is found within two seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.test_lifecycle import ASSIGNED, STANDBY, THIRD, TRAINER, VIEW, fail, server, serving

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.run.messages.field_limits import TRAINERS_MAX
from p2pswarm.run.messages.membership import StandsBy
from p2pswarm.server.lifecycle import SLEPT_S, ServerState
from p2pswarm.server.trainer_search import (
    REACHED_S,
    REJOIN_FIRST_S,
    REJOIN_MAX_S,
    SEEK_S,
    TrainerSearch,
)


def asks(one, now_s):
    one.on_deadline(now_s)
    assert one.may_join
    return one.joining(now_s)


def test_all_trainers_are_asked_in_turn_before_a_pause():
    one = server(TRAINER, STANDBY)

    assert asks(one, 0.0) == TRAINER
    assert one.trainers.others
    one.session_lost("nobody is there", 0.0)
    assert asks(one, 0.0) == STANDBY
    assert not one.trainers.others
    one.session_lost("nobody is there", 0.0)

    assert one.next_deadline_s() == REJOIN_FIRST_S
    assert asks(one, REJOIN_FIRST_S) == TRAINER


def test_a_standby_names_the_coordinator_which_is_asked_at_once():
    one = server(TRAINER)
    asks(one, 0.0)

    with pytest.raises(LinkLost, match=r"10\.0\.0\.1:4000 does not coordinate"):
        one.answered(StandsBy(STANDBY.peer.raw, str(STANDBY.address)))
    one.session_lost("it stands by", 0.0)

    assert asks(one, 0.0) == STANDBY
    one.answered(ASSIGNED)
    assert one.trainer == STANDBY


def test_a_trainer_that_is_back_is_asked_often_until_it_leads():
    one = server(TRAINER)
    fail(one, 1000.0)
    assert one.next_deadline_s() == 1000.0 + SEEK_S

    asks(one, 1000.0 + SEEK_S)
    with pytest.raises(LinkLost):
        one.answered(StandsBy(b"", ""))
    one.session_lost("it stands by", 1000.0 + SEEK_S)

    assert one.next_deadline_s() <= 1000.0 + SEEK_S + REJOIN_MAX_S
    assert one.look_again_s(1000.0 + SEEK_S) < SEEK_S


@pytest.mark.parametrize("answer", [StandsBy(b"", ""), StandsBy(b"p" * 32, "nowhere")])
def test_a_standby_that_knows_no_coordinator_names_none(answer):
    one = server(TRAINER)
    asks(one, 0.0)

    with pytest.raises(LinkLost):
        one.answered(answer)
    one.session_lost("it stands by", 0.0)

    assert one.next_deadline_s() == REJOIN_FIRST_S
    assert asks(one, 1.0) == TRAINER


def test_trainers_that_name_each_other_are_asked_once_before_a_pause():
    one, now_s = server(TRAINER, STANDBY), 0.0
    for _ in range(2):
        asked = asks(one, now_s)
        other = STANDBY if asked == TRAINER else TRAINER
        with pytest.raises(LinkLost):
            one.answered(StandsBy(other.peer.raw, str(other.address)))
        one.session_lost("it stands by", now_s)

    assert one.next_deadline_s() == REJOIN_FIRST_S


def test_a_trainer_that_names_ever_new_ones_is_followed_a_few_times():
    one = server(TRAINER)
    for number in range(TRAINERS_MAX):
        assert one.next_deadline_s() in (None, 0.0)
        asks(one, 0.0)
        with pytest.raises(LinkLost):
            one.answered(StandsBy(bytes([100 + number]) * 32, f"10.0.1.{number}:4000"))
        one.session_lost("it stands by", 0.0)

    assert one.next_deadline_s() == REJOIN_FIRST_S


def test_a_trainer_that_is_found_again_is_asked_without_a_pause():
    one = server(TRAINER)
    for second in range(6):
        fail(one, float(second * 2))
    assert one.next_deadline_s() == 12.0

    assert not one.found([STANDBY], 10.5)

    assert one.next_deadline_s() == 10.5
    assert asks(one, 10.5) == STANDBY


def test_a_join_to_a_trainer_that_does_not_answer_is_given_up_when_another_does():
    one = server(TRAINER)
    asks(one, 0.0)

    assert not one.found([], 1.0)
    assert not one.found([STANDBY, TRAINER], 1.0)
    assert one.found([STANDBY], 2.0)


def test_a_trainer_that_was_reached_is_not_given_up_for_those_that_the_dht_names():
    """It answers a join when its step allows; those that stand by answer a ping at once."""
    one = server(TRAINER)
    asks(one, 0.0)
    one.trainers.reached(0.5)

    assert not one.found([STANDBY], 1.0)
    assert not one.found([STANDBY], 0.4 + REACHED_S)
    assert one.found([STANDBY], 0.5 + REACHED_S)


def test_each_trainer_that_is_asked_must_be_reached_anew():
    one = server(TRAINER)
    asks(one, 0.0)
    one.trainers.reached(0.5)
    one.session_lost("its link ended", 0.6)

    asks(one, 1.0)

    assert one.found([STANDBY], 1.1)


def test_a_server_in_its_session_or_about_to_join_takes_no_advice():
    assert not serving().found([STANDBY], 1.0)
    one = server(TRAINER)

    assert not one.found([STANDBY], 1.0)

    assert one.may_join
    assert one.joining(1.0) == STANDBY


def test_a_trainer_at_another_port_takes_the_place_of_its_former_address():
    search = TrainerSearch([TRAINER, STANDBY])
    again = Contact(TRAINER.peer, Address("10.0.0.1", 5000))

    search.found([again])

    assert [search.ask(), search.ask()] == [again, STANDBY]
    assert not search.others


def test_an_address_without_a_name_is_a_trainer_too():
    nameless = Contact(None, Address("10.0.0.9", 4000))
    search = TrainerSearch([nameless])

    search.found([TRAINER])

    assert [search.ask(), search.ask()] == [TRAINER, nameless]


def test_the_trainers_found_first_are_forgotten_when_there_are_too_many():
    search = TrainerSearch([TRAINER])
    for number in range(TRAINERS_MAX):
        search.found([Contact(PeerId(bytes([50 + number]) * 32), Address("10.0.2.1", number + 1))])

    asked = [search.ask() for _ in range(TRAINERS_MAX)]

    assert TRAINER not in asked
    assert not search.others


def test_the_coordinator_that_was_asked_is_present():
    search = TrainerSearch([TRAINER, STANDBY, THIRD])
    assert search.present == TRAINER
    search.ask()
    search.ask()
    assert search.present == STANDBY

    search.coordinates()

    assert search.present == STANDBY
    assert [search.ask(), search.ask(), search.ask()] == [STANDBY, TRAINER, THIRD]


def test_a_trainer_that_is_named_at_another_address_meanwhile_coordinates_where_it_was_asked():
    """It had ended the server: the contact that it had asked was not in its list any more."""
    one = server(TRAINER, STANDBY)
    asks(one, 0.0)
    one.trainers.reached(0.1)

    one.found([STANDBY, Contact(TRAINER.peer, Address("10.0.9.9", 5000))], 0.2)
    one.answered(ASSIGNED)

    assert one.trainer == TRAINER
    assert one.trainers.beside(one.trainer) == [STANDBY]


def test_a_coordinator_is_left_once_though_two_say_that_another_one_leads():
    one = server(TRAINER, STANDBY, THIRD)
    asks(one, 0.0)
    one.answered(ASSIGNED)

    assert one.led(2, STANDBY, 1.0)
    assert one.led(3, None, 1.0)
    one.session_lost("another leads", 20.0)

    assert asks(one, 20.0) == STANDBY


SOMEBODY = st.builds(
    Contact,
    st.one_of(st.none(), st.integers(1, 20).map(lambda n: PeerId(bytes([n]) * 32))),
    st.integers(1, 3).map(lambda port: Address("10.0.0.1", port)),
)
NEWS = st.one_of(
    st.sampled_from(["ask", "coordinates", "lost"]),
    st.tuples(
        st.sampled_from(["on_trainers", "found"]), st.lists(SOMEBODY, max_size=TRAINERS_MAX + 2)
    ),
)


@given(st.lists(SOMEBODY, min_size=1, max_size=TRAINERS_MAX + 2), st.lists(NEWS))
def test_whatever_is_heard_each_trainer_is_known_once_and_the_coordinator_is_first(first, heard):
    search = TrainerSearch(first)
    for news in heard:
        match news:
            case "ask":
                assert search.ask() == search.present
            case "coordinates":
                asked = search.present
                search.coordinates()
                assert search.present == asked
            case "lost":
                search.lost()
            case (kind, contacts):
                getattr(search, kind)(contacts)
    search.coordinates()
    known = [search.present, *search.beside(search.present)]
    assert len(known) <= TRAINERS_MAX
    peers = [one.peer for one in known if one.peer is not None]
    assert len(peers) == len(set(peers))


def test_a_machine_that_slept_leaves_its_session_and_joins_at_once():
    one = serving()
    one.woke(SLEPT_S - 0.1)

    with pytest.raises(LinkLost, match="this machine slept for 3600 s"):
        one.woke(3600.0)
    one.session_lost("slept", 3700.0)

    assert one.state is ServerState.OUT
    assert one.next_deadline_s() == 3700.0 + REJOIN_FIRST_S
    assert one.on_message(VIEW) is VIEW


def test_a_trainer_that_hands_the_run_over_is_left_for_the_one_that_it_names():
    one = server(TRAINER, THIRD)
    asks(one, 0.0)
    one.answered(ASSIGNED)

    with pytest.raises(LinkLost, match="hands the run over"):
        one.on_message(StandsBy(STANDBY.peer.raw, str(STANDBY.address), 2))
    one.session_lost("handed over", 20.0)

    assert asks(one, 20.0) == STANDBY
    assert asks_next(one, 20.0) == THIRD


def asks_next(one, now_s):
    one.session_lost("nobody is there", now_s)
    return asks(one, now_s)


def follows_another():
    """A server whose own voter follows the leader of a higher term, while it asks there."""
    one = server(TRAINER, STANDBY, THIRD)
    asks(one, 0.0)
    one.answered(ASSIGNED)
    assert one.led(2, STANDBY, 20.0)
    one.session_lost("another leads", 20.0)
    assert asks(one, 20.0) == STANDBY
    return one


def test_one_that_has_not_heard_of_the_newest_leader_calls_nobody_back_to_the_one_before():
    one = follows_another()

    assert not one.named(StandsBy(TRAINER.peer.raw, str(TRAINER.address), 1), 20.0)
    assert one.named(StandsBy(TRAINER.peer.raw, str(TRAINER.address), 3), 20.0)


def test_a_standby_that_names_a_former_leader_does_not_have_it_asked_first():
    one = follows_another()

    with pytest.raises(LinkLost):
        one.answered(StandsBy(TRAINER.peer.raw, str(TRAINER.address), 1))

    assert asks_next(one, 20.0) == THIRD
