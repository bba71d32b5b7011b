"""Runs that begin with a user's own weights, whole or an adapter; and files that do not fit."""

import json
from dataclasses import replace

import pytest
import torch
from checkpoint.saved_run import CONFIG, saved_run, virtual
from checkpoint.test_begun_runs import assert_weights, plainly
from checkpoint.test_tied_runs import named
from safetensors.torch import load_file, save_file

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.verification import verify
from p2pswarm.models.adapters.adapter_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    BaseModel,
    adapter_config,
    write_adapter,
)
from p2pswarm.models.blocks import make_blocks
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.model_source import resolved
from p2pswarm.models.scope import possible_targets
from p2pswarm.node.run.first_checkpoint import first_checkpoint, own_weights
from p2pswarm.node.run.resume import check_records
from p2pswarm.server.member_session import SavingLimits
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import from_values, run_from_json, run_to_json

WHOLE = replace(CONFIG, steps=2)
ADAPTED = resolved(replace(WHOLE, base="nf4", adapter=AdapterConfig(rank=2, alpha=3)))


def learnt(config: RunConfig) -> ReferenceTrainer:
    return plainly(ReferenceTrainer(config), config)


def written_adapter(folder, loop: ReferenceTrainer, config: RunConfig, base="") -> None:
    folder.mkdir()
    bare = replace(config, adapter=None, base="full")
    numbers = range(len(loop.flat.blocks))
    with torch.device("meta"):
        targets = list(possible_targets(make_blocks(bare, numbers), numbers, len(numbers)))
    about = adapter_config(config.adapter, targets, BaseModel(base))
    write_adapter(folder, about, {n: x.detach() for n, x in named(loop.flat).items()})


def begun(tmp_path, asked: RunConfig):
    run = resolved(asked)
    source = first_checkpoint(own_weights(asked, run), run, tmp_path / "cache")

    async def story():
        async with saved_run(tmp_path, run, origin=source, nonce=b"n" * 16) as swarm:
            for number in range(10, 13):
                swarm.serve(number, SavingLimits())  # nobody but the trainer may read its cache
            ended = await swarm.trainer.run()
            assert not ended.failed, ended.reason
        return swarm

    return virtual(story), source


def as_plainly(config: RunConfig, start: ReferenceTrainer) -> dict[str, torch.Tensor]:
    loop = ReferenceTrainer(config)
    loop.begin_from(start, moments=False)
    return named(plainly(loop, config).flat)


def test_a_run_begins_with_a_file_of_weights_that_its_trainer_alone_has(tmp_path):
    before = learnt(WHOLE)
    file = tmp_path / "mine.safetensors"
    save_file({name: x.detach() for name, x in named(before.flat).items()}, file)
    config = replace(WHOLE, seed=5, stages=3, start=str(file))

    swarm, source = begun(tmp_path, config)

    assert swarm.config.start == "random"
    assert_weights(swarm, as_plainly(swarm.config, before), 1e-11)
    again = first_checkpoint(own_weights(config, swarm.config), swarm.config, tmp_path / "cache")
    assert again == source
    place = f"{source.target}/{source.folder}"
    assert verify(place, lambda _line: None, check_records).ok
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.safetensors"))
    assert size < 1.2 * file.stat().st_size  # no moments


def test_a_run_begins_with_an_adapter_on_a_base_that_members_have(tmp_path):
    before = learnt(ADAPTED)
    written_adapter(tmp_path / "adapter", before, ADAPTED)
    config = replace(WHOLE, base="nf4", start=str(tmp_path / "adapter"))

    swarm, _ = begun(tmp_path, config)

    assert swarm.config.adapter == ADAPTED.adapter
    assert_weights(swarm, as_plainly(ADAPTED, before), 1e-11)


def test_a_start_is_relative_to_the_file_and_no_manifest_names_one(tmp_path):
    run = from_values(RunConfig, {"start": "mine.safetensors"})
    assert run.start == "mine.safetensors"
    with pytest.raises(Exception, match=r"a manifest that names a folder"):
        run_from_json(run_to_json(run))


