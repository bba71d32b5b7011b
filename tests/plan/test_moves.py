"""Tests of `plan/moves.py`."""

import random

import pytest
from core import core_of, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.arrangements import AT_ONCE, PRICED, arranged, arrangements, moved, rearranged, server

from p2pswarm.plan.arrangement import Arrangement, beside_bytes, replicas_needed
from p2pswarm.plan.move_times import MoveTimes
from p2pswarm.plan.moves import (
    MOVES_A_CHANGE,
    REST_MAX_S,
    WEARY,
    WEARY_S,
    MoveDamping,
    Rebalancing,
    best_plan,
)
from p2pswarm.settings.config import BalanceConfig

SERVERS = tuple(bytes([number]) for number in range(8))


def test_as_many_moves_as_servers_within_an_hour_make_a_move_bring_five_times_more():
    damping = MoveDamping()
    damping.on_servers(SERVERS, 0.0)
    for _ in SERVERS:
        damping.on_move(1.0)

    assert damping.factor(cheap=False) == damping.factor(cheap=True) == 1.0 + WEARY
    assert not damping.on_servers(SERVERS, 2.0 + WEARY_S)
    assert damping.factor(cheap=False) == 1.0


def test_moves_that_answer_a_change_count_only_where_they_are_dear():
    damping = MoveDamping()
    assert not damping.on_servers(SERVERS, 0.0)
    assert damping.on_servers(SERVERS[1:], 1.0)
    for _ in range(MOVES_A_CHANGE):
        damping.on_move(2.0)

    assert damping.factor(cheap=True) == 1.0
    assert damping.factor(cheap=False) > 1.0


@given(st.lists(st.tuples(st.floats(0, 4000), st.sets(st.sampled_from(SERVERS)), st.booleans())))
def test_a_factor_is_never_below_one_and_cheap_moves_never_weary_more(told):
    damping = MoveDamping()
    for now_s, there, moves in sorted(told, key=lambda each: each[0]):
        damping.on_servers(there, now_s)
        if moves:
            damping.on_move(now_s)
        assert 1.0 <= damping.factor(cheap=True) <= damping.factor(cheap=False)


SWARM = BalanceConfig(rule="swarm")
OFF = BalanceConfig(rule="off")
WORST = ((1.0,) * 6, (1.0, 1.0, 2.0, 2.0, 2.0, 2.0), (2.0,) * 4 + (4.0,) * 2, (4.0,) * 6)


def asked(rule: Rebalancing, arrangement: Arrangement, now_s: float = 0.0):
    """The answer to the second question, a second after the first."""
    rule.decide(arrangement, now_s)
    return rule.decide(arrangement, now_s + 1.0)


@given(arrangements())
def test_no_stage_is_left_with_one_ready_server_or_fewer_than_the_floor(arrangement):
    decision = asked(Rebalancing(AT_ONCE), arrangement)
    counts = arrangement.ready_counts()
    for move in decision.moves:
        counts[move.source] -= 1

    sources = {move.source for move in decision.moves}
    assert all(counts[stage] >= arrangement.kept >= 2 for stage in sources)


@given(arrangements())
def test_a_decision_never_slows_the_slowest_stage(arrangement):
    decision = asked(Rebalancing(AT_ONCE), arrangement)
    after = min(moved(arrangement, decision).rates())

    assert after >= min(arrangement.rates()) * (1 - 1e-9)
    assert not decision.moves or decision.gain > 0


@given(arrangements())
def test_only_who_may_move_moves_and_only_to_where_others_have_the_weights(arrangement):
    decision = asked(Rebalancing(AT_ONCE), arrangement)
    known = {one.server: one for one in arrangement.servers}
    ready = arrangement.ready_counts()

    for move in decision.moves:
        one = known[move.server]
        assert one.ready
        assert not one.bound
        assert one.stage == move.source != move.target
        assert ready[move.target] > 0
        assert not arrangement.lacks_bytes(one, move.target)
        assert move.away_s > 0
    assert len({move.server for move in decision.moves}) == len(decision.moves)


