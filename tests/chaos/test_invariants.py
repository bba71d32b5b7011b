"""What is held against every run: breaches are seen, and nothing else is."""

from chaos.invariants import Contributions, Digests, Stalls

from p2pswarm.swarm.view import Incarnation

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
        stalls.step_done(at_s)
    assert stalls.longest_s == 5.0

    stalls.reachable(every_stage=False)
    stalls.reachable(every_stage=True)
    stalls.step_done(47.0)
    assert stalls.longest_s == 5.0

    stalls.step_done(53.0)
    assert stalls.longest_s == 6.0


def test_a_stage_that_is_still_away_when_a_step_is_done_excuses_the_next_one_too():
    stalls = Stalls()
    stalls.step_done(0.0)
    stalls.reachable(every_stage=False)
    stalls.step_done(1.0)

    stalls.step_done(31.0)

    assert stalls.longest_s == 0.0
