"""A trainer's reports, told to people: what is added up, and what is said."""

import pytest

from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.reporter import LOAD_OLD_S, PEERS_EVERY_S, WHY_EVERY_S, Reporter
from p2pswarm.plan.moves import Decision
from p2pswarm.progress.events import (
    Checkpointed,
    Departure,
    HeldOut,
    Joined,
    LeadershipTaken,
    Left,
    MachineFacts,
    MicrobatchCounts,
    MicrobatchesAgain,
    PeerLine,
    Peers,
    RolledBack,
    Serving,
    Started,
    StoodBy,
    Waiting,
    Why,
)
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.cost import MachinePrice
from p2pswarm.run.messages.membership import Load, MemberFacts
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.trainer.balance.balance_reports import BalanceAsked, StageState
from p2pswarm.trainer.reports.cost import ServerPriced
from p2pswarm.trainer.reports.leadership import Leads, StandbyTaken, SteppedDown, TrainerEnlisted
from p2pswarm.trainer.reports.reports import (
    ChainGrown,
    FactsKnown,
    Loaded,
    MemberJoined,
    MemberLost,
    MemberReady,
    Replayed,
    RunBegun,
    RunFinished,
    StepDone,
    WentBack,
    WrongResult,
)

RUN = RunConfig(
    steps=3,
    batch=BatchConfig(microbatches=4, rows=2),
    model=ModelConfig(sequence_length=128),
)
STEP_TOKENS = 4 * 2 * 128
LIFE = Incarnation(bytes(31) + b"\x01", 1)
NAME = PeerId(LIFE.peer).short


def begun(at_s: float = 100.0) -> Reporter:
    telling = Reporter(RUN, 1000)
    assert telling.on_report(RunBegun(), at_s) == [Started(1000)]
    return telling


def done(step: int) -> StepDone:
    return StepDone(step, 3.0, 0.5, 1e-3, 4)


def load(rate: float, queued: int = 0) -> Load:
    return Load(queued, 0.0, 0.0, rate, 0)


def test_time_counts_from_the_first_step():
    telling = Reporter(RUN, 1000)

    assert telling.on_report(Waiting((0, 1)), 90.0) == [Waiting((0, 1))]
    telling.on_report(RunBegun(), 100.0)
    assert telling.on_report(HeldOut(0, 5.5), 101.5) == [HeldOut(0, 5.5, seconds=1.5)]


def test_a_trainer_that_leads_again_names_only_servers_that_joined_it_since():
    telling = begun()
    telling.on_report(MemberReady(LIFE, 0), 101.0)
    telling.on_report(SteppedDown("this trainer follows another one"), 102.0)

    telling.on_report(Leads(3, 2), 110.0)
    again = Incarnation(LIFE.peer, 9)
    told = telling.on_report(MemberJoined(again, 0, "a:1"), 111.0)

    assert told[-1] == Peers((PeerLine(NAME, 0, False, 0, 0.0),), seconds=11.0)


def test_time_goes_on_when_a_trainer_leads_again_and_begins_with_one_that_did_not_before():
    again, first = begun(at_s=100.0), Reporter(RUN, 1000)

    told = again.on_report(Leads(3, 2), 110.0), first.on_report(Leads(3, 2), 110.0)

    assert told[0] == [Started(1000, seconds=10.0), LeadershipTaken(3, 2, seconds=10.0)]
    assert told[1] == [Started(1000), LeadershipTaken(3, 2)]
    assert first.on_report(done(2), 112.0)[0].seconds == 2.0


def test_a_successor_rates_the_run_by_its_own_steps():
    telling = Reporter(RUN, 1000)
    telling.on_report(Leads(3, 2), 110.0)
    telling.on_report(done(2), 112.0)

    (ended,) = telling.on_report(RunFinished("done", failed=False), 113.0)

    assert ended.tokens_per_s == STEP_TOKENS / 2


def test_after_a_run_has_gone_back_only_servers_that_joined_anew_are_named():
    telling = begun()
    telling.on_report(MemberReady(LIFE, 0), 101.0)

    telling.on_report(WentBack(1, 2), 110.0)
    again = Incarnation(LIFE.peer, 9)
    told = telling.on_report(MemberJoined(again, 0, "a:1"), 111.0)

    assert told[-1] == Peers((PeerLine(NAME, 0, False, 0, 0.0),), seconds=11.0)


