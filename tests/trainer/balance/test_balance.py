"""The coordinator moves servers right after a commit, and places who comes by what was measured."""

import dataclasses

import pytest
from trainer.harness import Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.membership import CannotPrepare, HeldReduction, Load
from p2pswarm.run.messages.step import Committed, Reduced, TiedReduced
from p2pswarm.settings.config import BalanceConfig, BatchConfig, ModelConfig, RunConfig
from p2pswarm.trainer.balance.balance import (
    BACK_S,
    REJOIN_S,
    expected_costs,
)
from p2pswarm.trainer.balance.balance_reports import (
    BalanceAsked,
    OrderedMove,
    OrderedPreparation,
)
from p2pswarm.trainer.balance.move_preparation import StopPreparing
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberLost
from p2pswarm.trainer.step.stage_digests import OTHER_WEIGHTS

AT_ONCE = BalanceConfig(steady_s=0.0)
FAST, SLOW = "abcd", "stuv"


def config_of(balance: BalanceConfig = AT_ONCE, steps: int = 99) -> RunConfig:
    batch = BatchConfig(microbatches=2, evaluate_every=0)
    return RunConfig(stages=2, steps=steps, min_replicas=4, batch=batch, balance=balance)


def load(seconds: float, **changes) -> Load:
    """What a server tells whose forward and backward take so long together."""
    numbers = {"forward_s": seconds / 3, "backward_s": seconds * 2 / 3, "error_s": 0.0} | changes
    return Load(0, 0.0, 0.0, 0.0, 0, capacity=Capacity(**numbers))


class Uneven(Play):
    """Four fast servers of stage 0 and four slow ones of stage 1."""

    def __init__(self, config: RunConfig | None = None, pinned: str = "") -> None:
        super().__init__(config or config_of())
        self.version = 0
        self.reduces: list[act.SendReduce] = []
        for stage, names in enumerate((FAST, SLOW)):
            for name in names:
                join = dataclasses.replace(self.join_message(stage), pinned=name in pinned)
                self.coordinator.on_join(name.encode() * 32, join, self.now_s)
                self.ready(self.member(name))
        self.tell_loads()
        self.seen(object)

    def member(self, name: str) -> Incarnation:
        return self.coordinator.members.of_peer(name.encode() * 32).incarnation

    def tell_loads(self) -> None:
        for name in FAST:
            self.coordinator.on_load(self.member(name), load(1.0))
        for name in SLOW:  # the last stage has no backward of its own
            self.coordinator.on_load(self.member(name), load(0.0, forward_s=4.0))

    def rates(self) -> tuple[float, ...]:
        """Of the stages, as they are told after a step."""
        (asked,) = (one for one in self.step() if isinstance(one, BalanceAsked))
        return tuple(stage.rate_per_s for stage in asked.stages)

    def step(self, seconds: float = 10.0) -> list:
        """A whole step, whose commit is decided; what the coordinator asked for then."""
        self.now_s += seconds
        ready = self.coordinator.members.ready()
        for one in ready:
            self.coordinator.silence.on_word(one.incarnation, self.now_s)
        for stage in (0, 1):
            first = next(one for one in ready if one.stage == stage).incarnation
            numbers = 2 * self.version, 2 * self.version + 1
            self.count(first, *numbers, step=self.version)
        self.reduces = self.seen(act.SendReduce)
        generation = self.reduces[-1].message.generation
        for one in ready:
            self.states[one.incarnation] = f"w{self.version}".encode()
            self.told_reduced(one.incarnation, generation)
        asked = self.coordinator.drain()
        for one in ready:
            self.commit(one.incarnation, f"w{self.version + 1}".encode(), self.version)
        self.version += 1
        return asked


def orders(actions: list) -> list[OrderedMove]:
    return [one for one in actions if isinstance(one, OrderedMove)]


def moving(play: Uneven) -> OrderedMove:
    """The first move that is ordered."""
    for _ in range(4):
        if found := orders(play.step()):
            return found[0]
    raise AssertionError("nobody moves")


def test_what_servers_have_measured_is_told_with_each_question():
    play = Uneven()

    (asked,) = (one for one in play.step() if isinstance(one, BalanceAsked))

    told = {one.peer: one for one in asked.servers}
    assert [one.peer for one in asked.servers] == sorted(told)
    assert len(told) == len(FAST + SLOW)
    assert told[b"a" * 32].stage == 0
    assert told[b"a" * 32].capacity.forward_s == pytest.approx(1 / 3)
    assert told[b"s" * 32].capacity.forward_s == 4.0
    assert told[b"s" * 32].ready


