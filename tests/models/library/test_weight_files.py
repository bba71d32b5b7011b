"""Tests of `models/library/weight_files.py`."""

import dataclasses
import itertools
import json

import pytest
import torch
from local_hub import local_hub
from models import family_trials
from safetensors import safe_open
from safetensors.torch import save

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub import Pinned, library
from p2pswarm.models import pretrained
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.compute.torch_weights import first_state
from p2pswarm.models.library.compact_files import CompactFiles
from p2pswarm.models.library.hf_library import config_text, library_model
from p2pswarm.models.library.weight_files import (
    DIMENSIONS_MAX,
    EVERY_TYPE,
    HEADER_BYTES_MAX,
    INDEX,
    INSTEAD,
    LENGTH_BYTES,
    ONE_FILE,
    FolderFiles,
    HubFiles,
    StoredTensor,
    header_bytes,
    joined,
    places_in,
    stored_tensors,
)
from p2pswarm.models.model_source import resolved
from p2pswarm.models.pretrained import offer_hub, offer_served
from p2pswarm.settings.config import ModelConfig
from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import from_values, load, run_from_json, run_to_json

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "c": torch.tensor(3, dtype=torch.int8),
}


def read(file):
    length = header_bytes(file[:LENGTH_BYTES], len(file))
    return stored_tensors(file[LENGTH_BYTES : LENGTH_BYTES + length], len(file))


@pytest.mark.parametrize("file", ["", "..", "a/b", "a\0b", "\ud800", "x" * 300, 7])
def test_an_index_that_names_no_file_beside_it_is_refused(tmp_path, file):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))

    with pytest.raises(Unusable, match="which is no file beside it"):
        places_in(tmp_path / INDEX)


@pytest.mark.parametrize("file", [ONE_FILE, "part.safetensors", INDEX])
def test_a_pointer_to_weights_that_were_not_fetched_is_named(tmp_path, file):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    if file == ONE_FILE:
        (tmp_path / INDEX).unlink()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n"
    (tmp_path / file).write_bytes(pointer)

    def shapes():
        weights = FolderFiles(tmp_path)
        return weights.shapes(weights.places()["a"], ["a"])

    with pytest.raises(Unusable, match=rf"{file} stands for a file .*: run git lfs pull there"):
        shapes()
    with pytest.raises(Unusable, match="run git lfs pull there"):
        load_model(tmp_path / file)


def test_tensors_lie_where_the_library_finds_them(tmp_path):
    file = save(TENSORS, metadata={"format": "pt"})
    (tmp_path / "file").write_bytes(file)

    found = read(file)

    with safe_open(tmp_path / "file", framework="pt") as theirs:
        assert found.keys() == set(theirs.keys())
        assert all(found[n].shape == tuple(theirs.get_slice(n).get_shape()) for n in found)
    stored = found["a"]
    assert stored.dtype == "F32"
    numbers = torch.frombuffer(bytearray(file[stored.start : stored.stop]), dtype=torch.float32)
    assert torch.equal(numbers.view(2, 3), TENSORS["a"])


@pytest.mark.parametrize(
    ("first", "size"),
    [
        (b"1234567", 100),
        ((93).to_bytes(8, "little"), 100),
        ((HEADER_BYTES_MAX + 1).to_bytes(8, "little"), 1 << 40),
    ],
)
def test_a_header_that_cannot_be_there_is_refused(first, size):
    with pytest.raises(ValueError, match="a header of"):
        header_bytes(first, size)

    assert header_bytes((92).to_bytes(8, "little"), 100) == 92


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 7]}, "7 bytes, and another shape"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "no whole numbers"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "no whole numbers"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0]}, "has no dtype"),
        ({"dtype": 3, "shape": [2], "data_offsets": [0, 8]}, "has no dtype"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "not lie in the file"),
        ({"dtype": "F32", "shape": [999], "data_offsets": [0, 3996]}, "not lie in the file"),
        ({"dtype": "F32", "shape": [1] * (DIMENSIONS_MAX + 1), "data_offsets": [0, 4]}, "not lie"),
        ("x", "has no dtype"),
    ],
)
def test_an_entry_that_names_no_bytes_of_the_file_is_refused(entry, match):
    header = json.dumps({"a": entry}).encode()

    with pytest.raises(ValueError, match=match):
        stored_tensors(header, LENGTH_BYTES + len(header) + 100)


@pytest.mark.parametrize(
    "header", [b"", b"{", b"[]", b"\xff", pytest.param(b"[" * 100_000, id="deep")]
)
def test_a_header_that_is_no_table_is_refused(header):
    with pytest.raises(ValueError, match=r"."):
        stored_tensors(header, 1 << 20)


