"""The verdict on a stall: the cause from both ends, whatever else is said."""

import random

import pytest

from p2pswarm.base.ids import PeerId
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.waits import (
    AveragingNow,
    ComputingNow,
    PeerWait,
    PieceKind,
    ServerWaits,
)
from p2pswarm.trainer.reports.step_seconds import StallCause
from p2pswarm.trainer.stall.trainer_view import ASKED_MAX, TrainerView
from p2pswarm.trainer.stall.verdict import verdict
from p2pswarm.trainer.step.stalls import HeldMicrobatch
from p2pswarm.trainer.step.step import Phase

C = StallCause
ANN, BOB, CID = (bytes([number]) * 32 for number in (1, 2, 3))
STAGES = {ANN: 0, BOB: 1, CID: 2}
NAMES = {peer: PeerId(peer).short for peer in STAGES}
IDLE = ServerWaits(0, 3, "computes", came_ago_s=5.0)


def view(**changes) -> TrainerView:
    given = {"step": 3, "phase": Phase.FILLING, "stages": STAGES, "unserved": ()}
    given["unheard_s"] = dict.fromkeys(changes.get("stages", STAGES), 0.2)
    return TrainerView(**(given | changes))


def held(holder: bytes, giver: bytes | None = None, *, for_s=5.0, waits=False, returning=False):
    giver_one = None if giver is None else Incarnation(giver, 1)
    return HeldMicrobatch(
        31, STAGES[holder], Incarnation(holder, 1), giver_one, for_s, returning, waits
    )


def says(**changes) -> ServerWaits:
    fields = {"stage": 0, "version": 3, "state": "computes", "came_ago_s": 5.0}
    return ServerWaits(**(fields | changes))


def averages(*missing: bytes, lacks=PieceKind.PARTS) -> ServerWaits:
    return says(averaging=AveragingNow(3, 5.0, missing, len(missing), lacks))


def test_a_stage_without_a_server_is_the_cause_whatever_else_waits():
    found = verdict(view(unserved=(1,), held=(held(ANN),)), {ANN: None, BOB: IDLE, CID: IDLE})

    assert (found.cause, found.stages) == (C.UNSERVED, (1,))
    assert found.why == "nobody serves stage 1: start a server"


def test_a_server_that_says_nothing_is_named_with_what_it_has_and_what_others_say_of_it():
    silent = view(held=(held(BOB),), unheard_s={ANN: 0.1, BOB: 5.0, CID: 0.2})

    found = verdict(silent, {ANN: says(broken=(BOB,)), BOB: None, CID: says(broken=(BOB,))})

    assert (found.cause, found.peers, found.stages) == (C.SILENT, (BOB,), (1,))
    assert found.why == (
        f"{NAMES[BOB]} of stage 1 does not answer, and was heard last 5.0 s ago; it has "
        "1 microbatch; 2 of 2 other servers say that nothing comes from it"
    )


@pytest.mark.parametrize(("more", "words"), [(1, "does another one"), (2, "do 2 others")])
def test_of_several_that_say_nothing_one_is_named_and_the_others_are_counted(more, words):
    stages = {**STAGES, bytes([9]) * 32: 2}  # else nothing would come from anybody
    deaf = (ANN, BOB, CID)[: 1 + more]
    unheard_s = dict.fromkeys(stages, 0.1) | dict.fromkeys(deaf, 4.0) | {ANN: 5.0}

    found = verdict(
        view(held=tuple(map(held, deaf)), stages=stages, unheard_s=unheard_s),
        {one: None if one in deaf else IDLE for one in stages},
    )

    assert found.peers[0] == ANN
    assert f"; nor {words}" in found.why


def test_a_server_that_others_reach_may_be_well():
    silent = view(held=(held(BOB),), unheard_s={ANN: 0.1, BOB: 5.0, CID: 0.2})

    found = verdict(silent, {ANN: IDLE, BOB: None, CID: IDLE})

    assert found.cause is C.SILENT
    assert found.why.endswith("it may be its link to this trainer alone")


def test_where_nothing_comes_from_anybody_it_is_our_own_network():
    found = verdict(view(unheard_s=dict.fromkeys(STAGES, 4.0)), dict.fromkeys(STAGES))

    assert (found.cause, found.peers) == (C.NETWORK, ())