def test_a_run_that_is_offered_says_once_what_it_waits_for():
    reporter = Reporter(RunConfig(stages=3), 1000)

    told = [*reporter.on_report(Leads(1, 0), 5.0), *reporter.on_report(Waiting((0, 1, 2)), 5.0)]

    assert told == [Waiting((0, 1, 2))]


def test_a_step_counts_what_all_stages_counted_and_asks_for_the_next():
    telling = begun()

    tallies = [telling.on_report(done(i), 101.0 + i)[0].counts for i in range(3)]

    assert tallies == [
        MicrobatchCounts(8, 4, 0),
        MicrobatchCounts(12, 8, 0),
        MicrobatchCounts(12, 12, 0),
    ]


def test_throughput_is_told_over_the_last_steps():
    telling = begun()

    first = telling.on_report(done(0), 102.0)[0]
    second = telling.on_report(done(1), 103.0)[0]

    assert first.tokens_per_s == pytest.approx(STEP_TOKENS / 2)
    assert second.tokens_per_s == pytest.approx(2 * STEP_TOKENS / 3)
    assert (first.step, second.step) == (1, 2)
    assert second.seconds == pytest.approx(3.0)


def test_the_end_tells_the_whole_runs_throughput():
    telling = begun()
    telling.on_report(done(0), 102.0)

    ended = telling.on_report(RunFinished("stage 1 is bare", failed=True), 150.0)[0]

    assert (ended.step, ended.reason, ended.failed) == (1, "stage 1 is bare", True)
    assert ended.tokens_per_s == pytest.approx(STEP_TOKENS / 2)
    assert ended.counts == MicrobatchCounts(8, 4, 0)


def test_a_run_that_ends_before_its_first_step_has_no_throughput():
    ended = Reporter(RUN, 1000).on_report(RunFinished("nobody came", failed=True), 1.0)[0]

    assert (ended.step, ended.tokens_per_s, ended.counts) == (0, 0.0, MicrobatchCounts(0, 0, 0))


def test_a_run_that_goes_on_counts_its_steps_from_there():
    telling = Reporter(RUN, 1000, done=1)
    telling.on_report(RunBegun(), 100.0)

    steps = [telling.on_report(done(i), 101.0 + i)[0] for i in (1, 2)]
    (ended,) = telling.on_report(RunFinished("done", failed=False), 104.0)

    assert [event.step for event in steps] == [2, 3]
    assert (ended.step, ended.tokens_per_s) == (3, 2 * STEP_TOKENS / 3)


@pytest.mark.parametrize(("at", "lost"), [(1, "the steps up to 2 are done anew"), (2, "nothing")])
def test_a_run_that_goes_back_counts_the_steps_from_there(at, lost):
    telling = begun()
    telling.on_report(done(1), 101.0)
    telling.on_report(done(2), 102.0)

    (back,) = telling.on_report(WentBack(at, 2), 110.0)
    (again,) = telling.on_report(done(at), 112.0)

    assert back == RolledBack(at, 2, seconds=10.0)
    assert f"gone back to its checkpoint of step {at}: {lost}" in back.text
    assert (again.step, again.tokens_per_s) == (at + 1, STEP_TOKENS / 2)
    assert again.counts.counted == (at + 1) * RUN.batch.microbatches


def test_a_checkpoint_is_told():
    (event,) = begun().on_report(Checkpointed(2, "/there", 0.25), 103.0)

    assert event == Checkpointed(2, "/there", 0.25, seconds=3.0)


def test_replays_are_counted_and_said():
    telling = begun()

    told = telling.on_report(Replayed(0, (1, 2), "it was late"), 101.0)
    telling.on_report(Replayed(0, (1,), "again"), 101.0)

    assert told == [MicrobatchesAgain(0, 2, "it was late", seconds=1.0)]
    assert telling.on_report(done(0), 102.0)[0].counts.replayed == 3


