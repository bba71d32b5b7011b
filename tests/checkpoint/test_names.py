"""Names of checkpoints and their files: one for each step of a run, and nobody else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.checkpoint.names import (
    CHAIN_NAME,
    MANIFEST_NAME,
    CheckpointId,
    is_ours,
    is_stage_file,
    parse_folder,
    part_name,
    slug,
    stage_file_name,
)

RUN = bytes(range(16))


def test_the_name_has_run_step_and_head():
    named = CheckpointId("my run", RUN, 200, b"\xab" * 32)

    assert named.folder == "my-run.000102030405.step-000000200.abababab"
    assert CheckpointId("my run", RUN, 200).folder == "my-run.000102030405.step-000000200"


@given(
    st.text(max_size=64), st.integers(0, 2**48), st.binary(min_size=32, max_size=32) | st.just(b"")
)
def test_every_name_is_read_back(run_name, step, head):
    folder = CheckpointId(run_name, RUN, step, head).folder

    found = parse_folder(folder)

    assert found is not None
    assert (found.step, found.text) == (step, folder)
    assert found.is_of(RUN)
    assert not found.is_of(bytes(16))
    assert len(folder) < 120
    assert "/" not in folder


@pytest.mark.parametrize(
    "name",
    [
        "",
        "photos",
        "my-run.000102030405.step-200",
        "my-run.000102030405.step-0000000200",
        "my-run.000102030405.step-000000200.abab",
        "my-run.000102030405.step-000000200/..",
        "my-run.000102030405.step-000000200\n",
        "../my-run.000102030405.step-000000200",
        "my-run.00010203040X.step-000000200",
    ],
)
def test_other_folders_are_not_checkpoints(name):
    assert parse_folder(name) is None


def test_a_name_in_no_script_of_ours_is_still_a_name():
    assert slug("мой/../run") == "run"
    assert slug("...") == "run"
    assert slug("a b/c") == "a-b-c"


def test_a_stage_file_names_its_stage_and_writer():
    name = stage_file_name(3, 12, "abcdefg2")

    assert name == "stage-003-of-012.abcdefg2.safetensors"
    assert is_stage_file(name, 3, 12)
    assert not is_stage_file(name, 3, 11)
    assert not is_stage_file(f"../{name}", 3, 12)
    assert not is_stage_file(name + "\n", 3, 12)


@pytest.mark.parametrize(
    ("stage", "stages", "writer"), [(2, 2, "a" * 8), (0, 257, "a" * 8), (0, 1, "../aaaaa")]
)
def test_a_stage_file_without_a_name_is_refused(stage, stages, writer):
    with pytest.raises(ValueError, match=r"stage|peer id"):
        stage_file_name(stage, stages, writer)


def test_only_our_files_are_ours():
    ours = [MANIFEST_NAME, CHAIN_NAME, stage_file_name(0, 1, "a" * 8)]

    assert all(is_ours(name) and is_ours(part_name(name, "b" * 8)) for name in ours)
    assert not any(
        map(is_ours, ["notes.txt", "manifest.json.bak", "x.part", "weights.safetensors"])
    )
