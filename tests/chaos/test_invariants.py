"""What is held against every run: breaches are seen, and nothing else is."""

from dataclasses import replace

import pytest
from chaos.invariants import Contributions, Digests, Records, Stalls
from run.chain.harness import chain_of, commit, genesis, unsigned

from p2pswarm.run.chain.chain import ChainHead
from p2pswarm.run.chain.record import CommitRecord, Contributor, StageCommit, first_number
from p2pswarm.run.member_view import Incarnation

A, B = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)
AGAIN = Incarnation(b"a" * 32, 3)


def everybody(_who: Incarnation) -> bool:
    return True


def test_two_living_members_may_not_hold_one_microbatch_even_for_a_moment():
    held = Contributions()
    assert held.counted(0, 7, A, everybody) is None
    assert held.counted(1, 7, B, everybody) is None
    assert held.counted(0, 8, B, everybody) is None

    breach = held.counted(0, 7, B, everybody)

    assert breach is not None
    assert str(A) in breach
    assert str(B) in breach


def test_a_sum_that_a_server_keeps_is_held_by_its_new_incarnation():
    held = Contributions()
    held.counted(0, 7, A, everybody)
    held.counted(0, 8, A, everybody)
    held.counted(1, 8, A, everybody)

    held.kept(0, 8, A, AGAIN)  # the step begins with microbatch 8

    alive = {AGAIN, B}.__contains__
    assert held.counted(0, 7, B, alive) is None
    assert held.counted(1, 8, B, alive) is None
    breach = held.counted(0, 8, B, alive)
    assert breach is not None
    assert str(AGAIN) in breach


def test_a_sum_whose_heir_never_heard_of_itself_may_be_kept_again():
    """The answer to a server that joined was lost: it joins once more, with the number it has."""
    held, heir = Contributions(), Incarnation(A.peer, 2 << 32 | 1)
    held.counted(0, 8, A, everybody)
    held.kept(0, 8, A, heir)
    held.kept(0, 8, A, AGAIN)

    breach = held.counted(0, 8, B, {AGAIN, B}.__contains__)

    assert breach is not None
    assert str(AGAIN) in breach


def test_who_is_gone_holds_nothing_and_who_counts_after_its_end_does_no_harm():
    held = Contributions()
    held.counted(0, 7, A, everybody)

    assert held.counted(0, 7, B, lambda who: who == B) is None
    assert held.counted(0, 7, A, lambda who: who == B) is None
    assert held.counted(0, 7, AGAIN, lambda who: who == AGAIN) is None


def test_one_member_counts_a_microbatch_once():
    held = Contributions()
    held.counted(0, 7, A, everybody)

    assert "twice" in (held.counted(0, 7, A, everybody) or "")


def test_steps_that_are_over_are_forgotten():
    held = Contributions()
    held.counted(0, 7, A, everybody)
    held.forget(before=8)

    assert held.counted(0, 7, B, everybody) is None


def test_replicas_of_one_version_have_one_digest():
    digests = Digests()

    assert digests.seen(0, 3, b"x") is None
    assert digests.seen(0, 3, b"x") is None
    assert digests.seen(1, 3, b"y") is None
    assert "stage 0, version 3" in (digests.seen(0, 3, b"y") or "")


def test_the_longest_stall_leaves_out_what_no_server_could_help():
    stalls = Stalls()
    for at_s in (10.0, 12.0, 17.0):
        stalls.on_step(at_s)
    assert stalls.longest_s == 5.0

    stalls.on_possible(18.0, possible=False)
    stalls.on_possible(43.0, possible=True)
    stalls.on_step(47.0)
    assert stalls.longest_s == 5.0

    stalls.on_step(53.0)
    assert stalls.longest_s == 6.0


def test_a_moment_in_which_no_step_is_possible_does_not_excuse_the_time_before_and_after_it():
    stalls = Stalls()
    stalls.on_step(0.0)
    stalls.on_possible(8.0, possible=False)
    stalls.on_possible(9.0, possible=True)
    stalls.on_possible(10.0, possible=True)
    assert stalls.longest_s == 8.0

    stalls.on_step(39.0)

    assert stalls.longest_s == 30.0