def test_a_server_that_is_heard_and_does_not_answer_does_not_hear_us():
    found = verdict(view(held=(held(BOB),)), {ANN: IDLE, BOB: None, CID: IDLE})

    assert (found.cause, found.peers) == (C.LINK, (BOB,))


def test_a_link_is_named_where_one_gives_and_the_other_has_nothing():
    gives = says(gives=(PeerWait(BOB, 4, 5.0),))

    found = verdict(view(held=(held(ANN, waits=True),)), {ANN: gives, BOB: IDLE, CID: IDLE})

    assert (found.cause, found.peers, found.stages) == (C.LINK, (ANN, BOB), (0, 1))
    assert found.why == (
        f"little or nothing gets from {NAMES[ANN]} of stage 0 to {NAMES[BOB]} of stage 1: it gives "
        "4 microbatches for 5.0 s, and the other says that nothing came for 5.0 s; both answer "
        "the trainer"
    )


def test_a_link_is_named_where_the_trainer_says_that_a_server_has_what_it_has_not():
    gives = says(gives=(PeerWait(BOB, 1, 5.0),))

    found = verdict(view(held=(held(BOB, ANN),)), {ANN: gives, BOB: IDLE, CID: IDLE})

    assert (found.cause, found.peers) == (C.LINK, (ANN, BOB))


def test_a_gradient_that_does_not_get_back_names_the_way_back():
    gives = says(gives=(PeerWait(ANN, 1, 5.0),))

    found = verdict(
        view(held=(held(ANN, BOB, returning=True),)), {ANN: IDLE, BOB: gives, CID: IDLE}
    )

    assert (found.cause, found.peers) == (C.LINK, (BOB, ANN))


def test_two_that_say_of_each_other_that_nothing_comes_are_apart():
    answers = {ANN: says(broken=(BOB,)), BOB: says(broken=(ANN,)), CID: IDLE}

    found = verdict(view(), answers)

    assert (found.cause, found.peers) == (C.LINK, (ANN, BOB))
    assert "as both say" in found.why


def test_a_server_that_computes_for_far_too_long_is_named_with_its_queue():
    slow = says(queued=9, computing=ComputingNow(31, Work.BACKWARD, 5.1, 0.7))

    found = verdict(view(held=(held(BOB),)), {ANN: IDLE, BOB: slow, CID: IDLE})

    assert (found.cause, found.peers) == (C.COMPUTING, (BOB,))
    assert found.why == (
        f"{NAMES[BOB]} of stage 1 computes the gradient of microbatch 31 for 5.1 s (usually 0.7), "
        "and 9 microbatches wait there"
    )


def test_a_server_that_computes_as_usual_has_too_much():
    busy = says(queued=9, computing=ComputingNow(31, Work.FORWARD, 0.5, 0.7))

    found = verdict(view(held=(held(BOB),)), {ANN: IDLE, BOB: busy, CID: IDLE})

    assert (found.cause, found.peers) == (C.QUEUE, (BOB,))


@pytest.mark.parametrize(
    ("queued", "words"),
    [(0, "nothing waits"), (1, "1 microbatch waits"), (9, "9 microbatches wait")],
)
def test_of_several_that_compute_as_usual_the_longest_queue_is_named(queued, words):
    computing = ComputingNow(31, Work.FORWARD, 0.5, 0.7)
    answers = {
        ANN: says(queued=max(0, queued - 1), computing=None if queued else computing),
        BOB: says(queued=queued, computing=computing),
        CID: IDLE,
    }
    hold = (held(ANN), held(BOB)) if queued else (held(BOB),)

    found = verdict(view(held=hold), answers)

    assert found.why == f"{NAMES[BOB]} of stage 1 computes, 0.7 s each, and {words} there"


REDUCING = {
    "phase": Phase.REDUCING,
    "stages": dict.fromkeys(STAGES, 0),
    "averaging": (ANN, BOB, CID),
}


def test_whom_several_lack_holds_up_the_averaging():
    answers = {ANN: averages(BOB), BOB: averages(ANN, CID), CID: averages(BOB)}

    found = verdict(view(**REDUCING), answers)

    assert (found.cause, found.peers) == (C.AVERAGING, (BOB,))