def test_a_servers_life_is_told_from_joining_to_loss():
    telling = begun()

    joined = telling.on_report(MemberJoined(LIFE, 1, "a:1"), 100.0)
    ready = telling.on_report(MemberReady(LIFE, 1), 101.0)
    lost = telling.on_report(MemberLost(LIFE, 1, "link lost", 3), 102.0)

    assert joined == [
        Joined(NAME, 1),
        Peers((PeerLine(NAME, 1, False, 0, 0.0),)),
    ]
    assert ready[0] == Serving(NAME, 1, seconds=1.0)
    assert ready[1] == Peers((PeerLine(NAME, 1, True, 0, 0.0),), seconds=1.0)
    assert lost == [
        Left(NAME, 1, Departure.LOST, "link lost", 3, seconds=2.0),
        Peers((), seconds=2.0),
    ]


def test_loads_are_told_but_not_each_of_them():
    telling = begun()
    telling.on_report(MemberReady(LIFE, 0), 100.0)

    soon = telling.on_report(Loaded(LIFE, 0, load(2.0, queued=1)), 100.0 + PEERS_EVERY_S / 2)
    later = telling.on_report(Loaded(LIFE, 0, load(3.0, queued=2)), 100.0 + PEERS_EVERY_S)

    assert soon == []
    assert later == [Peers((PeerLine(NAME, 0, True, 2, 3.0),), seconds=PEERS_EVERY_S)]


def test_a_server_that_has_fallen_silent_counts_nothing():
    """The trainer waits for it, and what it told last would look like work."""
    telling, other = begun(), Incarnation(bytes(32), 7)
    for one in (LIFE, other):
        telling.on_report(MemberReady(one, 0), 100.0)
        telling.on_report(Loaded(one, 0, load(2.0)), 101.0)

    (late,) = telling.on_report(Loaded(other, 0, load(3.0)), 101.1 + LOAD_OLD_S)
    (back,) = telling.on_report(Loaded(LIFE, 0, load(2.0)), 102.0 + LOAD_OLD_S)

    assert [line.rate_per_s for line in late.peers] == [0.0, 3.0]
    assert [line.rate_per_s for line in back.peers] == [2.0, 3.0]


def test_the_load_of_somebody_unknown_is_passed_over():
    told = begun().on_report(Loaded(LIFE, 0, load(2.0)), 101.0)

    assert told == [Peers((), seconds=1.0)]


def test_when_the_run_is_over_servers_that_wait_for_its_weights_are_told_no_more():
    """A script reads `Ended`, and after it only what becomes of the run's files."""
    telling = begun()
    telling.on_report(MemberReady(LIFE, 0), 100.0)
    telling.on_report(RunFinished("done", False), 101.0)

    assert telling.on_report(Loaded(LIFE, 0, load(3.0)), 101.0 + 9 * PEERS_EVERY_S) == []
    (left,) = telling.on_report(MemberLost(LIFE, 0, "it left", 0), 109.0)
    assert left.text == f"server {NAME} of stage 0 is lost: it left"


def test_a_step_that_a_new_leader_has_from_the_one_before_is_counted_once():
    telling = Reporter(RUN, 1000)

    (inherited,) = telling.on_report(done(1), 100.0)
    telling.on_report(Leads(2, 2), 100.0)
    (next_one,) = telling.on_report(done(2), 103.0)

    assert (inherited.step, next_one.step) == (2, 3)
    assert next_one.counts.counted == 3 * 4


def test_what_a_server_measures_of_itself_is_told():
    telling = begun()
    telling.on_report(MemberReady(LIFE, 0), 100.0)
    capacity = Capacity(forward_s=0.123456, queue_s=0.5, free_bytes=2**34, up_bytes_per_s=1e6)
    told = Load(2, 0.0, 0.0, 3.33333, 7, unheard_s=0.25, weights_share=0.63, capacity=capacity)

    (peers,) = telling.on_report(Loaded(LIFE, 0, told), 101.0)

    (line,) = peers.peers
    assert (line.rate_per_s, line.forward_s, line.backward_s) == (3.333, 0.1235, None)
    assert (line.recomputed, line.unheard_s, line.free_bytes) == (7, 0.25, 2**34)
    assert (line.up_bytes_per_s, line.weights_share) == (1e6, 0.63)


