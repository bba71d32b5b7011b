"""The sum that a session leaves: what is in it, who is told, and who goes on with it."""

import dataclasses

from server.harness import CONFIG, assert_equal, plain_after, swarm, virtual, weights_of
from server.harness import B as BATCH
from server.pushes import ABOVE, backward, count, forwarded, push, queue, scheduler

from p2pswarm.base.errors import Refused
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.messages.microbatch import Counted
from p2pswarm.server.commit_log import ClosedSum


def test_a_closed_sum_holds_what_was_counted_and_what_the_thread_has_added():
    one = scheduler()
    count(one)
    forwarded(one, push(1))
    back = queue(one, backward(1), sender=ABOVE)
    assert one.take(0.0) is back
    spec = one.spec(back)

    assert spec.may_add()  # the compute thread has taken the permit
    one.close()
    assert one.adding
    assert one.closed_sum() is None  # until it has ended without an error
    spec.permit.whole = True

    assert one.closed_sum() == ClosedSum(5, 0, frozenset({0, 1}))


def test_what_the_thread_comes_to_add_after_the_close_is_not_in_the_sum():
    one = scheduler()
    count(one)
    queue(one, push(1))
    item = one.take(0.0)
    spec = one.spec(item)

    one.close()

    assert not spec.may_add()
    assert not one.adding
    assert one.closed_sum() == ClosedSum(5, 0, frozenset({0}))


def test_a_server_without_weights_has_no_sum():
    assert scheduler(version=None).closed_sum() is None


def test_a_sum_that_was_kept_is_in_the_ledger_and_not_counted_again():
    one = scheduler(incarnation=6)
    one.resume(ClosedSum(5, 0, frozenset({0, 3})))

    assert one.bitmap == b"\x09"
    item = queue(one, push(attempt=1, incarnation=6))
    assert one.spec(item) == BackwardSpec(counting=False, returning=True)
    assert not one.idle
    one.moved_to(1)
    assert one.idle


def test_a_server_that_comes_back_goes_on_with_its_sum():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            (first,) = r.trainer.of_stage(0)
            who, number = first.record.peer, first.record.incarnation
            await r.trainer.push(first, BATCH)
            await r.trainer.until_counted(BATCH)
            flat = r.engines[who][-1].weights._flat
            before = flat.sum_N.clone()
            r.trainer.keep = r.trainer.keep_sum = lambda join: join.version == 1
            await r.cut_off(first)
            await r.trainer.until_ready(2)

            assert r.trainer.joins[-1].sum == HeldSum(number, 1, b"\x01")
            again = r.trainer.members[who]
            assert again.record.incarnation != number
            assert before.any()
            assert flat.sum_N.equal(before)
            await r.trainer.push(again, BATCH, 1)

            def told() -> list[bool]:
                notes = [n for n in again.notes if isinstance(n, Counted)]
                return [note.counted for note in notes if note.microbatch == BATCH]

            await r.trainer.until(lambda: bool(told()))
            assert told() == [False]  # its sum holds it already
            assert flat.sum_N.equal(before)

            again.notes += first.notes
            for microbatch in range(BATCH + 1, 2 * BATCH):
                await r.trainer.push(again, microbatch)
            await r.trainer.until_counted(*range(BATCH, 2 * BATCH))
            await r.trainer.end_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(2).flat.parameters)


def test_with_a_delay_a_server_goes_on_with_the_sums_of_two_steps():
    late = dataclasses.replace(CONFIG, delay=1)

    async def main():
        async with swarm(late) as r:
            await r.ready_servers(2, 3)
            (first,) = r.trainer.of_stage(0)
            for number in (1, BATCH + 2):
                await r.trainer.push(first, number, step=number // BATCH)
            await r.trainer.until_counted(1, BATCH + 2)
            halves = r.engines[first.record.peer][-1].weights._flat.halves
            before = [half.sum_N.clone() for half in halves]
            r.trainer.keep = r.trainer.keep_sum = lambda join: join.version == 0
            await r.cut_off(first)
            await r.trainer.until_ready(2)

            number = first.record.incarnation
            assert r.trainer.joins[-1].sum == HeldSum(number, 0, b"\x02", ahead=b"\x04")
            assert all(sum_N.any() for sum_N in before)
            assert all(half.sum_N.equal(x) for half, x in zip(halves, before, strict=True))
            again = r.trainer.members[first.record.peer]
            again.notes += first.notes
            for number in (0, 2, 3):
                await r.trainer.push(again, number)
            await r.trainer.until_counted(*range(BATCH))
            await r.trainer.end_step()
            for number in (BATCH, BATCH + 1, BATCH + 3):
                await r.trainer.push(again, number)
            await r.trainer.until_counted(*range(BATCH, 2 * BATCH))
            await r.trainer.end_step()
            flats = [engines[-1].weights._flat.newest(2) for engines in r.engines.values()]
            return [p for flat in flats for p in flat.parameters]

    assert_equal(virtual(main), plain_after(2, late).flat.parameters)


def test_a_sum_that_is_not_kept_is_emptied_and_not_told_again():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,) = r.trainer.of_stage(0)
            await r.trainer.push(first, 0)
            await r.trainer.until_counted(0)
            r.trainer.keep = lambda join: join.version == 0
            for _ in range(2):
                await r.cut_off(r.trainer.members[first.record.peer])
                await r.trainer.until_ready(2)
            flat = r.engines[first.record.peer][-1].weights._flat
            assert not flat.sum_N.any()
            return [join.sum and join.sum.counted for join in r.trainer.joins[-2:]]

    assert virtual(main) == [b"\x01", b"\x00"]


def test_a_trainer_cannot_make_a_server_keep_a_sum_that_it_does_not_have():
    async def main():
        async with swarm() as r:
            r.trainer.keep_sum = lambda join: len(r.trainer.joins) == 1
            await r.ready_servers(2, 3)
            return len(r.trainer.joins)

    assert virtual(main) == 3  # one session ended at once, and its server joined again


def test_after_an_error_in_the_midst_of_an_addition_no_sum_is_told():
    """Nobody knows what it holds then."""

    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,) = r.trainer.of_stage(0)
            stage = r.engines[first.record.peer][-1].stage
            backward_of = stage.backward

            def fails(*args):
                backward_of(*args)
                raise Refused("the device is gone")

            stage.backward = fails
            push_it = r.trainer.push(first, 0)
            r.trainer.keep = lambda join: join.version == 0
            await push_it
            await first.over.wait()
            await r.trainer.until_ready(2)
            return r.trainer.joins[-1].sum, CONFIG.stages

    assert virtual(main) == (None, 2)
