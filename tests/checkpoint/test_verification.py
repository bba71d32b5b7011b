"""`p2pswarm verify`: what is whole, what is not, and what it cannot know."""

import asyncio
import json
import os
import re

import pytest
from checkpoint.harness import (
    HEAD,
    OTHER_WRITER,
    RUN_ID,
    TRAINER,
    WRITER,
    checkpoint_id,
    save,
    save_stages,
)

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.catalogue import folders
from p2pswarm.checkpoint.targets import FsspecStore, LocalFolder
from p2pswarm.checkpoint.verification import newest_run
from p2pswarm.command_line import main

OTHER_RUN = b"other run's id.."


def make(folder, step=7, **options) -> None:
    """A checkpoint that keeps no chain, if no other is asked for."""
    options = {"chain": None, **options}
    asyncio.run(save(LocalFolder(folder, WRITER), step, **options))


def place(tmp_path, step=7):
    return tmp_path / checkpoint_id(step).folder


def as_json(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_a_whole_one_has_a_line_for_each_stage(tmp_path, capsys):
    make(tmp_path, writers=(WRITER, OTHER_WRITER))

    assert main(["verify", str(place(tmp_path))]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert (
        f"run 'my run', step 7, written by release 0.1.0, signed by {TRAINER.peer_id}" in lines[0]
    )
    assert lines[1].startswith("stage 0 of 2, blocks 0..1, ")
    assert lines[1].endswith(" bytes: whole in 2 of 2 files")
    assert lines[2].startswith("stage 1 of 2, blocks 2..3, ")
    assert lines[3] == "chain: none here, so what came before this step is not known"
    assert lines[4:] == ["step 7 is whole"]


def test_scripts_get_three_values(tmp_path, capsys):
    make(tmp_path)

    assert main(["verify", str(tmp_path), "--json"]) == 0

    assert as_json(capsys) == {"ok": True, "steps": 7, "head": HEAD.hex()}


def test_the_newest_that_is_finished_is_meant(tmp_path, capsys):
    make(tmp_path, 5)
    make(tmp_path, 7)
    asyncio.run(save_stages(LocalFolder(tmp_path, WRITER), checkpoint_id(9)))

    assert main(["verify", str(tmp_path)]) == 0

    said = capsys.readouterr().out
    assert said.startswith(f"{checkpoint_id(9).folder} is not finished")
    assert "step 7 is whole" in said


def test_without_a_chain_it_says_what_it_cannot_know(tmp_path, capsys):
    make(tmp_path, identity=checkpoint_id(head=b""), chain=None)

    assert main(["verify", str(tmp_path), "--json"]) == 0

    said = capsys.readouterr()
    assert json.loads(said.out) == {"ok": True, "steps": 7, "head": ""}
    assert "chain: none here, so what came before this step is not known" in said.err


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda f: f.write_bytes(f.read_bytes()[:-1] + b"\1"), "damaged; .* is damaged in piece"),
        (lambda f: f.write_bytes(f.read_bytes()[:-1]), "bytes: it is cut"),
        (lambda f: f.unlink(), "is not here"),
    ],
)
def test_a_damaged_stage_is_named_and_the_code_is_1(tmp_path, capsys, damage, part):
    make(tmp_path)
    damage(next(place(tmp_path).glob("stage-001*")))

    assert main(["verify", str(tmp_path), "--json"]) == 1

    said = capsys.readouterr()
    assert json.loads(said.out) == {"ok": False, "steps": 7, "head": HEAD.hex()}
    assert "stage 0 of 2" in said.err
    assert "it is not whole: use the one before" in said.err
    assert re.search(f"stage 1 of 2.*{part}", said.err)


def test_a_damaged_copy_is_named_but_a_whole_one_is_enough(tmp_path, capsys):
    make(tmp_path, writers=(WRITER, OTHER_WRITER))
    (place(tmp_path) / f"stage-001-of-002.{WRITER}.safetensors").unlink()

    assert main(["verify", str(tmp_path)]) == 0
    assert "whole in 1 of 2 files; stage-001-of-002.aaaaaaaa" in capsys.readouterr().out