def test_a_step_says_who_counted_how_many_digests_agree_and_the_head_of_the_chain():
    telling = begun()
    telling.on_report(MemberReady(LIFE, 0), 100.0)
    telling.on_report(MemberLost(Incarnation(bytes(32), 7), 0, "gone", 2), 100.5)
    telling.on_report(ChainGrown(9, bytes(range(32))), 101.0)

    step = StepDone(0, 3.0, 0.5, 1e-3, 4, counted=((LIFE, 4),), equal=3, compared=4)
    (stepped,) = telling.on_report(step, 102.0)
    (peers,) = telling.on_report(Loaded(LIFE, 0, load(1.0)), 103.0)

    assert (stepped.equal, stepped.compared, stepped.took_s) == (3, 4, 2.0)
    assert (stepped.height, stepped.head) == (9, "000102030405")
    assert stepped.counts.voided == 2
    assert peers.peers[0].counted == 4


FACTS = MemberFacts("attic\u202e", "cpu", 8, "Berlin", "0.1.0")


def test_a_machine_is_told_of_once_and_its_name_stands_beside_its_id():
    telling = begun()
    told = telling.on_report(FactsKnown(LIFE, FACTS), 100.0)
    again = telling.on_report(FactsKnown(Incarnation(LIFE.peer, 2), FACTS), 101.0)

    joined = telling.on_report(MemberJoined(LIFE, 1, "a:1"), 102.0)[0]
    (note,) = telling.on_report(WrongResult(LIFE, 1, 7, "it lied", None), 103.0)

    assert told == [MachineFacts(NAME, "attic?", "cpu", 8, "Berlin", "0.1.0")]
    assert again == []
    assert joined.text == f"server {NAME} (attic?) joins stage 1"
    assert note.text.startswith(f"server {NAME} (attic?) of stage 1 computes wrong")
    assert (note.kind, note.servers) == ("wrongresult", (NAME,))


def test_an_incarnation_that_changes_its_facts_all_the_time_is_not_heard():
    telling = begun()
    telling.on_report(FactsKnown(LIFE, FACTS), 100.0)

    other = MemberFacts("cellar", "cpu", 8, "", "0.1.0")
    assert telling.on_report(FactsKnown(LIFE, other), 101.0) == []
    back = telling.on_report(FactsKnown(Incarnation(LIFE.peer, 2), other), 102.0)
    assert back[0].name == "cellar"


def test_a_price_stands_beside_its_server_as_it_was_told():
    telling = begun()
    telling.on_report(ServerPriced(LIFE, MachinePrice(0.35, "EUR")), 100.0)
    told = telling.on_report(MemberJoined(LIFE, 1, "a:1"), 100.0)[-1]
    telling.on_report(ServerPriced(LIFE, MachinePrice()), 101.0)
    own = telling.on_report(MemberReady(LIFE, 1), 101.0)[-1]

    assert [(line.price_per_hour, line.currency) for line in told.peers] == [(0.35, "EUR")]
    assert [(line.price_per_hour, line.currency) for line in own.peers] == [(None, "")]


def asked(why: str, *rates: float) -> BalanceAsked:
    stages = tuple(StageState(rate, None, 1, 0) for rate in rates)
    return BalanceAsked(Decision(why=why), stages, 1)


def test_why_nobody_moves_is_told_when_the_reason_changes_and_not_too_often():
    telling = begun()
    later_s = 100.0 + WHY_EVERY_S

    told = [
        telling.on_report(asked("the next move is in 9 s", 4.0, 2.0), 100.0),
        telling.on_report(asked("the next move is in 8 s", 4.0, 2.0), later_s),
        telling.on_report(asked("all queues are as long", 4.0, 2.0), later_s + 1.0),
        telling.on_report(asked("no server to spare", 4.0, 2.0), later_s + 2.0),
    ]

    assert told == [
        [Why("the next move is in 9 s", (4.0, 2.0), 1)],
        [],
        [Why("all queues are as long", (4.0, 2.0), 1, seconds=WHY_EVERY_S + 1.0)],
        [],
    ]


@pytest.mark.parametrize(
    ("report", "trainer"),
    [
        (SteppedDown("another one leads"), ""),
        (StandbyTaken(LIFE.peer, "a:1"), ""),
        (TrainerEnlisted(LIFE.peer, "a:1"), NAME),
    ],
)
def test_who_stands_by_is_told(report, trainer):
    assert begun().on_report(report, 101.0) == [StoodBy(trainer, report.text, seconds=1.0)]
