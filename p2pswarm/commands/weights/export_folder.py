"""The work of `p2pswarm export`: a run's weights as a folder that other programs load.

A model of `transformers` becomes what `from_pretrained` takes, written by the library itself.
Any other model becomes one file that `p2pswarm.load` takes. The tokenizer stands beside it, and
a README that shows how to load it. The folder appears under its name when it is whole.

Errors:  Unusable for a file that holds no weights of a run, or a folder that cannot be written.
"""

import contextlib
import dataclasses
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.base.files import patiently, read_small, sync_files, sync_folder
from p2pswarm.checkpoint.weights_name import file_of
from p2pswarm.data.chats.template import ChatTemplate
from p2pswarm.data.sources import TOKENIZER_FILE
from p2pswarm.data.tokenizer import Tokenizer, read_tokenizer, tokenizer_of_run
from p2pswarm.data.tokenizer_folder import CONFIG_BYTES_MAX, CONFIG_FILE, TEMPLATE_FILE
from p2pswarm.models.adapters.adapter_folder import (
    BaseModel,
    adapter_config,
    read_adapter,
    write_adapter,
)
from p2pswarm.models.base_weights.dense_weights import dense_weights
from p2pswarm.models.blocks import make_blocks
from p2pswarm.models.boundary_block import has_modules
from p2pswarm.models.compute.inference import (
    TrainedModel,
    load_model,
    opened_weights,
    plain_model,
    plain_run,
    template_of_weights,
    tokenizer_of_weights,
)
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.library.foreign_code import foreign
from p2pswarm.models.library.hf_library import library_model
from p2pswarm.models.library.weight_files import ONE_FILE
from p2pswarm.models.registry import is_place, package_of, trust
from p2pswarm.models.scope import full_name, possible_targets
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import HF, RunConfig
from p2pswarm.settings.parser import run_to_json

log = logging.getLogger(__name__)

Measure = Callable[[TrainedModel], float]
"""Gives the loss of a model on the text that is held out, nats per target."""
README = "README.md"
ALONG = (CONFIG_FILE, TEMPLATE_FILE, "special_tokens_map.json", "generation_config.json")
"""Of the folder of the model that a run began with: what its weights and settings do not hold."""
OF_TRANSFORMERS = """\
from transformers import AutoModelForCausalLM{and_tokenizer}

model = AutoModelForCausalLM.from_pretrained("."){tokenizer}
"""
OF_PEFT = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM{and_tokenizer}

base = AutoModelForCausalLM.from_pretrained("{base}", revision={revision!r})
model = PeftModel.from_pretrained(base, "."){tokenizer}
"""
TOKENIZER = '\ntokenizer = {reader}.from_pretrained(".")'
AUTO, PLAIN = "AutoTokenizer", "PreTrainedTokenizerFast"
"""What chooses a class by the model, and the class that takes tokenizer.json as it is."""
UNNAMED = "THE MODEL THAT THE RUN BEGAN WITH"
OF_PROGRAM = "import YOUR_MODULE  # the one that registers the family {family!r}\n"
OF_OURS = """\
import p2pswarm as ps

