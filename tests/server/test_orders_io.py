"""A server fetches its next stage's weights before it leaves its own."""

import asyncio
from dataclasses import replace

import pytest
from server.gates import Gate
from server.harness import (
    RUN_ID,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.run.messages.membership import CannotPrepare, MoveTo, PrepareStage
from p2pswarm.run.messages.microbatch import Counted
from p2pswarm.run.messages.step import Commit, Committed, Reduce, Reduced

MOVER, STAYS, DONORS = 2, 4, (3, 5)
SLOW_BYTES_PER_S = 60_000.0


class Moving:
    """A trainer's part of one move from stage 0 to stage 1, beside its steps."""

    def __init__(self, r):
        self.r, self.trainer = r, r.trainer
        self.answers: list[Reduced] = []
        self.observing = True
        self.late: list[asyncio.Task] = []
        """The calls of the last step to the mover as an observer."""

    @property
    def member(self):
        return self.trainer.members[peer(MOVER).raw]

    @property
    def server(self):
        return self.r.servers[peer(MOVER).raw]

    @property
    def preparation(self):
        return self.server._session.preparation

    async def say(self, message):
        await self.member.stream.send(message)

    async def prepare(self, **changes):
        trainer = self.trainer
        fields = {"since": trainer.version, "state": trainer.state_of(1, trainer.version)}
        await self.say(PrepareStage(1, **{**fields, **changes}))
        await asyncio.sleep(0.2)  # a round trip

    async def whole_step(self, *, commits=True, waits=True):
        """A step of all, which the mover observes in stage 1.

        Unless it `waits`, the mover's answer is still to come when the step is committed.
        """
        trainer = self.trainer
        await trainer.step_pushes()
        orders = {raw: trainer.reduce_order(m) for raw, m in trainer.members.items()}
        trainer.generation += 1
        observer = peer(MOVER).raw
        async with asyncio.TaskGroup() as tasks:
            for raw, order in orders.items():
                member = trainer.members[raw]
                named = (observer,) if member.record.stage == 1 and self.observing else ()
                whole = self._order(order, order.observers + named)
                tasks.create_task(self._reduce(member, whole))
            if self.observing:
                group = tuple(m.record.peer for m in trainer.of_stage(1))
                order = Reduce(
                    RUN_ID,
                    trainer.version,
                    trainer.generation,
                    self.member.record.incarnation,
                    b"",
                    group,
                    (observer,),
                    observed=1,
                )
                us = trainer.rpc.contact.peer
                call = trainer.call(self.member, order)
                if not waits:
                    call.close()
                    call = self.server._reduce(us, order)  # so that a test can end the handler
                answer = asyncio.create_task(call)
        self.late = [answer] if self.observing else []
        assert waits or not answer.done()
        if self.observing and waits:
            self.answers.append(await answer)
        step, state = trainer.version, trainer.state_of(1, trainer.version)
        number = self.member.record.incarnation
        committing = asyncio.create_task(trainer.commit())
        await (committing if waits else asyncio.sleep(0.0))
        if self.observing and commits:
            order = Commit(RUN_ID, step, trainer.generation, number, 1.0, 1e-2, state, 1)
            answer = asyncio.create_task(trainer.call(self.member, order))
            self.late += [answer, committing]
            if waits:
                await answer

    def _order(self, order, observers):
        fields = {name: getattr(order, name) for name in order.__slots__}
        return Reduce(**{**fields, "observers": observers, "generation": self.trainer.generation})

    async def _reduce(self, member, order):
        assert isinstance(await self.trainer.call(member, order), Reduced)

    async def move(self):
        """Right after a commit; returns how long it was away."""
        loop, trainer = asyncio.get_running_loop(), self.trainer
        trainer.keep = lambda join: join.version == trainer.version
        joins, left_s = len(trainer.joins), loop.time()
        former = self.member
        await self.say(MoveTo(1, "+10 %"))
        await former.over.wait()
        await trainer.until(lambda: peer(MOVER).raw in trainer.members and self.member.ready)
        assert len(trainer.joins) == joins + 1
        return loop.time() - left_s


async def begun(r, **options):
    """Two servers a stage, and a step; `options`: of the mover."""
    await r.ready_servers(MOVER, **options)
    await r.ready_servers(DONORS[0])
    await r.ready_servers(STAYS)
    await r.ready_servers(DONORS[1])
    assert [m.record.stage for _, m in sorted(r.trainer.members.items())] == [0, 1, 0, 1]
    await r.trainer.whole_step()
    return Moving(r)


def sent_by_donors(r):
    return sum(r.world.world.hosts[peer(number).raw].sent_bytes for number in DONORS)


async def until_whole(moving, steps=20, **options):
    for _ in range(steps):
        if moving.preparation.whole:
            return
        await moving.whole_step(**options)
    raise AssertionError("it never had all pieces")


def test_a_mover_serves_on_while_it_fetches_and_is_away_for_two_round_trips():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            r.world.world.hosts[peer(MOVER).raw].down_bytes_per_s = SLOW_BYTES_PER_S
            await moving.prepare()
            await until_whole(moving)
            assert not moving.answers[0].state, "pieces have to come while a step is made"
            await moving.whole_step()
            assert moving.answers[-1].state == r.trainer.state_of(1, r.trainer.version - 1)
            served = {n.step for n in moving.member.notes if isinstance(n, Counted)}
            assert served == set(range(r.trainer.version))
            before = sent_by_donors(r)
            away_s = await moving.move()
            assert sent_by_donors(r) - before < 20_000, "nothing is fetched again"
            join = r.trainer.joins[-1]
            assert (join.stage, join.version) == (1, r.trainer.version)
            moving.observing = False
            await r.trainer.whole_step()
            assert len(r.digests(1)) == 1
            assert_equal(weights_of(r)[-1:], plain_after(r.trainer.version).flat.parameters[-1:])
            return away_s

    assert virtual(main) < 1.0


def test_the_steps_beside_a_preparation_are_those_of_a_plain_loop():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            await moving.prepare()
            for _ in range(3):
                await moving.whole_step()
            r.kill(MOVER)
            return weights_of(r), r.trainer.version

    weights, steps = virtual(main)
    assert_equal(weights, plain_after(steps).flat.parameters)


@pytest.mark.parametrize("calls_end", [False, True])
def test_who_leaves_before_the_last_gradient_is_here_waits_for_it_alone(calls_end):
    """`calls_end`: the handler of `Reduce` ends with the call, as the trainer's does by then."""

    async def main():
        async with swarm() as r:
            moving = await begun(r)
            await moving.prepare()
            await until_whole(moving)
            await moving.whole_step()
            for number in DONORS:
                r.world.world.hosts[peer(number).raw].up_bytes_per_s = SLOW_BYTES_PER_S / 5
            await moving.whole_step(waits=False)
            assert not any(call.done() for call in moving.late), "nothing is waited for"
            if calls_end:
                moving.late[0].cancel()
            away_s = await moving.move()
            join = r.trainer.joins[-1]
            assert (join.stage, join.version) == (1, r.trainer.version)
            moving.observing = False
            await r.trainer.whole_step()
            assert len(r.digests(1)) == 1
            assert moving.late[0].cancelled() is calls_end
            return away_s

    assert 0.2 < virtual(main) < 6.0


def test_who_changes_does_not_wait_for_the_digest_of_what_the_commit_made():
    """Of a large state it takes seconds; the trainer can tell what it holds by what it was."""

    async def main():
        async with swarm() as r:
            gate = Gate()
            moving = await begun(r, background=gate)
            await moving.prepare()
            await until_whole(moving)
            await moving.whole_step()
            gate.open.clear()
            await moving.whole_step()
            former, step = moving.member, r.trainer.version - 1
            r.trainer.keep = lambda join: join.version == step
            await moving.say(MoveTo(1, "+10 %"))
            await former.over.wait()
            await r.trainer.until(lambda: peer(MOVER).raw in r.trainer.members)
            join, member = r.trainer.joins[-1], moving.member
            assert (join.stage, join.version, join.held[-1].step) == (1, step, step)
            assert join.digest == r.trainer.state_of(1, step)
            assert await moving.server.serving(1) == 2
            assert moving.server.stage == 1
            assert moving.server.version == step + 1
            order = Commit(
                RUN_ID, step, join.held[-1].generation, member.record.incarnation, 1.0, 1e-2
            )
            answer = await r.trainer.call(member, order)
            assert replace(answer, seconds=None) == Committed(step + 1, applied=True)
            assert not member.ready, "its digest is not known"
            gate.open.set()
            await r.trainer.until(lambda: member.ready)
            moving.observing = False
            await r.trainer.whole_step()
            return r.digests(1)

    assert len(virtual(main)) == 1


def test_a_commit_that_comes_late_is_sent_again_for_the_gradient_that_it_holds():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            await moving.prepare()
            await until_whole(moving)
            await moving.whole_step()
            await moving.whole_step(commits=False)
            r.trainer.keep = lambda join: False
            former = moving.member
            await moving.say(MoveTo(1, "+10 %"))
            await former.over.wait()
            await r.trainer.until(lambda: peer(MOVER).raw in r.trainer.members)
            join = r.trainer.joins[-1]
            return r.trainer.version, join.stage, join.version, join.held[-1].step

    version, stage, held, reduced = virtual(main)
    assert (stage, held, reduced) == (1, version - 1, version - 1)


def test_who_is_told_to_stop_frees_the_memory_and_serves_on():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            await moving.prepare()
            await moving.whole_step()
            await moving.say(PrepareStage(None))
            moving.observing = False
            await r.trainer.whole_step()
            assert moving.preparation is None
            assert moving.member.record.stage == 0
            return weights_of(r), r.trainer.version

    virtual(main)


def test_who_is_sent_elsewhere_forgets_what_it_prepared():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            await moving.prepare()
            await until_whole(moving)
            await moving.whole_step()
            await r.cut_off(moving.member)
            await r.trainer.until(lambda: peer(MOVER).raw in r.trainer.members)
            return r.trainer.joins[-1].stage, moving.server.stage

    assert virtual(main) == (0, 0)


def test_one_that_misses_a_reduction_fetches_again():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            await moving.prepare()
            await until_whole(moving)
            await moving.whole_step()
            moving.observing = False
            await moving.whole_step()
            moving.observing = True
            with pytest.raises(Exception, match=r"lost|kept|reduction|NotServing"):
                await asyncio.wait_for(moving.whole_step(), 60.0)
            await r.trainer.until(lambda: moving.preparation is not None)
            await until_whole(moving)
            await moving.whole_step()
            assert moving.answers[-1].state == r.trainer.state_of(1, r.trainer.version - 1)

    virtual(main)


def test_who_lacks_the_memory_says_how_much_and_serves_on():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            context = moving.server._session.session.context
            object.__setattr__(context, "free_bytes", lambda: 10**9)
            await moving.prepare(state_bytes=3 * 10**9)
            await r.trainer.until(lambda: bool(r.trainer.notes(CannotPrepare)))
            (told,) = r.trainer.notes(CannotPrepare)
            moving.observing = False
            await r.trainer.whole_step()
            assert moving.member.record.stage == 0
            return told

    told = virtual(main)
    assert told.stage == 1
    assert told.lacks_bytes == 55 * 10**8 + (36 << 20) - 10**9


def test_an_order_for_a_stage_that_is_not_prepared_is_refused():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            number = moving.member.record.incarnation
            order = Commit(RUN_ID, 0, 1, number, 1.0, 1e-2, b"", 1)
            with pytest.raises(Exception, match="is not being prepared"):
                await r.trainer.call(moving.member, order)
            await moving.prepare()
            former = Commit(RUN_ID, 0, 1, number + 7, 1.0, 1e-2, b"", 1)
            with pytest.raises(Exception, match="is over"):
                await r.trainer.call(moving.member, former)

    virtual(main)


def test_who_was_told_its_stage_prepares_for_no_other():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            context = moving.server._session.session.context
            object.__setattr__(context, "stage", 0)
            await moving.prepare()
            await r.trainer.until(lambda: bool(r.trainer.notes(CannotPrepare)))
            (told,) = r.trainer.notes(CannotPrepare)
            assert "was told" in told.reason
            assert moving.preparation is None

    virtual(main)


def test_a_stage_that_the_run_has_not_ends_the_session_and_not_the_server():
    async def main():
        async with swarm() as r:
            moving = await begun(r)
            former = moving.member
            await moving.say(PrepareStage(7))
            await former.over.wait()
            await r.trainer.until(lambda: peer(MOVER).raw in r.trainer.members)
            assert not r.running[peer(MOVER).raw].done()

    virtual(main)
