"""Rounds among members whose links differ: the shares are made from what the last rounds measured.

In virtual time, with the real rules and a modelled network.
"""

import asyncio

import torch
from run.averaging.harness import Circle

from p2pswarm.run.averaging.averaging_io import AveragingSettings
from p2pswarm.run.averaging.shards import ALIGN, ShardShares
from p2pswarm.sim.loop import run

SMALL = AveragingSettings(piece=40 * ALIGN)  # 51 ms at RATE: not less than the latency, as usual
LENGTH = 60 * 40 * ALIGN  # 60 pieces, 2.4 MB
RATE = 8e5  # bytes a second
ROUNDS = 3


def rounds(*rates: float):
    """The shares of some rounds, their results, and how long each took."""

    async def main():
        loop, shares = asyncio.get_running_loop(), ShardShares()
        given, took_s, results = [], [], []
        async with asyncio.TaskGroup() as tasks:
            one = Circle(tasks, len(rates), length=LENGTH, settings=SMALL)
            for number, rate in enumerate(rates):
                one.links(rate, number)
            for number in range(ROUNDS):
                begun_s = loop.time()
                given.append(shares.of_group(0, one.group))
                reduced, outcomes = await one.average(one.order(number + 1, shares=given[-1]))
                took_s.append(loop.time() - begun_s)
                results.append((reduced, len(set(outcomes))))
                for peer, outcome in zip(one.group, outcomes, strict=True):
                    shares.measured(0, peer, outcome.bytes_per_s)
            return one.total(), given, took_s, results

    total, given, took_s, results = run(main(), seed=1)
    for reduced, digests in results:
        assert digests == 1
        assert all(torch.equal(each, total) for each in reduced)
    return given, took_s


def test_with_one_member_at_a_quarter_of_the_bandwidth_a_round_ends_sooner():
    """With equal shares it carries 1.5 gradients each way, and only its own with none."""
    given, took_s = rounds(RATE, RATE, RATE, RATE / 4)

    assert given[0] == ()
    for shares, later_s in zip(given[1:], took_s[1:], strict=True):
        assert shares[3] == 0
        assert later_s < 0.8 * took_s[0]


def test_a_stage_of_two_fast_and_two_slow_links_ends_its_rounds_sooner():
    given, took_s = rounds(RATE, RATE, RATE / 4, RATE / 4)

    assert all(min(shares[:2]) > 2 * max(shares[2:]) for shares in given[1:])
    assert max(took_s[1:]) < 0.95 * took_s[0]


def test_equal_links_share_equally_in_every_round():
    given, _ = rounds(RATE, RATE, RATE, RATE)

    assert given == [()] * ROUNDS
