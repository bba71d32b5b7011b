"""What rebalancing brings to servers in the worst stages, and whether it leaves others alone.

    python bench/rebalancing.py [--rules priced swarm off] [--seed N] [--hours H] [--json FILE]

First a simulated swarm: 24 servers of the speeds 1, 2 and 4, sorted, so that the slowest stage of
four does 6 of the 14 that it could. `share` is what it does from the tenth to the twentieth minute,
over what the same machines do in the best arrangement from the start, where nobody moves. Steps
there differ by 5 % (one standard deviation), so the share of 20 steps is good to 1.5 %. Routing,
averaging, commits and the transfer of weights are the real ones, in virtual time.

Then hours of a swarm that needs no move: the time of each microbatch jitters by 20 %, servers
measure themselves and tell once a second, and the coordinator's part decides every few seconds.
There is no network in it: a day has 4 million calls of stages; who is to fetch first has all at the
next step. `--drift` lets each server's speed change by up to 20 % every ten minutes besides, so
that moving may pay.
"""

import asyncio
import itertools
import random
from dataclasses import dataclass

from results import command_line, write_json

from p2pswarm.plan.capacity import CapacityMeter
from p2pswarm.progress.events import Report
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.membership import Load
from p2pswarm.settings.config import BalanceConfig, BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.balance.balance import Balance
from p2pswarm.trainer.balance.balance_reports import OrderedMove, OrderedPreparation
from p2pswarm.trainer.balance.move_preparation import StageDecided
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.reports.reports import MemberLost, RunBegun, StepDone

STAGES, SERVERS = 4, 24
WORST = ((1.0,) * 6, (1.0,) * 2 + (2.0,) * 4, (2.0,) * 4 + (4.0,) * 2, (4.0,) * 6)
BEST = ((1.0, 1.0, 2.0, 2.0, 4.0, 4.0),) * 4
FORWARD_S = 0.8  # of speed 1: a microbatch takes 2.4 s, and 14 of that speed do 5.8 a second
MICROBATCHES = 128
STEPS = 42  # somewhat over 20 minutes at the best speed (4.3 a second: a step fills and drains)
STATE_BYTES = 100 << 20  # four seconds of a 25 MB/s line
FROM_S, TO_S = 600.0, 1200.0
SAME = dict.fromkeys(range(STAGES), StageDecided(b"state", b"gradient"))
HOUR_S, ASK_S, JITTER, DRIFT_S = 3600.0, 5.0, 0.2, 600.0
RULES = ("priced", "swarm", "off")


@dataclass(frozen=True, slots=True)
class Played:
    """One simulated run."""

    rate_per_s: float
    """Microbatches, from the tenth to the twentieth minute."""
    moves: int
    last_move_s: float
    """When the last server was sent, since the first step."""
    lost_microbatches: int
    """Counted in a sum that a move voided."""


