"""The coordinator's rules one at a time, where the world of deaths is too rough a tool."""

from p2pswarm.config import BatchConfig, RunConfig
from p2pswarm.swarm.messages.membership import Join, Ready
from p2pswarm.swarm.messages.microbatch import Counted, Evaluated, Handed, Undelivered
from p2pswarm.swarm.messages.step import Committed, Reduced
from p2pswarm.swarm.messages.types import Work
from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.commits import COMMIT_S
from p2pswarm.trainer.coordinator import Coordinator
from p2pswarm.trainer.fencing import FENCE_S
from p2pswarm.trainer.in_flight import FIRST_DEADLINE_S, REFUSALS_MAX
from p2pswarm.trainer.reduction import REDUCE_S
from p2pswarm.trainer.unserved import UNSERVED_STAGE_S

RUN = b"r" * 16
CONFIG = RunConfig(stages=1, steps=2, batch=BatchConfig(microbatches=2, evaluate_every=0))


class Play:
    """A coordinator and what it has asked for since the last look."""

    def __init__(self, config: RunConfig = CONFIG) -> None:
        self.coordinator = Coordinator(config, RUN)
        self.now_s = 0.0

    def seen(self, kind: type) -> list:
        return [a for a in self.coordinator.actions() if isinstance(a, kind)]

    def join(self, name: str, *, stage: int | None = None, version=None, digest=b"") -> Incarnation:
        join = Join(RUN, "h:1", stage, version, digest)
        self.coordinator.joined(name.encode() * 32, join, self.now_s)
        member = self.coordinator.members.of_peer(name.encode() * 32)
        return member.incarnation if member else None

    def ready(self, incarnation: Incarnation, version: int = 0, digest: bytes = b"w0") -> None:
        self.coordinator.ready(incarnation, Ready(version, digest), self.now_s)

    def serve(self, name: str) -> Incarnation:
        incarnation = self.join(name)
        self.ready(incarnation)
        return incarnation

    def count(
        self, incarnation: Incarnation, microbatch: int, *, step: int = 0, attempt: int = 0
    ) -> None:
        note = Counted(step, microbatch, attempt, counted=True, loss=1.0)
        self.coordinator.counted(incarnation, note, self.now_s)

    def stuck(self, microbatch: int, attempt: int = 0) -> None:
        note = Undelivered(0, microbatch, attempt, "no road")
        self.coordinator.undelivered(note, self.now_s)

    def hand(self, incarnation: Incarnation, microbatch: int, attempt: int = 0) -> None:
        note = Handed(0, microbatch, attempt, incarnation.peer, incarnation.number)
        self.coordinator.handed(incarnation, note, self.now_s)

    def reduce(self, *incarnations: Incarnation, digest: bytes = b"g") -> None:
        generation = self.seen(act.SendReduce)[-1].message.generation
        for incarnation in incarnations:
            self.coordinator.reduced(incarnation, generation, Reduced(digest, 1.0), self.now_s)

    def commit(self, incarnation: Incarnation, digest: bytes, step: int = 0) -> None:
        answer = Committed(step + 1, digest)
        self.coordinator.committed(incarnation, step, answer, self.now_s)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.coordinator.on_deadline(self.now_s)


def test_nobody_becomes_ready_while_a_fence_is_open():
    """A server that has not answered could still hand a fenced attempt to the newcomer."""
    play = Play()
    ann = play.serve("a")
    play.stuck(0)
    assert [f.incarnation for f in play.seen(act.SendFence)] == [ann]

    bob = play.serve("b")
    assert play.seen(act.MemberReady) == []
    play.coordinator.fenced(ann, (), play.now_s)

    assert [r.incarnation for r in play.seen(act.MemberReady)] == [bob]


def test_what_a_fence_finds_counted_is_not_launched_again():
    play = Play()
    ann = play.serve("a")
    play.stuck(0)
    play.coordinator.fenced(ann, (0,), play.now_s)
    play.seen(object)

    play.wait(5.0)

    assert play.seen(act.Launch) == []


