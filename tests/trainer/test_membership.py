"""The trainer's list of members: who serves, and who is on its way."""

from p2pswarm.trainer.membership import Membership

FIRST, SECOND = bytes([1]) * 32, bytes([2]) * 32


def test_a_newcomer_that_may_serve_anywhere_waits_in_the_stage_it_was_given():
    """A reduction names those who wait in a stage: who is missing there never receives it."""
    members = Membership(2)

    first = members.admit(FIRST, "10.0.0.1:1", None, 0)
    second = members.admit(SECOND, "10.0.0.2:1", None, 0)

    assert members.waiting(0) == [first]
    assert members.waiting(1) == [second]
    assert members.waiting() == [first, second]