def test_tensors_that_follow_each_other_are_one_group():
    first, second, third = (StoredTensor("F32", (2,), at, at + 8) for at in (0, 8, 24))

    assert joined([("c", third), ("b", second), ("a", first)]) == [
        [("a", first), ("b", second)],
        [("c", third)],
    ]


CPU = torch.device("cpu")
STAGES = 3
OVER_SHARE = 0.02
"""What a server may download beside its own stage's bytes: headers, and the index."""
CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
_names = itertools.count()


@pytest.fixture(scope="module")
def tensors():
    """Published weights of the model, in the type that most have."""
    model = ModelConfig(family="hf:llama", config=config_text(CONFIG))
    torch.manual_seed(5)
    whole = library_model(model, torch.bfloat16)
    return {name: torch.randn_like(parameter) for name, parameter in whole.named_parameters()}


@pytest.fixture
def hub(monkeypatch):
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.at("trainer"))
        yield hub


def files_of(tensors, parts=0):
    """What a model is published as: one file, or `parts` and an index."""
    config = {"config.json": json.dumps(CONFIG).encode()}
    if not parts:
        return config | {ONE_FILE: save(tensors)}
    places = {name: f"part-{number % parts}" for number, name in enumerate(sorted(tensors))}
    files = {
        part: save({n: t for n, t in tensors.items() if places[n] == part})
        for part in set(places.values())
    }
    return config | files | {INDEX: json.dumps({"weight_map": places}).encode()}


def publish(hub, files):
    name = f"owner/model-{next(_names)}"
    hub.publish(name, files)
    return name


def run_of(tmp_path, name, settings=""):
    (tmp_path / "run.toml").write_text(
        f'[run]\nmodel = "hf:{name}"\nstart = "pretrained"\nstages = {STAGES}\n{settings}'
    )
    return resolved(load(tmp_path / "run.toml").run)


def serve(pretrained):
    return from_values(ServeConfig, {"pretrained": pretrained}, "serve")


def drawn(run, stage):
    """What a server of a stage begins with; it has read nothing before."""
    offer_hub(run.model.hub)
    flat = FlatParameters(run, stage_blocks(run, stage), CPU)
    flat.draw()
    return flat


@pytest.mark.parametrize("parts", [0, 4])
def test_each_of_three_servers_downloads_its_own_stage_and_two_percent(
    tmp_path, hub, tensors, monkeypatch, parts
):
    run = run_of(tmp_path, publish(hub, files_of(tensors, parts)))

    flats = []
    for stage in range(STAGES):
        monkeypatch.setenv("HF_ENDPOINT", hub.at(f"stage-{stage}"))
        flats.append(drawn(run, stage))

    found = {}
    for stage, flat in enumerate(flats):
        own = dict(named_parameters(flat.numbers, flat.blocks))
        own_bytes = sum(parameter.numel() * 2 for parameter in own.values())
        assert own_bytes <= hub.sent[f"stage-{stage}"] <= own_bytes * (1 + OVER_SHARE)
        found |= {name: parameter.detach() for name, parameter in own.items()}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name].float()) for name in tensors)
    assert [*first_state(run, 1)][-1] == flats[1].digest()


def test_a_stage_of_a_mixture_downloads_its_own_experts_alone(tmp_path, hub, monkeypatch):
    family_trials.publish("mixtral", tmp_path / "first")
    files = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    run = run_of(tmp_path, publish(hub, files))
    header = 8 + int.from_bytes(files[ONE_FILE][:8], "little")
    of_folder = family_trials.run_of(tmp_path / "first")
    there = [FlatParameters(of_folder, stage_blocks(of_folder, n), CPU) for n in range(STAGES)]
    for flat in there:
        flat.draw()

    for stage in range(STAGES):
        monkeypatch.setenv("HF_ENDPOINT", hub.at(f"stage-{stage}"))
        flat = drawn(run, stage)
        assert torch.equal(flat.params_N, there[stage].params_N)
        own = sum(p.numel() * 4 for _, p in named_parameters(flat.numbers, flat.blocks))
        assert own <= hub.sent[f"stage-{stage}"] <= own + header


def test_a_trainer_that_names_a_model_reads_no_numbers_before_the_run(tmp_path, hub, tensors):
    files = files_of(tensors)
    run = run_of(tmp_path, publish(hub, files))

    header = int.from_bytes(files[ONE_FILE][:8], "little")
    assert hub.sent["trainer"] == len(files["config.json"]) + 8 + header
    assert run.model.folder is None
    assert run_from_json(run_to_json(run)) == run


