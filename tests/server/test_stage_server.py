"""Stage servers with a scripted trainer, through the simulated network, in virtual time."""

import asyncio
import dataclasses

import pytest
import torch
from server.harness import CONFIG, RUN_ID, compute_here, microbatch, peer, rig

from p2pswarm.compute.reference import ReferenceTrainer
from p2pswarm.errors import NotServing, Refused, RunEnded
from p2pswarm.rpc.base import Priority
from p2pswarm.sim.loop import run
from p2pswarm.state.pieces import PieceTracker
from p2pswarm.swarm.messages.membership import Leaving, Ready
from p2pswarm.swarm.messages.microbatch import Counted, Evaluated, Handed, Push, Undelivered
from p2pswarm.swarm.messages.state import FetchState
from p2pswarm.swarm.messages.step import Fence, FencedWork
from p2pswarm.swarm.messages.types import Work
from p2pswarm.tensors.codecs.registry import encode
from p2pswarm.tensors.meta import Grant

B = CONFIG.batch.microbatches


def virtual(main, seed=1, limit_s=300.0):
    """Run a test in virtual time; what takes too long in it hangs."""

    async def limited():
        async with asyncio.timeout(limit_s):
            return await main()

    return run(limited(), seed)


class Gate:
    """A compute thread that a test can hold up."""

    def __init__(self):
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = asyncio.Event()

    async def __call__(self, work):
        if not self.open.is_set():
            self.waiting.set()
        await self.open.wait()
        return work()


def plain_after(steps, config=CONFIG):
    plain = ReferenceTrainer(config)
    for step in range(steps):
        for number in range(B * step, B * step + B):
            plain.add(microbatch(number, config))
        plain.apply(1.0, 1e-2)
    return plain


def weights_of(r):
    """The parameters of the whole model, each stage's from its first server."""
    flats = [r.engines[who][-1].weights._flat for who in r.servers]
    by_stage = {flat.numbers.start: flat for flat in reversed(flats)}
    return [p for _, flat in sorted(by_stage.items()) for p in flat.parameters]


def assert_equal(ours, theirs, within=1e-12):
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= within * b.abs().max()


def test_two_stages_train_what_a_plain_loop_trains():
    async def main():
        async with rig() as r:
            r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            for _ in range(3):
                await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(3).flat.parameters)


@pytest.mark.parametrize("codec", ["raw", "planes-zstd"])
def test_activations_too_large_for_a_message_train_the_same(codec):
    model = dataclasses.replace(CONFIG.model, d_model=64, sequence_length=48)
    codecs = dataclasses.replace(CONFIG.codecs, activation=codec, gradient=codec)
    config = dataclasses.replace(CONFIG, stages=3, model=model, codecs=codecs)

    async def main():
        async with rig(config) as r:
            for number in range(2, 7):
                r.serve(number)
            await r.trainer.until_ready(5)
            for _ in range(2):
                await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(2, config).flat.parameters)


def test_room_is_asked_for_while_a_microbatch_is_computed():
    model = dataclasses.replace(CONFIG.model, d_model=64, sequence_length=48)
    config = dataclasses.replace(CONFIG, model=model)

    async def main():
        async with rig(config) as r:
            gate = Gate()
            r.serve(2, compute=gate)
            await r.trainer.until_ready(1)
            r.serve(3)
            await r.trainer.until_ready(2)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            for number in range(3):  # two to learn the size from
                await r.trainer.push(first, number)
                await r.trainer.until(lambda n=number: len(r.trainer.holders(n)) == 2)
            gate.open.clear()
            pushing = asyncio.ensure_future(r.trainer.push(first, 3))
            await gate.waiting.wait()
            await r.trainer.until(lambda: [n for n in first.notes if isinstance(n, Handed)][3:])
            assert not pushing.done()
            assert await r.trainer.fence(last, 3, 0) == ()
            gate.open.set()
            await pushing
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            await r.trainer.fence(first, 3, 0)
            await r.trainer.push(first, 3, attempt=1)
            await r.trainer.until(lambda: len(r.trainer.holders(3)) == 2)
            await r.trainer.reduce()
            await r.trainer.commit()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1, config).flat.parameters)