def test_whole_files_that_are_not_of_the_model_are_a_line(tmp_path):
    tensors = {name: x.detach().clone() for name, x in named(ReferenceTrainer(WHOLE).flat).items()}
    first, *_ = tensors
    file = tmp_path / "w.safetensors"
    asked = replace(WHOLE, start=str(file))

    def begin(config: RunConfig) -> None:
        found = own_weights(config, resolved(config))
        first_checkpoint(found, resolved(config), tmp_path / "cache")

    def refused(changed: dict, part: str, config: RunConfig = asked) -> None:
        file.unlink(missing_ok=True)
        save_file(changed, file)
        with pytest.raises(Unusable, match=part) as caught:
            begin(config)
        assert "\n" not in str(caught.value)

    refused({n: x for n, x in tensors.items() if n != first}, f"has no {first}")
    refused(tensors | {"blocks.1.qkw": torch.zeros(2)}, r"qkw is no tensor .* name is qkv")
    refused(tensors | {first: torch.zeros(3)}, r"is \[3\], and \[256, 16\] is due")
    refused(tensors | {first: tensors[first] * torch.nan}, "no finite numbers")
    in_float8 = tensors[first].to(torch.float8_e4m3fn)
    refused(tensors | {first: in_float8}, r"is of float8_e4m3fn, .*: save the weights anew in one")
    refused(tensors | {first: tensors[first].long()}, r"is of int64, .*: save the weights anew")
    float32 = replace(asked, model=replace(WHOLE.model, dtype="float32"))
    large = torch.full_like(tensors[first], 1e39)
    refused(tensors | {first: large}, "no finite numbers in the model's float32", float32)
    whole = replace(asked, adapter=AdapterConfig(rank=2))
    refused(tensors, r'whole weights, .*set start to "pretrained"', whole)
    grid = replace(asked, codecs=replace(asked.codecs, averaging="powersgd"))
    refused(tensors, "no directions for sums in low rank", grid)
    file.write_bytes(b"nothing")
    with pytest.raises(Unusable, match=r"w\.safetensors cannot be read: .*: name safetensors"):
        own_weights(asked, WHOLE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unusable, match=r"has no \.safetensors file"):
        own_weights(replace(asked, start=str(tmp_path / "empty")), WHOLE)
    with pytest.raises(Unusable, match=r'pretraind is not there \(did you mean "pretrained"\?\)'):
        resolved(replace(asked, start=str(tmp_path / "pretraind")))


def test_an_adapter_that_is_not_of_the_run_is_a_line(tmp_path):
    folder = tmp_path / "adapter"
    written_adapter(folder, ReferenceTrainer(ADAPTED), ADAPTED, base="some/model")
    asked = replace(WHOLE, start=str(folder), adapter=AdapterConfig(rank=2, alpha=3))

    def refused(part: str, config: RunConfig = asked, **about) -> None:
        (folder / CONFIG_FILE).write_text(json.dumps(plain | about))
        with pytest.raises(Unusable, match=part) as caught:
            own_weights(config, resolved(config))
        assert "\n" not in str(caught.value)

    plain = json.loads((folder / CONFIG_FILE).read_text())
    ranked = replace(asked, adapter=AdapterConfig(rank=4, alpha=3))
    refused(r"run\.adapter\.rank is 4, and that of .* is 2: set it so, or leave", ranked)
    refused(r"run\.adapter\.alpha is 3\.0, and that of .* is 8\.0", lora_alpha=8)
    refused(r"run\.adapter\.targets: 'qkw' matches nothing.*qkv", target_modules=["qkw"])
    unfilled = replace(asked, adapter=None)
    refused("peft_type is not LORA", unfilled, peft_type="IA3")
    refused("bias is not known here", unfilled, bias="all")
    refused("use_dora is not known here", unfilled, use_dora=True)
    refused("use_qalora is not known here", unfilled, use_qalora=True)
    refused("'pissa' has changed the base", unfilled, init_lora_weights="pissa")
    both = {"target_modules": "all-linear", "target_parameters": ["qkv"]}
    refused("target_modules is one pattern beside target_parameters", unfilled, **both)
    refused(r"run\.adapter\.train: 'scroe' matches nothing", unfilled, modules_to_save="scroe")
    refused(r"run\.adapter\.rank is a whole number from 1", unfilled, r=None)
    refused(r"run\.adapter\.rank is a whole number from 1 .* not 0", unfilled, r=0)
    named_base = replace(asked, model=replace(WHOLE.model, hub="other/one@" + "a" * 40))
    with pytest.raises(Unusable, match=r"an adapter of some/model, and run.model is other/one@aaa"):
        own_weights(named_base, replace(ADAPTED, model=named_base.model))
    (folder / CONFIG_FILE).write_text(json.dumps(plain))
    tensors = load_file(folder / WEIGHTS_FILE)
    name, values = tensors.popitem()
    save_file(tensors | {name.replace("lora", "lorra"): values}, folder / WEIGHTS_FILE)
    with pytest.raises(Unusable, match=r"lorra.* is no tensor of this adapter; the nearest name"):
        own_weights(asked, resolved(asked))
