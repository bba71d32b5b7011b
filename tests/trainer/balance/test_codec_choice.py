"""The choice of codecs: the mildest that the links carry, seldom changed, never too coarse."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.run.messages.step import NearbyCodecs
from p2pswarm.settings.codec_ladder import LADDER, allowed_codes, codecs_of
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.trainer.balance.codec_choice import (
    AGREEING,
    PAUSE,
    BoundaryRates,
    CodecTables,
    MeasuredCodecs,
    ServerRates,
    capacity_of,
    codec_tables,
    pace_of,
)

MBIT = 125_000.0
RUN = RunConfig(
    stages=3,
    model=ModelConfig(d_model=256, layers=4, sequence_length=256),
    batch=BatchConfig(rows=4),
    codecs=CodecConfig(choice="measured"),
)
VALUES = 4 * 256 * 256
SECONDS = 0.04
"""Of a microbatch; in bf16 it is 524 kB, so a line of 105 Mbit/s carries it just so fast."""
INT8, DITHER6, DITHER4 = (rung.codes for rung in LADDER[1:])


def swarm(*mbit: float | None, servers: int = 2, seconds: float | None = SECONDS):
    """Three stages, whose boundaries carry so much: `servers` in each, as fast together as one."""
    first, second = (None if rate is None else rate * MBIT / servers for rate in mbit)
    each = seconds * servers if seconds else None
    return [
        [ServerRates(each, first)] * servers,
        [ServerRates(each, second, first)] * servers,
        [ServerRates(each, None, second)] * servers,
    ]


def after(steps: int, stages, rule: MeasuredCodecs | None = None, since: int = 0):
    """The choice of the last of so many steps, and its rule."""
    rule = rule or MeasuredCodecs(RUN, (), 0)
    tables = [rule.choose(step, stages) for step in range(since, since + steps)]
    return tables[-1], rule


def names(codes: bytes) -> tuple[str, str]:
    codecs = codecs_of(RUN.codecs, codes)
    return codecs.activation, codecs.gradient


@pytest.mark.parametrize(
    ("mbit", "chosen"),
    [
        (200.0, ("bf16", "bf16")),
        (80.0, ("int8", "dither4")),
        (60.0, ("dither6", "dither4")),
        (30.0, ("dither6", "dither4")),
        (5.0, ("dither6", "dither4")),
    ],
)
def test_each_direction_has_the_mildest_that_its_links_carry(mbit, chosen):
    """And none goes beyond what the slowest of all needs, with its coarsest codec."""
    table, _ = after(AGREEING, swarm(mbit, 1000.0))

    assert names(table[0]) == chosen
    assert table[1:] == (b"", b"")


def test_links_that_carry_nearly_enough_are_not_worth_a_coarser_codec():
    table, _ = after(AGREEING, swarm(104.0, 1000.0))

    assert table == (b"", b"", b"")


def test_the_last_boundary_is_milder_and_others_round_no_more_than_it_lets_them_use():
    table, _ = after(AGREEING, swarm(7.0, 5.0))

    assert names(table[1]) == ("int8", "dither4")
    assert names(table[0]) == ("int8", "dither4")


def test_a_throttled_boundary_has_another_codec_within_twenty_steps():
    _, rule = after(PAUSE, swarm(1000.0, 1000.0))

    table, _ = after(20, swarm(30.0, 1000.0), rule, since=PAUSE)

    assert names(table[0]) == ("dither6", "dither4")


def test_a_choice_stays_for_a_while_and_until_the_links_carry_much_more():
    table, rule = after(AGREEING, swarm(80.0, 1000.0))

    early, _ = after(PAUSE - 1, swarm(1000.0, 1000.0), rule, since=AGREEING)
    milder, _ = after(1, swarm(1000.0, 1000.0), rule, since=AGREEING + PAUSE - 1)

    assert early == table
    assert milder == (b"", b"", b"")


def test_a_milder_codec_takes_more_than_what_would_just_do():
    table, rule = after(AGREEING, swarm(80.0, 1000.0))

    still, _ = after(2 * PAUSE, swarm(130.0, 1000.0), rule, since=AGREEING)

    assert still == table


def test_one_step_that_does_not_agree_begins_the_count_anew():
    table, rule = after(AGREEING - 1, swarm(30.0, 1000.0))
    after(1, swarm(1000.0, 1000.0), rule, since=AGREEING - 1)

    again, _ = after(AGREEING - 1, swarm(30.0, 1000.0), rule, since=AGREEING)

    assert table == again == (b"", b"", b"")


@pytest.mark.parametrize(
    "stages", [swarm(None, 1000.0), swarm(5.0, 5.0, seconds=None)], ids=["links", "computing"]
)
def test_what_was_never_measured_changes_nothing(stages):
    table, _ = after(3 * AGREEING, stages)

    assert table == (b"", b"", b"")


def test_a_lone_slow_peer_is_routed_around():
    slow = ServerRates(SECONDS * 3, 1.0 * MBIT, 1.0 * MBIT)
    stages = [[*servers[:-1], slow] for servers in swarm(600.0, 600.0, servers=3)]

    table, _ = after(AGREEING, stages)

    assert table == (b"", b"", b"")


def test_a_lone_liar_does_not_matter():
    rates = [10.0 * MBIT] * 2

    assert capacity_of([*rates, 1e15]) == capacity_of([*rates, 0.001]) == 30.0 * MBIT
    usual = pace_of([[ServerRates(1.0)] * 3])
    assert pace_of([[*[ServerRates(1.0)] * 2, ServerRates(1e-9)]]) <= 2 * usual


def test_a_new_leader_goes_on_from_what_is_decided():
    table, _ = after(AGREEING, swarm(30.0, 1000.0))

    rule = MeasuredCodecs(RUN, table, 20)

    assert rule.choose(20, swarm(None, None)) == table
    assert after(PAUSE - 1, swarm(1000.0, 1000.0), rule, since=21)[0] == table
    assert after(2, swarm(1000.0, 1000.0), rule, since=20 + PAUSE)[0] == (b"", b"", b"")


RATE = st.none() | st.floats(0.5, 2000.0)
STEP = st.tuples(RATE, RATE, st.none() | st.floats(0.001, 1.0))
COARSE = CodecConfig(choice="measured", coarsest=("dither4", "dither3"), last_boundary="dither6")


@given(st.lists(STEP, min_size=1, max_size=40), st.sampled_from([RUN.codecs, COARSE]))
@settings(max_examples=40, deadline=None)
def test_no_choice_is_coarser_than_allowed_nor_changes_early_and_it_follows_from_its_inputs(
    steps, codecs
):
    run = dataclasses.replace(RUN, codecs=codecs)
    allowed = allowed_codes(codecs, run.stages)
    rules = MeasuredCodecs(run, (), 0), MeasuredCodecs(run, (), 0)
    changes: dict[tuple[int, int], list[int]] = {}
    before = (b"", b"", b"")
    for step in range(3 * len(steps)):
        first, second, seconds = steps[step // 3]
        stages = swarm(first, second, seconds=seconds)
        table, other = (rule.choose(step, stages) for rule in rules)
        assert table == other
        for stage, codes in enumerate(table):
            assert not codes or codes in allowed[stage]
            for way, (now, then) in enumerate(zip(names(codes), names(before[stage]), strict=True)):
                if now != then:
                    changes.setdefault((stage, way), []).append(step)
        before = table
    for times in changes.values():
        assert times[0] >= AGREEING - 1
        assert all(b - a >= PAUSE for a, b in pairwise(times))


class Scripted:
    """Chooses what it is told to."""

    def __init__(self, *tables) -> None:
        self.tables = list(tables)

    def choose(self, _step, _stages):
        return self.tables.pop(0)

    def boundaries(self):
        return ()

    def why(self, _stage):
        return "it was told to"


def test_members_are_told_the_present_step_and_the_next_and_a_choice_counts_when_it_is_decided():
    rule = Scripted((INT8, b"", b""), (DITHER6, INT8, b""))
    tables = CodecTables(RUN, ((), (DITHER4, b"", b"")), rule)
    assert tables.nearby(0) == (NearbyCodecs(), NearbyCodecs(b"", DITHER4))

    assert tables.on_step_end(0, []) == (INT8, b"", b"")
    assert tables.nearby(0) == (NearbyCodecs(), NearbyCodecs(b"", DITHER4))
    rates, changed = tables.on_decision(0)
    assert rates == BoundaryRates(())
    told = "from step 3 on stages 0 and 1 exchange int8 up and dither4 down: it was told to"
    assert changed.text == told
    assert tables.nearby(1) == (NearbyCodecs(DITHER4), NearbyCodecs(INT8))
    tables.on_step_end(1, [])
    assert [one.stage for one in tables.on_decision(1)[1:]] == [0, 1]

    assert tables.nearby(2) == (NearbyCodecs(), NearbyCodecs(INT8))


def test_with_a_delay_members_are_told_of_one_step_more():
    run = dataclasses.replace(RUN, delay=1)
    rule = Scripted((INT8, b"", b""))
    tables = codec_tables(run, 0, (), lambda *_known: rule)
    assert tables.nearby(0) == (NearbyCodecs(),) * 3

    tables.on_step_end(0, [])
    _, changed = tables.on_decision(0)

    assert changed.step == 3
    assert tables.nearby(0) == (NearbyCodecs(), NearbyCodecs(), NearbyCodecs(b"", INT8))


@pytest.mark.parametrize("changes", [{"codecs": CodecConfig()}, {"stages": 1}])
def test_where_nothing_is_to_be_chosen_nobody_is_asked(changes):
    run = dataclasses.replace(RUN, **changes)

    assert codec_tables(run, 0, ((), ()), MeasuredCodecs) is None
    assert codec_tables(RUN, 0, ((), ()), MeasuredCodecs) is not None
