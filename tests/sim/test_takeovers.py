"""Several trainers in virtual time: whichever of them is lost, the run goes on to its last step."""

import asyncio

import pytest
from sim.seed import SEED

from p2pswarm.net.wire.message import Message
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.messages import Propose
from p2pswarm.server.trainer_search import ASK_AGAIN_S
from p2pswarm.settings.config import BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.loop import run
from p2pswarm.sim.message_watch import Moment
from p2pswarm.sim.network_conditions import Host
from p2pswarm.sim.process import SimProcess
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult, small_run
from p2pswarm.trainer.reports.leadership import Leads, StandbyTaken, SteppedDown
from p2pswarm.trainer.reports.reports import MemberReady, RunFinished, StepDone
from p2pswarm.trainer.step.in_flight import FENCE_S

ALL_DONE = RunFinished("all steps are done", failed=False)
STEPS = 4
ONE_EACH = {"run": small_run(steps=STEPS, min_replicas=1), "servers": 3}
VOTERS_ASKED = 2  # of three, beside the coordinator: a majority without its own voter
STOPPED_S = 8.0  # longer than a takeover takes; the answers are in its sockets then
AFTER_A_STEP_S = 3.0  # before the first record, the founder is the only voter


def play(*faults: Fault, trainers: int = 3, **changes) -> tuple[SwarmResult, SimSwarm]:
    config = SwarmConfig(
        seed=SEED,
        trainers=trainers,
        faults=FaultPlan(trainers, faults),
        patience_s=120.0,
        **({"run": small_run(steps=STEPS)} | changes),
    )
    swarm = SimSwarm(config)
    return run(swarm.play(), config.seed), swarm


def terms(swarm: SimSwarm) -> list[int]:
    return [report.term for report in swarm.reports if isinstance(report, Leads)]


@pytest.mark.parametrize(
    "kind", [FaultKind.KILL, FaultKind.RESTART, FaultKind.FREEZE, FaultKind.REJOIN]
)
def test_another_trainer_goes_on_when_the_coordinator_is_lost(kind):
    fault = Fault(kind, AFTER_A_STEP_S, 9.0, (0,), silent=True)

    result, swarm = play(fault)

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1, 2]
    done = [report.step for report in swarm.reports if isinstance(report, StepDone)]
    assert done == list(range(STEPS))


def test_servers_do_not_wait_for_a_coordinator_that_is_cut_off_once_another_leads():
    swarm = SimSwarm(
        SwarmConfig(
            seed=SEED,
            trainers=2,
            faults=FaultPlan(2, (Fault(FaultKind.REJOIN, AFTER_A_STEP_S, 20.0, (0,)),)),
            **ONE_EACH,
        )
    )
    led_s: list[float] = []
    joined_s: list[float] = []

    def heard(report: Report) -> None:
        now_s = asyncio.get_running_loop().time()
        if isinstance(report, Leads):
            led_s.append(now_s)
        if isinstance(report, MemberReady):
            joined_s.append(now_s)

    swarm.heard = heard
    run(swarm.play(), SEED)

    back_s = [at_s for at_s in joined_s if at_s > led_s[1]][:3]
    assert len(back_s) == 3
    assert max(back_s) < led_s[1] + 2 * ASK_AGAIN_S


def test_a_standby_that_is_killed_holds_nothing_up():
    result, swarm = play(Fault(FaultKind.KILL, 1.0, 2.0, (2,)))

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1]


def test_a_standby_that_was_started_again_takes_over_from_a_coordinator_that_is_silent_by_then():
    """Nobody but the servers can tell it where those are that vote."""
    silent_s, back_s = 8.0, 10.0
    faults = (
        Fault(FaultKind.FREEZE, silent_s, 60.0, (0,)),
        Fault(FaultKind.RESTART, silent_s - 1.0, back_s - silent_s + 1.0, (1,)),
    )
    leads_s = []
    config = SwarmConfig(seed=SEED, trainers=2, faults=FaultPlan(2, faults), run=small_run(steps=8))
    swarm = SimSwarm(config)

    def heard(report: Report) -> None:
        if isinstance(report, Leads):
            leads_s.append(asyncio.get_running_loop().time())

    swarm.heard = heard
    result = run(swarm.play(), config.seed)

    assert result.ended == ALL_DONE
    assert back_s < leads_s[1] < back_s + 6.0


