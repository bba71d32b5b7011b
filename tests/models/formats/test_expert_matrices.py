"""One expert is dense at a time: results and gradients are those of the dense tensor."""

import dataclasses

import pytest
import torch
from models.families import family_run
from torch import nn
from torch.nn.functional import linear

from p2pswarm.models.adapters.lora_modules import LoraShape, add_to_parameters
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.formats.expert_matrices import EXPERTS
from p2pswarm.models.formats.product_modules import PackedWeight, ScratchMemory, pack_parameters
from p2pswarm.models.formats.weight_formats import format_named
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.adapter_config import AdapterConfig

E, OUT, INTO, RANK, ROWS = 4, 8, 16, 2, 6
KINDS = ("full", "bf16", "int8", "nf4")
DTYPE = torch.float64


class Experts(nn.Module):
    """As the library writes mixtures: a loop over experts that were hit."""

    def __init__(self, transposed: bool, dense: bool = False) -> None:
        super().__init__()
        self.is_transposed, self.dense = transposed, dense
        shape = (E, INTO, OUT) if transposed else (E, OUT, INTO)
        self.up = nn.Parameter(torch.randn(*shape, dtype=DTYPE), requires_grad=False)

    def look(self, weight):
        """Nothing is asked of the weight but products."""

    def forward(self, x, hit):
        self.look(self.up)
        made = x.new_zeros(len(x), OUT)
        weight = self.up.clone() if self.dense else self.up  # a function that asks for all of it
        for expert in hit.unique():
            rows = hit == expert
            one = weight[expert]
            made[rows] = x[rows] @ one if self.is_transposed else linear(x[rows], one)
        return made


def experts(kind, transposed, adapted, dense=False):
    torch.manual_seed(0)
    module = Experts(transposed, dense)
    if kind != "full":
        form = format_named(kind, "float64")
        data = torch.zeros(form.size_bytes(module.up.shape), dtype=torch.uint8)
        form.pack(module.up.detach(), data)
        pack_parameters(module, ["up"])
        module.packed["up"] = PackedWeight(form, data, tuple(module.up.shape), ScratchMemory())
    if adapted:
        add_to_parameters(module, {"up": LoraShape(RANK, 0.5)})
        for factor in (module.lora_A, module.lora_B):
            nn.init.normal_(factor.weight)
    return module


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_results_and_gradients_are_those_of_the_dense_tensor(kind, transposed, adapted):
    found = []
    for dense in (False, True):
        module = experts(kind, transposed, adapted, dense)
        x = torch.randn(ROWS, INTO, dtype=DTYPE, generator=torch.Generator().manual_seed(1))
        x.requires_grad_()
        made = module(x, torch.tensor([0, 3, 3, 0, 1, 3]))
        (made**2).sum().backward()
        trained = [p.grad for p in module.parameters() if p.requires_grad]
        found.append([made.detach(), x.grad, *trained])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    assert len(found[0]) == 4 if adapted else 2


@pytest.mark.parametrize("adapted", [False, True])
def test_a_graph_holds_no_dense_matrix(adapted):
    module, held = experts("nf4", False, adapted), []

    def keep(x):
        held.append(x.numel())
        return x

    x = torch.randn(ROWS, INTO, dtype=DTYPE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        module(x, torch.arange(ROWS) % E)
    assert max(held) < OUT * INTO


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 8, 16), (3, 5, 7)])
def test_one_element_is_what_it_is_in_the_whole(kind, shape):
    values = torch.randn(*shape, dtype=DTYPE)
    form = format_named(kind, "float64")
    data = torch.zeros(form.size_bytes(shape), dtype=torch.uint8)
    form.pack(values, data)
    packed = PackedWeight(form, data, shape, ScratchMemory())
    for dtype in (torch.float32, torch.float64):
        whole = packed.dense(dtype)
        for index in range(shape[0]):
            assert torch.equal(packed.first_in_scratch(index, dtype), whole[index])


def test_what_is_asked_of_the_weight_itself_is_told():
    module, seen = experts("nf4", False, adapted=True), []
    module.look = seen.append
    module(torch.zeros(1, INTO, dtype=DTYPE), torch.zeros(1, dtype=torch.int64))
    (weight,) = seen
    assert weight.shape == (E, OUT, INTO)
    assert len(weight) == E
    assert weight[1].dtype == DTYPE
    assert weight[1:3].shape == (2, OUT, INTO)


ASKED = {
    "matmul of it": lambda w, x: torch.matmul(w[1], x.mT),
    "mm of it": lambda w, x: torch.mm(w[1], x.mT),
    "mm with it": lambda w, x: torch.mm(x, w[1].mT),
    "@ of it": lambda w, x: w[1] @ x.mT,
    "product of two": lambda w, _: w[1] @ w[2].mT,
    "stacked": lambda w, _: torch.stack([w[1], w[3]]),
    "in a tuple": lambda w, _: torch.cat((w[1], w[3])),
    "of all": lambda w, x: torch.einsum("eoi,ti->eto", w, x),
    "listed": lambda w, _: torch.stack(list(w)),
    "from the end": lambda w, x: x @ w[-1].mT,
    "a row": lambda w, _: w[2][1],
    "rows": lambda w, _: torch.stack([row for row in w[2]]),  # noqa: C416
    "scaled": lambda w, _: -w[1] * 2 / 3 + 1,
    "scaled from the left": lambda w, _: 1 - 2 * w[1],
    "added": lambda w, _: w[0] + w[1],
    "linear with a bias": lambda w, x: linear(x, w[1], bias=w[1].sum(1)),
    "a batch": lambda w, x: linear(x.view(2, 3, INTO), w[1]),
}


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("what", ASKED)
def test_whatever_is_done_with_it_is_done_with_the_dense_tensor(what, adapted):
    module, seen = experts("nf4", False, adapted), []
    module.look = lambda weight: seen.append((weight, weight.clone()))
    module(torch.zeros(1, INTO, dtype=DTYPE), torch.zeros(1, dtype=torch.int64))
    x = torch.randn(ROWS, INTO, dtype=DTYPE)
    (stand, dense), ask = seen[0], ASKED[what]

    assert torch.allclose(ask(stand, x), ask(dense, x), rtol=1e-13, atol=1e-13)


def test_there_is_no_expert_behind_the_last():
    module, seen = experts("nf4", False, adapted=True), []
    module.look = seen.append
    module(torch.zeros(1, INTO, dtype=DTYPE), torch.zeros(1, dtype=torch.int64))

    with pytest.raises(IndexError):
        seen[0][E]


def test_a_mixture_of_the_library_takes_one_expert_at_a_time():
    """In float32 it would take a faster way otherwise, whose graph has all of them dense."""
    run = family_run("mixtral", hidden_size=64, intermediate_size=128)
    model = dataclasses.replace(run.model, dtype="float32")
    run = dataclasses.replace(run, model=model, stages=1, base="nf4", adapter=AdapterConfig(rank=2))
    engine = torch_engine(resolved(run), 0, torch.device("cpu"), 1 << 30)
    engine.weights.reset(draw=True)
    shapes = set()

    def keep(x):
        shapes.add((x.dim(), x.numel()))
        return x

    tokens = torch.zeros(1, model.sequence_length + 1, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        engine.stage.finish(tokens, {}, BackwardSpec(counting=True, returning=False))
    assert shapes
    assert not [size for dim, size in shapes if dim == EXPERTS and size >= 64 * 128]