model = ps.load("{file}"{packages})
print("".join(model.generate_text("Once upon a time", tokens=100)))
"""


@dataclass(frozen=True, slots=True)
class _Words:
    """What a model reads and writes with."""

    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    """Of its chats."""


def _words_of(weights: Path, run: RunConfig) -> _Words:
    """What the run has written beside its weights."""
    return _Words(tokenizer_of_weights(weights, run.model), template_of_weights(weights))


def export(
    weights: Path,
    folder: Path,
    shard_mib: int,
    packages: Iterable[str] = (),
    like: Path | None = None,
    base: str | None = None,
    *,
    merges: bool = False,
    dtype: str = "",
    original: bool = False,
    measure: Measure | None = None,
) -> int:
    """Write the folder, which must not be there; returns how many bytes it has.

    Of a model of transformers no file is larger than `shard_mib`, unless one tensor is. `packages`
    are those whose code may be run: the model may be of one. `like`: the folder of the model that
    the run began with, whose chat template and further small files go along. `base`: the name that
    an adapter's config gives to that model, if it is not of the hub. `merges`: an adapter is merged
    into its base. `dtype`: of the weights; empty: as they are. `original`: merge into the base as
    its files have it, also if the run quantised it. `measure`: tells a loss of what is merged.
    """
    weights = file_of(weights)
    adapter = None if merges else _adapter_in(weights, packages, base)
    if adapter is not None:
        for flag, given in (("--dtype", dtype), ("--like", like)):
            if given:
                raise Unusable(f"{flag} is for whole models: say --merge too, or leave it out")
        return _in_folder(folder, lambda whole: _write_adapter(adapter, whole))
    model = load_model(weights, packages, base, original=original)
    _require_library_form(weights, model.run)
    if merges and model.run.adapter is None:
        raise Unusable(f"{weights} is no adapter: leave --merge out")
    if model.run.has_base or dtype:
        tensors = _dense(model, dtype or model.run.model.dtype)
        if measure is not None:
            losses = {original: measure(plain_model(model, tensors))}
            if _quantised_in(weights):
                other = load_model(weights, packages, base, original=not original)
                found = _dense(other, dtype or other.run.model.dtype, tells=False)
                losses[not original] = measure(plain_model(other, found))
                del other, found  # a whole model each
            _tell_losses(losses, original=original)
        model = TrainedModel(plain_run(model.run), model.blocks, model.tokenizer)
    else:
        with safe_open(weights, "pt", "cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    along = {} if like is None else _small_files(like, model)
    words = _words_of(weights, model.run)

    def write(whole: Path) -> None:
        _write(model, words, tensors, whole, shard_mib)
        for name, data in along.items():
            (whole / name).write_bytes(data)

    return _in_folder(folder, write)


def _quantised_in(weights: Path) -> bool:
    """Return whether the run of a file has quantised its base."""
    with opened_weights(weights) as (_, run, _):
        return run.base != "full"


def _tell_losses(losses: Mapping[bool, float], *, original: bool) -> None:
    """Log the loss of what is merged into each base, that which is written first."""
    texts = {False: "the base that it was trained beside", True: "the original weights"}
    for base in (original, not original):
        if base in losses:
            what = "written" if base == original else "not written"
            log.warning("merged into %s (%s): loss %.4f", texts[base], what, losses[base])


def _in_folder(folder: Path, write: Callable[[Path], None]) -> int:
    """Have a folder written, which appears under its name when it is whole; its bytes."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=f"{folder.name}.", suffix=".part"
        ) as part:
            whole = Path(part) / "whole"  # has the mode that the user's folders have
            whole.mkdir()
            write(whole)
            sync_files(whole)
            patiently(lambda: whole.rename(folder))
            sync_folder(folder.parent)
        return sum(file.stat().st_size for file in folder.iterdir())
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise Unusable(
            f"{folder} cannot be written: {reason}: name a folder on another disk"
        ) from error


@dataclass(frozen=True, slots=True)
class _TrainedAdapter:
    """What an adapter's folder is made of."""

    run: RunConfig
    adapter: AdapterConfig
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    words: _Words


def _adapter_in(
    weights: Path, packages: Iterable[str], base_name: str | None
) -> _TrainedAdapter | None:
    """The adapter in a file of weights; None if its run trained whole tensors."""
    trust(packages)
    with opened_weights(weights) as (file, run, blocks):
        if run.adapter is None:
            return None
        if not run.model.family.startswith(HF):
            raise Unusable(
                f"{weights}: an adapter of {run.model.family}, which no other program loads: "
                "p2pswarm.load, evaluate and generate take the file as it is"
            )
        hub, _, commit = run.model.hub.partition("@")
        base = BaseModel(base_name.removeprefix(HF), "") if base_name else BaseModel(hub, commit)
        if not base.name:
            log.warning("the run's model is a folder: --base names it to who loads the adapter")
        bare = dataclasses.replace(run, adapter=None, base="full")
        numbers = range(len(blocks))
        with torch.device("meta"):
            targets = list(possible_targets(make_blocks(bare, numbers), numbers, len(blocks)))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config, words = adapter_config(run.adapter, targets, base), _words_of(weights, run)
    return _TrainedAdapter(run, run.adapter, config, tensors, words)


