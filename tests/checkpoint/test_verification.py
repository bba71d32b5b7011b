"""`p2pswarm verify`: what is whole, what is not, and what it cannot know."""

import asyncio
import json
import re

import pytest
from checkpoint.harness import (
    HEAD,
    OTHER_WRITER,
    TRAINER,
    WRITER,
    checkpoint_id,
    save,
    save_stages,
)

from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.command_line import main


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


def test_checkpoints_of_two_runs_have_to_be_told_apart(tmp_path, capsys):
    make(tmp_path)
    make(tmp_path, identity=checkpoint_id(run=b"other run's id.."))

    assert main(["verify", str(tmp_path)]) == 2
    assert "has checkpoints of 2 runs: name one, such as my-run." in capsys.readouterr().err


def test_a_url_is_verified_too(tmp_path, capsys):
    make(tmp_path)

    assert main(["verify", f"file://{tmp_path}"]) == 0
    assert "step 7 is whole" in capsys.readouterr().out
