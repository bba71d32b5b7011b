"""Which of two first states is right is proved; who spoke first does not matter."""

import itertools

import pytest
from trainer.harness import Play

from p2pswarm.base.errors import Unusable
from p2pswarm.run.messages.step import Reduced
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.sim.loop import run as run_simulated
from p2pswarm.trainer.coordinator.decision import CoordinatorStart
from p2pswarm.trainer.coordinator_io.coordinator_io import prove_states
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import BeganWrong, StepDone
from p2pswarm.trainer.step.stage_digests import OTHER_WEIGHTS

RIGHT, WRONG = b"right", b"wrong"
RUN = RunConfig(stages=1, steps=9, batch=BatchConfig(microbatches=2, evaluate_every=0))


def proving(version: int = 0) -> Play:
    return Play(RUN, start=CoordinatorStart(version=version, provable=True))


def come(play: Play, name: str, digest: bytes, version: int = 0):
    member = play.join(name)
    play.ready(member, version, digest)
    return member


def ready(play: Play) -> str:
    members = play.coordinator.members.ready(0)
    return "".join(sorted(m.incarnation.peer[:1].decode() for m in members))


def evicted(play: Play) -> dict:
    return {a.incarnation: a.reason for a in play.seen(act.Evict)}


@pytest.mark.parametrize("order", list(itertools.permutations("abx")))
def test_the_proof_decides_whoever_spoke_first(order):
    play = proving()
    members = {name: come(play, name, WRONG if name == "x" else RIGHT) for name in order}

    play.coordinator.on_proof(0, RIGHT, play.now_s)

    assert evicted(play)[members["x"]] == OTHER_WEIGHTS
    for name in "ab":
        if play.coordinator.members.alive(members[name]) is None:  # it computed beside the wrong
            come(play, name, RIGHT)
    assert ready(play) == "ab"


def test_two_wrong_ones_do_not_outvote_a_right_one():
    play = proving()
    for name in "xy":
        come(play, name, WRONG)
    come(play, "a", RIGHT)

    play.coordinator.on_proof(0, RIGHT, play.now_s)

    come(play, "a", RIGHT)
    assert ready(play) == "a"


def test_while_all_say_the_same_nobody_waits_for_the_proof():
    play = proving()

    come(play, "a", RIGHT)
    come(play, "b", RIGHT)

    assert ready(play) == "ab"
    assert play.seen(act.Launch)


def test_a_right_one_is_not_thrown_out_before_the_proof():
    play = proving()
    come(play, "x", WRONG)

    right = come(play, "a", RIGHT)

    assert evicted(play) == {}
    assert play.coordinator.members.alive(right)


def test_a_step_is_not_decided_while_it_is_disputed_with_which_state():
    play = proving()
    ann, bob = come(play, "a", RIGHT), come(play, "x", WRONG)
    for number, member in enumerate((ann, ann)):
        play.count(member, number)
    assert play.seen(act.SendReduce) == []

    play.coordinator.on_proof(0, RIGHT, play.now_s)

    actions = play.coordinator.drain()
    assert [a.incarnation for a in actions if isinstance(a, act.Evict)] == [bob]
    assert [a for a in actions if isinstance(a, act.SendReduce)]


def test_a_state_that_changed_on_the_way_is_found_when_the_proof_is_here():
    """Memory failed after the member had said the right digest."""
    play = proving()
    ann, bob = come(play, "a", RIGHT), come(play, "b", RIGHT)
    play.count(ann, 0)
    play.count(bob, 1)
    generation = play.seen(act.SendReduce)[-1].message.generation
    for member, state in ((ann, RIGHT), (bob, WRONG)):
        play.coordinator.on_reduction(
            member, generation, Reduced(b"g", 1.0, state=state), play.now_s
        )
    assert play.seen(StepDone) == []

    play.coordinator.on_proof(0, RIGHT, play.now_s)

    actions = play.coordinator.drain()
    assert [a for a in actions if isinstance(a, StepDone)] == []
    assert {a.incarnation for a in actions if isinstance(a, act.Evict)} == {ann, bob}


def test_a_wrong_one_that_has_served_voids_the_step_though_it_is_gone():
    play = proving()
    wrong = come(play, "x", WRONG)
    play.count(wrong, 0)
    play.lose(wrong)
    right = come(play, "a", RIGHT)
    assert ready(play) == ""

    play.coordinator.on_proof(0, RIGHT, play.now_s)

    assert play.coordinator.members.alive(right) is None or ready(play) == "a"
    come(play, "a", RIGHT)
    assert ready(play) == "a"


def test_one_that_leaves_without_having_served_disputes_nothing_any_more():
    play = proving()
    come(play, "a", RIGHT)
    wrong = come(play, "x", WRONG)

    play.lose(wrong)
    come(play, "b", RIGHT)

    assert ready(play) == "ab"


def test_where_nothing_can_be_proved_most_members_are_believed():
    play = proving()
    come(play, "x", WRONG)
    for name in "ab":
        come(play, name, RIGHT)

    play.coordinator.on_proof(0, None, play.now_s)

    come(play, "a", RIGHT), come(play, "b", RIGHT)
    assert ready(play) == "ab"


def test_a_checkpoints_state_is_proved_like_the_first_one():
    play = proving(version=5)
    come(play, "x", WRONG, version=5)
    come(play, "a", RIGHT, version=5)

    play.coordinator.on_proof(0, RIGHT, play.now_s)

    come(play, "a", RIGHT, version=5)
    assert ready(play) == "a"


@pytest.mark.parametrize(("state", "told"), [(RIGHT, []), (WRONG, [BeganWrong(0)])])
def test_a_proof_that_comes_after_the_first_step_still_tells(state, told):
    play = proving()
    wrong = come(play, "x", state)
    play.count(wrong, 0)
    play.count(wrong, 1)
    play.reduce(wrong)
    assert play.coordinator.step == 1

    play.coordinator.on_proof(0, RIGHT, play.now_s)

    actions = play.coordinator.drain()
    assert [a for a in actions if isinstance(a, BeganWrong)] == told
    assert [a for a in actions if isinstance(a, act.Evict)] == []


def test_a_proof_changes_nothing_where_the_record_says_the_states():
    play = Play(RUN, start=CoordinatorStart(version=5, states={0: RIGHT}))
    come(play, "a", RIGHT, version=5)

    play.coordinator.on_proof(0, WRONG, play.now_s)

    assert ready(play) == "a"


def test_stages_that_are_disputed_are_proved_first_and_each_once():
    told = []

    def proof(stage):
        yield b""
        yield bytes([stage])

    def disputed():
        return [3] if not told else [1, 3]

    run_simulated(prove_states(proof, 4, disputed, lambda *each: told.append(each)), seed=1)

    assert told == [(3, bytes([3])), (1, bytes([1])), (0, bytes([0])), (2, bytes([2]))]


def test_what_cannot_be_proved_is_told_and_the_other_stages_still_are():
    told = []

    def proof(stage):
        if stage == 0:
            raise Unusable("the folder is gone")
        yield b"digest"

    run_simulated(prove_states(proof, 2, list, lambda *each: told.append(each)), seed=1)

    assert told == [(0, None), (1, b"digest")]
