"""A stage on two GPUs of one host against the same stage on one, by rows and by tensors."""

from dataclasses import replace

import pytest
import torch
from models.families import family_run

from p2pswarm.models.compute.base import BackwardSpec, Update
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.server.devices.group_stage import group_engine
from p2pswarm.server.devices.rank_processes import DeviceGroup
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

ALL = BackwardSpec(counting=True, returning=True)
GPU = torch.device("cuda:0")
PLENTY = 1 << 30
GPT = RunConfig(
    stages=3,
    model=ModelConfig(d_model=64, layers=2, heads=4, sequence_length=32, dtype="float64"),
    batch=BatchConfig(microbatches=2, rows=2),
)
TOKENS = 256  # the least that a manifest may have


def family(name):
    """A tiny copy whose heads two devices can share."""
    heads = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    run = family_run(name, vocab_size=TOKENS, **heads)
    return replace(run, model=replace(run.model, vocabulary=TOKENS))


def passed(engine, run):
    """What goes on and back, the loss, and the sum, over two microbatches and a step."""
    engine.weights.reset(draw=True)
    chance = torch.Generator().manual_seed(1)
    shape = run.batch.rows, run.model.sequence_length + 1
    tokens = torch.randint(0, run.model.vocabulary, shape, generator=chance)

    def drawn(spec):
        return {
            key.name: torch.randn(key.layout.shape, generator=chance, dtype=torch.float64).to(
                getattr(torch, run.model.dtype)
            )
            for key in spec.keys
        }

    found = []
    for step in range(2):
        given, gradient = drawn(engine.takes), drawn(engine.gives.gradient())
        if engine.gives.keys:
            found += engine.stage.forward((0, step), tokens, given).values()
            found += engine.stage.backward((0, step), gradient, ALL).values()
        else:
            result = engine.stage.finish(tokens, given, ALL)
            found += [torch.tensor(result.loss), *result.gradient.values()]
        reduced = engine.weights.reduction()
        total = reduced._sum_N.clone()
        found.append(total)
        reduced.reduced_N.copy_(total)
        engine.weights.apply(reduced, Update(step + 1, 1.0, 1e-3))
    return [x.cpu() for x in found]


@pytest.mark.parametrize("tensors", [False, True], ids=["rows", "tensors"])
@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("name", ["gpt", "llama", "mixtral"])
def test_two_gpus_compute_what_one_does(name, stage, by_block, tensors):
    run = GPT if name == "gpt" else family(name)
    group = DeviceGroup(("cuda:0", "cuda:1"), by_block=by_block, tensors=tensors)
    ours = passed(group_engine(run, stage, group), run)
    theirs = passed(torch_engine(run, stage, GPU, PLENTY), run)

    asked = 1e-5 if run.model.dtype == "float32" else 1e-10
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= asked * other.abs().max().clamp_min(1e-30)


def test_two_gpus_compute_in_bf16_what_one_does():
    model = replace(GPT.model, dtype="float32")
    run = replace(GPT, model=model, precision="bf16")
    group = DeviceGroup(("cuda:0", "cuda:1"), tensors=True)
    ours = passed(group_engine(run, 1, group), run)

    theirs = passed(torch_engine(run, 1, GPU, PLENTY), run)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= 3e-2 * other.abs().max()