def test_one_stage_alone_trains_what_a_plain_loop_trains():
    config = dataclasses.replace(CONFIG, stages=1)

    async def main():
        async with rig(config) as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1, config).flat.parameters)


@pytest.mark.parametrize("averaging", ["raw", "fp16"])
def test_replicas_are_bit_identical_after_every_step(averaging):
    config = dataclasses.replace(
        CONFIG, codecs=dataclasses.replace(CONFIG.codecs, averaging=averaging)
    )

    async def main():
        async with rig(config) as r:
            for number in range(2, 7):
                r.serve(number)
            await r.trainer.until_ready(5)
            for _ in range(2):
                await r.trainer.whole_step()
                assert [len(r.digests(stage)) for stage in range(2)] == [1, 1]
            return weights_of(r)

    if averaging == "raw":
        assert_equal(virtual(main), plain_after(2).flat.parameters)
    else:
        virtual(main)


def test_a_server_without_memory_for_graphs_trains_the_same():
    async def main():
        async with rig() as r:
            for number in range(2, 4):
                r.serve(number, keep_bytes=0)
            await r.trainer.until_ready(2)
            await r.trainer.whole_step()
            return weights_of(r), [e[-1].stage.recomputed for e in r.engines.values()]

    weights, recomputed = virtual(main)
    assert sorted(recomputed) == [0, B]
    assert_equal(weights, plain_after(1).flat.parameters)


def test_the_trainer_is_told_the_way_of_a_microbatch():
    async def main():
        async with rig() as r:
            r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            await r.trainer.push(first, 1)
            await r.trainer.until(lambda: len(r.trainer.holders(1)) == 2)
            handed = Handed(0, 1, 0, last.record.peer, last.record.incarnation)
            assert first.notes == [first.notes[0], handed, Counted(0, 1, 0, True, None)]
            assert isinstance(first.notes[0], Ready)
            loss = last.notes[-1].loss
            assert last.notes[-1] == Counted(0, 1, 0, True, loss)
            return loss

    assert virtual(main) == pytest.approx(plain_after(0).loss(microbatch(1)).item())


def test_an_evaluation_counts_nothing_and_tells_the_loss():
    async def main():
        async with rig() as r:
            r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            number = 2**61
            await r.trainer.push(first, number, work=Work.EVALUATE, counting=())
            await r.trainer.until(lambda: r.trainer.notes(Evaluated))
            assert r.trainer.bitmap(first) == r.trainer.bitmap(last) == b"\0"
            return r.trainer.notes(Evaluated)

    (note,) = virtual(main)
    assert note.loss == pytest.approx(plain_after(0).loss(microbatch(2**61)).item())


def test_a_push_for_a_former_life_is_refused():
    async def main():
        async with rig() as r:
            r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            (first,) = r.trainer.of_stage(0)
            former = first.record.incarnation - 1
            with pytest.raises(NotServing, match="incarnation"):
                await r.trainer.push(first, 0, incarnation=former)

    virtual(main)


def test_a_push_from_a_stranger_is_refused():
    async def main():
        async with rig() as r:
            r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            (first,) = r.trainer.of_stage(0)
            push, _ = r.trainer.push_of(first, 0)
            stranger = r.world.rpc(peer(99))
            async with stranger.open_stream(first.contact, push, 10.0) as stream:
                with pytest.raises(NotServing, match="from the trainer"):
                    await stream.receive()
            with pytest.raises(Refused, match="only the trainer"):
                await stranger.call(
                    first.contact, Fence(RUN_ID, 0, first.record.incarnation, ()), 10.0
                )

    virtual(main)


