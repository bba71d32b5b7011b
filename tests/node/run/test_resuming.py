"""From which checkpoint a run goes on, and from which it does not."""

import asyncio
import json
from dataclasses import replace

import pytest
from checkpoint.harness import CORPUS, RUN, RUN_ID, TRAINER, WRITER, checkpoint_id, save

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.catalogue import open_checkpoint
from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.node.run.resume import resumed_from, saving_plan
from p2pswarm.settings.node_config import CheckpointConfig


def make(folder, *steps: int) -> None:
    for step in steps:
        asyncio.run(save(LocalFolder(folder, WRITER), step, chain=None))


def place(folder, step: int):
    return folder / checkpoint_id(step).folder


def test_the_newest_is_taken_and_named_by_the_hash_of_its_manifest(tmp_path):
    make(tmp_path, 3, 7)
    said: list[str] = []

    found = resumed_from(str(tmp_path), RUN, CORPUS, said.append)

    newest = open_checkpoint(LocalFolder(tmp_path, WRITER), checkpoint_id(7).folder)
    assert (found.origin.run, found.origin.version) == (RUN_ID, 7)
    assert found.origin.checkpoint == newest.digest
    assert (found.target, found.folder) == (str(tmp_path), checkpoint_id(7).folder)
    (line,) = said
    assert line.startswith(f"going on from step 7 of {place(tmp_path, 7)} (2 stages, ")
    assert line.endswith(f"signed by {TRAINER.peer_id.short})")


def test_without_a_target_a_run_begins_anew(tmp_path):
    assert resumed_from("", RUN, CORPUS, lambda _: None) is None


def test_a_checkpoint_may_be_named_itself(tmp_path):
    make(tmp_path, 3, 7)

    found = resumed_from(str(place(tmp_path, 3)), RUN, CORPUS, lambda _: None)

    assert (found.origin.version, found.folder) == (3, "")


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: next(f.glob("stage-000*")).unlink(),
        lambda f: next(f.glob("stage-001*")).write_bytes(b"x"),
        lambda f: (f / "manifest.json").write_bytes(b'{"manifest":{}}'),
        lambda f: (f / "manifest.json").unlink(),
        lambda f: (f / "manifest.json").write_bytes(newer((f / "manifest.json").read_bytes())),
    ],
    ids=["half deleted", "cut", "torn", "not finished", "changed to a newer format"],
)
def test_one_that_cannot_be_used_is_named_and_the_one_before_is_taken(tmp_path, damage):
    make(tmp_path, 3, 7)
    damage(place(tmp_path, 7))
    said: list[str] = []

    found = resumed_from(str(tmp_path), RUN, CORPUS, said.append)

    assert found.origin.version == 3
    assert str(place(tmp_path, 7)) in said[0]
    assert "\n" not in said[0]


def newer(manifest: bytes) -> bytes:
    values = json.loads(manifest)
    values["manifest"]["format"] += 1
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("run", "corpus", "part"),
    [
        (replace(RUN, seed=2), CORPUS, "run.seed is 1 in the checkpoint and 2 here"),
        (RUN, b"x" * 32, "on another text"),
        (replace(RUN, steps=7), CORPUS, "there is nothing left to train; raise run.steps"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_in_one_line(tmp_path, run, corpus, part):
    make(tmp_path, 7)

    with pytest.raises(Unusable) as refused:
        resumed_from(str(tmp_path), run, corpus, lambda _: None)

    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_plan_is_made_only_where_it_can_be_written(tmp_path):
    target = tmp_path / "new" / "folder"

    plan = saving_plan(CheckpointConfig(target=str(target)), TRAINER, CORPUS)

    assert plan.store.place == str(target)
    assert list(target.iterdir()) == []  # what it tried is gone
    assert saving_plan(CheckpointConfig(), TRAINER, CORPUS) is None
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Unusable, match=r"checkpoint\.target: .* cannot be written: "):
        saving_plan(CheckpointConfig(target=str(tmp_path / "file")), TRAINER, CORPUS)
