"""The coordinator moves servers right after a commit, and places who comes by what was measured."""

import dataclasses

import pytest
from trainer.harness import Play

from p2pswarm.config import BalanceConfig, BatchConfig, RunConfig
from p2pswarm.swarm.messages.capacity import Capacity
from p2pswarm.swarm.messages.membership import Load
from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.balance import BACK_S, REJOIN_S, BalanceAsked, OrderedMove

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
        for stage, names in enumerate((FAST, SLOW)):
            for name in names:
                join = dataclasses.replace(self.join_message(stage), pinned=name in pinned)
                self.coordinator.joined(name.encode() * 32, join, self.now_s)
                self.ready(self.member(name))
        self.tell_loads()
        self.seen(object)

    def member(self, name: str) -> Incarnation:
        return self.coordinator.members.of_peer(name.encode() * 32).incarnation

    def tell_loads(self) -> None:
        for name in FAST:
            self.coordinator.loaded(self.member(name), load(1.0))
        for name in SLOW:  # the last stage has no backward of its own
            self.coordinator.loaded(self.member(name), load(0.0, forward_s=4.0))

    def step(self, seconds: float = 10.0) -> list:
        """A whole step, whose commit is decided; what the coordinator asked for then."""
        self.now_s += seconds
        ready = self.coordinator.members.ready()
        for one in ready:
            self.coordinator.silence.heard(one.incarnation, self.now_s)
        for stage in (0, 1):
            first = next(one for one in ready if one.stage == stage).incarnation
            numbers = 2 * self.version, 2 * self.version + 1
            self.count(first, *numbers, step=self.version)
        generation = self.seen(act.SendReduce)[-1].message.generation
        for one in ready:
            self.states[one.incarnation] = f"w{self.version}".encode()
            self.told_reduced(one.incarnation, generation)
        asked = self.coordinator.actions()
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
    (lost,) = (one for one in actions if isinstance(one, act.MemberLost))
    assert lost.voided == 0


def test_the_papers_rule_goes_by_the_queues_of_the_last_minute_not_by_the_empty_ones_of_a_commit():
    play = Uneven(config_of(BalanceConfig(rule="swarm", every_s=15.0)))
    for _ in range(20):
        for name in SLOW:
            busy = dataclasses.replace(load(0.0, forward_s=4.0), queued=3)
            play.coordinator.loaded(play.member(name), busy)
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
    play.coordinator.will_leave(play.member("d"), 1e6, play.now_s)
    for _ in range(4):
        actions = play.step()
        assert not orders(actions)

    (asked,) = (one for one in actions if isinstance(one, BalanceAsked))
    assert asked.decision.stay == (("was told which stage to serve", 3),)


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
    play.coordinator.loaded(play.member("a"), load(forward_s))

    (asked,) = (one for one in play.step() if isinstance(one, BalanceAsked))

    assert asked.stages[0].unmeasured == 1


def test_a_server_that_says_that_it_does_everything_at_once_moves_no_more_than_others():
    """It keeps others away from its stage, and is worth no more than the fastest time allowed."""
    play = Uneven()
    play.coordinator.loaded(play.member("s"), load(1e-5))
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
