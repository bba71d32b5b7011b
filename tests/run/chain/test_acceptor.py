from dataclasses import replace

import pytest
from run.chain.harness import RUN, chain_of, commit, genesis, peer, stage_commit, voter

from p2pswarm.run.chain.acceptor import CALM_S, ChainAcceptor, Register
from p2pswarm.run.chain.actions import Persist, Reply
from p2pswarm.run.chain.chain import WINDOW, Chain, ChainHead
from p2pswarm.run.chain.messages import (
    TERM_EVERY_S,
    TERM_JUMP_MAX,
    Accepted,
    Denial,
    Denied,
    HandOver,
    Heartbeat,
    Prepare,
    Promise,
    Propose,
)
from p2pswarm.run.chain.record import digest
from p2pswarm.run.messages.field_limits import TERM_MAX

ONE, TWO = b"1" * 16, b"2" * 16


def fresh(
    name: str = "c", register: Register | None = None, chain: Chain | None = None
) -> ChainAcceptor:
    return ChainAcceptor(voter(name), chain or Chain(genesis()), register or Register())


def ask(machine: ChainAcceptor, message, by: str = "a", now_s: float = 100.0):
    """The answer, and what had to be on the disk before it."""
    machine.receive(peer(by), message, now_s)
    *entries, reply = machine.actions()
    assert isinstance(reply, Reply)
    assert reply.to == peer(by)
    assert all(isinstance(entry, Persist) for entry in entries)
    return reply.message, [entry.entry for entry in entries]


def prepare(term: int, attempt: bytes = ONE) -> Prepare:
    return Prepare(RUN, term, attempt)


def propose(record, term: int = 1) -> Propose:
    return Propose(RUN, term, record)


def why(answer) -> Denial:
    assert isinstance(answer, Denied), answer
    return Denial(answer.why)


FIRST = commit(genesis().head())
SECOND = commit(ChainHead.of(FIRST))


def test_a_promise_is_on_the_disk_before_it_is_told():
    answer, entries = ask(fresh(), prepare(1))

    assert answer == Promise(RUN, voter("c").memory, 1, ONE, 0, None)
    assert entries == [prepare(1)]


@pytest.mark.parametrize("term", [0, 1, 2])
def test_a_term_that_is_not_above_the_promised_one_is_denied(term):
    machine = fresh(register=Register(promised=2, attempt=ONE))

    answer, entries = ask(machine, prepare(term, TWO))

    assert why(answer) is Denial.TERM
    assert (answer.asked, answer.promised) == (term, 2)
    assert entries == []


def test_the_same_attempt_is_promised_again():
    machine = fresh()
    first, _ = ask(machine, prepare(1))

    again, entries = ask(machine, prepare(1))

    assert again == first
    assert entries == []


def test_a_promise_tells_what_was_accepted():
    machine = fresh()
    ask(machine, propose(FIRST))

    answer, _ = ask(machine, prepare(2), by="b", now_s=200.0)

    assert (answer.accepted_term, answer.accepted) == (1, FIRST)


def test_a_record_is_on_the_disk_before_it_is_accepted():
    answer, entries = ask(fresh(), propose(FIRST))

    assert answer == Accepted(RUN, voter("c").memory, 1, 0, digest(FIRST))
    assert entries == [propose(FIRST)]


def test_a_record_of_a_lower_term_than_promised_is_denied():
    machine = fresh(register=Register(promised=2))

    answer, entries = ask(machine, propose(FIRST))

    assert (why(answer), answer.promised) == (Denial.TERM, 2)
    assert entries == []


def test_a_proposal_that_comes_again_is_accepted_again():
    machine = fresh()
    first, _ = ask(machine, propose(FIRST))

    assert ask(machine, propose(FIRST)) == (first, [])


def test_a_late_proposal_is_answered_with_what_the_voter_holds_now():
    machine = fresh()
    ask(machine, propose(FIRST))
    ask(machine, propose(SECOND))

    answer, entries = ask(machine, propose(FIRST))

    assert answer.digest == digest(SECOND)
    assert entries == []


def test_a_second_record_in_one_place_under_one_term_is_refused():
    machine = fresh()
    ask(machine, propose(FIRST))

    answer, entries = ask(machine, propose(commit(genesis().head(), loss=0.5)))

    assert why(answer) is Denial.CONFLICT
    assert entries == []