def test_a_server_is_sent_right_after_a_commit_with_an_empty_sum():
    play = Uneven()
    assert not orders(play.step())

    actions = play.step()

    (move,) = orders(actions)
    assert (move.source, move.target) == (0, 1)
    assert move.gain > 0
    (evicted,) = (one for one in actions if isinstance(one, act.Evict))
    assert evicted.incarnation == move.incarnation
    assert evicted.reason.startswith("it moves to stage 1: +")
    (lost,) = (one for one in actions if isinstance(one, MemberLost))
    assert lost.voided == 0


def test_the_papers_rule_goes_by_the_queues_of_the_last_minute_not_by_the_empty_ones_of_a_commit():
    play = Uneven(config_of(BalanceConfig(rule="swarm", every_s=15.0)))
    for _ in range(20):
        for name in SLOW:
            busy = dataclasses.replace(load(0.0, forward_s=4.0), queued=3)
            play.coordinator.on_load(play.member(name), busy)
    play.tell_loads()  # as it is when a step is counted

    (move,) = (move for _ in range(4) for move in orders(play.step()))

    assert (move.source, move.target) == (0, 1)


def test_who_was_sent_is_given_the_new_stage_and_fetches_its_weights():
    play = Uneven()
    move = moving(play)
    name = move.incarnation.peer[:1].decode()

    play.join(name, stage=0, version=play.version, digest=f"w{play.version}".encode())

    (assigned,) = (one.message for one in play.seen(act.Assign))
    assert (assigned.stage, assigned.keep) == (1, False)


def test_who_comes_back_much_later_keeps_the_stage_that_it_has():
    play = Uneven()
    move = moving(play)
    play.now_s += REJOIN_S

    play.join(move.incarnation.peer[:1].decode(), stage=0, version=0, digest=b"w0")

    (assigned,) = (one.message for one in play.seen(act.Assign))
    assert assigned.stage == 0


def test_while_one_is_on_its_way_it_counts_for_its_new_stage():
    play = Uneven()
    moving(play)

    (asked,) = (one for one in play.step() if isinstance(one, BalanceAsked))

    assert not asked.decision.moves
    assert [stage.ready for stage in asked.stages] == [3, 4]
    assert asked.stages[1].rate_per_s == pytest.approx(4 / 4 + 1)


def test_nobody_is_sent_who_was_told_its_stage_or_leaves():
    play = Uneven(pinned="abc")
    play.coordinator.on_leave_request(play.member("d"), 1e6, play.now_s)
    for _ in range(4):
        actions = play.step()
        assert not orders(actions)

    (asked,) = (one for one in actions if isinstance(one, BalanceAsked))
    assert asked.decision.stay == (("was told which stage to serve", 3),)


def test_a_server_with_a_plan_begins_where_the_plan_says_and_can_be_moved():
    play = Uneven()
    play.join("p", stage=0)

    (assigned,) = (one.message for one in play.seen(act.Assign))
    assert assigned.stage == 0, "the numbers would have it in stage 1"
    assert not play.coordinator.members.of_peer(b"p" * 32).pinned
    move = moving(play)
    name = move.incarnation.peer[:1].decode()
    play.join(name, stage=0)  # it has nothing, and knows its plan alone
    assert [one.message.stage for one in play.seen(act.Assign)] == [1]

    play.join("q", stage=0)
    assert [one.message.stage for one in play.seen(act.Assign)] == [1], "the plan is over"


def test_who_comes_back_while_it_fetches_its_weights_keeps_its_stage():
    play = Uneven()
    moving(play)
    play.join("w")
    play.seen(act.Assign)
    member = play.member("w")
    stage = play.coordinator.members.of_peer(b"w" * 32).stage
    play.coordinator.on_stream_end(member, "its link ended", play.now_s)

    play.join("w", stage=stage)

    assert [one.message.stage for one in play.seen(act.Assign)] == [stage]