def played(
    arrangement: tuple[tuple[float, ...], ...], rule: str, seed: int, free_bytes: int | None
) -> Played:
    """Let 24 servers train; server n is given stage n % 4, because they come one by one."""
    speeds = tuple(arrangement[n % STAGES][n // STAGES] for n in range(SERVERS))
    batch = BatchConfig(microbatches=MICROBATCHES, rows=1, evaluate_every=0)
    balance = BalanceConfig(rule=rule)
    each = SERVERS // STAGES
    run_config = small_run(
        stages=STAGES, steps=STEPS, min_replicas=each, batch=batch, balance=balance
    )
    cost = Cost(forward_s=FORWARD_S, state_bytes=STATE_BYTES)
    config = SwarmConfig(
        seed=seed,
        run=run_config,
        servers=SERVERS,
        speeds=speeds,
        cost=cost,
        free_bytes=free_bytes,
    )
    swarm = SimSwarm(config)
    ends_s: list[float] = []
    moves_s: list[float] = []
    lost = 0

    def heard(report: Report) -> None:
        nonlocal lost
        now_s = asyncio.get_running_loop().time()
        if isinstance(report, RunBegun | StepDone):
            ends_s.append(now_s)
        if isinstance(report, OrderedMove):
            moves_s.append(now_s)
        if isinstance(report, MemberLost):
            lost += report.voided

    swarm.heard = heard
    ended = run(swarm.play(), seed).ended
    assert not ended.failed, ended.reason
    begun_s = ends_s[0]
    done = [
        (end, MICROBATCHES / (end - start))
        for start, end in itertools.pairwise(ends_s)
        if start - begun_s >= FROM_S and (end - begun_s <= TO_S or end is ends_s[-1])
    ] or [(ends_s[-1], MICROBATCHES / (ends_s[-1] - ends_s[-2]))]
    rate = len(done) / sum(1 / each_rate for _, each_rate in done)
    last_s = moves_s[-1] - begun_s if moves_s else 0.0
    return Played(rate, len(moves_s), last_s, lost)


def quiet_moves(hours: float, seed: int, free_bytes: int | None, *, drift: bool) -> int:
    """How many servers `priced` moves in hours of a swarm whose times only jitter."""
    rng = random.Random(f"jitter {seed}")
    config = small_run(
        stages=STAGES,
        steps=10**6,
        min_replicas=1,
        batch=BatchConfig(microbatches=MICROBATCHES),
        balance=BalanceConfig(),
    )
    members = Membership(STAGES)
    balance = Balance(config, members)
    true = {}
    for number in range(SERVERS):
        peer = number.to_bytes(32)
        stage = number % STAGES
        member = members.admit(peer, "h:1", stage, 0)
        members.make_ready(member.incarnation)
        true[peer] = FORWARD_S / BEST[stage][number // STAGES], CapacityMeter(), 1.0
    moves, clock = 0, dict.fromkeys(true, 0.0)
    for ask in range(1, int(hours * HOUR_S / ASK_S) + 1):
        now_s = ask * ASK_S
        if drift and now_s % DRIFT_S == 0.0:
            for peer, (forward_s, meter, _) in true.items():
                true[peer] = forward_s, meter, rng.uniform(1 - JITTER, 1 + JITTER)
        for peer, (forward_s, meter, factor) in true.items():
            last = members.of_peer(peer).stage == STAGES - 1
            while clock[peer] < now_s:
                f = forward_s * factor * rng.uniform(1 - JITTER, 1 + JITTER)
                b = 2 * forward_s * factor * rng.uniform(1 - JITTER, 1 + JITTER)
                clock[peer] += f + b
                if last:
                    meter.on_compute(f + b, clock[peer], backward=False)
                else:
                    meter.on_compute(f, clock[peer], backward=False)
                    meter.on_compute(b, clock[peer], backward=True)
            told = meter.measured(state_bytes=STATE_BYTES, free_bytes=free_bytes)
            load = Load(rng.randrange(4), 0.0, 0.0, 0.0, 0, capacity=Capacity.of(told))
            balance.on_load(members.of_peer(peer), load)
        changed = balance.on_commit(ask - 1, SAME, now_s)
        asked = balance.order_moves(ask, lambda _peer: False, now_s)
        for move in [one for one in asked if isinstance(one, OrderedPreparation)]:
            balance.on_observation(move.incarnation, ask, SAME[move.target])
        for move in [one for one in [*changed, *asked] if isinstance(one, OrderedMove)]:
            moves += 1
            peer = move.incarnation.peer
            members.end(move.incarnation)
            member = members.admit(peer, "h:1", move.target, 0)
            members.make_ready(member.incarnation)
            balance.on_ready(peer, now_s)
            true[peer] = true[peer][0], CapacityMeter(), true[peer][2]
    return moves


def main() -> None:
    """Play all, and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--hours", type=float, default=24.0, metavar="H", help="0: not played")
    parser.add_argument("--drift", action="store_true")
    parser.add_argument(
        "--leave-first", action="store_true", help="no server has memory for two stages"
    )
    options = parser.parse_args()
    if options.hours < 0:
        parser.error("no negative hours")
    room = None if options.leave_first else 1 << 30
    best = played(BEST, "off", options.seed, room)
    results: dict[str, object] = {"seed": options.seed, "best_per_s": best.rate_per_s}
    print(f"best arrangement, nobody moves: {best.rate_per_s:.2f} microbatches/s", flush=True)
    for rule in options.rules:
        one = played(WORST, rule, options.seed, room)
        share = one.rate_per_s / best.rate_per_s
        results[rule] = {
            "share": round(share, 4),
            "moves": one.moves,
            "last_move_s": round(one.last_move_s, 1),
            "lost_microbatches": one.lost_microbatches,
        }
        print(
            f"{rule}: {share:.3f} of it after ten minutes, {one.moves} moves, the last after "
            f"{one.last_move_s:.0f} s, {one.lost_microbatches} microbatches lost",
            flush=True,
        )
    if options.hours:
        moves = quiet_moves(options.hours, options.seed, room, drift=options.drift)
        results["quiet"] = {"hours": options.hours, "moves": moves, "drift": options.drift}
        print(f"{options.hours:g} h in which nobody needs to move: {moves} moves")
    write_json(options.json, results)


if __name__ == "__main__":
    main()
