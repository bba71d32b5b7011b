"""Modules at the cuts of a model: what crosses, first weights, and the runs that have none."""

import dataclasses

import pytest
import torch
from core import core_of
from hypothesis import given
from hypothesis import strategies as st
from models.families import family_run

from p2pswarm.base.errors import Unusable
from p2pswarm.models.boundary import boundaries
from p2pswarm.models.boundary_modules.base import CutSizes
from p2pswarm.models.boundary_modules.basis import orthonormal_columns
from p2pswarm.models.boundary_modules.kinds import PAIRS
from p2pswarm.models.boundary_modules.token_signs import TokenSigns
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.compute.bundle_spec import check_model, engine_bundles
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters
from p2pswarm.settings.config import BOUNDARY_NAMES, ModelConfig, OptimizerConfig, RunConfig

CPU, WIDE = torch.device("cpu"), torch.float64
NAMES = BOUNDARY_NAMES[1:]
OF_ALL = tuple(name for name in NAMES if name != "subspace")
MODEL = ModelConfig(d_model=16, layers=3, heads=2, sequence_length=12, dtype="float64")
RUN = RunConfig(stages=3, cut=(2, 1, 2), model=MODEL)
TOKENS = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(3))


def run_with(boundary: str, run: RunConfig = RUN, **model: object) -> RunConfig:
    return dataclasses.replace(
        run, model=dataclasses.replace(run.model, boundary=boundary, **model)
    )


def drawn(run: RunConfig, numbers: range = range(5)) -> FlatParameters:
    flat = FlatParameters(run, numbers, CPU)
    flat.draw()
    return flat


def named(flat: FlatParameters) -> dict[str, torch.Tensor]:
    return dict(named_parameters(flat.numbers, flat.blocks))


def test_the_settings_name_the_modules_that_there_are() -> None:
    assert tuple(PAIRS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_crosses_is_as_wide_as_the_settings_say(name: str) -> None:
    for width, crossing in ((0, 4), (8, 8)):
        run = run_with(name, boundary_width=width)

        (_, above), (below, _) = engine_bundles(run, 0), engine_bundles(run, 1)

        assert above == below
        assert [(key.name, key.layout.shape[-1]) for key in above.keys] == [("x", crossing)]
        assert run.model.crossing_width == crossing


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_modules_computes_in_stages_what_it_computes_as_a_whole(name: str) -> None:
    run = run_with(name, boundary_width=8)

    check_model(run)
    found = check_stages(run)

    assert not found.problem
    assert found.apart < 1e-9


@pytest.mark.parametrize("family", core_of(["llama", "gpt2", "mixtral"], ["mixtral"]))
def test_models_of_the_library_have_modules_too(family: str) -> None:
    for name in OF_ALL:
        run = run_with(name, dataclasses.replace(family_run(family), stages=3, cut=()))

        check_model(run)
        found = check_stages(run)

        assert not found.problem
        assert any(".receiver." in each for each in named(drawn(run, range(2, 3))))


@pytest.mark.parametrize("name", OF_ALL)
def test_a_block_draws_the_same_with_modules_as_without(name: str) -> None:
    bare, whole = named(drawn(RUN)), named(drawn(run_with(name)))
    if name == "projector":  # its embedding begins smaller, beside signs
        bare["blocks.0.token_VD"] = 0.1 * bare["blocks.0.token_VD"]

    assert all(torch.allclose(value, whole[key], 1e-12) for key, value in bare.items())
    assert {key.split(".")[1] for key in whole.keys() - bare.keys()} <= {"1", "2", "3"}


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_draws_its_modules_as_the_whole_model_does(name: str) -> None:
    whole, part = named(drawn(run_with(name))), named(drawn(run_with(name), range(2, 3)))

    assert part
    assert all(torch.equal(value, whole[key]) for key, value in part.items())


@given(st.integers(1, 96), st.data())
def test_columns_are_orthonormal_in_every_size(rows: int, data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, rows))

    found = orthonormal_columns(5, rows, columns, torch.float64)

    assert torch.allclose(found.T @ found, torch.eye(columns, dtype=torch.float64), atol=1e-14)
    assert torch.equal(found, orthonormal_columns(5, rows, columns, torch.float64))