def test_stages_of_a_cut_that_was_chosen_are_taken_to_cost_what_their_blocks_do():
    model = ModelConfig(d_model=64, layers=6, heads=2, sequence_length=64)
    cut = dataclasses.replace(config_of(), model=model, cut=(6, 2))
    plain = dataclasses.replace(cut, cut=())

    dear, cheap = Uneven(cut).rates()
    alike = Uneven(plain).rates()

    assert dear == pytest.approx(alike[0])
    assert cheap == pytest.approx(alike[1])
    assert expected_costs(plain) is None
    assert expected_costs(dataclasses.replace(cut, emulated=True)) is None
    one, other = expected_costs(cut)
    assert one > other
    assert one + other == pytest.approx(2.0)


def test_the_rule_is_not_asked_all_the_time():
    play = Uneven()
    assert any(isinstance(one, BalanceAsked) for one in play.step(0.1))
    assert not any(isinstance(one, BalanceAsked) for one in play.step(0.1))


def test_no_server_is_sent_after_the_last_step():
    play = Uneven(config_of(steps=1))

    assert not any(isinstance(one, BalanceAsked) for one in play.step())


def test_a_newcomer_goes_to_the_slow_stage_though_it_has_more_servers():
    play = Uneven()
    play.serve("w")
    assert play.coordinator.members.of_peer(b"w" * 32).stage == 1

    play.serve("x")

    assert play.coordinator.members.of_peer(b"x" * 32).stage == 1


def test_without_rebalancing_a_newcomer_goes_where_the_fewest_are():
    play = Uneven(config_of(BalanceConfig(rule="off")))
    play.serve("w")
    play.serve("x")

    stages = [play.coordinator.members.of_peer(one * 32).stage for one in (b"w", b"x")]
    assert stages == [0, 1]
    for _ in range(3):
        assert not orders(play.step())


@pytest.mark.parametrize("forward_s", [0.0, 1e-12, 1e8])
def test_a_time_that_no_server_can_have_counts_as_unknown(forward_s):
    play = Uneven()
    play.coordinator.on_load(play.member("a"), load(forward_s))

    (asked,) = (one for one in play.step() if isinstance(one, BalanceAsked))

    assert asked.stages[0].unmeasured == 1


def test_a_server_that_says_that_it_does_everything_at_once_moves_no_more_than_others():
    """It keeps others away from its stage, and is worth no more than the fastest time allowed."""
    play = Uneven()
    play.coordinator.on_load(play.member("s"), load(1e-5))
    for _ in range(4):
        actions = play.step()
        for move in orders(actions):
            assert (move.source, move.target) == (1, 0)


def test_servers_that_die_for_good_raise_the_floor_and_those_that_come_back_do_not():
    play = Uneven()
    floors = []
    for back in (True, False):
        for _ in range(3):
            play.lose(play.member("d"))
            if back:
                play.serve("d")
            else:
                break
        play.now_s += BACK_S
        floors += [one.floor for one in play.step() if isinstance(one, BalanceAsked)]

    balance = play.coordinator._balance
    assert balance._deaths == 1
    assert len(floors) == 2


ROOM = {"free_bytes": 1 << 32, "state_bytes": 1 << 30, "link_bytes_per_s": 25e6}


class Roomy(Uneven):
    """All servers have memory for two stages, and one of them may move."""

    def __init__(self, config: RunConfig | None = None) -> None:
        super().__init__(config, pinned="bcdstuv")

    def tell_loads(self) -> None:
        for name in FAST:
            self.coordinator.on_load(self.member(name), load(1.0, **ROOM))
        for name in SLOW:
            self.coordinator.on_load(self.member(name), load(0.0, forward_s=4.0, **ROOM))

    def prepared(self) -> OrderedPreparation:
        """The first server that is asked to prepare."""
        for _ in range(4):
            if found := [one for one in self.step() if isinstance(one, OrderedPreparation)]:
                self.tell_loads()
                return found[0]
        raise AssertionError("nobody prepares")

    def observes(self, order: OrderedPreparation, state: str) -> None:
        """The mover has the gradient of the step before, and that state."""
        held = Reduced(b"g", 1.0, 1e6, state.encode())
        self.coordinator.on_observation(order.incarnation, self.version - 1, held)


