"""Tests of `checkpoint/checkpoint_io.py`."""

import asyncio
import dataclasses
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from checkpoint.harness import (
    CUT,
    OTHER_WRITER,
    RUN_ID,
    TRAINER,
    WRITER,
    checkpoint_id,
    digest_of,
    full_after,
    in_pieces,
    loaded,
    manifest_of,
    names_in,
    save,
    save_stages,
    state_of,
    to_save,
)

from p2pswarm.base.errors import NotSaved
from p2pswarm.checkpoint.catalogue import newest_good
from p2pswarm.checkpoint.checkpoint_io import (
    NICER,
    last_of,
    load_stage,
    save_stage,
    yield_processor,
)
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.stage_file import file_bytes, header_of
from p2pswarm.checkpoint.targets import FsspecStore, LocalFolder
from p2pswarm.checkpoint.writer import StageFileWriter, joined, write_manifest

STATE = state_of(to_save(0).layout, seed=7)
DIGEST = digest_of(STATE, to_save(0).layout)
FIRST_BYTES = 8  # inside the first tensor, and of no other size here
WAIT_S = 10.0  # of a thread; a test that passes waits for nothing


@pytest.fixture
def store(tmp_path):
    return LocalFolder(tmp_path, WRITER)


async def test_a_checkpoint_is_a_folder_of_named_files(store, tmp_path):
    checkpoint = await save(store)

    folder = checkpoint_id().folder
    assert names_in(tmp_path) == [
        f"{folder}/chain.records",
        f"{folder}/manifest.json",
        f"{folder}/stage-000-of-002.{WRITER}.safetensors",
        f"{folder}/stage-001-of-002.{WRITER}.safetensors",
    ]
    assert checkpoint.signer == TRAINER.peer_id


@pytest.mark.parametrize("target", ["folder", "memory"])
async def test_what_was_saved_is_loaded(target, tmp_path):
    store = LocalFolder(tmp_path, WRITER) if target == "folder" else FsspecStore("memory://saving")

    checkpoint = await save(store)

    for stage, blocks in enumerate(CUT):
        layout = to_save(stage).layout
        pieces = [piece async for piece in load_stage(checkpoint, layout)]
        assert b"".join(pieces) == state_of(layout, seed=7)
        assert loaded(checkpoint, blocks) == state_of(layout, seed=7)


async def test_two_servers_of_a_stage_write_the_same_bytes(store, tmp_path):
    await save(store, writers=(WRITER, OTHER_WRITER))

    folder = tmp_path / checkpoint_id().folder
    one, other = sorted(folder.glob("stage-000*"))
    assert one.read_bytes() == other.read_bytes()


SIZE = file_bytes(to_save(0).layout, len(header_of(to_save(0).layout, to_save(0).about())))


@pytest.mark.parametrize("room_bytes", [*range(0, SIZE, 97), SIZE - 1])
async def test_a_disk_that_is_full_after_any_byte_leaves_nothing_and_training_goes_on(
    tmp_path, room_bytes
):
    good = await save(LocalFolder(tmp_path, WRITER), step=6)
    before = names_in(tmp_path)

    with pytest.raises(NotSaved, match=r"No space left on device; training goes on") as caught:
        await save_stage(full_after(tmp_path, room_bytes), to_save(0), in_pieces(STATE), WRITER)

    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == before
    assert loaded(good, CUT[0]) == state_of(to_save(0).layout, seed=6)


@pytest.mark.parametrize("room_bytes", [0, 5, 7, 50, 1000])
async def test_a_manifest_that_does_not_fit_is_not_there(tmp_path, room_bytes):
    stages = await save_stages(LocalFolder(tmp_path, WRITER))
    before = names_in(tmp_path)
    manifest = manifest_of(joined(stages, CUT))

    with pytest.raises(NotSaved, match="No space left"):
        write_manifest(full_after(tmp_path, room_bytes), manifest, TRAINER, b"records")

    assert set(names_in(tmp_path)) - set(before) <= {f"{checkpoint_id().folder}/chain.records"}
    write_manifest(LocalFolder(tmp_path, WRITER), manifest, TRAINER, b"records")
    assert newest_good(LocalFolder(tmp_path, WRITER), Wanted(run=RUN_ID)).checkpoint


