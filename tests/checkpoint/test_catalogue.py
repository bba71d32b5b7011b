"""The newest checkpoint that is whole is used; what is torn, damaged or not ours is named."""

import dataclasses
import shutil

import pytest
from checkpoint.harness import (
    CUT,
    OTHER_WRITER,
    RUN,
    RUN_ID,
    WRITER,
    checkpoint_id,
    loaded,
    manifest_of,
    save,
    save_stages,
    state_of,
    to_save,
)

from p2pswarm.base.errors import BadCheckpoint, Unusable
from p2pswarm.checkpoint.catalogue import check_bytes, folders, newest_good, open_checkpoint
from p2pswarm.checkpoint.checkpoint_manifest import sign
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.checkpoint.writer import joined
from p2pswarm.net.crypto.identity import Identity

OURS = Wanted(run=RUN_ID)


@pytest.fixture
def store(tmp_path):
    return LocalFolder(tmp_path, WRITER)


def flip(path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def stage_file(tmp_path, step=7, stage=0, writer=WRITER):
    return tmp_path / checkpoint_id(step).folder / f"stage-00{stage}-of-002.{writer}.safetensors"


def delete(path) -> None:
    path.unlink()


def cut_off(path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grown(path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def flip_header(path) -> None:
    flip(path, 5)


def flip_end(path) -> None:
    flip(path, -1)


async def test_the_newest_is_found(store):
    for step in (5, 9, 7):
        await save(store, step)

    found = newest_good(store, OURS)

    assert (found.checkpoint.manifest.step, found.refusals) == (9, ())
    assert [name.step for name in folders(store)] == [9, 7, 5]


@pytest.mark.parametrize("damage", [delete, cut_off, grown, flip_header, flip_end])
@pytest.mark.parametrize("name", ["manifest.json", "chain.records", "stage-001-of-002"])
async def test_what_happens_to_any_file_the_one_before_is_used(store, tmp_path, damage, name):
    await save(store, 6)
    await save(store, 7)
    path = next((tmp_path / checkpoint_id(7).folder).glob(f"{name}*"))

    damage(path)

    found = newest_good(store, OURS)
    assert found.checkpoint.manifest.step == 6
    assert len(found.refusals) == 1
    assert "\n" not in found.refusals[0]
    assert str(tmp_path / checkpoint_id(7).folder) in found.refusals[0]
    assert loaded(found.checkpoint, CUT[1]) == state_of(to_save(1).layout, seed=6)


async def test_a_damaged_file_is_noticed_while_it_is_loaded_too(store, tmp_path):
    checkpoint = await save(store)
    flip(stage_file(tmp_path), -1)

    with pytest.raises(BadCheckpoint, match=r"is damaged in piece (\d+) of (\d+)"):
        loaded(checkpoint, CUT[0])


async def test_a_copy_is_used_where_a_file_is_damaged_or_gone(store, tmp_path):
    checkpoint = await save(store, writers=(WRITER, OTHER_WRITER))
    flip(stage_file(tmp_path), -1)
    stage_file(tmp_path, stage=1, writer=OTHER_WRITER).unlink()

    checkpoint = newest_good(store, OURS).checkpoint

    for stage, blocks in enumerate(CUT):
        assert loaded(checkpoint, blocks) == state_of(to_save(stage).layout, seed=7)


async def test_a_file_that_vanishes_after_the_opening_is_taken_from_the_copy(store, tmp_path):
    checkpoint = await save(store, writers=(WRITER, OTHER_WRITER))

    stage_file(tmp_path).unlink()
    assert loaded(checkpoint, CUT[0]) == state_of(to_save(0).layout, seed=7)
    stage_file(tmp_path, writer=OTHER_WRITER).unlink()

    with pytest.raises(BadCheckpoint, match=r"No such file.*; .*No such file"):
        loaded(checkpoint, CUT[0])


async def test_only_the_stages_that_are_wanted_have_to_be_there(store, tmp_path):
    """A machine's own folder holds the stages that it served."""
    await save(store)
    stage_file(tmp_path, stage=1).unlink()

    found = newest_good(store, Wanted(run=RUN_ID, blocks=CUT[0]))

    assert loaded(found.checkpoint, CUT[0]) == state_of(to_save(0).layout, seed=7)
    with pytest.raises(Unusable, match=r"1 cannot be used: .*stage-001.* is gone or cut"):
        newest_good(store, Wanted(run=RUN_ID, blocks=range(1, 3)))


async def test_the_checkpoints_of_another_run_are_passed_over(store):
    await save(store, 7)
    other = checkpoint_id(9, run=b"other run's id.."[:16])
    await save(store, identity=other)

    assert newest_good(store, OURS).checkpoint.manifest.step == 7
    assert newest_good(store, Wanted()).checkpoint.manifest.step == 9


async def test_a_renamed_folder_of_another_run_is_refused_by_what_is_in_it(store, tmp_path):
    other = checkpoint_id(9, run=b"other run's id..")
    await save(store, identity=other)
    (tmp_path / other.folder).rename(tmp_path / checkpoint_id(9).folder)

    with pytest.raises(Unusable, match=r"1 cannot be used: .*of run 'my run' \(6f74686572.*not of"):
        newest_good(store, OURS)


async def test_a_folder_with_another_steps_name_is_refused(store, tmp_path):
    """Else an old checkpoint would count as the newest."""
    await save(store, 6)
    await save(store, 7)
    (tmp_path / checkpoint_id(6).folder).rename(tmp_path / checkpoint_id(9).folder)

    found = newest_good(store, OURS)

    assert found.checkpoint.manifest.step == 7
    assert f"it was renamed from {checkpoint_id(6).folder}: rename it back" in found.refusals[0]


async def test_two_pasts_of_one_step_have_a_folder_each(store):
    """After a rewind the run comes to a step for the second time, with other weights."""
    await save(store, identity=checkpoint_id(7, head=b"a" * 32))
    await save(store, identity=checkpoint_id(7, head=b"b" * 32))

    assert len(folders(store)) == 2


def test_a_target_without_checkpoints_says_so(store, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(Unusable, match=r"no checkpoint to go on from in .*: name another target"):
        newest_good(store, OURS)
    with pytest.raises(Unusable, match="cannot be read: Not a directory"):
        newest_good(LocalFolder(tmp_path / "file", WRITER), OURS)


async def test_an_unfinished_one_is_not_there(store):
    await save_stages(store)

    with pytest.raises(BadCheckpoint, match=r"has no manifest\.json: it was not finished"):
        open_checkpoint(store, checkpoint_id().folder)


async def test_a_manifest_whose_hashes_contradict_each_other_is_refused(store, tmp_path):
    """Its signature is right: somebody who may sign made it."""
    stages = joined(await save_stages(store), CUT)
    wrong = dataclasses.replace(stages[0].digest, sha256=b"w" * 32)
    manifest = manifest_of([dataclasses.replace(stages[0], digest=wrong), stages[1]], chain=None)
    folder = checkpoint_id().folder
    (tmp_path / folder / "manifest.json").write_bytes(sign(manifest, Identity.generate(b"x")))

    checkpoint = open_checkpoint(store, folder)
    with pytest.raises(BadCheckpoint, match="contradict each other"):
        check_bytes(checkpoint)


async def test_a_manifest_of_impossible_size_is_not_read(store, tmp_path):
    folder = tmp_path / checkpoint_id().folder
    folder.mkdir()
    with (folder / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)  # takes no space on the disk

    with pytest.raises(BadCheckpoint, match="a manifest of 1099511627776 bytes"):
        open_checkpoint(store, folder.name)


async def test_records_that_cannot_be_read_are_named(store, tmp_path):
    checkpoint = await save(store)
    shutil.rmtree(tmp_path / checkpoint_id().folder)

    with pytest.raises(BadCheckpoint, match="No such file"):
        check_bytes(checkpoint)
    with pytest.raises(BadCheckpoint, match=r"chain\.records cannot be read"):
        check_bytes(checkpoint, Wanted(blocks=range(0)))


async def test_a_run_without_a_chain_goes_on_too(store):
    await save(store, chain=None, identity=checkpoint_id(head=b""))

    assert newest_good(store, OURS).checkpoint.manifest.chain is None


async def test_a_run_of_another_batch_is_not_gone_on_with(store):
    await save(store)
    batch = dataclasses.replace(RUN.batch, rows=3)

    with pytest.raises(Unusable, match=r"run\.batch\.rows is 4 in the checkpoint and 3 here"):
        newest_good(store, Wanted(config=dataclasses.replace(RUN, batch=batch)))