def test_what_one_alone_lacks_of_another_is_the_link_between_them():
    """The third has all parts, and waits for what both reduce."""
    answers = {
        ANN: averages(BOB, lacks=PieceKind.REDUCED),
        BOB: averages(ANN, lacks=PieceKind.PARTS),
        CID: averages(ANN, BOB, lacks=PieceKind.REDUCED),
    }

    found = verdict(view(**REDUCING), answers)

    assert (found.cause, found.peers) == (C.LINK, (ANN, BOB))


def test_a_member_that_has_not_begun_to_average_is_named_with_what_it_does():
    slow = says(computing=ComputingNow(31, Work.FORWARD, 9.0, 1.0))
    answers = {ANN: averages(), BOB: slow, CID: averages()}

    assert verdict(view(**REDUCING), answers).names == (C.COMPUTING, (BOB,), (0,))
    answers[BOB] = IDLE
    assert verdict(view(**REDUCING), answers).names == (C.AVERAGING, (BOB,), (0,))


def test_what_lacks_else_is_told_last():
    assert verdict(view(phase=Phase.DECIDING), {}).cause is C.VOTES
    assert verdict(view(owing=(BOB,)), {BOB: IDLE}).names == (C.COMMIT, (BOB,), (1,))
    assert verdict(view(sums=1), {}).cause is C.SUM
    assert verdict(view(promises=(BOB,)), {BOB: IDLE}).names == (C.UNKNOWN, (BOB,), (1,))
    assert verdict(view(), {}).cause is C.UNKNOWN


def test_not_all_of_a_large_run_are_asked():
    many = {bytes([a, b]) * 16: 0 for a in range(20) for b in range(20)}
    chosen = next(iter(many))

    asked = view(stages=many, promises=(chosen,)).suspects

    assert len(asked) == ASKED_MAX
    assert asked[0] == chosen


def _anything(rng: random.Random) -> ServerWaits | None:
    """What a stranger may answer: every field as it likes, within its limits."""
    peers = [ANN, BOB, CID, b"z" * 32]
    some = tuple(PeerWait(rng.choice(peers), rng.randrange(99), 1e9 * rng.random()) for _ in "ab")
    missing = tuple(rng.sample(peers, rng.randrange(4)))
    now = AveragingNow(0, 1e9, missing, 2**31, rng.randrange(3)) if rng.random() < 0.5 else None
    computing = ComputingNow(2**62, rng.randrange(3), 1e9 * rng.random(), rng.choice([None, 0.0]))
    return rng.choice(
        [
            None,
            ServerWaits(None, None, "\x1b[2J" * 25),
            says(
                gives=some,
                gradients=some,
                averaging=now,
                broken=missing,
                queued=rng.randrange(3),
                computing=rng.choice([None, computing]),
                came_ago_s=rng.choice([None, 1e9]),
            ),
        ]
    )


def test_what_one_says_that_is_no_member_any_more_is_passed_over():
    answers = {ANN: IDLE, b"z" * 32: says(broken=(ANN,), gives=(PeerWait(ANN, 1, 9.0),))}

    assert verdict(view(averaging=(b"z" * 32,), phase=Phase.REDUCING), answers).peers == ()


@pytest.mark.parametrize("seed", range(200))
def test_whatever_servers_say_the_line_is_printable_and_names_members_alone(seed):
    rng = random.Random(seed)
    things = tuple(
        held(rng.choice([ANN, BOB, CID]), rng.choice([None, ANN, BOB]), for_s=rng.random() * 9)
        for _ in range(rng.randrange(4))
    )
    about = view(
        phase=rng.choice([Phase.FILLING, Phase.REDUCING]),
        held=things,
        averaging=tuple(rng.sample([ANN, BOB, CID], rng.randrange(4))),
        owing=tuple(rng.sample([ANN, BOB], rng.randrange(2))),
        unheard_s={peer: rng.choice([0.1, 5.0]) for peer in STAGES},
    )

    found = verdict(about, {peer: _anything(rng) for peer in rng.sample([ANN, BOB, CID], 3)})

    assert found.why.isprintable()
    assert set(found.peers) <= set(STAGES)
    assert len(found.stages) == len(found.peers) or found.cause is C.UNSERVED