def test_a_fence_waits_for_what_is_computed_and_tells_that_it_counts():
    async def main():
        async with rig() as r:
            gate = Gate()
            r.serve(2)
            await r.trainer.until_ready(1)
            r.serve(3, compute=gate)
            await r.trainer.until_ready(2)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            gate.open.clear()
            await r.trainer.push(first, 0)
            await gate.waiting.wait()
            fencing = asyncio.ensure_future(r.trainer.fence(last, 0, 0))
            assert await r.trainer.fence(first, 0, 0) == ()
            await asyncio.sleep(5.0)
            assert not fencing.done()
            gate.open.set()
            assert await fencing == (0,)
            with pytest.raises(NotServing, match="over"):
                await r.trainer.push(first, 0)
            # again, with only the stage counting that has not; the other passes it through
            await r.trainer.push(first, 0, attempt=1, counting=(0,))
            await r.trainer.until(lambda: r.trainer.holders(0))
            for number in range(1, B):
                await r.trainer.push(first, number)
            await r.trainer.until(
                lambda: (
                    all(len(r.trainer.holders(n)) == 2 for n in range(1, B))
                    and r.trainer.holders(0)
                )
            )
            last.notes.append(Counted(0, 0, 0, True, None))  # as the fence's answer says
            await r.trainer.reduce()
            await r.trainer.commit()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1).flat.parameters)


def test_a_replay_for_a_lost_server_makes_the_step_whole():
    async def main():
        async with rig() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            for number in (3, 4):
                r.serve(number)
            await r.trainer.until_ready(3)
            await r.trainer.step_pushes()
            stage = next(s for s in (0, 1) if len(r.trainer.of_stage(s)) == 2)
            lost = r.trainer.of_stage(stage)[0]
            missing = [n for n in range(B) if (stage, lost.record.peer) in r.trainer.holders(n)]
            assert missing
            r.kill(int.from_bytes(lost.record.peer))
            await lost.over.wait()
            await r.trainer.publish()
            (door, *_) = r.trainer.of_stage(0)
            for number in missing:
                await r.trainer.push(door, number, attempt=1, counting=(stage,))
            await r.trainer.until(lambda: all(len(r.trainer.holders(n)) == 2 for n in range(B)))
            await r.trainer.reduce()
            await r.trainer.commit()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1).flat.parameters)


def test_a_member_lost_while_averaging_is_done_without_in_the_next_generation():
    async def main():
        async with rig() as r:
            for number in (2, 3, 4, 5):
                r.serve(number)
            await r.trainer.until_ready(4)
            await r.trainer.step_pushes()
            lost, stays = r.trainer.of_stage(1)
            mine = [n for n in range(B) if (1, lost.record.peer) in r.trainer.holders(n)]
            r.trainer.generation += 1
            order = r.trainer.reduce_order(stays)
            averaging = asyncio.ensure_future(r.trainer.call(stays, order))
            await asyncio.sleep(1.0)
            r.kill(int.from_bytes(lost.record.peer))
            with pytest.raises(Refused, match="averaging with"):
                await averaging
            await lost.over.wait()
            await r.trainer.publish()
            (door, *_) = r.trainer.of_stage(0)
            for number in mine:
                await r.trainer.push(door, number, attempt=1, counting=(1,))
            await r.trainer.until(lambda: all(len(r.trainer.holders(n)) == 2 for n in range(B)))
            await r.trainer.reduce()
            await r.trainer.commit()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1).flat.parameters)


def test_a_newcomer_that_downloads_while_steps_pass_ends_bit_identical(monkeypatch):
    monkeypatch.setattr(
        PieceTracker.__init__, "__defaults__", (5_000,)
    )  # so that others get through

    async def main():
        async with rig() as r:
            for number in (2, 3):
                r.serve(number)
            await r.trainer.until_ready(2)
            await r.trainer.whole_step()
            r.serve(4)
            r.world.world.hosts[peer(4).raw].down_bytes_per_s = 10_000.0  # 20 s for the snapshot
            await r.trainer.until(lambda: len(r.trainer.members) == 3)
            for _ in range(2):
                answers = await r.trainer.whole_step()
                assert answers[peer(4).raw].digest == b""
            await r.trainer.until_ready(3)
            stage = r.servers[peer(4).raw].stage
            assert len(r.digests(stage)) == 1
            await r.trainer.whole_step()
            assert len(r.digests(stage)) == 1
            return weights_of(r), r.servers[peer(4).raw].version

    weights, version = virtual(main)
    assert version == 4
    assert_equal(weights, plain_after(4).flat.parameters)


