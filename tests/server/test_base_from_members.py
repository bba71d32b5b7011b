"""A server without the model's files has its frozen weights from members of its stage."""

import asyncio
import dataclasses

import pytest
import torch
from server.harness import CONFIG, RUN_ID, peer, swarm, virtual
from server.test_frozen_training import GPT, assert_as_in_a_plain_loop, with_adapters

from p2pswarm.base.errors import Busy, NotServing
from p2pswarm.models.base_weights import base_layout
from p2pswarm.models.model_source import resolved
from p2pswarm.run.messages.state import AskHashes, FetchBase, StateOffer
from p2pswarm.run.state.base_files import BaseFolder
from p2pswarm.run.state.piece_download import DonorBlame

RUN = with_adapters(GPT, "nf4")
ONE = dataclasses.replace(RUN, stages=1)
NEWCOMER = 20
SLOW_BYTES_PER_S = 20_000.0


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Have a base of 30 kB or so consist of some 30 pieces."""
    monkeypatch.setattr(base_layout, "PIECE_BYTES", 1024)


@pytest.fixture
def folder(tmp_path):
    return BaseFolder(tmp_path)


def base_of(r, number):
    return r.engines[peer(number).raw][-1].weights._flat.base


def sent_bytes(r, *numbers):
    return sum(r.world.world.hosts[peer(number).raw].sent_bytes for number in numbers)


def told(r):
    return [line for who, line in r.said if who == peer(NEWCOMER).raw]


async def ready(r, **options):
    await r.ready_servers(NEWCOMER, draws=False, **options)


@pytest.mark.parametrize("steps", [0, 2])
def test_what_it_gets_is_what_the_others_read(steps: int) -> None:
    async def main():
        async with swarm(RUN) as r:
            await r.ready_servers(2, 3, 4)
            for _ in range(steps):
                await r.trainer.whole_step()
            await ready(r, stage=1)
            mine = base_of(r, NEWCOMER)
            (mate,) = (n for n in (2, 3, 4) if r.servers[peer(n).raw].stage == 1)
            assert torch.equal(torch.cat(mine.buffers), torch.cat(base_of(r, mate).buffers))
            r.kill(mate)
            await r.trainer.until(lambda: peer(mate).raw not in r.trainer.members)
            await r.trainer.whole_step()
            assert_as_in_a_plain_loop(r, steps + 1, RUN)
            return told(r)

    (line,) = virtual(main)
    assert line.startswith("stage 1: its frozen weights, 0.0 GB, come from members")


def test_a_stage_of_which_nothing_is_frozen_has_its_weights_from_members() -> None:
    run = resolved(dataclasses.replace(GPT, frozen=("blocks.0.*",)))

    async def main():
        async with swarm(run) as r:
            await r.ready_servers(2, 3, 4)
            await ready(r, stage=1)
            await r.trainer.whole_step()
            assert len(r.digests(1)) == 1
            return told(r)

    assert virtual(main) == []


def test_it_costs_what_is_missing_and_little_more() -> None:
    async def main():
        async with swarm(ONE) as r:
            await r.ready_servers(2, 3, 4)
            await r.trainer.whole_step()
            before = sent_bytes(r, 2, 3, 4)
            await ready(r)
            engine = r.engines[peer(NEWCOMER).raw][-1]
            sizes = map(engine.base.piece_bytes, range(engine.base.pieces))
            return (sent_bytes(r, 2, 3, 4) - before) / (engine.state_bytes + sum(sizes))

    assert virtual(main) < 1.3  # pieces are small here, so messages are not


def test_steps_go_on_while_it_comes() -> None:
    async def main():
        async with swarm(ONE) as r:
            await r.ready_servers(2, 3)
            r.serve(NEWCOMER, draws=False)
            r.world.world.hosts[peer(NEWCOMER).raw].down_bytes_per_s = SLOW_BYTES_PER_S
            newcomer = r.servers[peer(NEWCOMER).raw]
            steps = 0
            while newcomer.version is None:
                await r.trainer.whole_step()
                await asyncio.sleep(0.5)
                steps += 1
            assert steps > 2
            await r.trainer.until_ready(3)
            await r.trainer.whole_step()
            assert len(r.digests(0)) == 1
            assert_as_in_a_plain_loop(r, r.trainer.version, ONE)

    virtual(main)


class Damaged:
    """A donor whose pieces are not what they should be."""

    def __init__(self, base):
        self._base = base
        self.pieces = base.pieces
        self.given = 0

    async def reached(self, version):
        await self._base.reached(version)

    async def hashes(self, version):
        return await self._base.hashes(version)

    async def piece(self, piece):
        version, data = await self._base.piece(piece)
        self.given += 1
        return version, memoryview(bytes(len(data)))


class OfLaterVersion(Damaged):
    """One that says that frozen weights have moved on."""

    async def piece(self, piece):
        _, data = await self._base.piece(piece)
        self.given += 1
        return 7, data

    async def hashes(self, version):
        return await self._base.hashes(0)


@pytest.mark.parametrize("kind", [Damaged, OfLaterVersion])
def test_a_hostile_donor_harms_nothing(kind) -> None:
    async def main():
        async with swarm(ONE) as r:
            await r.ready_servers(2, 3, 4)
            await r.trainer.whole_step()
            donor = r.servers[peer(3).raw]._base_donor
            donor._state = kind(donor._state)
            await ready(r)
            assert donor._state.given
            assert torch.equal(base_of(r, NEWCOMER).buffers[1], base_of(r, 2).buffers[1])
            return r.servers[peer(NEWCOMER).raw]._replica.base.rules

    rules = virtual(main)
    assert rules.is_bad(peer(3).raw) is (kind is Damaged)
    assert DonorBlame(peer(3).raw, "") not in rules.blames()  # they were named


def test_only_members_are_served_and_only_what_is_frozen() -> None:
    async def refusal(r, rpc):
        to = r.trainer.members[peer(2).raw].contact
        try:
            async with rpc.open_stream(to, FetchBase(RUN_ID, 0), 10.0) as stream:
                await stream.send(AskHashes(99, 1))
                assert await stream.receive() == StateOffer(99, known=False)
                return ""
        except (Busy, NotServing) as error:
            return str(error)

    async def main(run):
        async with swarm(run) as r:
            await r.ready_servers(2, 3)
            stranger = r.world.rpc(peer(77))
            return await refusal(r, stranger), await refusal(r, r.trainer.rpc)

    assert virtual(lambda: main(ONE)) == ("only members of the run may ask this", "")
    plain = dataclasses.replace(CONFIG, stages=1)
    assert virtual(lambda: main(plain))[1] == "nothing of this run is frozen"


def test_a_second_process_has_them_from_the_disk(folder) -> None:
    async def first():
        async with swarm(ONE) as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            await ready(r, bases=folder)
            await asyncio.sleep(1.0)

    async def second(spoil):
        spoil(sorted(folder._path.glob("*.base")))
        async with swarm(ONE) as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            before = sent_bytes(r, 2, 3)
            await ready(r, bases=folder)
            base = base_of(r, NEWCOMER)
            assert torch.equal(torch.cat(base.buffers), torch.cat(base_of(r, 2).buffers))
            await asyncio.sleep(1.0)
            state = r.engines[peer(2).raw][-1].state_bytes
            return (sent_bytes(r, 2, 3) - before - state) / sum(map(len, base.buffers)), told(r)

    def one_is_torn(files):
        files[1].write_bytes(files[1].read_bytes()[:-1])

    def one_is_another(files):
        files[0].write_bytes(bytes(files[0].stat().st_size))

    virtual(first)
    files = sorted(folder._path.glob("*.base"))
    contents = [file.read_bytes() for file in files]
    assert len(files) == GPT.model.layers + 2
    assert not list(folder._path.glob("*.draft"))
    fetched, lines = virtual(lambda: second(lambda files: None))
    assert fetched < 0.3
    assert [line for line in lines if line.endswith("frozen weights taken from the folder `state`")]
    for spoil in (one_is_torn, one_is_another):
        fetched, _ = virtual(lambda spoil=spoil: second(spoil))
        assert fetched < 0.8
        assert [file.read_bytes() for file in files] == contents


def test_a_full_disk_is_told_once(tmp_path) -> None:
    full = BaseFolder(tmp_path, free=lambda _folder: 1 << 20)

    async def main():
        async with swarm(ONE) as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            await ready(r, bases=full)
            await asyncio.sleep(1.0)
            await r.trainer.whole_step()
            return told(r)

    lines = virtual(main)
    assert (
        sum("the frozen weights are kept in memory alone; free some space" in x for x in lines) == 1
    )


def test_a_session_that_is_lost_meanwhile_fetches_no_piece_again() -> None:
    async def main():
        async with swarm(ONE) as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            r.serve(NEWCOMER, draws=False)
            r.world.world.hosts[peer(NEWCOMER).raw].down_bytes_per_s = SLOW_BYTES_PER_S
            await r.trainer.until(lambda: peer(NEWCOMER).raw in r.trainer.members)
            server = r.servers[peer(NEWCOMER).raw]
            await r.trainer.until(lambda: server._replica is not None)
            frozen = server._replica.base
            while len(frozen.rules.held) < 10:
                await frozen.moved.wait()
            rules = frozen.rules
            await r.cut_off(r.trainer.members[peer(NEWCOMER).raw])
            held = len(rules.held)
            await r.trainer.until_ready(3)
            assert server._replica.base.rules is rules
            await r.trainer.whole_step()
            assert len(r.digests(0)) == 1
            return held

    assert virtual(main) >= 10


def test_frozen_weights_are_the_same_file_in_another_cut() -> None:
    two = dataclasses.replace(RUN, stages=2)
    other_rank = with_adapters(GPT, "nf4", alpha=3)
    keys = [base_layout.block_key(run, 2) for run in (RUN, two, other_rank)]
    assert len(set(keys)) == 1
    others = (
        dataclasses.replace(RUN, base="int8"),
        dataclasses.replace(RUN, seed=RUN.seed + 1),
        dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, dtype="float32")),
    )
    assert len({keys[0], *(base_layout.block_key(run, 2) for run in others)}) == 1 + len(others)