def test_who_does_not_answer_a_fence_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.stuck(0)
    play.coordinator.fenced(bob, (), play.now_s)

    play.wait(FENCE_S)

    assert [d.incarnation for d in play.seen(act.Evict)] == [ann]


def test_a_fence_with_nobody_to_ask_is_settled_at_once():
    play = Play()
    ann = play.serve("a")
    play.hand(ann, 0)

    play.coordinator.lost(ann, "gone", play.now_s)

    assert [r.microbatches for r in play.seen(act.Replayed)] == [(0,)]


def test_a_microbatch_handed_to_one_who_is_gone_is_given_up():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.coordinator.lost(bob, "gone", play.now_s)
    play.seen(object)

    play.hand(bob, 1)

    fences = play.seen(act.SendFence)
    assert [(f.incarnation, f.message.work[0].microbatch) for f in fences] == [(ann, 1)]


def test_notes_of_a_former_life_count_nothing():
    play = Play()
    ann = play.serve("a")
    again = play.serve("a")
    play.count(ann, 0)
    play.count(ann, 1)

    assert again != ann
    assert play.seen(act.SendReduce) == []


def test_notes_about_attempts_that_are_over_change_nothing():
    play = Play()
    ann = play.serve("a")
    play.seen(object)

    play.stuck(0, attempt=7)
    play.hand(ann, 0, attempt=7)
    play.count(ann, 0, step=5)
    play.coordinator.evaluated(ann, Evaluated(0, 0, 1.0), play.now_s)
    play.coordinator.fenced(ann, (0, 1), play.now_s)

    assert play.seen(object) == []


def test_the_second_to_count_a_microbatch_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)

    play.count(bob, 0)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def test_a_microbatch_that_nobody_can_do_ends_the_run_with_its_reason():
    play = Play()
    ann = play.serve("a")
    for attempt in range(REFUSALS_MAX):
        play.stuck(0, attempt)
        play.coordinator.fenced(ann, (), play.now_s)
        play.wait(5.0)

    (ended,) = play.seen(act.RunFinished)
    assert ended.failed
    assert ended.reason == f"microbatch 0 of step 0 failed {REFUSALS_MAX} times: no road"


def test_a_late_attempt_is_fenced_and_launched_again():
    play = Play()
    ann = play.serve("a")
    play.seen(object)

    play.wait(FIRST_DEADLINE_S)
    (fence,) = play.seen(act.SendFence)
    play.coordinator.fenced(ann, (), play.now_s)
    play.wait(5.0)

    assert {w.microbatch for w in fence.message.work} == {0, 1}
    assert {(x.microbatch, x.attempt) for x in play.seen(act.Launch)} == {(0, 1), (1, 1)}


def test_one_that_joins_while_a_step_closes_is_answered_after_it():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0)
    play.count(ann, 1)
    orders = play.seen(act.SendReduce)
    assert play.join("b") is None

    generation = orders[0].message.generation
    play.coordinator.reduced(ann, generation, Reduced(b"g", 1.0), play.now_s)

    (assign,) = play.seen(act.Assign)
    assert assign.message.since == 1


def test_one_that_leaves_before_it_is_answered_is_forgotten():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0)
    play.count(ann, 1)
    play.join("b")
    play.coordinator.withdrawn(b"b" * 32)

    play.reduce(ann)

    assert play.seen(act.Assign) == []


def test_a_newcomer_that_caught_up_while_a_step_closes_is_ready_if_the_closing_fails():
    """Its stage may have nobody else any more."""
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0)
    play.count(ann, 1)
    play.ready(bob)
    assert [r.incarnation for r in play.seen(act.MemberReady)] == [ann]

    play.coordinator.lost(ann, "gone", play.now_s)

    assert [r.incarnation for r in play.seen(act.MemberReady)] == [bob]


def test_ready_in_the_middle_of_a_commit_is_said_again_later():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0)
    play.count(ann, 1)
    play.ready(bob)
    assert [r.incarnation for r in play.seen(act.MemberReady)] == [ann]

    play.coordinator.reduced(ann, 1, Reduced(b"g", 1.0), play.now_s)
    play.commit(ann, b"w1")
    play.ready(bob, version=1, digest=b"w1")

    assert [r.incarnation for r in play.seen(act.MemberReady)] == [bob]