def test_a_projector_takes_the_signs_of_tokens_off_and_puts_them_back() -> None:
    sizes = CutSizes(16, 16, 256, torch.float64, 1, signs=True)
    pair = PAIRS["projector"]
    sender, receiver = pair.sender(sizes), pair.receiver(sizes)
    with torch.no_grad():
        sender.draw(torch.Generator())
        receiver.draw(torch.Generator())
    x = torch.randn(2, 12, 16, dtype=torch.float64)

    z = sender(x + TokenSigns(sizes)(TOKENS), TOKENS)

    assert torch.allclose(z.square().sum(-1), x.square().sum(-1))
    assert torch.allclose(receiver(z, TOKENS), x + TokenSigns(sizes)(TOKENS))


def test_columns_of_another_seed_are_others() -> None:
    assert not torch.equal(
        orthonormal_columns(1, 64, 16, torch.float64), orthonormal_columns(2, 64, 16, torch.float64)
    )


def test_all_of_a_row_crosses_a_subspace() -> None:
    run = run_with("subspace", boundary_width=8)
    flat = drawn(run)
    first, second = flat.blocks[:2]
    pair = PAIRS["subspace"]
    sizes = CutSizes(16, 8, 256, torch.float64, run.seed)

    x = second.inner(first.inner(TOKENS))
    z = pair.sender(sizes)(x, TOKENS)
    again = pair.receiver(sizes)(z, TOKENS)

    assert z.shape == (2, 12, 8)
    assert (again - x).abs().max() < 1e-13 * x.abs().max()


def test_the_fixed_vectors_of_tokens_are_balanced_and_unlike() -> None:
    vectors = TokenSigns(CutSizes(96, 8, 4096, torch.float64, 1))(torch.arange(4096))

    assert set(vectors.unique().tolist()) == {-1.0, 1.0}
    assert vectors.mean().abs() < 5 / (96 * 4096) ** 0.5
    products = vectors[:512] @ vectors[:512].T - 96 * torch.eye(512, dtype=torch.float64)
    assert products.abs().max() < 6 * 96**0.5


def test_tokens_pass_inside_a_process_and_do_not_travel() -> None:
    run = run_with("projector")

    crossing = boundaries(run)

    assert [each.beside for each in crossing] == [("(tokens)",)] * 3 + [()] * 2
    assert [key.name for key in engine_bundles(run, 1)[1].keys] == ["x"]


def test_a_table_of_tokens_is_not_updated_as_a_matrix() -> None:
    run = dataclasses.replace(run_with("projector"), optimizer=OptimizerConfig(name="muon"))
    flat = FlatParameters(run, range(2, 3), CPU)

    inner = {t.name for t, s in zip(flat.layout.tensors, flat.segments, strict=True) if s.inner}

    assert "blocks.2.receiver.up" in inner
    assert "blocks.2.receiver.anchor_VR" not in inner


def test_one_stage_has_no_cut_and_no_modules() -> None:
    run = run_with("projector", RunConfig(stages=1, model=MODEL))

    assert named(drawn(run)).keys() == named(drawn(RunConfig(stages=1, model=MODEL))).keys()


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (run_with("resbm", boundary_width=17), "17 is more than the 16 features"),
        (run_with("maxout", boundary_width=5), "a divisor of 16, not 5"),
        (run_with("subspace", tie=True), "leave run.model.tie out"),
        (run_with("subspace", family_run("llama")), 'set "projector"'),
    ],
)
def test_what_has_no_modules_is_refused_in_one_line(run: RunConfig, reason: str) -> None:
    with pytest.raises(Unusable, match=reason) as found:
        check_model(run)

    assert "\n" not in str(found.value)


def test_a_family_of_ones_own_is_refused_in_one_line() -> None:
    import models.harness  # noqa: F401, PLC0415  registers the family

    run = run_with("projector", family="skipping")

    with pytest.raises(Unusable, match="is for gpt and hf: models, not for skipping"):
        check_model(dataclasses.replace(run, stages=2, cut=()))


def test_pretrained_weights_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r'codecs\.activation = "dither6"') as found:
        dataclasses.replace(run_with("projector"), start="pretrained")

    assert "\n" not in str(found.value)