def test_who_has_room_for_both_stages_fetches_first_and_serves_on():
    play = Roomy()

    order = play.prepared()

    assert (order.source, order.target) == (0, 1)
    assert (order.order.stage, order.order.since) == (1, play.version)
    assert order.order.state_bytes == 1 << 30
    member = play.coordinator.members.alive(order.incarnation)
    assert member.ready
    assert member.stage == 0
    assert play.coordinator.beside == [(0, 1)]


def test_a_mover_observes_its_new_stage_beside_its_own_and_nobody_waits_for_it():
    play = Roomy()
    order = play.prepared()

    actions = play.step()

    to_mover = [one.message for one in play.reduces if order_of(one, order, act.SendReduce)]
    own, other = to_mover[-2:]
    assert {own.observed, other.observed} == {None, 1}
    observed = own if own.observed == 1 else other
    assert order.incarnation.peer in observed.observers
    assert order.incarnation.peer not in observed.group
    commits = [one.message for one in actions if order_of(one, order, act.SendCommit)]
    assert {one.observed for one in commits} == {None, 1}
    assert not orders(actions)


def order_of(action: object, order: OrderedPreparation, kind: type) -> bool:
    return isinstance(action, kind) and action.incarnation == order.incarnation


def test_it_changes_once_it_has_the_weights_and_the_old_stage_loses_nothing():
    play = Roomy()
    order = play.prepared()
    moves = []
    for _ in range(8):
        actions = play.step()
        moves += orders(actions)
        if moves:
            break
        play.observes(order, f"w{play.version - 1}")

    (move,) = moves
    assert move.incarnation == order.incarnation
    assert [one.voided for one in actions if isinstance(one, MemberLost)] == [0]
    assert play.coordinator.beside == []
    name = move.incarnation.peer[:1].decode()
    digest = f"w{play.version}".encode()
    play.join(name, stage=1, version=play.version, digest=digest)
    (assigned,) = (one.message for one in play.seen(act.Assign))
    assert (assigned.stage, assigned.keep) == (1, True)


def changed(play: Roomy) -> Incarnation:
    """A mover that has changed its stage, and joins before anybody has hashed the new version."""
    order = play.prepared()
    for _ in range(8):
        if orders(play.step()):
            break
        play.observes(order, f"w{play.version - 1}")
    step, generation = play.version - 1, play.reduces[-1].message.generation
    name, held = order.incarnation.peer[:1].decode(), (HeldReduction(step, generation, b"g"),)
    return play.join(name, stage=1, version=step, digest=f"w{step}".encode(), held=held)


def test_a_mover_is_ready_with_its_commit_and_not_only_with_its_digest():
    play = Roomy()
    mover = changed(play)
    (commit,) = play.seen(act.SendCommit)
    assert (commit.incarnation, commit.message.step) == (mover, play.version - 1)
    assert not play.coordinator.members.alive(mover).ready

    answer = Committed(play.version, applied=True)
    play.coordinator.on_commit_answer(mover, play.version - 1, answer, play.now_s)

    assert play.coordinator.members.alive(mover).ready
    play.ready(mover, play.version, f"w{play.version}".encode())
    play.coordinator.on_commit_answer(mover, play.version - 1, answer, play.now_s)
    assert play.coordinator.members.alive(mover).ready


def test_a_mover_whose_commit_has_made_something_else_voids_the_step():
    play = Roomy()
    mover = changed(play)
    answer = Committed(play.version, applied=True)
    play.coordinator.on_commit_answer(mover, play.version - 1, answer, play.now_s)
    play.seen(object)

    play.ready(mover, play.version, b"something else")

    evicted = {one.incarnation: one.reason for one in play.seen(act.Evict)}
    assert evicted[mover] == OTHER_WEIGHTS
    assert play.coordinator.members.alive(mover) is None


def test_who_was_not_sent_waits_for_its_digest():
    """The record is public: anybody can say that it holds what the commit applies to."""
    play = Roomy()
    changed(play)
    step, generation = play.version - 1, play.reduces[-1].message.generation
    held = (HeldReduction(step, generation, b"g"),)
    other = play.join("x", stage=1, version=step, digest=f"w{step}".encode(), held=held)

    answer = Committed(play.version, applied=True)
    play.coordinator.on_commit_answer(other, step, answer, play.now_s)

    assert not play.coordinator.members.alive(other).ready