def test_a_newcomers_word_is_not_believed_before_a_members():
    """The first to speak of a version must not be one that has just downloaded it."""
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0)
    play.count(ann, 1)
    play.reduce(ann)
    play.ready(bob, version=1, digest=b"wrong")
    assert play.seen(act.MemberReady) == []

    play.commit(ann, b"w1")

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def test_a_member_whose_weights_differ_after_a_commit_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.reduce(ann, bob)
    play.commit(ann, b"w1")

    play.commit(bob, b"other")

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def test_one_that_averaged_to_other_bytes_is_out_and_its_work_is_done_again():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    generation = play.seen(act.SendReduce)[0].message.generation
    play.coordinator.reduced(ann, generation, Reduced(b"g", 1.0), play.now_s)

    play.coordinator.reduced(bob, generation, Reduced(b"h", 1.0), play.now_s)
    play.wait(5.0)

    actions = play.coordinator.actions()
    assert [a.incarnation for a in actions if isinstance(a, act.Evict)] == [bob]
    assert [a.microbatch for a in actions if isinstance(a, act.Launch)] == [1]


def test_a_gradient_that_is_not_finite_ends_the_run():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0)
    play.count(ann, 1)
    play.coordinator.reduced(ann, 1, Reduced(b"g", None), play.now_s)

    (ended,) = play.seen(act.RunFinished)
    assert ended.failed
    assert "lower the learning rate" in ended.reason


def test_a_reduction_that_fails_is_tried_anew_and_then_blamed():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    for generation in (1, 2):
        play.coordinator.reduce_failed(bob, generation, "no road", play.now_s)
        for incarnation in (ann, bob):
            play.coordinator.fenced(incarnation, (), play.now_s)
        assert play.seen(act.Evict) == []

    play.coordinator.reduce_failed(bob, 3, "no road", play.now_s)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def test_after_a_failed_reduction_the_dead_are_found_before_anybody_is_blamed():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.seen(object)
    play.coordinator.reduce_failed(ann, 1, "bob does not answer", play.now_s)

    fences = play.seen(act.SendFence)
    assert [(f.incarnation, f.message.work) for f in fences] == [(ann, ()), (bob, ())]
    play.coordinator.fenced(ann, (), play.now_s)
    play.wait(FENCE_S)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]
    assert play.coordinator.members.alive(ann)


def test_words_about_a_former_generation_are_ignored():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0)
    play.count(ann, 1)
    play.seen(object)

    play.coordinator.reduced(ann, 99, Reduced(b"g", 1.0), play.now_s)
    play.coordinator.reduce_failed(ann, 99, "no road", play.now_s)
    play.coordinator.reduce_failed(bob, 1, "a newcomer only listens", play.now_s)

    assert play.seen(object) == []


def test_who_is_silent_in_the_closing_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.coordinator.reduced(ann, 1, Reduced(b"g", 1.0), play.now_s)

    play.wait(REDUCE_S)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def test_who_does_not_acknowledge_a_commit_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.reduce(ann, bob)
    play.commit(ann, b"w1")

    play.wait(COMMIT_S)

    assert bob in [d.incarnation for d in play.seen(act.Evict)]


def test_a_stage_without_servers_ends_the_run_after_a_while():
    play = Play()
    ann = play.serve("a")
    play.coordinator.lost(ann, "gone", play.now_s)
    assert play.coordinator.next_deadline_s() is not None

    play.wait(UNSERVED_STAGE_S - 1)
    assert play.seen(act.RunFinished) == []
    play.wait(1)

    (ended,) = play.seen(act.RunFinished)
    assert ended.reason == "stage 0 has no server left that holds its weights"
    assert play.coordinator.next_deadline_s() is None


def committed_once(play: Play) -> Incarnation:
    ann = play.serve("a")
    play.count(ann, 0)
    play.count(ann, 1)
    play.reduce(ann)
    return ann


