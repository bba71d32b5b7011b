"""What is tried of a family of `transformers`: each column of the table in docs/models.md.

The files are those that the library itself writes of a tiny copy with weights by chance, and what
is exported is read by the library again.
"""

from pathlib import Path

import torch
from models.families import MIXTURES, PLAIN, family_run, run_of_kind
from models.more_families import EACH_KIND, OTHERS
from safetensors import safe_open

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.weights.export_folder import export
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.library.hf_library import library, library_model
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.weights_file import write_weights
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.parser import run_to_json

FAMILIES = PLAIN | MIXTURES | EACH_KIND | OTHERS
VOCABULARY = 256
SHARD_MIB = 1 << 10
YES, NO = "yes", "no"
ROUNDING = 1e-6  # of scores in float32: sums depend on where numbers lie; weights are equal
Tensors = dict[str, torch.Tensor]


def tiny_run(name: str, **also: object) -> RunConfig:
    """A run of a tiny copy, whatever list the family is in."""
    if name in PLAIN or name in MIXTURES:
        return family_run(name, **also)
    return run_of_kind(name, **(FAMILIES[name] | also))


def publish(name: str, folder: Path, dtype: torch.dtype = torch.float32, **also: object) -> None:
    """Have the library write the files of a tiny copy with weights by chance."""
    run = tiny_run(name, vocab_size=VOCABULARY, **also)
    generator = torch.Generator().manual_seed(5)
    whole = library_model(run.model, dtype)
    with torch.no_grad():
        for parameter in whole.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.02 * noise.to(parameter.dtype))
    whole.save_pretrained(folder)


def run_of(folder: Path, dtype: str = "float32", **model: object) -> RunConfig:
    """A run that starts from the files of a folder."""
    settings = ModelConfig(family="hf", folder=folder, sequence_length=10, dtype=dtype, **model)
    batch = BatchConfig(rows=2, microbatches=1)
    return resolved(RunConfig(start="pretrained", stages=3, model=settings, batch=batch, seed=3))


def weights_of(run: RunConfig, path: Path) -> Path:
    """The file of weights that a run would write before its first step."""
    flat = ReferenceTrainer(run).flat
    named = ((name, x.detach()) for name, x in named_parameters(flat.numbers, flat.blocks))
    return write_weights(path, named, run_to_json(run).decode()).path


def scores_of_library(folder: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The scores that `from_pretrained` computes; for ten tokens."""
    theirs = library().AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True
    )
    with torch.no_grad():
        return theirs.eval()(tokens(), use_cache=False).logits


def scores_of_run(weights: Path) -> torch.Tensor:
    """The scores that a run's blocks compute for the same tokens."""
    return load_model(weights).scores(tokens())


def tokens() -> torch.Tensor:
    """Ten tokens."""
    return torch.arange(7, 17).reshape(1, 10)


def tensors_in(folder: Path) -> Tensors:
    """All tensors of a folder's files."""
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt", "cpu") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def difference(ours: Tensors, theirs: Tensors) -> str:
    """The first tensor that is not the same in both, or nothing."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            return f"{name} is missing on one side"
        if not torch.equal(ours[name], theirs[name].to(ours[name].dtype)):
            return f"{name} has other numbers"
    return ""


def pretrained_and_export(name: str, folder: Path) -> tuple[str, str]:
    """Whether a run starts from the library's files, and gives the library such files back."""
    try:
        publish(name, folder / "first")
        weights = weights_of(run_of(folder / "first"), folder / "w.safetensors")
        found = scores_of_run(weights) - scores_of_library(folder / "first")
    except Unusable as error:
        return str(error), str(error)
    apart = found.abs().max().item()
    started = YES if apart < ROUNDING else f"the scores differ by {apart:.0e}"
    export(weights, folder / "out", SHARD_MIB)
    odd = difference(tensors_in(folder / "out"), tensors_in(folder / "first"))
    again = scores_of_library(folder / "out") - scores_of_library(folder / "first")
    same = again.abs().max().item() < ROUNDING
    return started, odd or (YES if same else "the exported model gives other scores")


def from_random(name: str) -> str:
    """Whether stages compute what the library's whole model does, with difference 0."""
    try:
        found = check_stages(tiny_run(name))
    except Unusable as error:
        return str(error)
    return found.problem or (YES if found.apart == 0.0 else f"{found.apart:.0e} apart")