@given(arrangements())
def test_no_more_than_the_stated_share_moves_at_once_or_one_exchange(arrangement):
    decision = asked(Rebalancing(AT_ONCE), arrangement)
    most = max(1, int(AT_ONCE.moving_share * len(arrangement.servers)))

    begun = len(decision.moves) + arrangement.moving
    assert not decision.moves or begun <= max(most, 0 if arrangement.moving else 2)


@settings(max_examples=examples(50))
@given(arrangements())
def test_with_numbers_that_stand_still_moves_end_and_the_slowest_stage_only_rises(arrangement):
    rule, now_s = Rebalancing(AT_ONCE), 0.0
    slowest, idle = min(arrangement.rates()), 0
    moves = 0
    while idle < 3:
        now_s += REST_MAX_S + 1.0
        decision = rule.decide(arrangement, now_s)
        arrangement = moved(arrangement, decision)
        assert min(arrangement.rates()) >= slowest * (1 - 1e-9)
        slowest = min(arrangement.rates())
        moves += len(decision.moves)
        idle = 0 if decision.moves else idle + 1
        assert moves <= 10 * len(arrangement.servers)


@given(arrangements())
def test_the_same_question_has_the_same_answer(arrangement):
    one, other = Rebalancing(AT_ONCE), Rebalancing(AT_ONCE)

    assert asked(one, arrangement) == asked(other, arrangement)


RULES = st.sampled_from([AT_ONCE, SWARM, OFF])


@given(arrangements(), RULES, st.data())
def test_a_newcomer_gets_an_open_stage(arrangement, config, data):
    every = list(range(arrangement.stages))
    some = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))

    assert Rebalancing(config).place(arrangement, some) in some


@given(arrangements(), RULES, st.data())
def test_a_newcomer_with_a_plan_gets_an_open_stage(arrangement, config, data):
    every = list(range(arrangement.stages))
    some = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    planned = data.draw(st.none() | st.integers(0, 300))
    rule = Rebalancing(config)
    if data.draw(st.booleans()):
        rule.decide(arrangement, 0.0)

    assert rule.place(arrangement, some, planned) in some


@given(arrangements(), RULES, st.data())
def test_before_the_first_step_a_plan_is_followed_whatever_the_numbers_say(
    arrangement, config, data
):
    planned = data.draw(st.integers(0, arrangement.stages - 1))

    assert Rebalancing(config).place(arrangement, list(range(arrangement.stages)), planned) == (
        planned
    )


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5), st.integers(1, 3), RULES)
def test_before_the_first_step_every_stage_has_as_many_as_are_waited_for(costs, gathered, config):
    rule, speeds = Rebalancing(config, gathered), [()] * len(costs)
    for _ in range(gathered * len(costs)):
        arrangement = arranged(*speeds, costs=tuple(costs))
        stage = rule.place(arrangement, list(range(len(costs))))
        speeds[stage] = (*speeds[stage], 1.0)

    assert [len(of_stage) for of_stage in speeds] == [gathered] * len(costs)


def test_a_plan_is_followed_until_somebody_was_moved():
    uneven = arranged((9.0,) * 6, (1.0,) * 4)
    rule = Rebalancing(AT_ONCE)
    assert rule.place(uneven, [0, 1], 0) == 0, "the plan knows better so far"

    decision = next(filter(None, (asked(rule, uneven, now_s).moves for now_s in range(0, 99, 9))))

    assert decision
    assert rule.place(uneven, [0, 1], 0) == 1, "the numbers do now"


def test_in_a_run_that_goes_on_a_stage_without_anybody_comes_before_the_plan():
    rule = Rebalancing(AT_ONCE)
    asked(rule, arranged((1.0, 1.0), (1.0, 1.0)))
    lost = arranged((1.0, 1.0), ())

    assert rule.place(lost, [0, 1], 0) == 1
    assert rule.place(lost, [0, 1], 1) == 1


def test_the_worst_arrangement_is_mended_to_the_last_server():
    """24 servers of speeds 1, 2 and 4, sorted: the slowest stage does 6 of the 14 it could."""
    arrangement, rule, now_s = arranged(*WORST), Rebalancing(PRICED), 0.0
    moves = 0
    while now_s < 600.0:
        now_s += 5.0
        decision = rule.decide(arrangement, now_s)
        moves += len(decision.moves)
        arrangement = moved(arrangement, decision)

    assert min(arrangement.rates()) == 14.0
    assert moves <= 10


