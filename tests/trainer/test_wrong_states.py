"""A member whose state differs from its stage's is found before a step is decided."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import Play

from p2pswarm.run.messages.membership import HeldReduction
from p2pswarm.run.messages.step import Committed, Reduced
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.members.quarantine import QUARANTINE_S
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberLost, MemberReady, RunFinished, StepDone
from p2pswarm.trainer.step.stage_digests import OTHER_WEIGHTS

TWO_STAGES = RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=2, evaluate_every=0))
AGAIN = "step 0 is done again"


def computed_with(play, member, state, generation=1):
    """A member holds the reduced gradient, and says what it computed the step with."""
    answer = Reduced(b"g", 1.0, state=state)
    play.coordinator.on_reduction(member, generation, answer, play.now_s)


def three_that_reduce():
    play = Play()
    ann, bob, cid = (play.serve(name) for name in "abc")
    play.count(ann, 0)
    play.count(bob, 1)
    return play, ann, bob, cid


def reasons(actions):
    return {a.incarnation: a.reason for a in actions if isinstance(a, act.Evict)}


def of(kind, actions):
    return [a for a in actions if isinstance(a, kind)]


def test_all_sums_of_the_step_are_void_and_nothing_is_decided():
    play, ann, bob, cid = three_that_reduce()
    computed_with(play, ann, b"w0")
    computed_with(play, bob, b"w0")

    computed_with(play, cid, b"flipped")

    actions = play.coordinator.drain()
    assert reasons(actions) == {cid: OTHER_WEIGHTS, ann: AGAIN, bob: AGAIN}
    assert {a.incarnation: a.voided for a in of(MemberLost, actions)} == {
        cid: 0,
        ann: 1,
        bob: 1,
    }
    assert of(StepDone, actions) == of(act.SendCommit, actions) == []


def test_sums_of_other_stages_hold_what_it_gave_and_are_void_too():
    play = Play(TWO_STAGES)
    ann, bob, cid, dan = (play.serve(name) for name in "abcd")  # of stages 0, 1, 0, 1
    for number in (0, 1):
        play.count(ann, number)
        play.count(bob, number)

    for member, state in ((ann, b"w0"), (bob, b"w0"), (dan, b"w0"), (cid, b"flipped")):
        computed_with(play, member, state)

    actions = play.coordinator.drain()
    assert reasons(actions) == {cid: OTHER_WEIGHTS, ann: AGAIN, bob: AGAIN, dan: AGAIN}


def test_it_is_found_before_all_have_averaged():
    play, ann, bob, cid = three_that_reduce()

    computed_with(play, cid, b"flipped")

    assert reasons(play.coordinator.drain()) == {cid: OTHER_WEIGHTS, ann: AGAIN, bob: AGAIN}


def test_the_step_is_done_again_by_those_that_come_back_and_the_wrong_one_downloads():
    play, *members = three_that_reduce()
    computed_with(play, members[2], b"flipped")
    play.seen(object)

    ann, bob = (play.join(name, stage=0, version=0, digest=b"w0") for name in "ab")
    play.join("c", stage=0, version=0, digest=b"flipped")

    actions = play.coordinator.drain()
    assert [a.message.keep for a in of(act.Assign, actions)] == [True, True, False]
    assert [a.incarnation for a in of(MemberReady, actions)] == [ann, bob]
    play.wait(1.0)
    launched = play.seen(act.Launch)
    assert {(a.microbatch, a.counting) for a in launched} == {(0, (0,)), (1, (0,))}
    for launch, member in zip(launched, (ann, bob), strict=True):
        play.count(member, launch.microbatch, attempt=launch.attempt)
    play.reduce(ann, bob)
    assert [done.step for done in play.seen(StepDone)] == [0]


def test_one_that_dies_after_its_word_has_still_given_wrong_activations():
    """Its stage's state is known only when it is gone."""
    play = Play()
    ann, bob, cid = (play.serve(name) for name in "abc")
    play.count(ann, 0)
    play.count(bob, 1)
    play.reduce(ann, bob, cid)
    for member in (ann, bob, cid):
        play.coordinator.on_commit_answer(member, 0, Committed(1, applied=True), play.now_s)
    play.ready(cid, 1, b"flipped")
    play.lose(cid)
    play.count(ann, 2, step=1)
    play.seen(object)

    play.ready(ann, 1, b"w1")
    play.ready(bob, 1, b"w1")

    again = "step 1 is done again"
    assert reasons(play.coordinator.drain()) == {ann: again, bob: again}


def test_one_that_has_computed_nothing_yet_voids_nothing():
    """It came back one commit behind, was sent it again, and made something else of it."""
    play, ann, bob, cid = three_that_reduce()
    play.reduce(ann, bob, cid)
    play.lose(cid)
    commit = play.seen(act.SendCommit)[0].message
    play.commit(ann, b"w1")
    play.commit(bob, b"w1")
    held = (HeldReduction(0, commit.generation, b"g"),)
    back = play.join("c", stage=0, version=0, digest=b"w0", held=held)

    play.commit(back, b"other")

    assert reasons(play.coordinator.drain()) == {back: OTHER_WEIGHTS}