def _write_adapter(found: _TrainedAdapter, folder: Path) -> None:
    """Write an adapter's files, and read them back."""
    write_adapter(folder, found.config, found.tensors)
    again = read_adapter(folder, {name: x.shape for name, x in found.tensors.items()})
    for name, tensor in found.tensors.items():
        if not torch.equal(again[name], tensor):
            raise Unusable(f"{folder}: {name} was not written as it is: try another disk")
    program = OF_PEFT.format(
        base=found.config["base_model_name_or_path"] or UNNAMED,
        revision=found.config["revision"],
        **_written_words(found.words, found.run, folder),
    )
    (folder / README).write_text(_adapter_readme(found.run, program), encoding="utf-8")


def _require_library_form(weights: Path, run: RunConfig) -> None:
    """Raise Unusable for a model of transformers with modules that its library does not know."""
    if run.model.family.startswith(HF) and has_modules(run):
        raise Unusable(
            f"{weights}: its model has modules at its cuts (run.model.boundary = "
            f'"{run.model.boundary}"), which transformers cannot load: p2pswarm.load, evaluate and '
            "generate take the file as it is"
        )


def _dense(model: TrainedModel, dtype: str, *, tells: bool = True) -> dict[str, Tensor]:
    """All parameters by their names in the model, with adapters merged.

    What rounding loses of them is logged, if it `tells`.
    """
    wide, narrow = DTYPES[model.run.model.dtype], DTYPES[dtype]
    found: dict[str, Tensor] = {}
    change = lost = 0.0
    for number, block in enumerate(model.blocks):
        plain = dict(dense_weights(block, wide, merges=False))
        for name, merged in dense_weights(block, wide):
            rounded = merged.detach().to(narrow)
            found[full_name(number, block, name)] = rounded
            if merged is not plain[name] and not torch.equal(merged, plain[name]):
                change += (merged - plain[name]).square().sum().item()
                lost += (rounded.to(wide) - merged).square().sum().item()
    if change and tells:
        share = (lost / change) ** 0.5
        log.warning("merged: rounding to %s loses %.2g of what was learnt", dtype, share)
    return found


def _write(
    model: TrainedModel,
    words: _Words,
    tensors: dict[str, Tensor],
    folder: Path,
    shard_mib: int,
) -> None:
    run = model.run
    if run.model.family.startswith(HF):
        theirs = library_model(run.model, DTYPES[run.model.dtype])
        due = {name for name, _ in theirs.named_parameters()}
        found = theirs.load_state_dict(tensors, strict=False, assign=True)
        lacking = set(found.missing_keys) & due
        if lacking or found.unexpected_keys:
            name = min([*lacking, *found.unexpected_keys])
            raise Unusable(f"{folder}: the weights do not fit {run.model.family}: {name}")
        theirs.tie_weights()  # type: ignore[operator]  # what was assigned is at one end only
        _name_end(theirs, run.model.document_end)
        theirs.save_pretrained(folder, max_shard_size=shard_mib << 20)  # type: ignore[operator]
        program = OF_TRANSFORMERS.format(**_written_words(words, run, folder))
    else:
        about = {"run": run_to_json(run).decode(), "format": "pt"}
        save_file(tensors, folder / ONE_FILE, metadata=about)
        family = run.model.family
        named = f', packages=["{package_of(family)}"]' if is_place(family) else ""
        program = OF_OURS.format(file=ONE_FILE, packages=named)
        if not is_place(family) and family != "gpt":
            program = OF_PROGRAM.format(family=family) + program
        _write_words(words, run, folder)
    (folder / README).write_text(_readme(model, program), encoding="utf-8")


