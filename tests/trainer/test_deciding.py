"""Between the reduction and the commit: the voters are asked, and nothing that dies changes it."""

import dataclasses

import pytest
from trainer.harness import CONFIG, Play

from p2pswarm.run.chain.chain import Genesis, check_next
from p2pswarm.run.chain.record import NO_DIGEST, VoterId, first_number, term_of
from p2pswarm.run.messages.membership import HeldReduction
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, DecidedStep, unsigned_record
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberLost, RunFinished, StepDone
from p2pswarm.trainer.step.stage_digests import as_recorded

TERM = 7


def deciding(config: RunConfig = CONFIG) -> tuple[Play, list, act.Decide]:
    play = Play(config, kind=Coordinator, start=CoordinatorStart(term=TERM))
    members = play.averaged("a", "b")
    (decide,) = play.seen(act.Decide)
    return play, members, decide


def test_nothing_is_committed_before_the_voters_have_accepted():
    play, (ann, bob), decide = deciding()

    assert play.seen(act.SendCommit) == []
    play.coordinator.on_decision(decide.step, play.now_s)

    assert [one.incarnation for one in play.seen(act.SendCommit)] == [ann, bob]
    play.coordinator.on_decision(decide.step, play.now_s)
    assert play.seen(act.SendCommit) == []


def test_the_record_says_who_counted_what_and_may_follow_the_genesis():
    _, (ann, bob), decide = deciding()
    genesis = Genesis.founded(b"r" * 16, b"t" * 32, 1, 2)

    (stage,) = decide.stages
    assert [member.peer for member in stage.members] == [ann.peer, bob.peer]
    assert stage.holders == b"\x00\x01"
    assert stage.gradient == as_recorded(b"g")
    assert term_of(decide.generation) == TERM
    head = dataclasses.replace(genesis.head(), trainers=(key_of_zeros(),))
    run = b"r" * 16, dataclasses.replace(CONFIG, stages=1)
    record = unsigned_record(decide, head, TERM, *run, head.trainers, head.voters)
    check_next(genesis, head, record)


def key_of_zeros() -> bytes:
    """The peer of the key that an unsigned record has."""
    genesis = Genesis(b"r" * 16, 1, 2, (b"t" * 32,), (VoterId(b"t" * 32, bytes(8)),))
    _, _, decide = deciding()
    run = b"r" * 16, CONFIG
    return unsigned_record(
        decide, genesis.head(), TERM, *run, (b"t" * 32,), genesis.voters
    ).coordinator


def test_a_member_that_is_lost_while_the_voters_are_asked_changes_nothing():
    play, (ann, bob), decide = deciding()

    play.lose(ann)
    play.seen(MemberLost)
    play.wait(1.0)
    assert play.seen(act.Launch) == []
    play.coordinator.on_decision(decide.step, play.now_s)

    actions = play.coordinator.drain()
    assert [a.incarnation for a in actions if isinstance(a, act.SendCommit)] == [bob]
    assert any(isinstance(a, StepDone) for a in actions)


def test_one_that_comes_back_meanwhile_is_sent_the_commit_afterwards():
    play, (ann, _), decide = deciding()
    play.lose(ann)
    held = (HeldReduction(0, decide.generation, b"g"),)
    play.join("a", stage=0, version=0, digest=b"w0", held=held)
    assert play.seen(act.Assign) == []

    play.coordinator.on_decision(decide.step, play.now_s)

    actions = play.coordinator.drain()
    (assigned,) = (a for a in actions if isinstance(a, act.Assign))
    assert assigned.message.keep
    commits = [a.incarnation for a in actions if isinstance(a, act.SendCommit)]
    assert assigned.incarnation in commits


def test_a_trainer_that_was_deposed_commits_nothing():
    play, _, decide = deciding()

    play.coordinator.close()
    play.coordinator.on_decision(decide.step, play.now_s)

    assert play.coordinator.drain() == []


def test_answers_to_the_reduction_that_come_late_ask_nobody_twice():
    play, (ann, _), decide = deciding()

    play.told_reduced(ann, decide.generation)

    assert play.seen(act.Decide) == []


def test_a_coordinator_of_a_term_numbers_lives_and_generations_from_there():
    _, (ann, bob), decide = deciding()

    assert (ann.number, bob.number) == (first_number(TERM) + 1, first_number(TERM) + 2)
    assert decide.generation == first_number(TERM) + 1


CONFIG_3 = RunConfig(stages=1, steps=3, batch=BatchConfig(microbatches=2, evaluate_every=0))


@pytest.mark.parametrize("gradient", [b"g", b"other"])
def test_a_coordinator_after_a_record_sends_its_commit_to_one_that_lacks_it(gradient):
    last = DecidedStep(0, 0.5, 0.1, {0: as_recorded(b"g")}, {0: as_recorded(b"w0")})
    play = Play(CONFIG_3, kind=Coordinator, start=CoordinatorStart(TERM, 1, last))

    held = (HeldReduction(0, 99, gradient),)
    play.join("a", stage=0, version=0, digest=b"w0", held=held)

    actions = play.coordinator.drain()
    (assigned,) = (a for a in actions if isinstance(a, act.Assign))
    assert assigned.message.since == 1
    assert assigned.message.keep == (gradient == b"g")
    commits = [a.message for a in actions if isinstance(a, act.SendCommit)]
    assert [(c.step, c.generation, c.scale) for c in commits] == (
        [(0, 99, 0.5)] if gradient == b"g" else []
    )


def test_after_the_last_record_only_the_last_commit_has_to_arrive():
    last = DecidedStep(2, 0.5, 0.1, {0: as_recorded(b"g")}, {})
    play = Play(CONFIG_3, kind=Coordinator, start=CoordinatorStart(TERM, 3, last))

    play.join("a", stage=0, version=3, digest=b"w3")

    (ended,) = play.seen(RunFinished)
    assert not ended.failed


def test_an_unknown_state_is_recorded_as_zeros():
    assert as_recorded(b"") == NO_DIGEST