async def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(NotSaved, match=r"was not written: Not a directory.*name another target"):
        await save_stages(LocalFolder(tmp_path / "file", WRITER))


async def test_a_folder_that_vanishes_while_it_is_written_is_named(tmp_path):
    store = LocalFolder(tmp_path, WRITER)
    writer = StageFileWriter(store, to_save(0), WRITER)
    writer.begin()
    writer.write(memoryview(STATE))
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()

    with pytest.raises(NotSaved, match="No such file or directory"):
        writer.finish(DIGEST)
    writer.abandon()


async def test_too_little_space_is_named_before_a_byte_is_written(tmp_path):
    class SmallFolder(LocalFolder):
        def free_bytes(self) -> int:
            return 2000

    with pytest.raises(NotSaved, match=r"has 2,000 bytes free, and [\d,]+ are needed: free some"):
        await save_stages(SmallFolder(tmp_path, WRITER))

    assert names_in(tmp_path) == []


async def test_a_finished_checkpoint_takes_no_more_files(store, tmp_path):
    checkpoint = await save(store)
    before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}

    with pytest.raises(NotSaved, match="finished already, and is not written again"):
        await save_stages(store, writers=(OTHER_WRITER,))
    with pytest.raises(NotSaved, match="finished already"):
        write_manifest(store, checkpoint.manifest, TRAINER, b"records")

    assert {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)} == before


async def test_a_try_that_was_cut_short_is_written_again(store, tmp_path):
    """A server dies after its file has its name, or before; its next life writes it anew."""
    await save_stages(store)
    folder = tmp_path / checkpoint_id().folder
    (folder / f"stage-000-of-002.{WRITER}.safetensors.{WRITER}.part").write_bytes(b"half")
    (folder / "chain.records").write_bytes(b"older records")

    checkpoint = await save(store)

    assert loaded(checkpoint, CUT[0]) == state_of(to_save(0).layout, seed=7)
    assert not list(folder.glob("*.part"))


async def test_a_source_that_fails_leaves_nothing(store, tmp_path):
    async def failing():
        yield memoryview(STATE)[:500]
        raise KeyError

    with pytest.raises(KeyError):
        await save_stage(store, to_save(0), failing(), WRITER)

    assert names_in(tmp_path) == []


async def test_a_source_that_ends_early_is_our_own_mistake(store, tmp_path):
    with pytest.raises(ValueError, match="a state of 500 bytes"):
        await save_stage(store, to_save(0), in_pieces(STATE[:500]), WRITER)

    assert names_in(tmp_path) == []


async def test_a_state_that_changes_while_it_is_written_is_not_saved(store, tmp_path):
    """An optimizer step came between two pieces: the file would hold half of each version."""
    changed = bytes([STATE[0] ^ 1]) + STATE[1:]

    with pytest.raises(NotSaved, match="the state changed meanwhile") as caught:
        await save_stage(store, to_save(0), in_pieces(changed), WRITER)

    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == []


async def test_a_save_that_is_cancelled_removes_its_part(store, tmp_path):
    begun = asyncio.Event()

    async def endless():
        yield memoryview(STATE)[:500]
        begun.set()
        await asyncio.Event().wait()

    saving = asyncio.create_task(save_stage(store, to_save(0), endless(), WRITER))
    await begun.wait()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving

    await asyncio.to_thread(_until_empty, tmp_path)


def _until_empty(folder) -> None:
    """Nobody waits for the thread that removes it; the test's own time limit ends this."""
    while names_in(folder):
        pass


async def test_a_part_that_cannot_be_removed_is_only_logged(tmp_path, caplog):
    writer = StageFileWriter(LocalFolder(tmp_path, WRITER), to_save(0), WRITER)
    writer.abandon()  # nothing was begun
    writer.begin()
    part = next(tmp_path.rglob("*.part"))
    part.unlink()
    part.mkdir()

    writer.abandon()

    assert "a part of it is left" in caplog.text


def test_records_that_the_manifest_does_not_name_are_refused(store, tmp_path):
    manifest = asyncio.run(save_stages(store))
    manifest = manifest_of(joined(manifest, CUT))

    for chain in (None, b"other records"):
        with pytest.raises(ValueError, match="not those that the manifest names"):
            write_manifest(store, manifest, TRAINER, chain)