def test_a_lone_trainer_that_is_started_again_goes_on_from_its_chain():
    result, swarm = play(Fault(FaultKind.RESTART, 3.0, 2.0, (0,)), trainers=1)

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1, 2]


def test_a_lone_trainer_is_not_killed_for_good():
    result, swarm = play(Fault(FaultKind.KILL, 1.0, 2.0, (0,)), trainers=1)

    assert result.ended == ALL_DONE
    assert swarm.faults.happened == []


def test_two_of_three_voters_that_die_within_one_step_do_not_stop_the_run():
    """The coordinator, and seconds later the server that votes: neither ever comes back."""
    config = SwarmConfig(
        seed=SEED,
        run=small_run(steps=6, batch=BatchConfig(microbatches=8, rows=1, evaluate_every=0)),
        trainers=2,
        servers=8,
        cost=Cost(forward_s=1.0, state_bytes=1 << 14),
        patience_s=600.0,
    )
    swarm = SimSwarm(config)
    voters: list[bytes] = []

    def lose_the_coordinator() -> None:
        (disk,) = (one.disk for one in swarm.trainers.seats if one.leads)
        head = disk.restored(swarm.trainers.genesis).learner.chain.head
        voters.extend(voter.peer for voter in head.voters)
        swarm.end(0, silent=False, same=False)
        asyncio.get_running_loop().call_later(3.0, lose_the_voter)

    def lose_the_voter() -> None:
        servers = range(config.trainers, config.trainers + config.servers)
        (seat,) = (s for s in servers if swarm.process_at(s).host.peer.raw in voters)
        swarm.end(seat, silent=False, same=False)

    def heard(report: Report) -> None:
        if isinstance(report, StepDone) and report.step == 3 and not voters:
            asyncio.get_running_loop().call_later(5.0, lose_the_coordinator)

    swarm.heard = heard
    result = run(swarm.play(), config.seed)

    assert result.ended == ALL_DONE
    assert len(voters) == 3
    chain = swarm.trainers.seats[1].disk.restored(swarm.trainers.genesis).learner.chain
    assert not {voter.peer for voter in chain.head.voters} & {voters[0]}
    assert chain.head.height > config.run.steps


def test_the_same_seed_gives_the_same_takeover():
    fault = Fault(FaultKind.KILL, AFTER_A_STEP_S, 9.0, (0,))

    (first, _), (again, _) = play(fault), play(fault)

    assert first == again


@pytest.mark.parametrize(
    ("kind", "seats"),
    [
        pytest.param(FaultKind.CUT, (0, 3), id="nothing passes"),
        pytest.param(FaultKind.ONE_WAY, (0, 3), id="the server hears nothing"),
        pytest.param(FaultKind.ONE_WAY, (3, 0), id="the coordinator hears nothing"),
    ],
)
def test_a_coordinator_cut_off_from_a_stages_only_server_yields_to_a_trainer_that_reaches_it(
    kind, seats
):
    """Seat 3 is the first server, the only one of its stage; the cut outlasts every link."""
    cut_s = 60.0

    result, swarm = play(Fault(kind, AFTER_A_STEP_S, cut_s, seats), **ONE_EACH)

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1, 2]
    assert sum(isinstance(report, SteppedDown) for report in swarm.reports) == 1
    assert result.seconds < AFTER_A_STEP_S + cut_s / 2


