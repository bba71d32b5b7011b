"""A newcomer that is killed half-way and started again downloads only what is missing."""

import asyncio

import pytest
from server.harness import (
    ONE_STAGE,
    RUN_ID,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.models.compute.base import part_sizes
from p2pswarm.run.state.partial_state import PartialFolder

NEWCOMER = 5
SLOW_BYTES_PER_S = 60_000.0  # the state of 350 kB takes about 6 s


@pytest.fixture
def folder(tmp_path):
    return PartialFolder(tmp_path)


def file_of(folder):
    return folder._path / f"{RUN_ID.hex()}-0.partial"


def sent_by_donors(r):
    return sum(r.world.world.hosts[peer(number).raw].sent_bytes for number in (2, 3, 4))


def state_bytes(r):
    return r.engines[peer(2).raw][-1].state_bytes


def told(r):
    """What the user of the newcomer hears, less that a link was lost when it died."""
    lines = [line for who, line in r.said if who == peer(NEWCOMER).raw]
    return [line for line in lines if "joining again" not in line]


async def donors(r, steps=1):
    await r.ready_servers(2, 3, 4)
    for _ in range(steps):
        await r.trainer.whole_step()


async def come(r, folder, wait_s=2.5):
    r.serve(NEWCOMER, partials=folder)
    r.world.world.hosts[peer(NEWCOMER).raw].down_bytes_per_s = SLOW_BYTES_PER_S
    await r.trainer.until(lambda: peer(NEWCOMER).raw in r.trainer.members)
    await asyncio.sleep(wait_s)


async def die(r):
    """The process dies; all that it did has ended when this returns."""
    process = r.running[peer(NEWCOMER).raw]
    r.kill(NEWCOMER)
    while not process.done():
        process.cancel()
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)


async def killed_half_way(r, folder):
    await come(r, folder)
    loading = r.servers[peer(NEWCOMER).raw]._replica.loading
    assert 0.2 < len(loading.rules.held) / loading.rules.pieces < 0.8
    await die(r)


async def serves(r):
    await r.trainer.until_ready(4)
    await r.trainer.whole_step()
    assert len(r.digests(0)) == 1
    assert_equal(weights_of(r), plain_after(r.trainer.version).flat.parameters)


async def restarted(r, folder):
    """Returns what donors sent until it was ready, over the size of the state."""
    before = sent_by_donors(r)
    await come(r, folder, wait_s=0.0)
    await r.trainer.until_ready(4)
    return (sent_by_donors(r) - before) / state_bytes(r)


def test_a_restarted_newcomer_downloads_only_what_is_missing(folder):
    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            before = sent_by_donors(r)
            await killed_half_way(r, folder)
            first = (sent_by_donors(r) - before) / state_bytes(r)
            second = await restarted(r, folder)
            await serves(r)
            return first + second, told(r)

    fetched, lines = virtual(main)
    assert fetched < 1.25  # six pieces of 73 were on their way
    (line,) = lines
    assert line.startswith("stage 0: pieces of the weights taken from the folder `state`: ")


def test_the_file_is_gone_when_it_was_used(folder):
    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await killed_half_way(r, folder)
            assert file_of(folder).exists()
            await restarted(r, folder)
            await serves(r)

    virtual(main)
    assert not file_of(folder).exists()


def test_a_step_in_between_costs_what_was_there_and_never_exactness(folder):
    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await killed_half_way(r, folder)
            await r.trainer.whole_step()
            fetched = await restarted(r, folder)
            await serves(r)
            return fetched, told(r)

    fetched, lines = virtual(main)
    assert fetched > 0.95
    assert "older than step 2 and fetched again: " in lines[0]


def test_pieces_that_have_followed_a_commit_are_kept_as_they_are_then(folder):
    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await come(r, folder, wait_s=1.0)
            await r.trainer.whole_step()
            await asyncio.sleep(1.5)
            await die(r)
            fetched = await restarted(r, folder)
            await serves(r)
            return fetched

    assert virtual(main) < 0.9


def test_a_step_while_a_restarted_newcomer_downloads_is_followed(folder):
    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await killed_half_way(r, folder)
            await come(r, folder, wait_s=0.5)
            await r.trainer.whole_step()
            await serves(r)

    virtual(main)


@pytest.mark.parametrize("where", [0.3, 0.6, 0.9])
def test_a_file_that_was_changed_harms_nothing_and_names_no_donor(folder, where, caplog):
    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await killed_half_way(r, folder)
            data = bytearray(file_of(folder).read_bytes())
            data[int(where * len(data))] ^= 1
            file_of(folder).write_bytes(data)
            await restarted(r, folder)
            await serves(r)

    virtual(main)
    assert "damaged" not in caplog.text


def test_a_forged_piece_with_its_own_hash_is_found_out_and_fetched(folder, caplog):
    """Whoever can write the folder makes a slot that is whole and is not the stage's."""

    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await killed_half_way(r, folder)
            state = r.engines[peer(2).raw][-1].state
            sizes = [sum(part_sizes(state, piece)) for piece in range(state.pieces)]
            forged = folder.file(RUN_ID, 0, sizes)
            forged.begin()
            for piece in (0, state.pieces - 1):
                forged.write(piece, 1, memoryview(bytes(sizes[piece])))
            await restarted(r, folder)
            await serves(r)

    virtual(main)
    assert "damaged" not in caplog.text


def test_a_folder_that_cannot_be_used_is_told_once_and_the_download_goes_on(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    folder = PartialFolder(tmp_path / "file")

    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await come(r, folder)
            await serves(r)
            return told(r)

    (line,) = virtual(main)
    assert line.endswith(
        ": the weights that come are kept in memory alone; free some space, or name another folder "
        "as `state`"
    )


def test_a_disk_that_fills_up_half_way_is_told_once_and_given_back(tmp_path):
    class Filling(PartialFolder):
        left = 10

        def free(self, _):
            self.left -= 1
            return 1 << 40 if self.left > 0 else 0

        def file(self, run, stage, sizes):
            file = super().file(run, stage, sizes)
            file._free = self.free
            return file

    folder = Filling(tmp_path)

    async def main():
        async with swarm(ONE_STAGE) as r:
            await donors(r)
            await come(r, folder)
            assert not file_of(folder).exists()
            await serves(r)
            return told(r)

    (line,) = virtual(main)
    assert "less than 256 MiB would be free on its disk" in line