def test_one_that_rejoins_with_the_current_weights_keeps_them():
    play = Play()
    ann = committed_once(play)
    play.commit(ann, b"w1")
    play.seen(object)

    play.join("a", stage=0, version=1, digest=b"w1")

    assert play.seen(act.Assign)[0].message.keep


def test_one_with_other_weights_keeps_nothing():
    play = Play()
    ann = committed_once(play)
    play.commit(ann, b"w1")
    play.seen(object)

    play.join("b", stage=0, version=1, digest=b"other")
    play.join("c", stage=7, version=1, digest=b"w1")
    play.join("d", stage=0, version=0, digest=b"w1")

    assert [a.message.keep for a in play.seen(act.Assign)] == [False, False, False]


def test_the_only_one_who_knows_the_new_weights_is_believed():
    """Its link broke between the commit and its word about it."""
    play = Play()
    committed_once(play)
    play.seen(object)

    again = play.join("a", stage=0, version=1, digest=b"w1")

    assert play.seen(act.Assign)[0].message.keep
    assert play.coordinator.members.ready(0)[0].incarnation == again


def test_newcomers_go_where_the_fewest_serve():
    config = RunConfig(stages=3, steps=2, batch=BatchConfig(microbatches=2))
    play = Play(config)

    incarnations = [play.join(name) for name in "abcdef"]

    stages = [play.coordinator.members.alive(incarnation).stage for incarnation in incarnations]
    assert stages == [0, 1, 2, 0, 1, 2]


def test_an_evaluation_counts_nothing_and_is_told_with_its_step():
    config = RunConfig(
        stages=1,
        steps=1,
        batch=BatchConfig(microbatches=1, evaluate_every=1, evaluate_microbatches=1),
    )
    play = Play(config)
    ann = play.serve("a")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE)
    assert held_out.counting == ()

    play.coordinator.evaluated(ann, Evaluated(0, held_out.microbatch, 3.5), play.now_s)
    play.count(ann, 0)
    play.coordinator.reduced(ann, 1, Reduced(b"g", 1.0), play.now_s)

    assert play.seen(act.EvaluationDone) == [act.EvaluationDone(0, 3.5)]


def test_after_the_end_nothing_is_asked_for():
    play = Play()
    ann = play.serve("a")
    play.coordinator.lost(ann, "gone", play.now_s)
    play.wait(UNSERVED_STAGE_S)
    play.seen(object)

    assert play.join("b") is None
    play.coordinator.lost(ann, "gone", play.now_s)

    assert play.seen(object) == []


def test_the_word_of_one_who_is_gone_settles_nothing():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.stuck(0)
    play.coordinator.lost(ann, "gone", play.now_s)
    play.coordinator.lost(ann, "gone", play.now_s)
    play.coordinator.fenced(ann, (0,), play.now_s)
    play.seen(object)

    play.coordinator.fenced(bob, (), play.now_s)
    play.wait(5.0)

    assert [(x.microbatch, x.attempt) for x in play.seen(act.Launch)] == [(0, 1)]


def test_a_step_that_is_whole_waits_for_a_stage_that_has_nobody():
    """Its only server left with an empty ledger; the weights may still come back."""
    config = RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=1, evaluate_every=0))
    play = Play(config)
    ann, bob, cid = play.serve("a"), play.serve("b"), play.serve("c")
    play.count(ann, 0)
    play.coordinator.lost(cid, "gone", play.now_s)
    play.count(bob, 0)

    assert len(play.seen(act.SendReduce)) == 2


def test_a_held_out_batch_may_answer_while_it_is_fenced():
    config = RunConfig(
        stages=1,
        steps=1,
        batch=BatchConfig(microbatches=1, evaluate_every=1, evaluate_microbatches=1),
    )
    play = Play(config)
    ann = play.serve("a")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE).microbatch
    play.stuck(held_out)
    play.coordinator.evaluated(ann, Evaluated(0, held_out, 3.5), play.now_s)

    play.coordinator.fenced(ann, (), play.now_s)
    play.wait(5.0)

    assert play.seen(act.Launch) == []