async def test_memory_holds_a_few_pieces_whatever_the_size(store):
    """The source is asked for a piece only when the one before is on the disk."""
    asked = []

    async def counting():
        async for piece in in_pieces(STATE, 100):
            asked.append(len(written))
            yield piece

    written: list[int] = []

    class Watched(LocalFolder):
        def create(self, path, size):
            file = super().create(path, size)
            write = file.write
            file.write = lambda data: (write(data), written.append(len(data)))[0]
            return file

    await save_stage(Watched(store._folder, WRITER), to_save(0), counting(), WRITER)

    assert asked == sorted(asked)
    assert asked[-1] >= len(asked) // 2


async def test_the_next_piece_is_made_while_one_is_written(tmp_path):
    asked, together = threading.Event(), []

    async def source():
        yield memoryview(STATE)[:FIRST_BYTES]
        asked.set()
        yield memoryview(STATE)[FIRST_BYTES:]

    class Watched(LocalFolder):
        def create(self, path, size):
            file = super().create(path, size)
            write = file.write

            def written(data):
                if memoryview(data).nbytes == FIRST_BYTES:
                    together.append(asked.wait(WAIT_S))
                write(data)

            file.write = written
            return file

    await save_stage(Watched(tmp_path, WRITER), to_save(0), source(), WRITER)
    assert together == [True]


async def test_the_digest_is_asked_for_at_once_and_awaited_last(tmp_path):
    """Servers keep the digests of a few versions only."""
    events = []

    async def agreed():
        events.append("asked")
        return DIGEST

    async def source():
        async for piece in in_pieces(STATE):
            yield piece
        events.append("read")

    what = dataclasses.replace(to_save(0), agreed=agreed)
    await save_stage(LocalFolder(tmp_path, WRITER), what, source(), WRITER)
    assert events == ["asked", "read"]


async def test_a_folder_is_hashed_after_the_state_was_given_and_an_upload_meanwhile(tmp_path):
    """`told` hears what is done when the source has been read to its end."""
    shares = []
    for store in (LocalFolder(tmp_path, WRITER), FsspecStore("memory://hashed-when")):
        told = []

        async def source(told=told, shares=shares):
            async for piece in in_pieces(STATE):
                yield piece
            shares.append(told[-1])

        saved = await save_stage(store, to_save(0), source(), WRITER, told=told.append)
        assert told == sorted(told)
        assert told[-1] == 1.0
        assert saved.state_digest == DIGEST

    folder, upload = shares  # the last piece is being written
    assert folder < 0.5 < upload


async def test_a_file_that_was_changed_while_it_was_written_gets_no_name(tmp_path):
    def write(change):
        writer = StageFileWriter(LocalFolder(tmp_path, WRITER), to_save(0), WRITER)
        writer.begin()
        writer.write(memoryview(STATE))
        (part,) = tmp_path.rglob("*.part")
        data = bytearray(part.read_bytes())
        change(data)
        part.write_bytes(data)
        try:
            with pytest.raises(NotSaved) as told:
                writer.finish(DIGEST)
        finally:
            writer.abandon()
        return str(told.value)

    def flip(data):
        data[-1] ^= 1

    def cut(data):
        del data[-20:]

    def empty(data):
        data.clear()

    assert "the state changed meanwhile" in write(flip)
    assert "was cut off by somebody" in write(cut)
    assert "was cut off by somebody" in write(empty)
    assert names_in(tmp_path) == []


async def test_of_steps_on_a_thread_the_last_value_comes_and_none_follows_a_cancellation():
    reached, go_on, began = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def steps():
        for number in range(3):
            began.append(number)
            if number == 1:
                loop.call_soon_threadsafe(reached.set)
                go_on.wait()
            yield number

    go_on.set()
    assert await last_of(steps) == 2

    reached.clear(), go_on.clear(), began.clear()
    waiting = asyncio.create_task(last_of(steps))
    await reached.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    assert began == [0, 1]


def test_a_thread_that_yields_the_processor_does_it_for_itself_alone():
    def priorities():
        yield_processor()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities() == before  # the main thread never does
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(priorities).result()

    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    assert there == (min(19, before + NICER) if sys.platform == "linux" else before)