def test_after_the_last_commit_only_the_wrong_one_is_out():
    play = Play(RunConfig(stages=1, steps=1, batch=BatchConfig(microbatches=2, evaluate_every=0)))
    ann, bob, cid = (play.serve(name) for name in "abc")
    play.count(ann, 0)
    play.count(bob, 1)
    play.reduce(ann, bob, cid)

    for member, digest in ((cid, b"other"), (ann, b"w1"), (bob, b"w1")):
        play.commit(member, digest)

    actions = play.coordinator.drain()
    assert reasons(actions) == {cid: OTHER_WEIGHTS}
    assert [end.failed for end in of(RunFinished, actions)] == [False]


def test_the_run_ends_only_when_the_digest_of_the_last_version_is_known():
    play = Play(RunConfig(stages=1, steps=1, batch=BatchConfig(microbatches=2, evaluate_every=0)))
    ann = play.serve("a")
    play.count(ann, 0, 1)
    play.reduce(ann)
    play.coordinator.on_commit_answer(ann, 0, Committed(1, applied=True), play.now_s)
    assert play.seen(RunFinished) == []

    play.ready(ann, 1, b"w1")

    assert [end.failed for end in play.seen(RunFinished)] == [False]


def test_a_lone_replica_is_believed():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)
    play.reduce(ann)
    play.coordinator.on_commit_answer(ann, 0, Committed(1, applied=True), play.now_s)
    play.count(ann, 2, step=1)
    play.count(ann, 3, step=1)

    computed_with(play, ann, b"nobody can tell", generation=2)

    assert [done.step for done in play.seen(StepDone)] == [0, 1]


NINE_STEPS = RunConfig(stages=1, steps=9, batch=BatchConfig(microbatches=2, evaluate_every=0))


def wrong_once(play, names):
    """These serve, and the last one has computed with another state; when it comes back."""
    members = [play.join(name, stage=0, version=0, digest=b"w0") for name in names]
    for one in members:
        play.ready(one)
    play.wait(1.0)
    assert play.coordinator.members.alive(members[-1]).ready
    for launch in play.seen(act.Launch):
        play.count(members[0], launch.microbatch, attempt=launch.attempt)
    generation = play.seen(act.SendReduce)[-1].message.generation
    computed_with(play, members[-1], b"flipped", generation)
    for name in names[:-1]:
        play.join(name, stage=0, version=0, digest=b"w0")
    back = play.join(names[-1], stage=0)
    play.ready(back)
    return back


def test_a_server_that_most_contradict_voids_one_step_and_has_no_work_for_long():
    """Each time costs all others a step."""
    play = Play(NINE_STEPS)

    cid = wrong_once(play, "abc")

    assert not play.coordinator.members.alive(cid).ready
    play.wait(QUARANTINE_S - 1.0)
    assert not play.coordinator.members.alive(cid).ready
    play.wait(1.0)
    assert play.coordinator.members.alive(cid).ready


def test_a_server_that_is_contradicted_again_has_no_work_for_twice_as_long():
    play = Play(NINE_STEPS)
    wrong_once(play, "abc")
    play.wait(QUARANTINE_S)

    cid = wrong_once(play, "abc")

    play.wait(2 * QUARANTINE_S - 2.0)
    assert not play.coordinator.members.alive(cid).ready
    play.wait(2.0)
    assert play.coordinator.members.alive(cid).ready


def test_a_server_that_is_wrong_and_comes_under_no_other_id_serves_where_nobody_else_does():
    play = Play(NINE_STEPS)
    cid = wrong_once(play, "abc")

    for name in "ab":
        play.lose(play.coordinator.members.of_peer(name.encode() * 32).incarnation)
    play.promise(*[one.incarnation for one in play.coordinator.members.ready()])
    play.wait(10.0)

    assert play.coordinator.members.alive(cid).ready


def test_one_of_two_that_contradict_each_other_is_not_left_out_for_long():
    """Nobody can tell which of them is wrong."""
    play = Play(NINE_STEPS)
    ann, bob = (play.serve(name) for name in "ab")
    play.count(ann, 0)
    play.count(bob, 1)
    play.reduce(ann, bob)
    for member, state in ((ann, b"w1"), (bob, b"w1 too")):
        play.commit(member, state)

    back = play.join("b", stage=0)
    play.join("a", stage=0, version=1, digest=b"w1")
    play.ready(back, 1, b"w1")

    assert play.coordinator.members.alive(back).ready


@given(st.lists(st.sampled_from([b"x", b"y"]), min_size=1, max_size=5), st.randoms())
def test_a_step_is_decided_only_if_all_computed_it_with_one_state(states, random):
    play = Play(RunConfig(stages=1, steps=9, batch=BatchConfig(microbatches=1, evaluate_every=0)))
    members = [play.serve(chr(97 + n)) for n in range(len(states))]
    play.count(members[0], 0)
    play.reduce(*members)
    for member in members:
        play.coordinator.on_commit_answer(member, 0, Committed(1, applied=True), play.now_s)
    play.count(members[0], 1, step=1)
    generation = play.seen(act.SendReduce)[-1].message.generation
    play.seen(object)
    words = list(zip(members, states, strict=True))
    random.shuffle(words)

    for member, state in words:
        early = random.random() < 0.5
        if early and play.coordinator.members.alive(member):
            play.ready(member, 1, state)
    for member, state in words:
        computed_with(play, member, state, generation)

    actions = play.coordinator.drain()
    alike = len(set(states)) == 1
    assert bool(of(StepDone, actions)) == alike
    if not alike:
        assert set(reasons(actions)) == set(members)
        most = max(Counter(states).values())
        out = Counter(reason for reason in reasons(actions).values())
        assert out[OTHER_WEIGHTS] <= len(states) - most