def test_a_later_term_may_replace_what_was_accepted_even_by_a_lower_record():
    machine = fresh()
    ask(machine, propose(FIRST))
    ask(machine, propose(SECOND))
    rival = commit(genesis().head(), "b", 2)

    answer, _ = ask(machine, propose(rival, 2), by="b")

    assert (answer.term, answer.digest) == (2, digest(rival))


def test_what_contradicts_a_decided_record_is_refused_in_every_term():
    chain, _ = chain_of(2)

    answer, _ = ask(fresh(chain=chain), propose(commit(genesis().head(), "b", 2), 2), by="b")

    assert why(answer) is Denial.CONFLICT


def test_a_decided_record_may_be_proposed_again():
    chain, records = chain_of(2)

    answer, _ = ask(fresh(chain=chain), propose(records[0], 2), by="b")

    assert answer.digest == digest(records[0])


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(replace(FIRST, loss=9.0), id="changed"),
        pytest.param(commit(genesis().head(), step=1, first=2), id="not the next step"),
        pytest.param(
            commit(genesis().head(), stages=(stage_commit(0, 1, holders=b""),)), id="hole"
        ),
        pytest.param(commit(genesis().head(), term=2), id="of a term that is not yet"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(record):
    answer, entries = ask(fresh(), propose(record))

    assert why(answer) is Denial.INVALID
    assert entries == []


def test_a_record_that_follows_the_accepted_one_is_checked_against_it():
    machine = fresh()
    ask(machine, propose(FIRST))

    answer, _ = ask(machine, propose(commit(ChainHead.of(FIRST), first=0)))

    assert why(answer) is Denial.INVALID


def test_a_record_whose_predecessor_is_not_known_is_accepted_on_its_signature():
    answer, _ = ask(fresh(), propose(SECOND))

    assert answer.digest == digest(SECOND)


@pytest.mark.parametrize(
    ("height", "because"),
    [(2, Denial.INVALID), (2 + WINDOW + 1, Denial.JUMP), (2**40, Denial.JUMP)],
)
def test_a_record_that_nobody_can_ever_follow_is_not_accepted(height, because):
    """The next leader would look for those before it for ever."""
    chain, _ = chain_of(2)
    nowhere = commit(replace(chain.head, height=height, digest=b"x" * 32))

    answer, entries = ask(fresh(chain=chain), propose(nowhere))

    assert (why(answer), entries) == (because, [])


@pytest.mark.parametrize("ask_with", [prepare, lambda term: propose(FIRST, term)])
def test_a_term_that_no_trainer_can_have_come_to_is_denied_and_the_next_one_is_not(ask_with):
    machine = fresh()

    for term in (TERM_MAX, TERM_JUMP_MAX + 1):
        answer, entries = ask(machine, ask_with(term))
        assert (why(answer), answer.promised, entries) == (Denial.JUMP, 0, [])
        assert why(ask(machine, Heartbeat(RUN, term, 0, bytes(32)))[0]) is Denial.JUMP

    assert not isinstance(ask(machine, ask_with(2))[0], Denied)


def test_terms_rise_no_faster_than_trainers_take_them_in_however_many_calls():
    machine, now_s, term, day_s = fresh(), 100.0, 0, 86_400

    while now_s < 100.0 + day_s:
        step = TERM_JUMP_MAX
        while step:  # the most that is taken just now
            answer, _ = ask(machine, prepare(term + step), now_s=now_s)
            if isinstance(answer, Promise):
                term += step
            else:
                step //= 2
        now_s += 10_000.0

    assert term <= TERM_JUMP_MAX + day_s / TERM_EVERY_S + 1
    assert term < TERM_MAX // 500


def test_a_voter_that_was_away_takes_the_term_of_what_was_decided_meanwhile():
    far = TERM_JUMP_MAX + 5
    chain, _ = chain_of(1)
    chain.append(commit(chain.head, term=far))

    assert isinstance(ask(fresh(chain=chain), prepare(far + 1))[0], Promise)


@pytest.mark.parametrize("message", [prepare(1), Heartbeat(RUN, 1, 0, bytes(32))])
def test_who_is_no_trainer_is_a_stranger(message):
    assert why(ask(fresh(), message, by="z")[0]) is Denial.STRANGER


def test_a_voter_that_a_record_does_not_name_accepts_nothing():
    assert why(ask(fresh("z"), propose(FIRST))[0]) is Denial.STRANGER


def test_a_voter_with_a_new_file_is_not_the_one_that_the_record_names():
    machine = ChainAcceptor(voter("c", memory=1), Chain(genesis()), Register())

    answer, _ = ask(machine, propose(FIRST))

    assert why(answer) is Denial.STRANGER
    assert answer.memory == voter("c", 1).memory


@pytest.mark.parametrize(
    "message",
    [
        Prepare(b"x" * 16, 1, ONE),
        Heartbeat(b"x" * 16, 1, 0, bytes(32)),
        Propose(b"x" * 16, 1, FIRST),
    ],
)
def test_another_run_is_none_of_its_business(message):
    assert why(ask(fresh(), message)[0]) is Denial.STRANGER


def test_a_trainer_that_only_the_record_names_may_propose_it():
    record = commit(genesis().head(), trainers=(peer("a"), peer("n")))

    answer, _ = ask(fresh(), propose(record, 2), by="n")

    assert answer.digest == digest(record)
    forged = replace(record, trainers=(peer("a"), peer("z")))
    assert why(ask(fresh(), propose(forged, 2), by="z")[0]) is Denial.STRANGER


def test_a_voter_that_hears_its_coordinator_helps_nobody_else():
    machine = fresh()
    ask(machine, propose(FIRST), now_s=100.0)

    answer, _ = ask(machine, prepare(2), by="b", now_s=100.0 + CALM_S - 0.1)

    assert why(answer) is Denial.CALM


@pytest.mark.parametrize("sign_of_life", [Heartbeat(RUN, 1, 0, bytes(32)), prepare(1)])
def test_every_word_of_a_coordinator_calms(sign_of_life):
    machine = fresh()
    ask(machine, sign_of_life)

    assert machine.calm(100.0 + CALM_S - 0.1)
    assert not machine.calm(100.0 + CALM_S)
    assert machine.coordinator == peer("a")


def test_a_lost_link_to_the_coordinator_ends_the_calm():
    machine = fresh()
    ask(machine, propose(FIRST))

    machine.link_lost(peer("b"))
    assert machine.calm(100.0)
    machine.link_lost(peer("a"))

    assert isinstance(ask(machine, prepare(2), by="b")[0], Promise)


def test_the_coordinator_itself_and_the_own_trainer_need_not_wait():
    machine = fresh("b")
    ask(machine, propose(FIRST))

    assert isinstance(ask(machine, prepare(2), by="a")[0], Promise)
    assert isinstance(ask(machine, prepare(3, TWO), by="b")[0], Promise)


def test_a_trainer_that_stands_promises_no_rival_its_own_term():
    machine = fresh("b")
    machine.stand(2)

    assert why(ask(machine, prepare(2))[0]) is Denial.CALM
    assert isinstance(ask(machine, prepare(2, TWO), by="b")[0], Promise)
    assert isinstance(ask(machine, prepare(3), by="b")[0], Promise)


def test_a_trainer_that_stands_gives_way_to_one_before_it_that_asks_again():
    """Both stood within a round trip, and each needs the other's vote."""
    second = fresh("b")
    second.stand(2)
    assert why(ask(second, prepare(2), by="a")[0]) is Denial.CALM

    assert isinstance(ask(second, prepare(2), by="a")[0], Promise)

    first = fresh("a")
    first.stand(2)
    for _ in range(3):
        assert why(ask(first, prepare(2), by="b")[0]) is Denial.CALM


def test_whoever_gives_way_has_not_promised_its_own_attempt_and_does_not_go_back():
    machine = fresh("b")
    machine.stand(2)
    ask(machine, prepare(2, TWO), by="b")

    for _ in range(3):
        assert why(ask(machine, prepare(2), by="a")[0]) is Denial.TERM


def test_another_attempt_is_no_second_question():
    machine = fresh("b")
    machine.stand(2)
    ask(machine, prepare(2), by="a")

    assert why(ask(machine, prepare(2, TWO), by="a")[0]) is Denial.CALM
    machine.stand(3)
    assert why(ask(machine, prepare(3, TWO), by="a")[0]) is Denial.CALM


def test_a_trainer_that_stands_follows_who_stands_for_a_later_term():
    machine = fresh("b")
    machine.stand(2)

    assert isinstance(ask(machine, prepare(3))[0], Promise)


def test_an_old_leader_that_wakes_up_is_told_the_term():
    machine = fresh(register=Register(promised=5))

    answer, _ = ask(machine, Heartbeat(RUN, 4, 0, bytes(32)))

    assert (why(answer), answer.promised) == (Denial.TERM, 5)


def test_a_heartbeat_is_answered_with_what_the_voter_holds():
    machine = fresh()
    assert ask(machine, Heartbeat(RUN, 1, 0, bytes(32)))[0].digest == bytes(32)

    ask(machine, propose(FIRST))

    assert ask(machine, Heartbeat(RUN, 1, 1, digest(FIRST)))[0].digest == digest(FIRST)


def test_a_voter_whose_disk_failed_says_no_to_everything():
    machine = fresh()
    machine.receive(peer("a"), prepare(1), 100.0)
    machine.disk_failed()

    assert machine.actions() == []
    for message in (prepare(2, TWO), propose(FIRST, 2), Heartbeat(RUN, 2, 0, bytes(32))):
        assert why(ask(machine, message)[0]) is Denial.STRANGER


def test_only_what_leaders_say_is_for_a_voter():
    with pytest.raises(TypeError, match="CommitRecord is not for a voter"):
        fresh().receive(peer("a"), FIRST, 0.0)


def test_a_register_keeps_the_attempt_of_the_term_that_it_accepted_in():
    promised = Register().after(prepare(1))

    assert promised.after(propose(FIRST)).attempt == ONE
    assert promised.after(propose(FIRST, 2)).attempt == b""
    assert promised.after(FIRST) is promised


def far_ahead(by: str):
    """A record that nobody could check here, in which its maker calls itself a trainer."""
    head = replace(ChainHead.of(SECOND), digest=b"?" * 32, term=9)
    return commit(head, by, term=9, trainers=(peer(by), peer("a")), voters=(voter("c"),))


def test_a_stranger_that_names_itself_a_trainer_changes_nothing():
    machine = fresh()

    answer, entries = ask(machine, propose(far_ahead("z"), term=2**30 - 1), by="z")

    assert why(answer) is Denial.STRANGER
    assert entries == []
    assert machine.register == Register()


def test_a_trainer_that_the_coordinator_names_is_known_before_the_chain_says_so():
    machine = fresh()
    assert why(ask(machine, Heartbeat(RUN, 9, 0, bytes(32)), by="d")[0]) is Denial.STRANGER

    machine.on_trainers([peer("d")])

    assert isinstance(ask(machine, Heartbeat(RUN, 9, 0, bytes(32)), by="d")[0], Accepted)
    assert isinstance(ask(machine, propose(far_ahead("d"), term=9), by="d")[0], Accepted)


def test_a_coordinator_that_hands_over_need_not_be_waited_for():
    machine = fresh()
    ask(machine, Heartbeat(RUN, 1, 0, bytes(32)), by="a")
    assert why(ask(machine, prepare(2), by="b")[0]) is Denial.CALM

    answer, entries = ask(machine, HandOver(RUN, 1, peer("b")), by="a")

    assert isinstance(answer, Accepted)
    assert entries == []
    assert isinstance(ask(machine, prepare(2), by="b")[0], Promise)


@pytest.mark.parametrize(
    ("term", "by", "because"),
    [(1, "a", Denial.TERM), (2, "b", Denial.TERM), (2, "z", Denial.STRANGER)],
)
def test_nobody_but_the_coordinator_of_the_term_hands_it_over(term, by, because):
    machine = fresh(register=Register(promised=2, attempt=ONE))
    ask(machine, Heartbeat(RUN, 2, 0, bytes(32)), by="a")

    assert why(ask(machine, HandOver(RUN, term, peer("b")), by=by)[0]) is because
    assert machine.calm(100.0)
