"""Two rounds of one order in virtual time: the second is made of what the first has given."""

import asyncio

import pytest
import torch
from run.averaging.harness import RUN, Circle

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.models.compute.low_rank import LowRank
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.averaging.averaging_io import AveragingSettings
from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.round import Round
from p2pswarm.run.averaging.stage_averaging import StageAveraging, followed
from p2pswarm.run.messages.step import Reduce, Shard
from p2pswarm.sim.loop import run
from p2pswarm.tensors.codecs.meta import TensorMeta
from p2pswarm.tensors.codecs.registry import encode as encoded
from p2pswarm.tensors.flat_layout import flat_layout

ROWS, COLUMNS, RANK = 60, 80, 4
LAYOUT = flat_layout(
    ("float32",) * 3, [("norm", (30,)), ("a", (ROWS, COLUMNS)), ("factor.a", (RANK, COLUMNS))]
)
FIRST, SECOND = 32 + RANK * ROWS, RANK * COLUMNS  # with the gap behind the vector
A, B = (bytes([n]) * 32 for n in range(2))
ORDER = Reduce(b"r" * 16, 7, 2, 1, b"", (A, B), ())


class LowRankCircle(Circle):
    """Members that average one matrix in low rank, and a vector."""

    def __init__(self, tasks, members, observers=0, **settings):
        kinds = [StageAveraging] * (members + observers)
        settings = AveragingSettings(piece=256, **settings)
        super().__init__(
            tasks, members, observers, length=LAYOUT.length, settings=settings, kinds=kinds
        )
        for value in self.values:
            value[30:32] = value[LAYOUT.factors_start :] = 0.0
        warm = torch.randn(LAYOUT.length, generator=torch.Generator().manual_seed(9))
        self.rules = LowRank(1, LAYOUT, warm)

    def sums(self, who):
        return TorchSums(self.values[who], "raw", low_rank=self.rules)

    async def average(self, order, who=None):
        who = range(len(self.peers)) if who is None else who
        sums = [self.sums(n) for n in who]
        async with asyncio.TaskGroup() as tasks:
            going = [
                tasks.create_task(self.averagings[n].average(order, each))
                for n, each in zip(who, sums, strict=True)
            ]
        return [each.reduced_N for each in sums], [task.result() for task in going]


def played(story, *args, **options):
    async def main():
        async with asyncio.timeout(300.0), asyncio.TaskGroup() as tasks:
            return await story(LowRankCircle(tasks, *args, **options))

    return run(main(), 1)


@pytest.mark.parametrize("members", [1, 2, 5, 20])
def test_members_and_newcomers_have_the_same_bytes(members):
    async def story(circle):
        reduced, outcomes = await circle.average(circle.order())
        expected = circle.total(without=range(members, members + 2))
        circle.rules.reduce_whole(expected)
        return reduced, outcomes, expected

    reduced, outcomes, expected = played(story, members, 2)

    assert all(torch.equal(each, reduced[0]) for each in reduced)
    assert (reduced[0] - expected).abs().max() <= 1e-3
    assert len({each.digest for each in outcomes}) == 1
    norm = reduced[0][: LAYOUT.factors_start].double().square().sum().item()
    assert outcomes[0].squared_norm == pytest.approx(norm, rel=1e-12)


def test_a_newer_order_ends_a_second_round():
    async def story(circle):
        order = circle.order(1)
        older = asyncio.ensure_future(circle.averagings[0].average(order, circle.sums(0)))
        first = circle.sums(1).rounds().first
        other = asyncio.ensure_future(circle.averagings[1]._rest.average(order, first))
        await other  # and nobody is there for its second round
        await asyncio.sleep(5.0)
        assert not older.done()
        reduced, _ = await circle.average(circle.order(2))
        with pytest.raises(NotServing, match="a newer averaging"):
            await older
        return reduced

    one, other = played(story, 2)
    assert torch.equal(one, other)


@pytest.mark.parametrize("length", [1, 255, 257])
@pytest.mark.parametrize("gathered", [False, True])
def test_a_piece_of_another_length_is_refused_in_one_line(length, gathered):
    round_ = Round(ORDER, A, SECOND, 256, second=True)
    index, size = (0, 256) if not gathered else (1, SECOND - 256)
    fits, other = (
        Shard(b"r" * 16, 7, 2, gathered, index, TensorMeta(1, (n,), 1, 4 * n), second=True)
        for n in (size, length)
    )

    with pytest.raises(BadMessage, match=rf"piece {index} has .* not \({length},\)"):
        round_.expect(B, other)
    round_.expect(B, fits)


def test_a_piece_of_a_second_round_that_nobody_begins_is_refused():
    async def story(circle):
        await circle.averagings[0]._rest.average(
            circle.order(1), TorchSums(circle.values[0], "raw")
        )
        meta = encoded(torch.zeros(256), "raw").meta
        hostile = Shard(RUN, 0, 1, True, 0, meta, second=True)
        async with circle.rpcs[1].open_stream(circle.rpcs[0].contact, hostile, 10.0) as stream:
            with pytest.raises(NotServing, match="no order to average"):
                await stream.receive()

    async def alone(circle):
        circle.group = circle.group[:1]
        await story(circle)

    played(alone, 2, early_s=1.0)


def test_the_rounds_have_unlike_shares_of_a_key():
    """A share that the first round has told would let a member choose pieces of the second."""
    told = [Round(ORDER, A, 0, second=second).reveal(b"secret") for second in (False, True)]

    assert told[0].tensor.inline != told[1].tensor.inline
    assert [each.second for each in told] == [False, True]


def test_only_a_second_round_says_so_on_the_wire():
    first, second = (
        Shard(b"r" * 16, 7, 2, True, 1, TensorMeta(1, (256,), 1, 1024), second=second)
        for second in (False, True)
    )

    assert len(encode(second)) == len(encode(first)) + 1
    assert [decode(encode(each)) for each in (first, second)] == [first, second]


@pytest.mark.parametrize(("first", "second"), [(b"x", b"b"), (b"a", b"x")])
def test_the_digest_is_of_both_rounds_and_the_norm_of_the_gradient(first, second):
    both = followed(AveragedGradient(b"a", 1.0), AveragedGradient(b"b", 2.0, 15.0))
    other = followed(AveragedGradient(first, 1.0), AveragedGradient(second, 2.0))

    assert (both.squared_norm, both.bytes_per_s, both.tied) == (2.0, 15.0, None)
    assert both.digest != other.digest