def test_who_has_other_weights_than_the_stage_never_changes():
    play = Roomy()
    order = play.prepared()
    stopped = []
    for _ in range(8):
        actions = play.step()
        assert not orders(actions)
        stopped += [one for one in actions if isinstance(one, StopPreparing)]
        play.observes(order, "something else")

    assert stopped[0].move.mover == order.incarnation
    assert "is not the stage's" in stopped[0].reason


def test_who_finds_no_memory_stays_and_is_not_asked_again():
    play = Roomy()
    order = play.prepared()

    note = CannotPrepare(1, 1 << 30, "memory for both stages is short")
    play.coordinator.on_preparation_refusal(order.incarnation, note, play.now_s)

    (stopped,) = (one for one in play.coordinator.drain() if isinstance(one, StopPreparing))
    assert stopped.reason == note.reason
    assert play.coordinator.beside == []
    play.tell_loads()
    later = [one for _ in range(12) for one in play.step()]
    asked = [one.incarnation for one in later if isinstance(one, OrderedPreparation)]
    assert order.incarnation not in asked


def test_a_mover_that_dies_or_leaves_the_run_is_forgotten():
    play = Roomy()
    order = play.prepared()

    play.lose(order.incarnation)

    assert play.coordinator.beside == []


def test_answers_of_who_was_not_asked_change_nothing():
    play = Roomy()
    held = Reduced(b"g", 1.0, 1e6, b"w0")

    play.coordinator.on_observation(play.member("a"), 0, held)
    note = CannotPrepare(1, 5, "no room")
    play.coordinator.on_preparation_refusal(play.member("a"), note, play.now_s)

    assert not any(isinstance(one, StopPreparing) for one in play.coordinator.drain())


def test_a_refusal_of_another_stage_ends_no_move():
    play = Roomy()
    order = play.prepared()

    note = CannotPrepare(0, 1 << 30, "memory for both stages is short")
    play.coordinator.on_preparation_refusal(order.incarnation, note, play.now_s)

    assert play.coordinator.beside == [(0, 1)]


def test_moves_that_end_in_any_way_are_forgotten():
    play = Roomy()
    order = play.prepared()

    play.lose(order.incarnation)

    assert play.coordinator._balance._worth == {}


def test_who_changes_is_on_its_way_when_the_rule_is_asked():
    play = Roomy()
    order = play.prepared()
    for _ in range(8):
        actions = play.step()
        if orders(actions):
            break
        play.observes(order, f"w{play.version - 1}")

    asked = next(one for one in actions if isinstance(one, BalanceAsked))
    assert order.incarnation.peer not in {one.peer for one in asked.servers if one.ready}
    assert actions.index(orders(actions)[0]) < actions.index(asked)


def back(play: Uneven, move: OrderedMove) -> None:
    """The mover joins again, and has its weights at once."""
    incarnation = play.join(move.incarnation.peer[:1].decode())
    play.ready(incarnation, play.version, f"w{play.version}".encode())


def told_times(play: Uneven):
    """What moves take, as it was told after the next step."""
    (asked,) = (one for one in play.step() if isinstance(one, BalanceAsked))
    return asked.times


def test_how_long_a_mover_was_away_is_learnt_and_told_with_the_next_question():
    play = Uneven()
    move = moving(play)
    before = play.coordinator._balance._meter.times

    play.now_s += 2.0
    back(play, move)

    times = told_times(play)
    assert (before.unprepared, times.unprepared, times.prepared) == (0, 1, 0)
    assert times.unprepared_s < before.unprepared_s


def test_a_mover_that_never_comes_back_tells_nothing_of_moves():
    play = Uneven()
    move = moving(play)

    play.now_s += REJOIN_S
    play.step()
    back(play, move)

    assert told_times(play).unprepared == 0


def test_to_an_end_of_a_tied_model_a_server_moves_by_leaving_first():
    """A reduction of it comes from two stages, and nobody observes it beside its own."""
    plain = config_of()
    model = dataclasses.replace(plain.model, tie=True)
    play = Roomy(dataclasses.replace(plain, model=model))

    for one in play.coordinator.members.ready():
        play.tied[one.incarnation] = TiedReduced(b"t", 1.0, b"s")

    moves: list = []
    while not moves and play.version < 9:
        told = play.step()
        moves = orders(told)
        assert not [one for one in told if isinstance(one, OrderedPreparation)]

    assert [one.target for one in moves] == [1]