def test_a_gradient_that_is_not_finite_is_told_and_not_counted():
    async def main():
        async with rig() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            fake = r.world.rpc(peer(50))
            taken = asyncio.Queue()

            async def take(stream, push):
                async with r.trainer.tensors.accept(stream, push.tensors) as coming:
                    await stream.send(coming.grant)
                    await coming.tensors()
                taken.put_nowait(push)
                await stream.receive()

            fake.serve_stream(Push, take)
            first = r.trainer.of_stage(0)[0]
            record = dataclasses.replace(
                first.record, peer=peer(50).raw, address=str(fake.contact.address), stage=1
            )
            r.trainer.members[peer(50).raw] = dataclasses.replace(
                first, record=record, contact=fake.contact
            )
            await r.trainer.publish()
            del r.trainer.members[peer(50).raw]
            pushing = asyncio.ensure_future(r.trainer.push(first, 0))
            push = await taken.get()
            rows, length = CONFIG.batch.rows, CONFIG.model.sequence_length
            gradient = torch.zeros(rows, length, CONFIG.model.d_model, dtype=torch.float64)
            gradient[0, 0, 0] = torch.nan
            encoded_tensor = encode(gradient, "raw")
            back = dataclasses.replace(
                push,
                stage=0,
                work=Work.BACKWARD,
                incarnation=first.record.incarnation,
                tensors=(encoded_tensor.meta,),
            )
            async with fake.open_stream(first.contact, back, 10.0) as stream:
                grant = await stream.receive()
                assert isinstance(grant, Grant)
                await r.trainer.tensors.send(stream, grant, [encoded_tensor], Priority.TENSOR)
                await stream.receive()
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            await pushing
            flat = r.engines[peer(2).raw][-1].weights._flat
            return r.trainer.notes(Undelivered), flat.sum_N.any().item()

    (note,), touched = virtual(main)
    assert "not finite" in note.reason
    assert not touched


def test_a_lost_trainer_ends_the_run_in_the_end():
    async def main():
        async with rig() as r:
            server = r.serve(2)
            await r.trainer.until_ready(1)
            running = r.running[peer(2).raw]
            running.cancel()
            task = asyncio.ensure_future(server.run())
            r.world.kill(peer(1), silent=False)
            with pytest.raises(RunEnded, match=r"the trainer at .* is gone for"):
                await task
            return asyncio.get_running_loop().time()

    assert 20.0 <= virtual(main) < 60.0


def test_a_server_that_comes_back_in_time_keeps_its_weights():
    async def main():
        async with rig() as r:
            r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            await r.trainer.whole_step()
            (first,) = r.trainer.of_stage(0)
            who = first.record.peer
            await r.trainer.push(first, B)  # counted in a life that ends
            await r.trainer.until(lambda: len(r.trainer.holders(B)) == 2)
            r.trainer.keep = lambda join: join.version == 1
            r.world.world.partition([first.contact.peer])
            await first.over.wait()
            r.world.world.heal()
            await r.trainer.until_ready(2)
            assert r.trainer.joins[-1].digest == r.servers[who]._replica.digest
            again = r.trainer.members[who]
            flat = r.engines[who][-1].weights._flat
            assert again.record.incarnation > first.record.incarnation
            assert not flat.sum_N.any()
            with pytest.raises(NotServing, match="incarnation"):
                await r.trainer.push(again, B, incarnation=first.record.incarnation)
            return len(r.engines[who])

    assert virtual(main) == 1


def test_a_server_that_leaves_waits_for_the_step_and_says_goodbye():
    async def main():
        async with rig() as r:
            for number in (2, 3, 4):
                r.serve(number)
            await r.trainer.until_ready(3)
            stage = next(s for s in (0, 1) if len(r.trainer.of_stage(s)) == 2)
            member = r.trainer.of_stage(stage)[0]
            await r.trainer.step_pushes()
            leaving = asyncio.ensure_future(r.servers[member.record.peer].leave())
            await asyncio.sleep(0.1)
            assert not leaving.done()
            await r.trainer.reduce()
            await r.trainer.commit()
            await leaving
            assert await r.running.pop(member.record.peer) == "left"
            await member.over.wait()
            return member.notes

    assert isinstance(virtual(main)[-1], Leaving)