def test_bytes_that_follow_each_other_come_with_one_request(tmp_path, hub, tensors):
    run = run_of(tmp_path, publish(hub, files_of(tensors)))
    hub.asked.clear()

    drawn(run, 1)

    own = len(
        list(
            named_parameters(
                stage_blocks(run, 1), FlatParameters(run, stage_blocks(run, 1), CPU).blocks
            )
        )
    )
    ranges = {where for _, _, where in hub.asked if where}
    assert len(ranges) < 2 + own / 4  # the header is two; tensors lie in the order of their names


def test_a_manifest_names_a_commit_so_a_model_that_changes_stays_what_it_was(
    tmp_path, hub, tensors
):
    name = publish(hub, files_of(tensors))
    run = run_of(tmp_path, name)
    hub.publish(name, files_of({n: t + 1 for n, t in tensors.items()}))

    with pytest.raises(Unusable, match="no such revision"):
        drawn(run, 0)


def test_a_model_whose_weights_are_not_started_from_leaves_no_name_in_the_manifest(
    tmp_path, hub, tensors
):
    name = publish(hub, files_of(tensors))
    (tmp_path / "run.toml").write_text(f'[run]\nmodel = "hf:{name}"')

    model = resolved(load(tmp_path / "run.toml").run).model

    assert (model.family, model.hub, model.d_model) == ("hf:llama", "", 128)


def test_a_folder_of_that_name_is_taken_instead(tmp_path, hub, tensors):
    name = publish(hub, {})
    (tmp_path / name).mkdir(parents=True)
    for file, data in files_of(tensors).items():
        (tmp_path / name / file).write_bytes(data)

    run = run_of(tmp_path, name)

    assert run.model.hub == ""
    assert hub.asked == []


def test_quantised_files_that_the_cache_has_whole_are_read(hub):
    codes = {"x_blocks": torch.zeros(2, 1, 16, dtype=torch.uint8)}
    codes["x_scales"] = torch.full((2, 1), 127, dtype=torch.uint8)
    name = publish(hub, {ONE_FILE: save(codes)})
    library().hf_hub_download(name, ONE_FILE, endpoint=hub.at("user"))
    model = Pinned(name, hub.models[name].commit)

    files = CompactFiles(HubFiles(model), HubFiles(model, EVERY_TYPE))

    assert files.shapes(ONE_FILE, ["x"]) == {"x": (32, 2)}
    assert not dict(files.tensors(ONE_FILE, ["x"]))["x"].any()


def test_files_that_the_cache_has_whole_are_not_downloaded(tmp_path, hub, tensors, monkeypatch):
    name = publish(hub, files_of(tensors))
    run = run_of(tmp_path, name)
    library().hf_hub_download(name, ONE_FILE, endpoint=hub.at("user"))
    hub.asked.clear()
    online = drawn(run, 0).digest()
    assert {(method, file) for method, file, _ in hub.asked} == {("HEAD", INDEX)}
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    flat = drawn(run, 0)
    again = run_of(tmp_path, f"{name}@{hub.models[name].commit}")

    assert again == run
    assert flat.digest() == online
    own = dict(named_parameters(flat.numbers, flat.blocks))
    assert all(torch.equal(own[name], tensors[name].float()) for name in own)


def test_a_server_downloads_what_its_owner_names_and_nothing_else(tmp_path, hub, tensors):
    name = publish(hub, files_of(tensors, 2))
    run = run_of(tmp_path, name)
    blocks = stage_blocks(run, 0)
    commit = run.model.hub
    hub.asked.clear()
    pretrained._files.clear()

    offer_served(run, serve(""))
    with pytest.raises(Unusable, match=f'or to "hf:{name}" to download this stage') as caught:
        FlatParameters(run, blocks, CPU).draw()
    assert "\n" not in str(caught.value)
    for other in ("hf:owner/other", f"hf:{name}@v1"):
        with pytest.raises(
            Unusable, match=r"serve\.pretrained lets this server read hf:"
        ) as caught:
            offer_served(run, serve(other))
        assert f'set it to "hf:{commit}"' in str(caught.value)
    assert hub.asked == []
    for named in (f"hf:{name}", f"hf:{commit}"):
        pretrained._files.clear()
        offer_served(run, serve(named))
        FlatParameters(run, blocks, CPU).draw()