@pytest.mark.parametrize(
    ("kind", "between"),
    [
        pytest.param(FaultKind.ONE_WAY, (1, 0), id="it does not hear the standby"),
        pytest.param(FaultKind.CUT, (1, 0), id="nothing passes between it and the standby"),
    ],
)
def test_a_coordinator_yields_to_a_standby_that_it_does_not_hear_for_a_stage_that_it_misses(
    kind, between
):
    """Seat 3 is the only server of its stage, which the standby reaches, and has no vote."""
    cut_s = 60.0

    result, swarm = play(
        Fault(kind, AFTER_A_STEP_S, cut_s, between),
        Fault(FaultKind.CUT, AFTER_A_STEP_S, cut_s, (0, 3)),
        trainers=2,
        **ONE_EACH,
    )

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1, 2]
    assert result.seconds < AFTER_A_STEP_S + cut_s / 2


def test_a_coordinator_that_yields_to_one_that_is_dead_leads_again_soon():
    cut_s = 12.0

    result, swarm = play(
        Fault(FaultKind.FREEZE, AFTER_A_STEP_S, 60.0, (1,)),
        Fault(FaultKind.CUT, AFTER_A_STEP_S, cut_s, (0, 3)),
        trainers=2,
        **ONE_EACH,
    )

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1, 2]
    assert result.seconds < AFTER_A_STEP_S + cut_s + 10.0


def test_a_coordinator_stays_where_no_trainer_reaches_the_stage_that_it_misses():
    result, swarm = play(Fault(FaultKind.FREEZE, AFTER_A_STEP_S, 30.0, (3,)), **ONE_EACH)

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1]


def test_a_server_that_stands_still_as_soon_as_it_has_joined_is_missed_like_any_other():
    """It had its weights, so it was ready, and given work, before it had said a word."""
    config = SwarmConfig(
        seed=SEED,
        run=small_run(steps=6, batch=BatchConfig(microbatches=8, rows=1, evaluate_every=0)),
        trainers=3,  # a majority of the voters without any server
        servers=8,
        cost=Cost(forward_s=0.05, state_bytes=1 << 14),
        patience_s=120.0,
    )
    swarm = SimSwarm(config)
    times_s: dict[str, float] = {}
    stopped: list[SimProcess] = []

    def end_the_coordinator() -> None:
        swarm.end(0, silent=False, same=False)

    def heard(report: Report) -> None:
        now_s = asyncio.get_running_loop().time()
        if isinstance(report, StepDone):
            if report.step == 3:
                asyncio.get_running_loop().call_later(0.1, end_the_coordinator)
            elif report.step == 4:
                times_s["done"] = now_s
                swarm.world.thaw(stopped[0])
        elif isinstance(report, MemberReady) and "stopped" not in times_s:
            if report.incarnation.number >= 2 << 32:
                servers = range(config.trainers, config.trainers + config.servers)
                peers = {swarm.process_at(seat).host.peer.raw: seat for seat in servers}
                stopped.append(swarm.process_at(peers[report.incarnation.peer]))
                swarm.world.freeze(stopped[0])
                times_s["stopped"] = now_s

    swarm.heard = heard
    result = run(swarm.play(), config.seed)

    assert result.ended == ALL_DONE
    assert times_s["done"] - times_s["stopped"] < FENCE_S


@pytest.mark.parametrize(
    "away_from_s",
    [
        pytest.param(AFTER_A_STEP_S, id="it knows nobody that votes now"),
        pytest.param(2 * AFTER_A_STEP_S, id="it knows some of them"),
    ],
)
def test_a_trainer_that_was_away_while_the_voters_changed_goes_on_without_the_coordinator(
    away_from_s,
):
    """Servers took its vote; then the coordinator dies for good, a second before it is back."""
    away_s = 12.0

    result, swarm = play(
        Fault(FaultKind.RESTART, away_from_s, away_s, (1,), silent=True),
        Fault(FaultKind.KILL, away_from_s + away_s - 1.0, 1.0, (0,)),
        trainers=2,
        run=small_run(steps=10),
        cost=Cost(forward_s=0.1, state_bytes=1 << 14),
    )

    assert result.ended == ALL_DONE
    assert terms(swarm)[0] == 1
    assert len(terms(swarm)) == 2


