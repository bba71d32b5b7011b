"""Old checkpoints are deleted, the last good one never, and nothing that is not ours."""

import pytest
from checkpoint.harness import RUN_ID, WRITER, checkpoint_id, names_in, save, save_stages
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import NotSaved
from p2pswarm.checkpoint.catalogue import folders, newest_good
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.names import FolderName, parse_folder
from p2pswarm.checkpoint.retention import outdated, prune
from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.settings.node_config import CheckpointConfig
from p2pswarm.settings.parser import from_values

ALL = Wanted()


@pytest.fixture
def store(tmp_path):
    return LocalFolder(tmp_path, WRITER)


def name_of(step: int) -> FolderName:
    name = parse_folder(checkpoint_id(step).folder)
    assert name is not None
    return name


def steps_left(store) -> list[int]:
    return [name.step for name in folders(store)]


def test_the_newest_and_every_so_many_stay():
    old = outdated(
        {name_of(step): True for step in range(10, 110, 10)},
        CheckpointConfig(keep_newest=2, keep_every=40),
    )

    assert [name.step for name in old] == [10, 20, 30, 50, 60, 70]


def test_checkpoints_of_steps_that_were_taken_back_take_nobodys_place():
    old = outdated(
        {name_of(step): True for step in (10, 20, 30, 40, 90)}, CheckpointConfig(keep_newest=2), 40
    )

    assert [name.step for name in old] == [10, 20]


@given(st.dictionaries(st.integers(0, 50), st.booleans()), st.integers(1, 5), st.integers(0, 7))
def test_what_stays_holds_the_newest_good_ones_and_everything_newer(found, newest, every):
    candidates = {name_of(step): good for step, good in found.items()}
    good = sorted((step for step, is_good in found.items() if is_good), reverse=True)

    gone = {
        n.step for n in outdated(candidates, CheckpointConfig(keep_newest=newest, keep_every=every))
    }

    assert not gone & set(good[:newest])
    assert not gone & {step for step in found if not good or step >= good[0]}
    assert not gone & {step for step in good if every and step % every == 0}
    assert gone >= {step for step in good[newest:] if not (every and step % every == 0)}
    assert gone >= {step for step in found if step not in good and good and step < good[0]}


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"keep_newest": 0}, "keep_newest is a whole number from 1 to 10000"),
        ({"keep_every": -1}, "keep_every is a whole number from 0"),
    ],
)
def test_a_setting_out_of_its_limits_is_named(setting, part):
    with pytest.raises(ValueError, match=part):
        from_values(CheckpointConfig, setting, "checkpoint")


async def test_old_ones_and_unfinished_ones_are_deleted(store):
    for step in (1, 2, 3, 4):
        await save(store, step)
    await save_stages(store, checkpoint_id(0))
    await save_stages(store, checkpoint_id(9))

    gone = prune(store, RUN_ID, CheckpointConfig(keep_newest=2), ALL)

    assert gone == [checkpoint_id(step).folder for step in (0, 1, 2)]
    assert steps_left(store) == [9, 4, 3]
    assert newest_good(store, ALL).checkpoint.manifest.step == 4


async def test_another_past_of_the_newest_step_that_is_being_written_stays(store):
    """After a rewind, the same step is written for the second time."""
    await save(store, 2)
    await save_stages(store, checkpoint_id(2, head=b"b" * 32))

    assert prune(store, RUN_ID, CheckpointConfig(keep_newest=1), ALL) == []


async def test_a_damaged_newest_one_does_not_cost_the_last_good_one(store, tmp_path):
    await save(store, 1)
    await save(store, 2)
    next((tmp_path / checkpoint_id(2).folder).glob("stage-000*")).unlink()

    assert prune(store, RUN_ID, CheckpointConfig(keep_newest=1), ALL) == []

    assert newest_good(store, ALL).checkpoint.manifest.step == 1


async def test_without_a_good_one_nothing_is_deleted(store):
    await save_stages(store, checkpoint_id(1))
    await save_stages(store, checkpoint_id(2))

    assert prune(store, RUN_ID, CheckpointConfig(), ALL) == []


async def test_files_and_folders_of_others_stay(store, tmp_path):
    for step in (1, 2):
        await save(store, step)
    await save(store, identity=checkpoint_id(1, run=b"other run's id.."))
    mine = tmp_path / checkpoint_id(1).folder / "notes.txt"
    mine.write_text("mine")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "manifest.json").write_text("mine too")

    prune(store, RUN_ID, CheckpointConfig(keep_newest=1), ALL)

    left = names_in(tmp_path)
    assert f"{checkpoint_id(1).folder}/notes.txt" in left
    assert "photos/manifest.json" in left
    assert len([name for name in left if ".6f74686572" in name]) == 4
    assert not [
        name for name in left if name.startswith(checkpoint_id(1).folder) and "stage" in name
    ]


async def test_a_deletion_that_is_cut_short_leaves_no_checkpoint_and_is_done_the_next_time(
    store, tmp_path
):
    for step in (1, 2):
        await save(store, step)
    folder = tmp_path / checkpoint_id(1).folder
    (folder / f"stage-000-of-002.{WRITER}.safetensors").unlink()
    (folder / f"stage-000-of-002.{WRITER}.safetensors").mkdir()  # cannot be unlinked

    with pytest.raises(NotSaved, match="directory"):
        prune(store, RUN_ID, CheckpointConfig(keep_newest=1), ALL)

    assert not (folder / "manifest.json").exists()
    (folder / f"stage-000-of-002.{WRITER}.safetensors").rmdir()
    assert prune(store, RUN_ID, CheckpointConfig(keep_newest=1), ALL) == [folder.name]
    assert steps_left(store) == [2]


async def test_a_folder_of_one_machine_counts_by_the_stages_that_it_served(store, tmp_path):
    for step in (1, 2, 3):
        await save(store, step)
        next((tmp_path / checkpoint_id(step).folder).glob("stage-001*")).unlink()

    assert prune(store, RUN_ID, CheckpointConfig(keep_newest=1), ALL) == []
    prune(store, RUN_ID, CheckpointConfig(keep_newest=1), Wanted(blocks=range(2)))

    assert steps_left(store) == [3]