def _name_end(theirs: Any, end: int) -> None:
    """Have the config name the tokens that the run was trained with.

    Those of a config whose text ends with another token are another tokenizer's.
    """
    named = theirs.config.eos_token_id
    if end in (named if isinstance(named, list) else [named]):
        return
    for config in (theirs.config, theirs.generation_config):
        _name_token(config, "eos_token_id", None if end < 0 else end)
        for key in ("bos_token_id", "pad_token_id"):
            _name_token(config, key, None)


def _name_token(config: Any, key: str, token: int | None) -> None:
    """Set a token of a config; some classes ask for a number, and keep the one that they have."""
    with contextlib.suppress(Unusable), foreign(f"{key} cannot be {token}"):
        setattr(config, key, token)


def _small_files(like: Path, model: TrainedModel) -> dict[str, bytes]:
    """Return what goes along from the folder of a model with the same tokenizer."""
    asked, file = model.run.model, like / TOKENIZER_FILE
    if not file.is_file():
        raise Unusable(f"{like}: there is no {TOKENIZER_FILE} in it: name the first model's folder")
    if tokenizer_of_run(file, asked.tokenizer, asked.document_end) is None:
        raise Unusable(f"{like}: its tokenizer is not the run's: name the folder that the run had")
    there = [name for name in ALONG if (like / name).is_file()]
    return {name: read_small(like / name, CONFIG_BYTES_MAX, "it is none") for name in there}


def _written_words(words: _Words, run: RunConfig, folder: Path) -> dict[str, str]:
    """Write the tokenizer and the chat template; returns the lines of a program that reads them.

    For some kinds of models the library insists on a class that makes other tokens of a
    tokenizer that is not the first model's, such as one that was learnt.
    """
    tokenizer, reader = words.tokenizer, AUTO
    _write_words(words, run, folder)
    if tokenizer is None:
        return {"and_tokenizer": "", "tokenizer": ""}
    found = read_tokenizer(folder)
    if not found.makes_tokens_as(tokenizer) or found.end != tokenizer.end:
        reader = PLAIN
        log.warning(
            "%s of transformers makes other tokens of %s than the run: load it by %s, as %s shows",
            AUTO,
            TOKENIZER_FILE,
            PLAIN,
            README,
        )
    return {"and_tokenizer": f", {reader}", "tokenizer": TOKENIZER.format(reader=reader)}


def _write_words(words: _Words, run: RunConfig, folder: Path) -> None:
    tokenizer, template = words.tokenizer, words.template
    if tokenizer is None:
        return
    (folder / TOKENIZER_FILE).write_text(tokenizer.text, encoding="utf-8")
    about: dict[str, object] = {} if template is None else {**template.token_names}
    about |= {"tokenizer_class": PLAIN, "model_max_length": run.model.sequence_length}
    if (end := tokenizer.end_text) is not None:
        about["eos_token"] = end
    (folder / CONFIG_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if template is not None:
        (folder / TEMPLATE_FILE).write_text(template.text, encoding="utf-8")


def _adapter_readme(run: RunConfig, program: str) -> str:
    return (
        f"# {run.name}\n\n"
        f"An adapter (LoRA), trained with p2pswarm: {run.steps} steps at most, sequences of "
        f"{run.model.sequence_length} tokens.\n\n"
        f"In this folder (or with its path instead):\n\n```python\n{program}```\n"
    )


def _readme(model: TrainedModel, program: str) -> str:
    run = model.run
    tokens = "bytes, without a tokenizer" if model.tokenizer is None else f"`{TOKENIZER_FILE}`"
    return (
        f"# {run.name}\n\n"
        f"Trained with p2pswarm: {run.steps} steps at most, sequences of "
        f"{run.model.sequence_length} tokens. Family: `{run.model.family}`. Tokens: {tokens}.\n\n"
        "In this folder (or with its path instead):\n\n"
        f"```python\n{program}```\n"
    )