def test_a_server_that_leaves_in_the_middle_of_a_step_does_not_wait_for_ever():
    async def main():
        async with rig() as r:
            server = r.serve(2)
            await r.trainer.until_ready(1)
            began_s = asyncio.get_running_loop().time()
            await server.leave()
            assert await r.running.pop(peer(2).raw) == "left"
            return asyncio.get_running_loop().time() - began_s

    assert virtual(main) < 5.0


def test_the_end_of_the_run_is_told():
    async def main():
        async with rig() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            await r.trainer.finish()
            return await r.running.pop(peer(2).raw)

    assert virtual(main) == "done"


def test_a_push_for_the_next_step_waits_for_the_commit():
    async def main():
        async with rig() as r:
            r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            (first,) = r.trainer.of_stage(0)
            await r.trainer.step_pushes()
            early = asyncio.ensure_future(r.trainer.push(first, B, step=1))
            await asyncio.sleep(1.0)
            assert not early.done()
            await r.trainer.reduce()
            await r.trainer.commit()
            receipt = await early
            await r.trainer.until(lambda: len(r.trainer.holders(B)) == 2)
            return receipt

    assert virtual(main).queue_s >= 1.0


def test_a_microbatch_that_nobody_takes_is_undelivered():
    async def main():
        async with rig() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            (first,) = r.trainer.of_stage(0)
            await r.trainer.push(first, 0)
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            return r.trainer.notes(Undelivered)

    (note,) = virtual(main)
    assert (note.microbatch, note.attempt) == (0, 0)
    assert "nobody serves stage 1" in note.reason


def test_a_stage_is_not_given_away_by_a_server_of_another():
    async def main():
        async with rig() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            (first,) = r.trainer.of_stage(0)
            ask = FetchState(RUN_ID, 1, 0)
            async with r.trainer.rpc.open_stream(first.contact, ask, 10.0) as stream:
                with pytest.raises(NotServing, match="stage 1"):
                    await stream.receive()

    virtual(main)


def test_a_fence_ends_what_is_being_handed_on():
    async def main():
        async with rig() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            (first,) = r.trainer.of_stage(0)
            await r.trainer.push(first, 0)
            await r.trainer.fence(first, 0, 0)
            r.serve(3)
            await r.trainer.until_ready(2)
            await asyncio.sleep(100.0)
            return r.trainer.notes(Handed), r.trainer.notes(Undelivered)

    assert virtual(main) == ([], [])


def test_a_whole_run_repeats_from_its_seed():
    async def main():
        async with rig() as r:
            for number in (2, 3, 4, 5):
                r.serve(number, compute=compute_here)
            await r.trainer.until_ready(4)
            for _ in range(2):
                await r.trainer.whole_step()
            return r.world.world.digest

    assert virtual(main) == virtual(main)


def test_fences_of_a_former_life_are_refused():
    async def main():
        async with rig() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            (first,) = r.trainer.of_stage(0)
            order = Fence(RUN_ID, 0, first.record.incarnation + 1, (FencedWork(0, 0),))
            with pytest.raises(NotServing, match="is over"):
                await r.trainer.call(first, order)

    virtual(main)


def test_a_reduction_that_overtakes_the_making_of_a_newcomers_memory_is_not_missed():
    """A large stage takes long to lay out, and steps do not wait for it."""

    async def main():
        config = dataclasses.replace(CONFIG, stages=1)
        async with rig(config) as it:
            it.serve(2)
            await it.trainer.until_ready(1)
            gate = Gate()
            gate.open.clear()
            newcomer = it.serve(3, compute=gate)
            await gate.waiting.wait()

            await it.trainer.step_pushes()
            answers = asyncio.create_task(it.trainer.reduce())
            await asyncio.sleep(5.0)
            gate.open.set()
            await answers
            await it.trainer.commit()
            await it.trainer.until_ready(2)

            assert newcomer.version == 1
            assert len(it.digests(0)) == 1
            assert len(it.trainer.joins) == 2

    virtual(main)
