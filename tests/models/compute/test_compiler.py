"""Compiled blocks: what they compute, and what is refused. A C++ compiler has to be there."""
# ruff: noqa: N806  shapes are written at the end of names

import importlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.document_attention import WholeRows
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute import compiler as compiling
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.compiler import compiled_precision
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.precision import precision_of
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: apt install g++"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # torch warns of its own code
]

CPU = torch.device("cpu")
GRAPHS_ALONE = "aot_eager"
"""The same graphs are made whether C++ comes of them, which takes seconds each, or not."""
ALL = BackwardSpec(counting=True, returning=True)
MODEL = ModelConfig(d_model=16, layers=2, heads=2, sequence_length=8)
RUN = RunConfig(stages=2, model=MODEL, batch=BatchConfig(microbatches=1, rows=2))
TOKENS_BS = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(1))


def staged(
    run: RunConfig, keep_bytes: int, compiled_stages: Sequence[int] = ()
) -> tuple[float, torch.Tensor]:
    """Loss and gradient sum of one microbatch through both stages."""
    stages, flats = [], []
    for n in range(run.stages):
        flat = FlatParameters(run, stage_blocks(run, n), CPU)
        precision = compiled_precision(run, n, flat) if n in compiled_stages else None
        flat.draw()
        flats.append(flat)
        stages.append(TorchStage(run, n, flat, keep_bytes, precision))
    bundle = stages[0].forward((0, 0), TOKENS_BS, {})
    result = stages[1].finish(TOKENS_BS, bundle, ALL)
    stages[0].backward((0, 0), result.gradient, ALL)
    return result.loss, torch.cat([total.reshape(-1) for flat in flats for total in flat.sums])


@pytest.mark.parametrize(
    ("precision", "storage", "near", "compiled_stages", "backend"),
    [
        pytest.param("full", "full", 1e-5, [0, 1], GRAPHS_ALONE, id="both, as graphs alone"),
        *(
            pytest.param(*each, "inductor", id=name, marks=pytest.mark.full)
            for name, each in (
                ("both", ("full", "full", 1e-5, [0, 1])),
                ("both, bf16", ("bf16", "full", 2e-2, [0, 1])),
                ("both, kept in bf16", ("bf16", "bf16", 2e-2, [0, 1])),
            )
        ),
    ],
)
def test_compiled_stages_compute_the_same_but_for_rounding(
    monkeypatch, precision, storage, near, compiled_stages, backend
):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    run = replace(RUN, precision=precision, weight_storage=storage)
    loss, total_N = staged(run, 1 << 30)

    for keep_bytes in (1 << 30, 0):
        found, found_N = staged(run, keep_bytes, compiled_stages)

        assert found == pytest.approx(loss, rel=near)
        assert (found_N - total_N).norm() <= near * total_N.norm()


def test_rows_with_other_documents_are_not_compiled_again(monkeypatch):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    monkeypatch.setattr(WholeRows, "attend", WholeRows.attend)  # it is marked, and then as it was
    model = replace(MODEL, layers=1, documents="apart", document_end=7)
    run = replace(RUN, stages=1, model=model)
    blocks = ReferenceTrainer(run).flat.blocks
    call = compiling.compiled(lambda block, value: block(value))
    compiled = 0

    with torch.no_grad():
        for place in range(1, 6):
            tokens_BT = TOKENS_BS[:, :-1].clone()
            tokens_BT[:, place] = 7
            made, expected = tokens_BT, tokens_BT
            for block in blocks:
                expected = block(expected)  # first: a layer keeps its angles, and is another then
                made = call(block, made)
            assert torch.allclose(made, expected, atol=1e-5)
            compiled = compiled or len(graphs)

    assert len(graphs) == compiled > 0


def test_nothing_is_left_of_what_it_was_tried_out_with(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=GRAPHS_ALONE))
    flat = FlatParameters(RUN, stage_blocks(RUN, 0), CPU)
    state = torch.get_rng_state()

    compiled_precision(RUN, 0, flat)

    assert not flat.params_N.any()
    assert not flat.sum_N.any()
    assert torch.equal(torch.get_rng_state(), state)


def test_blocks_that_draw_are_left_as_they_are(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, **_: compiled.append(call) or refuse)

    def refuse(*_):
        raise AssertionError("it was to run as it is")

    block = torch.nn.Dropout(0.5)
    call = compiling.compiled(lambda block, value: block(value))

    torch.manual_seed(3)
    made = call(block, torch.ones(8))
    torch.manual_seed(3)
    assert torch.equal(made, block(torch.ones(8)))
    assert len(compiled) == 1


def test_what_is_compiled_wrong_is_refused(monkeypatch):
    def wrong(call, **_):
        return lambda block, value: 2 * call(block, value)

    monkeypatch.setattr(torch, "compile", wrong)
    flat = FlatParameters(RUN, stage_blocks(RUN, 1), CPU)

    with pytest.raises(Unusable, match=r"stage 1 compute something else, by \d+%: leave it out"):
        compiled_precision(RUN, 1, flat)


def test_without_a_compiler_it_says_what_to_do():
    inductor = importlib.import_module("torch._inductor")  # it takes seconds, for this test alone
    torch.compiler.reset()
    flat = FlatParameters(RUN, stage_blocks(RUN, 1), CPU)

    with (
        pytest.raises(Unusable, match=r"serve\.compiled: .*apt install g\+\+") as caught,
        inductor.utils.fresh_inductor_cache(),
        torch._inductor.config.patch(
            {"cpp.cxx": (None, "no-such-compiler")}
        ),  # pytest's would delete it
    ):
        compiled_precision(RUN, 1, flat)

    assert "\n" not in str(caught.value)
    assert precision_of(RUN, flat) is not None
