"""Servers that fetch before they leave: when they change stage, and when they stay after all."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.balance.move_preparation import (
    LACKING_MAX,
    PREPARE_S,
    ChangeStage,
    PreparedMove,
    PreparedMoves,
    StageDecided,
    StopPreparing,
)

STAGES = 3
MOVER, OTHER = Incarnation(b"a" * 32, 7), Incarnation(b"b" * 32, 8)
MOVE = PreparedMove(MOVER, 0, 1)
BACK = PreparedMove(OTHER, 1, 0)
PLENTY = (9, 9, 9)


def had(stage: int, step: int) -> StageDecided:
    """What a stage has in a step."""
    return StageDecided(f"state {stage} {step}".encode(), f"gradient {stage} {step}".encode())


def asked(*moves: PreparedMove) -> PreparedMoves:
    prepared = PreparedMoves()
    prepared.begin(moves, 0.0)
    return prepared


def commit(prepared: PreparedMoves, step: int, *, helps: bool = True) -> list[object]:
    """What ends at the commit of a step."""
    prepared.on_commit(step, {one: had(one, step) for one in range(STAGES)}, lambda _moves: helps)
    return list(prepared.drain())


def test_a_mover_that_has_all_changes_at_that_very_commit():
    prepared = asked(MOVE)
    assert prepared.movers(5).by_stage == {1: [MOVER]}

    assert commit(prepared, 4) == []
    prepared.on_observation(MOVER, 5, had(1, 5))

    assert commit(prepared, 5) == [ChangeStage(MOVE, whole=True)]
    assert not prepared.moves
    assert not prepared.movers(6).by_stage


def test_one_that_still_fetches_says_no_state_and_stays():
    prepared = asked(MOVE)
    for step in range(20):
        prepared.on_observation(MOVER, step, StageDecided(b"", had(1, step).gradient))
        assert commit(prepared, step) == []


def test_one_whose_answer_is_late_changes_and_has_one_gradient_to_wait_for():
    prepared = asked(MOVE)
    assert commit(prepared, 0) == []
    prepared.on_observation(MOVER, 0, had(1, 0))

    assert commit(prepared, 1) == [ChangeStage(MOVE, whole=False)]


def test_who_changes_with_the_step_that_is_reduced_is_told_to_the_members():
    prepared = asked(MOVE)
    assert commit(prepared, 0) == []
    assert not prepared.movers(1).prompt
    prepared.on_observation(MOVER, 0, had(1, 0))

    assert prepared.movers(1).prompt == {MOVER}
    assert not prepared.movers(2).prompt


def test_of_an_exchange_neither_is_hurried_while_one_fetches():
    prepared = asked(MOVE, BACK)
    assert commit(prepared, 0) == []
    prepared.on_observation(MOVER, 0, had(1, 0))

    assert not prepared.movers(1).prompt


def test_one_that_is_behind_by_a_whole_step_does_not_change():
    prepared = asked(MOVE)
    for step in range(20):
        assert commit(prepared, step) == []
        if step:
            prepared.on_observation(MOVER, step - 1, had(1, step - 1))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda step: StageDecided(b"another", had(1, step).gradient),
        lambda step: StageDecided(had(1, step).state, b"another"),
        lambda step: had(0, step),
    ],
)
def test_one_whose_state_is_wrong_twice_stays(wrong):
    prepared = asked(MOVE)
    prepared.on_observation(MOVER, 0, wrong(0))
    assert commit(prepared, 0) == []
    assert commit(prepared, 1) == []  # the same answer does not count again
    prepared.on_observation(MOVER, 2, wrong(2))

    (end,) = commit(prepared, 2)
    assert isinstance(end, StopPreparing)
    assert "not the stage's" in end.reason


def test_a_state_that_nobody_knows_proves_nothing_and_blames_nobody():
    prepared = asked(MOVE)
    for step in range(9):
        nothing = StageDecided(b"", b"gradient")
        prepared.on_observation(MOVER, step, had(1, step))
        prepared.on_commit(step, {0: nothing, 1: nothing}, lambda _moves: True)
        assert not prepared.drain()


def test_an_exchange_changes_at_one_commit():
    prepared = asked(MOVE, BACK)
    prepared.on_observation(MOVER, 0, had(1, 0))
    assert commit(prepared, 0) == []  # the other one fetches
    prepared.on_observation(MOVER, 1, had(1, 1))
    prepared.on_observation(OTHER, 1, had(0, 1))

    assert commit(prepared, 1) == [ChangeStage(MOVE, whole=True), ChangeStage(BACK, whole=True)]


def test_an_exchange_of_which_one_dies_is_off():
    prepared = asked(MOVE, BACK)
    prepared.on_end(MOVER)

    (end,) = prepared.drain()
    assert isinstance(end, StopPreparing)
    assert end.move == BACK
    assert not prepared.moves


def test_a_mover_that_dies_needs_no_word():
    prepared = asked(MOVE)
    prepared.on_end(MOVER)
    assert not prepared.drain()
    assert not prepared.moves


def test_a_move_that_helps_nobody_any_more_is_not_made():
    prepared = asked(MOVE)
    prepared.on_observation(MOVER, 3, had(1, 3))

    (end,) = commit(prepared, 3, helps=False)
    assert isinstance(end, StopPreparing)
    assert "help nobody" in end.reason


@pytest.mark.parametrize(
    ("ready", "kept", "reason"),
    [((2, 3, 3), 2, "keeps 2 servers"), ((5, 0, 5), 2, "nobody serves the new stage")],
)
def test_a_stage_that_lost_somebody_meanwhile_keeps_the_mover(ready, kept, reason):
    prepared = asked(MOVE)
    prepared.stop_harmful((3, 3, 3), kept, 1.0)
    assert not prepared.drain()

    prepared.stop_harmful(ready, kept, 2.0)
    (end,) = prepared.drain()
    assert isinstance(end, StopPreparing)
    assert reason in end.reason


def test_an_exchange_leaves_no_stage_smaller_so_its_floor_is_the_other_ones():
    prepared = asked(MOVE, BACK)
    prepared.stop_harmful((2, 2, 2), 2, 1.0)
    assert not prepared.drain()
    prepared.stop_harmful((1, 2, 2), 2, 1.0)
    assert len(prepared.drain()) == 2


def test_of_several_that_leave_one_stage_the_last_one_stays():
    later = PreparedMove(OTHER, 0, 2)
    prepared = asked(MOVE)
    prepared.begin([later], 1.0)
    prepared.stop_harmful((3, 3, 3), 2, 1.0)

    (end,) = prepared.drain()
    assert isinstance(end, StopPreparing)
    assert end.move == later
    assert prepared.moves == (MOVE,)


def test_who_takes_too_long_stays():
    prepared = asked(MOVE)
    prepared.stop_harmful(PLENTY, 2, PREPARE_S - 1.0)
    assert not prepared.drain()
    prepared.stop_harmful(PLENTY, 2, PREPARE_S)
    assert len(prepared.drain()) == 1


def test_who_lacks_memory_says_how_much_and_the_other_of_an_exchange_is_told():
    prepared = asked(MOVE, BACK)
    prepared.on_refusal(MOVER, 3_100_000_000)

    (end,) = prepared.drain()
    assert isinstance(end, StopPreparing)
    assert end.move == BACK
    assert "lacks 3.1 GB" in end.reason
    assert prepared.too_large(MOVER.peer, 2) == {1}
    prepared.on_end(Incarnation(MOVER.peer, 9))
    assert not prepared.too_large(MOVER.peer, 2)  # what comes back may be larger


def test_what_was_refused_is_remembered_of_so_many_only():
    prepared = PreparedMoves()
    for number in range(LACKING_MAX + 10):
        mover = Incarnation(number.to_bytes(32, "big"), number)
        prepared.begin([PreparedMove(mover, 0, 1)], 0.0)
        prepared.on_refusal(mover, 1)
    peers = (n.to_bytes(32, "big") for n in range(LACKING_MAX + 10))
    known = sum(prepared.too_large(peer, 2) == {1} for peer in peers)
    assert known == LACKING_MAX


@pytest.mark.parametrize("moves", [(MOVE, MOVE), (PreparedMove(MOVER, 1, 1),)])
def test_nobody_prepares_twice_or_for_its_own_stage(moves):
    with pytest.raises(ValueError, match="stage"):
        asked(*moves)


MOVERS = tuple(Incarnation(bytes([n]) * 32, n) for n in range(5))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("swap"), st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)),
        st.tuples(st.just("observe"), st.integers(0, 4), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("commit"), st.booleans()),
        st.tuples(st.just("lost"), st.integers(0, 4)),
        st.tuples(st.just("refuse"), st.integers(0, 4)),
        st.tuples(st.just("look"), st.lists(st.integers(0, 5), min_size=3, max_size=3)),
    ),
    max_size=60,
)


class _Told:
    """A machine, and what has been told to it and by it."""

    def __init__(self) -> None:
        self.prepared = PreparedMoves()
        self.asked: Counter[PreparedMove] = Counter()
        self.over: Counter[PreparedMove] = Counter()
        self.answers: dict[Incarnation, tuple[int, StageDecided]] = {}
        self.pairs: dict[PreparedMove, PreparedMove] = {}
        self.prompt: frozenset[Incarnation] = frozenset()
        self.step = 0

    def ask(self, *moves: PreparedMove) -> None:
        movers = {one.mover for one in self.prepared.moves} | {one.mover for one in moves}
        if len(movers) < len(self.prepared.moves) + len(moves):
            return
        if any(one.source == one.target for one in moves):
            return
        self.prepared.begin(moves, 0.0)
        self.asked.update(moves)
        for one in moves:
            self.answers.pop(one.mover, None)
            self.pairs.pop(one, None)
        if len(moves) == 2:
            self.pairs |= {moves[0]: moves[1], moves[1]: moves[0]}

    def drain(self, silent: Incarnation | None = None) -> None:
        """What has ended; `silent`: the mover that is told nothing."""
        before = {move for move in self.asked if self.asked[move] > self.over[move]}
        ended = self.prepared.drain()
        for move in before - set(self.prepared.moves):
            told = [one for one in ended if one.move == move]
            assert len(told) == (move.mover != silent)
            self.over[move] += 1
        changed = [one.move for one in ended if isinstance(one, ChangeStage)]
        for one in ended:
            if isinstance(one, ChangeStage):
                step, held = self.answers[one.move.mover]
                assert step in (self.step, self.step - 1)
                assert (step == self.step) is one.whole
                assert one.whole or one.move.mover in self.prompt
                assert held == had(one.move.target, step)
            assert one.move not in self.prepared.moves
        for move in changed:
            assert self.pairs.get(move, move) in changed


@given(EVENTS)
def test_whatever_happens_nobody_changes_without_the_stages_own_weights(events):
    told = _Told()
    for event in events:
        match event:
            case "ask", who, source, target:
                told.ask(PreparedMove(MOVERS[who], source, target))
            case "swap", one, other, stage:
                second = (stage + 1) % STAGES
                told.ask(
                    PreparedMove(MOVERS[one], stage, second),
                    PreparedMove(MOVERS[other], second, stage),
                )
            case "observe", who, back, right:
                mover, step = MOVERS[who], max(0, told.step - back)
                moves = [move for move in told.prepared.moves if move.mover == mover]
                held = had(moves[0].target, step) if moves and right else had(9, step)
                told.prepared.on_observation(mover, step, held)
                last, _ = told.answers.get(mover, (-1, held))
                if moves and step >= last:
                    told.answers[mover] = step, held
            case "commit", helps:
                told.prompt = told.prepared.movers(told.step).prompt
                decided = {one: had(one, told.step) for one in range(STAGES)}
                told.prepared.on_commit(told.step, decided, lambda _moves, helps=helps: helps)
                told.drain()
                told.step += 1
            case "lost", who:
                told.prepared.on_end(MOVERS[who])
                told.drain(MOVERS[who])
            case "refuse", who:
                told.prepared.on_refusal(MOVERS[who], 5)
                told.drain(MOVERS[who])
            case "look", ready:
                told.prepared.stop_harmful(ready, 2, 1.0)
                told.drain()
                for move in told.prepared.moves:
                    assert ready[move.target]
                    leave = [one for one in told.prepared.moves if one.source == move.source]
                    apart = [one for one in leave if one not in told.pairs]
                    assert ready[move.source] - len(apart) >= 2
        observing = [one for at in told.prepared.movers(0).by_stage.values() for one in at]
        assert sorted(observing) == sorted(one.mover for one in told.prepared.moves)