def test_damaged_records_are_named(tmp_path, capsys):
    make(tmp_path, chain=b"records")
    (place(tmp_path) / "chain.records").write_bytes(b"recordz")

    assert main(["verify", str(tmp_path)]) == 1
    assert "chain: chain.records is gone or damaged" in capsys.readouterr().out


def test_records_that_are_no_chain_are_named(tmp_path, capsys):
    make(tmp_path, chain=b"these bytes are what was written, and they are no chain")

    assert main(["verify", str(tmp_path)]) == 1
    assert "chain: the file of records is no chain file" in capsys.readouterr().out


@pytest.mark.parametrize(
    "damage", [lambda f: f.unlink(), lambda f: f.write_bytes(b"{"), lambda f: f.write_bytes(b"")]
)
def test_a_checkpoint_without_a_manifest_that_verifies_is_not_whole(tmp_path, capsys, damage):
    make(tmp_path)
    damage(place(tmp_path) / "manifest.json")

    assert main(["verify", str(place(tmp_path)), "--json"]) == 1

    said = capsys.readouterr()
    assert json.loads(said.out) == {"ok": False, "steps": 0, "head": ""}
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("target", ["{}/none", "{}", "nosuch://x", "{}/file"])
def test_where_there_is_none_the_code_is_2(tmp_path, capsys, target):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder").mkdir()

    assert main(["verify", target.format(tmp_path), "--json"]) == 2

    said = capsys.readouterr()
    assert json.loads(said.out) == {"ok": False, "steps": 0, "head": ""}
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1


def written(tmp_path, identity, at_s):
    """A checkpoint whose files were written at that time."""
    make(tmp_path, identity=identity)
    for file in (tmp_path / identity.folder).iterdir():
        os.utime(file, (at_s, at_s))


@pytest.mark.parametrize(("newer", "step"), [(RUN_ID, 7), (OTHER_RUN, 9)])
def test_of_two_runs_the_one_that_was_written_last_is_meant_and_named(
    tmp_path, capsys, newer, step
):
    for run, of_step in ((RUN_ID, 7), (OTHER_RUN, 9)):
        written(tmp_path, checkpoint_id(of_step, run=run), at_s=2_000 if run == newer else 1_000)

    assert main(["verify", str(tmp_path)]) == 0

    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path} has checkpoints of 2 runs; this is the newest of my-run.")
    assert newer.hex()[:12] in said.splitlines()[0]
    assert "name a folder for another" in said
    assert f"step {step} is whole" in said


def test_what_was_not_finished_of_a_newer_run_does_not_count(tmp_path, capsys):
    make(tmp_path)
    other = checkpoint_id(9, run=OTHER_RUN)
    asyncio.run(save_stages(LocalFolder(tmp_path, WRITER), other))

    assert main(["verify", str(tmp_path), "--json"]) == 0

    said = capsys.readouterr()
    assert json.loads(said.out)["steps"] == 7
    assert "has checkpoints of 2 runs; this is the newest of my-run." in said.err


def test_runs_are_told_apart_in_memory_of_fsspec_too(capsys):
    """A file system of fsspec that keeps times."""
    place = "memory://two-runs"
    for run in (RUN_ID, OTHER_RUN):
        asyncio.run(save(FsspecStore(place), identity=checkpoint_id(7, run=run), chain=None))

    assert main(["verify", place]) == 0
    assert OTHER_RUN.hex()[:12] in capsys.readouterr().out.splitlines()[0]


def test_where_no_times_are_kept_one_of_two_runs_has_to_be_named(tmp_path):
    class Timeless(LocalFolder):
        def written_s(self, _path: str) -> None:
            """Some object stores do not say."""

    for run in (RUN_ID, OTHER_RUN):
        make(tmp_path, identity=checkpoint_id(7, run=run))
    runs = {name.of_run: name for name in folders(Timeless(tmp_path, WRITER))}

    with pytest.raises(
        Unusable, match=r"of 2 runs, and does not say which .* name one, such as my"
    ):
        newest_run(Timeless(tmp_path, WRITER), runs)


def test_a_url_is_verified_too(tmp_path, capsys):
    make(tmp_path)

    assert main(["verify", f"file://{tmp_path}"]) == 0
    assert "step 7 is whole" in capsys.readouterr().out
