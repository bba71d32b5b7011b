"""Tests of `models/compute/inference.py`."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.inference import Quality, Sampling, TrainedModel, drawn, load_model
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.parser import run_to_json

CHANCES = (0.1, 0.4, 0.2, 0.3)
SCORES = torch.tensor([math.log(chance) for chance in CHANCES], dtype=torch.float64)


def found(draws: int = 400, **how: float) -> list[float]:
    """How often each token is drawn."""
    generator = torch.Generator().manual_seed(1)
    tokens = [drawn(SCORES, Sampling(**how), generator) for _ in range(draws)]
    return [tokens.count(token) / draws for token in range(len(CHANCES))]


def test_tokens_are_as_likely_as_the_model_says():
    assert found(4000, temperature=1.0) == pytest.approx(CHANCES, abs=0.03)


@pytest.mark.parametrize(
    ("how", "only"),
    [
        ({"temperature": 0.0}, {1}),
        ({"temperature": 1e-9}, {1}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.69}, {1, 3}),
        ({"top_p": 0.71}, {1, 2, 3}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_p": 0.71, "top_k": 2}, {1, 3}),
    ],
)
def test_only_the_likeliest_are_drawn(how, only):
    often = found(**{"temperature": 1.0} | how)

    assert {token for token, share in enumerate(often) if share} == only


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers_are_one_line(temperature: float, spoilt: float):
    generator = torch.Generator().manual_seed(1)

    with pytest.raises(Unusable, match="its weights are spoilt"):
        drawn(torch.full((3,), spoilt), Sampling(temperature=temperature), generator)


RUN = RunConfig(
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=8, dtype="float64")
)
TOKENS_BS = torch.arange(18, dtype=torch.uint8).reshape(2, 9)


@pytest.fixture
def trained() -> ReferenceTrainer:
    return ReferenceTrainer(RUN, rounded=False)


def write(path: Path, trained: ReferenceTrainer, **changes) -> Path:
    flat = trained.flat
    tensors = {
        name: parameter.detach().clone()
        for name, parameter in named_parameters(flat.numbers, flat.blocks)
    }
    tensors |= {name: x for name, x in changes.items() if x is not None}
    tensors = {name: x for name, x in tensors.items() if changes.get(name, x) is not None}
    save_file(tensors, path, metadata={"run": run_to_json(RUN).decode()})
    return path


@pytest.fixture
def model(trained: ReferenceTrainer, tmp_path: Path) -> TrainedModel:
    return load_model(write(tmp_path / "weights.safetensors", trained))


def test_it_predicts_as_the_model_that_was_trained(model: TrainedModel, trained):
    assert model.run == RUN
    assert model.evaluate([TOKENS_BS]).loss == trained.evaluate(TOKENS_BS)


def test_a_model_in_use_drops_nothing():
    blocks = [torch.nn.Embedding(256, 256), torch.nn.Dropout(0.5)]

    scores = TrainedModel(RUN, blocks).scores(TOKENS_BS)

    assert torch.equal(scores, blocks[0].weight[TOKENS_BS.long()])


def test_quality_weighs_each_token_alike(model: TrainedModel):
    whole = model.evaluate([TOKENS_BS])
    parts = model.evaluate([TOKENS_BS[:1], TOKENS_BS[1:]])

    assert whole.tokens == parts.tokens == 16
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    with pytest.raises(Unusable, match="no text"):
        model.evaluate([])


def test_perplexity_and_bits_per_byte_follow_from_the_loss():
    guess = Quality(1, math.log(256))

    assert guess.bits_per_byte == pytest.approx(8)
    assert guess.perplexity == pytest.approx(256)
    assert Quality(1, 1e6).perplexity == math.inf


def test_the_same_seed_writes_the_same(model: TrainedModel):
    def written(seed: int, temperature: float = 1.0) -> list[int]:
        return list(model.generate("ab", tokens=20, temperature=temperature, seed=seed))

    assert written(1) == written(1) != written(2)
    assert len(written(1)) == 20
    assert written(1, temperature=0) == written(2, temperature=0)


def test_at_temperature_0_it_writes_the_likeliest(model: TrainedModel):
    (first,) = model.generate("ab", tokens=1, temperature=0)

    assert first == int(model.scores(torch.tensor([list(b"ab")]))[0, -1].argmax())


def test_it_sees_no_more_than_a_sequence_and_needs_no_prompt(model: TrainedModel):
    long = list(model.generate("x" * 50 + "abcdefgh", tokens=3, temperature=0))

    assert long == list(model.generate("abcdefgh", tokens=3, temperature=0))
    assert len(list(model.generate("", tokens=2))) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"blocks.9.x": torch.zeros(1)}, "it has blocks.9.x"),
        ({"blocks.0.token_VD": None}, "it lacks blocks.0.token_VD"),
        (
            {"blocks.0.token_VD": torch.zeros(2, 2)},
            r"is \[2, 2\], its model has \[256, 16\]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(trained, tmp_path: Path, changes, why: str):
    with pytest.raises(Unusable, match=why):
        load_model(write(tmp_path / "weights.safetensors", trained, **changes))


@pytest.mark.parametrize("content", [b"", b"text" * 100])
def test_what_is_no_file_of_weights_is_one_line(tmp_path: Path, content: bytes):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(Unusable, match=r"cannot be read as safetensors: .*: copy it again") as told:
        load_model(tmp_path / "a.safetensors")
    assert "\n" not in str(told.value)


def test_a_folder_and_a_file_that_is_not_there_are_told_apart(tmp_path: Path):
    with pytest.raises(Unusable, match=r"folder: name the file of weights in it \(there are: none"):
        load_model(tmp_path)
    with pytest.raises(Unusable, match=r"gone: there is no such file: name the \.safetensors"):
        load_model(tmp_path / "gone")


def test_a_model_of_ones_own_that_fails_in_use_is_one_line(model: TrainedModel):
    class Mine(Exception):
        pass

    class Failing(torch.nn.Module):
        def forward(self, _x):
            raise Mine("no wish")

    failing = TrainedModel(model.run, [Failing()])

    with pytest.raises(Unusable, match=r"cannot be computed: Mine: no wish \(test_inference"):
        failing.scores(torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("metadata", "why"), [(None, "does not say of which run"), ({"run": "{"}, "not JSON")]
)
def test_tensors_of_another_program_are_refused(tmp_path: Path, metadata, why: str):
    save_file({"x": torch.zeros(1)}, tmp_path / "a.safetensors", metadata=metadata)
    with pytest.raises(Unusable, match=why):
        load_model(tmp_path / "a.safetensors")


def test_a_run_that_would_take_terabytes_is_compared_with_its_file_first(tmp_path: Path):
    run = RunConfig(model=ModelConfig(d_model=65_536, layers=100, heads=1))
    about = {"run": run_to_json(run).decode()}
    save_file({"x": torch.zeros(1)}, tmp_path / "a.safetensors", metadata=about)

    with pytest.raises(Unusable, match="does not fit its model: it lacks"):
        load_model(tmp_path / "a.safetensors")


def test_a_folder_means_the_only_file_of_weights_in_it(trained, tmp_path: Path):
    write(tmp_path / "weights.safetensors", trained)
    assert load_model(tmp_path).run == RUN

    write(tmp_path / "again.safetensors", trained)
    with pytest.raises(Unusable, match=r"a folder: name .* \(there are: again\.saf.*, weights\."):
        load_model(tmp_path)