def test_a_coordinator_that_was_cut_off_from_most_voters_still_knows_where_they_are():
    """Its half does the step, and joins wait for its record, which the others have to accept."""
    result, swarm = play(
        Fault(FaultKind.RESTART, AFTER_A_STEP_S, 60.0, (1,), silent=True),
        Fault(FaultKind.ISLAND, 3 * AFTER_A_STEP_S, 20.0, (0, 5, 6, 7)),
        trainers=2,
        run=small_run(steps=6, min_replicas=1),
        cost=Cost(forward_s=0.1, state_bytes=1 << 14),
    )

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1]


def test_a_standby_that_dials_the_lost_coordinator_turns_to_the_next_one_at_once():
    """Such a dial takes seconds; what another trainer asks of a voter tells who leads."""
    away_s = 60.0
    config = SwarmConfig(
        seed=SEED,
        trainers=3,
        faults=FaultPlan(
            3,
            (
                Fault(FaultKind.CUT, AFTER_A_STEP_S, away_s, (0, 1)),
                Fault(FaultKind.FREEZE, 2 * AFTER_A_STEP_S, away_s, (0,)),
            ),
        ),
        patience_s=120.0,
        **ONE_EACH,
    )
    swarm = SimSwarm(config)
    times_s: dict[type[Report], float] = {}

    def heard(report: Report) -> None:
        if terms(swarm) == [1, 2]:
            times_s.setdefault(type(report), asyncio.get_running_loop().time())

    swarm.heard = heard
    result = run(swarm.play(), config.seed)

    assert result.ended == ALL_DONE
    assert times_s[StandbyTaken] < times_s[Leads] + 0.5


@pytest.mark.parametrize("kind", [FaultKind.RESTART, FaultKind.FREEZE])
def test_the_coordinator_may_be_lost_in_the_first_step(kind):
    """Others vote as soon as a standby is there and a server is ready; it is away to the end."""
    begun_s, away_s = 2.0, 100.0  # a step takes three

    result, swarm = play(
        Fault(kind, begun_s, away_s, (0,), silent=True),
        trainers=2,
        cost=Cost(forward_s=0.1, state_bytes=1 << 14),
    )

    assert result.ended == ALL_DONE
    assert terms(swarm) == [1, 2]
    first = next(one for one in swarm.reports if isinstance(one, Leads) and one.term == 2)
    assert first.version == 0


@pytest.mark.parametrize("kind", [FaultKind.FREEZE, FaultKind.KILL])
def test_a_step_whose_coordinator_stops_before_it_knows_that_it_is_decided_is_reported_once(kind):
    """Most voters accept the record; their answers are not read, and another anchors it."""
    config = SwarmConfig(seed=SEED, trainers=3, patience_s=300.0, **ONE_EACH)
    swarm = SimSwarm(config)
    asked: dict[SimProcess, None] = {}
    over: list[int] = []

    def stop() -> None:
        if kind is FaultKind.KILL:
            swarm.end(0, silent=False, same=False)
        else:
            swarm.world.freeze(process := swarm.process_at(0))
            loop = asyncio.get_running_loop()
            loop.call_later(STOPPED_S, swarm.world.thaw, process, context=WORLD)

    def on_message(message: type[Message], moment: Moment, here: SimProcess, _: Host) -> None:
        steps = [report.step for report in swarm.reports if isinstance(report, StepDone)]
        if message is not Propose or moment is not Moment.ARRIVES or steps[-1:] != [1] or over:
            return
        asked[here] = None
        if len(asked) == VOTERS_ASKED:
            over.append(steps[-1])
            asyncio.get_running_loop().call_soon(stop, context=WORLD)

    swarm.world.on_message = on_message
    result = run(swarm.play(), config.seed)

    assert over
    assert result.ended == ALL_DONE
    assert [one.step for one in swarm.reports if isinstance(one, StepDone)] == list(range(STEPS))
    done = next(
        n for n, one in enumerate(swarm.reports) if isinstance(one, StepDone) and one.step == 2
    )
    led = next(n for n, one in enumerate(swarm.reports) if isinstance(one, Leads) and one.term == 2)
    assert led == done + 1