def test_settings_that_were_resolved_before_name_the_same_files(tmp_path, hub, tensors):
    run = run_of(tmp_path, publish(hub, files_of(tensors)))
    proof = [*first_state(run, 0)][-1]
    pretrained._files.clear()

    assert resolved(run) == run
    assert [*first_state(run, 0)][-1] == proof


def test_a_server_with_a_folder_asks_nobody(tmp_path, hub, tensors):
    run = run_of(tmp_path, publish(hub, files_of(tensors)))
    for file, data in files_of(tensors).items():
        (tmp_path / file).write_bytes(data)
    hub.asked.clear()

    served = offer_served(run, serve(str(tmp_path)))
    flat = FlatParameters(served, stage_blocks(run, 1), CPU)
    flat.draw()
    offer_served(dataclasses.replace(run, start="random"), serve("hf:some/other"))

    assert hub.asked == []
    assert flat.digest() == drawn(run, 1).digest()


def test_a_hub_that_is_gone_is_told_by_a_server_that_has_nothing_kept(
    tmp_path, hub, tensors, monkeypatch
):
    run = run_of(tmp_path, publish(hub, files_of(tensors)))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    with pytest.raises(Unusable, match=r"cannot be reached.*: put its model\.safetensors"):
        offer_hub(run.model.hub)


def test_another_model_with_tensors_of_the_same_names_is_told_apart(tmp_path, hub, tensors):
    first = run_of(tmp_path, publish(hub, files_of(tensors)))
    name = publish(hub, files_of({n: t + 1 for n, t in tensors.items()}))
    second = run_of(tmp_path, name)
    offer_served(first, serve(f"hf:{first.model.hub}"))
    assert first.model.weights == second.model.weights

    offer_served(second, serve(f"hf:{name}"))
    hub.asked.clear()
    offer_served(second, serve(f"hf:{name}"))

    assert hub.asked == []
    assert [*first_state(second, 1)][-1] != drawn(first, 1).digest()
    assert [*first_state(first, 1)][-1] == drawn(first, 1).digest()


def wrong_dtype(files):
    tensors = {"model.norm.weight": torch.ones(128, dtype=torch.int8)}
    files["part-9"] = save(tensors)
    move(files, "part-9")


def lacking(files):
    files["part-9"] = save({"x": torch.zeros(1)})
    move(files, "part-9")


def broken(files):
    files["part-9"] = b"no safetensors file at all"
    move(files, "part-9")


def tiny(files):
    files["part-9"] = b"1234"
    move(files, "part-9")


def missing(files):
    move(files, "part-9")


def move(files, part):
    index = json.loads(files[INDEX])
    index["weight_map"]["model.norm.weight"] = part
    files[INDEX] = json.dumps(index).encode()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (wrong_dtype, "model.norm.weight holds I8, and such weights do not train"),
        (lacking, "part-9 lacks model.norm.weight"),
        (broken, "part-9 is no safetensors file"),
        (tiny, "part-9 is no safetensors file"),
        (missing, "has no part-9: put its model.safetensors"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_anything_starts(
    tmp_path, hub, tensors, change, match
):
    files = files_of(tensors, 2)
    change(files)

    with pytest.raises(Unusable, match=match) as caught:
        run_of(tmp_path, publish(hub, files))
    assert "\n" not in str(caught.value)


def test_numbers_that_were_altered_give_another_state(tmp_path, hub, tensors):
    run = run_of(tmp_path, publish(hub, files_of(tensors)))
    right = drawn(run, 0).digest()
    offer_hub(run.model.hub)
    hub.faults = ["wrong", ""]

    flat = FlatParameters(run, stage_blocks(run, 0), CPU)
    flat.draw()

    assert flat.digest() != right
    assert [*first_state(run, 0)][-1] == right  # what a trainer compares with


def test_a_hub_without_ranges_is_told_with_what_to_do_instead(tmp_path, hub, tensors):
    name = publish(hub, files_of(tensors))
    hub.faults = ["whole"]

    with pytest.raises(Unusable, match=r"whole and not by ranges: put its model\.safetensors"):
        run_of(tmp_path, name)
    assert hub.sent["trainer"] < 1_000


def test_a_name_that_nobody_knows_is_told_with_the_folder_that_is_not_there_either(tmp_path, hub):
    with pytest.raises(Unusable, match=r"no folder .*/owner/nothing; owner/nothing: .*") as caught:
        run_of(tmp_path, "owner/nothing")

    assert "put its config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_a_name_without_its_commit_are_refused(hub):
    with pytest.raises(Unusable, match=r'run\.model = "hf:NAME"'):
        offer_hub("owner/model")
    assert "serve.pretrained" in INSTEAD