def test_nobody_moves_before_the_gain_has_lasted():
    rule, arrangement = Rebalancing(PRICED), arranged((1.0,) * 6, (4.0,) * 6)

    first = rule.decide(arrangement, 0.0)
    early = rule.decide(arrangement, PRICED.steady_s - 0.1)
    late = rule.decide(arrangement, PRICED.steady_s)

    assert not first.moves
    assert not early.moves
    assert "it has to last 10 s" in early.why
    assert late.moves


def test_a_gain_that_was_gone_in_between_has_to_last_anew():
    rule, arrangement = Rebalancing(PRICED), arranged((1.0,) * 6, (4.0,) * 6)
    even = arranged((2.0,) * 6, (2.0,) * 6)

    rule.decide(arrangement, 0.0)
    assert not rule.decide(even, 5.0).moves
    assert not rule.decide(arrangement, 11.0).moves


def test_a_gain_within_the_noise_moves_nobody():
    sure = arranged((1.0,) * 8, (1.3,) * 8)
    servers = tuple(server(n, n // 8, one.speed, error=0.5) for n, one in enumerate(sure.servers))
    unsure = rearranged(sure, servers)

    assert asked(Rebalancing(AT_ONCE), sure).moves
    decision = asked(Rebalancing(AT_ONCE), unsure)
    assert not decision.moves
    assert "may be noise" in decision.why


def test_a_small_gain_moves_nobody_and_is_named():
    near = arranged((10.0,) * 9 + (0.1,), (10.0,) * 9 + (0.3, 0.3, 0.3))
    decision = asked(Rebalancing(AT_ONCE), near)

    assert not decision.moves
    assert "less than +2.0 % moves nobody" in decision.why


def test_a_state_that_takes_longer_than_servers_live_moves_nobody():
    light = arranged((1.0,) * 6, (4.0,) * 6, state_bytes=(10**9, 10**9), deaths_per_s=1 / 3600)
    heavy = arranged((1.0,) * 6, (4.0,) * 6, state_bytes=(10**11, 10**11), deaths_per_s=1 / 3600)

    assert asked(Rebalancing(AT_ONCE), light).moves
    assert not asked(Rebalancing(AT_ONCE), heavy).moves


def test_who_lacks_the_memory_stays():
    servers = tuple(
        server(number, number // 6, 1.0 + 3.0 * (number // 6), free_bytes=10**8)
        for number in range(12)
    )
    small = Arrangement(stages=2, servers=servers, state_bytes=(10**9, 10**9))
    large = Arrangement(stages=2, servers=servers, state_bytes=(2 * 10**9, 10**9))

    assert asked(Rebalancing(AT_ONCE), small).moves
    assert not asked(Rebalancing(AT_ONCE), large).moves


def test_who_has_moved_rests():
    rule, arrangement = Rebalancing(AT_ONCE), arranged((1.0,) * 3, (4.0,) * 3)
    decision = asked(rule, arrangement)
    (move,) = decision.moves
    servers = tuple(  # the one that came is as slow as a wheel: it would be sent back at once
        server(n, 0 if one.server == move.server else one.stage, 1e-3 if n < 3 else 4.0)
        for n, one in enumerate(arrangement.servers)
    )
    turned = rearranged(arrangement, servers)

    assert move.server not in {one.server for one in asked(rule, turned, 10.0).moves}
    assert ("has moved lately", 1) in rule.decide(turned, 12.0).stay


def test_a_run_that_stands_still_moves_nobody():
    """Nobody can give the weights of a stage without servers."""
    decision = asked(Rebalancing(AT_ONCE), arranged((1.0,) * 6, ()))

    assert not decision.moves


def test_an_exchange_is_found_where_no_single_move_helps():
    plan = best_plan(arranged((1.0, 1.0, 1.0, 1.0), (3.0, 3.0, 3.0, 3.0), deaths_per_s=1 / 200))

    assert {len(step.moves) for step in plan.steps} == {2}
    assert plan.gain == 4.0
    assert plan.price > 0


def test_a_stage_that_costs_twice_as_much_gets_twice_the_servers():
    arrangement, rule = arranged((1.0,) * 12, (1.0,) * 12, costs=(1.0, 2.0)), Rebalancing(AT_ONCE)
    for number in range(20):
        arrangement = moved(arrangement, rule.decide(arrangement, 10.0 * number))

    assert arrangement.ready_counts() == [8, 16]


@given(st.floats(1e-9, 1e-1), st.floats(0, 1e5), st.integers(1, 20))
def test_stages_need_the_more_servers_the_more_die_and_never_more_than_there_are(
    rate, time_s, most
):
    needed = replicas_needed(rate, time_s, most)

    assert 1 <= needed <= most
    assert replicas_needed(rate * 2, time_s, most) >= needed
    assert replicas_needed(rate, time_s * 2, most) >= needed


def test_of_servers_that_live_a_day_a_stage_needs_two_and_of_such_that_live_an_hour_three():
    assert replicas_needed(1 / 86_400, 60.0, 20) == 2
    assert replicas_needed(1 / 3_600, 60.0, 20) == 3


def test_a_newcomer_goes_to_a_stage_below_the_floor_and_else_to_the_slowest():
    rule = Rebalancing(PRICED)

    assert rule.place(arranged((9.0,), (1.0, 1.0), (1.0, 1.0)), [0, 1, 2]) == 1, "the floor is 1"
    assert rule.place(arranged((9.0,), (1.0,) * 4, (1.0,) * 4), [0, 1, 2]) == 0
    assert rule.place(arranged((9.0,) * 3, (1.0,) * 4, (2.0,) * 3), [0, 1, 2]) == 1
    assert rule.place(arranged((9.0,) * 3, (1.0,) * 4, (2.0,) * 3), [0, 2]) == 2


def test_newcomers_of_whom_nothing_is_known_go_where_the_fewest_are():
    nobody = (None, None)

    assert Rebalancing(PRICED).place(arranged(nobody, (None,), nobody), [0, 1, 2]) == 1
    assert Rebalancing(OFF).place(arranged((9.0, 9.0), (1.0,), (1.0, 1.0)), [0, 1, 2]) == 1


def loaded(*queues: tuple[int, ...]) -> Arrangement:
    servers, number = [], 0
    for stage, of_stage in enumerate(queues):
        for queued in of_stage:
            servers.append(server(number, stage, queued=queued))
            number += 1
    return Arrangement(stages=len(queues), servers=tuple(servers))


def test_swarm_moves_the_least_loaded_of_the_shortest_queues_to_the_longest_every_t_seconds():
    rule, arrangement = Rebalancing(SWARM), loaded((9, 9), (1, 0), (4, 4))

    assert not rule.decide(arrangement, 0.0).moves
    assert not rule.decide(arrangement, 299.0).moves
    (move,) = rule.decide(arrangement, 300.0).moves
    assert (move.server, move.source, move.target) == (bytes([0, 3]), 1, 0)
    assert not rule.decide(arrangement, 599.0).moves
    assert rule.decide(arrangement, 600.0).moves


def test_swarm_leaves_a_stage_its_last_server_and_equal_queues_alone():
    for arrangement in (loaded((9, 9), (0,)), loaded((3, 0), (1, 2))):
        rule = Rebalancing(SWARM)
        rule.decide(arrangement, 0.0)
        assert not rule.decide(arrangement, 300.0).moves


def test_swarm_places_newcomers_at_the_longest_queues():
    assert Rebalancing(SWARM).place(loaded((9, 9), (1, 0), (40,)), [0, 1, 2]) == 2


def test_off_moves_nobody():
    decision = asked(Rebalancing(OFF), arranged((1.0,) * 6, (9.0,) * 6))

    assert not decision.moves
    assert decision.why == "rebalancing is off"


def test_of_servers_that_fetch_first_an_exchange_leaves_no_stage_below_its_floor():
    """At the floor, an exchange of servers that leave first would go below it for a while."""
    speeds = (2.0, 2.0, 2.0), (1.0, 1.0, 1.0)
    servers = [server(n, n // 3, speeds[n // 3][n % 3], free_bytes=10**9) for n in range(6)]
    both = {"stages": 2, "servers": tuple(servers), "deaths_per_s": 1e-3}
    both["state_bytes"] = (10**8, 10**8)
    leaves = Arrangement(**both)
    fetches = Arrangement(**both, fetch_first=True)

    assert leaves.floor == 3
    assert not asked(Rebalancing(AT_ONCE), leaves).moves
    moves = asked(Rebalancing(AT_ONCE), fetches).moves
    assert len(moves) == 2
    assert all(move.away_s < move.load_s for move in moves)


def test_who_lacks_the_memory_for_two_stages_leaves_first():
    small, large = server(0, 0, free_bytes=10**8), server(1, 0, free_bytes=3 * 10**8)
    fields = {"stages": 2, "servers": (small, large), "state_bytes": (10**8, 10**8)}
    arrangement = Arrangement(**fields, fetch_first=True)

    assert not arrangement.may_fetch_first(small, 1)
    assert arrangement.may_fetch_first(large, 1)
    assert not Arrangement(**fields).may_fetch_first(large, 1)
    lacks = beside_bytes(arrangement.state_of(1), small.free_bytes)
    fits = server(0, 0, free_bytes=10**8 + lacks)
    assert beside_bytes(arrangement.state_of(1), fits.free_bytes) == 0
    assert beside_bytes(arrangement.state_of(1), 10**8 + lacks - 1) == 1
    unknown = server(0, 0)
    assert not arrangement.may_fetch_first(unknown, 1)


def test_moves_under_way_help_as_long_as_the_slower_stage_would_be_slower_without_them():
    servers = tuple(server(n, n // 4) for n in range(8))  # as if one had gone from 0 to 1 already
    even = Arrangement(stages=2, servers=servers)
    mover = servers[-1].server

    assert even.still_helps([(mover, 0, 1)])
    assert not even.still_helps([])
    assert not even.still_helps([(b"gone", 0, 1)])
    grown = Arrangement(stages=2, servers=(*servers, server(8, 1), server(9, 1)))
    assert not grown.still_helps([(mover, 0, 1)])  # others have come to stage 1 meanwhile
    fast = (*servers[:-1], server(7, 1, 3.0))
    swap = [(servers[0].server, 1, 0), (fast[-1].server, 0, 1)]
    assert not Arrangement(stages=2, servers=fast).still_helps(swap)  # the fast one was where 0 is
    assert Arrangement(stages=2, servers=servers).still_helps([(mover, 0, 1)])


@pytest.mark.parametrize(("state_bytes", "cheap"), [(10**8, True), (15 * 10**9, False)])
def test_a_death_is_no_noise_and_is_answered_at_once_where_a_move_is_cheap(state_bytes, cheap):
    rule, fields = Rebalancing(PRICED), {"state_bytes": (state_bytes,) * 3, "deaths_per_s": 1e-5}
    whole = arranged((1.0,) * 6, (1.0,) * 6, (1.0,) * 6, **fields)
    servers = tuple(
        one for one in whole.servers if one.server not in {bytes([0, 0]), bytes([0, 1])}
    )

    assert not rule.decide(whole, 0.0).moves
    assert bool(rule.decide(rearranged(whole, servers, **fields), 30.0).moves) is cheap


@pytest.mark.parametrize("seed", core_of(range(3), [0]))
def test_a_quarter_of_a_day_of_jitter_moves_nobody_in_a_swarm_that_needs_it_not(seed):
    """What meters tell of times that jitter by 20 % around the truth."""
    rng, rule = random.Random(seed), Rebalancing(PRICED)
    true = arranged(*(((1.0, 1.0, 2.0, 2.0, 4.0, 4.0),) * 4))
    moves = 0
    drift = [0.0] * 24
    for ask in range(6 * 360):  # every 10 s
        drift = [0.85 * d + rng.gauss(0, 0.02 * 0.53) for d in drift]
        servers = tuple(
            server(n, one.stage, one.speed * (1 + drift[n]), error=0.02)
            for n, one in enumerate(true.servers)
        )
        moves += len(rule.decide(rearranged(true, servers), 10.0 * ask).moves)

    assert moves == 0


def test_the_more_have_moved_within_an_hour_the_more_a_move_has_to_bring():
    """Speeds that wander by themselves are not worth following."""
    rule, moves = Rebalancing(AT_ONCE), []
    for number in range(200):
        stages = ((1.0,) * 6, (1.2,) * 6)
        uneven = arranged(*(stages if number % 2 else stages[::-1]))
        moves.append(len(rule.decide(uneven, 10.0 * number).moves))
        moves[-1] += len(rule.decide(uneven, 10.0 * number + 1.0).moves)

    assert sum(moves[:20]) > 0
    assert sum(moves[-100:]) == 0
    assert rule.decide(arranged((1.0,) * 6, (1.2,) * 6), 9_000.0).moves == ()
    assert rule.decide(arranged((1.0,) * 6, (1.2,) * 6), 9_001.0).moves


def test_one_that_says_that_it_is_fast_and_its_link_is_nothing_stops_nobody_else():
    servers = (
        *(server(number, number // 6, 1.0 + 3.0 * (number // 6)) for number in range(12)),
        server(12, 1, 1e5, link_bytes_per_s=1e-300),
    )
    arrangement = Arrangement(stages=2, servers=servers, state_bytes=(10**10, 10**10))
    moves = asked(Rebalancing(AT_ONCE), arrangement).moves

    assert moves
    assert server(12, 1).server not in {move.server for move in moves}


def test_who_could_fetch_first_leaves_first_where_waiting_for_a_commit_costs_more():
    servers = tuple(
        server(n, n // 4, 4.0 if n < 4 else 1.0, free_bytes=1 << 32, link_bytes_per_s=25e6)
        for n in range(8)
    )
    fields = {"stages": 2, "servers": servers, "state_bytes": (1 << 25,) * 2, "fetch_first": True}
    quick, slow = MoveTimes(waits_s=1.0), MoveTimes(waits_s=100.0)

    first = best_plan(Arrangement(**fields, times=quick)).steps[0].moves[0]
    leaves = best_plan(Arrangement(**fields, times=slow)).steps[0].moves[0]

    assert first.fetches_first
    assert not leaves.fetches_first
    assert leaves.away_s == leaves.load_s < first.load_s + 100.0
    larger = {**fields, "state_bytes": (1 << 31,) * 2}  # 86 s: the run misses it for so long
    assert best_plan(Arrangement(**larger, times=quick)).steps[0].moves[0].fetches_first


def test_nobody_leaves_first_whom_its_stage_cannot_spare():
    servers = (
        *(server(n, 0, 4.0, free_bytes=1 << 32) for n in range(2)),
        *(server(n, 1, 1.0, free_bytes=1 << 32) for n in range(2, 4)),
    )
    fields = {"stages": 2, "servers": servers, "state_bytes": (1 << 20,) * 2, "fetch_first": True}
    plan = best_plan(Arrangement(**fields, times=MoveTimes(waits_s=100.0)))

    assert len(plan.steps[0].moves) == 2  # an exchange: each stage keeps two
    assert all(move.fetches_first for move in plan.steps[0].moves)


def test_four_that_fetch_first_count_as_one_that_is_away():
    fast = tuple(server(n, 0, 4.0, free_bytes=1 << 34) for n in range(8))
    slow = tuple(server(n, 1, 1.0, free_bytes=1 << 34) for n in range(8, 16))
    fields = {"stages": 2, "servers": (*fast, *slow), "state_bytes": (1 << 32,) * 2}
    config = BalanceConfig(rule="priced", steady_s=0.0, moving_share=0.07)  # one of 16

    def moved(**changes) -> int:
        rule = Rebalancing(config)
        arrangement = Arrangement(**(fields | changes))
        rule.decide(arrangement, 0.0)
        return len(rule.decide(arrangement, 10.0).moves)

    assert moved() == 1
    assert moved(fetch_first=True) == 3  # more would not help
    assert moved(fetch_first=True, preparing=2) == 2
    assert moved(fetch_first=True, preparing=3) == 1
    assert moved(fetch_first=True, moving=1) == 0


def test_a_move_that_brings_less_than_twice_its_price_is_not_made_and_both_are_told():
    fields = {"state_bytes": (30 * 10**9,) * 3, "deaths_per_s": 1e-5}  # 40 minutes of loading
    arrangement = arranged((1.0,) * 4, (1.0,) * 6, (1.0,) * 6, **fields)
    decision = asked(Rebalancing(AT_ONCE), arrangement)

    assert decision.moves == ()
    assert "microbatches, and the moves cost" in decision.why