def test_while_no_step_is_possible_nothing_stalls():
    stalls = Stalls()
    stalls.on_possible(0.0, possible=False)
    stalls.on_step(1.0)
    stalls.on_possible(1.0, possible=False)
    stalls.on_step(2.0)  # it was on its way

    stalls.on_step(31.0)

    assert stalls.longest_s == 0.0


def test_a_step_that_a_stopped_coordinator_decided_is_done_when_another_leads():
    stalls = Stalls()
    stalls.on_begin(0.0)
    stalls.on_version(1, 2.0)

    stalls.on_leader(2, 6.0)
    stalls.on_begin(6.1)
    stalls.on_version(2, 7.0)  # the one that was stopped says so now

    stalls.on_leader(2, 8.0)
    assert stalls.ends_s == [0.0, 2.0, 6.0]


STATES = bytes(32), bytes(32)
MEMBERS = tuple(Contributor(bytes([n]) * 32, first_number(1) + n) for n in (1, 2))
ONE, TWO = (Incarnation(member.peer, member.incarnation) for member in MEMBERS)


def recorded(holders: bytes = bytes([0, 1]), **changes) -> CommitRecord:
    record = unsigned(genesis().head(), 1, stages=(StageCommit(MEMBERS, holders, *STATES),))
    return replace(record, **changes)


def test_lives_of_two_terms_are_in_no_one_step():
    held = Contributions()
    old = Incarnation(ONE.peer, first_number(1))
    new = Incarnation(TWO.peer, first_number(2))
    held.counted(0, 7, old, everybody)

    assert held.counted(0, 7, new, everybody) is None


@pytest.mark.parametrize(
    ("counts", "breach"),
    [
        ([(0, ONE), (1, TWO)], None),
        ([(0, ONE), (0, A), (1, TWO)], None),
        ([(0, ONE)], "microbatch 1, stage 0 is in the sums of []"),
        ([(0, ONE), (0, TWO), (1, TWO)], "microbatch 0"),
        ([(0, TWO), (1, TWO)], "microbatch 0"),
        ([(0, ONE), (0, ONE), (1, TWO)], "microbatch 0"),
    ],
)
def test_a_decided_step_has_each_microbatch_in_the_sum_that_it_names_and_in_no_other(
    counts, breach
):
    held = Contributions()
    for microbatch, by in counts:
        held.counted(0, microbatch, by, lambda who: False)

    wrong = held.decided(recorded())

    assert (wrong is None) if breach is None else breach in wrong


def test_records_are_told_of_once_and_in_order():
    told = []
    _, records = chain_of(3)
    seen = Records(told.append)

    assert seen.seen("a", 2, lambda first, end: records[first:end]) is None
    assert seen.seen("b", 3, lambda first, end: records[first:end]) is None
    assert seen.seen("a", 3, lambda first, end: records[first:end]) is None

    assert told == seen.records == records
    assert seen.applied(0, 3) is None
    assert "3 steps are decided" in seen.applied(0, 4)


def test_a_record_that_is_not_on_the_disk_yet_is_read_the_next_time():
    _, records = chain_of(3)
    seen = Records()
    assert seen.seen("a", 2, lambda first, end: records[first : min(end, 1)]) is None

    assert seen.seen("a", 3, lambda first, end: records[first:end]) is None

    assert seen.records == records


def test_a_chain_that_shrinks_forks_or_has_terms_that_fall_is_a_breach():
    _, records = chain_of(2)
    rival = commit(ChainHead.of(records[0]), term=2)
    old = commit(ChainHead.of(rival), term=1)

    seen = Records()
    assert seen.seen("a", 2, lambda first, end: records[first:end]) is None
    assert "has 1" in seen.seen("a", 1, lambda first, end: [])
    assert rival.name() in seen.seen("b", 2, lambda first, end: [records[0], rival])
    assert "nowhere" in Records().seen("c", 2, lambda first, end: [records[1]])
    falling = Records()
    assert "follows one of term 2" in falling.seen(
        "d", 3, lambda first, end: [records[0], rival, old]
    )


def test_a_breach_that_a_decided_record_shows_is_passed_on():
    _, records = chain_of(1)

    assert Records(lambda record: "twice").seen("a", 1, lambda first, end: records) == "twice"
