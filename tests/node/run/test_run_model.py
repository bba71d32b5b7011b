"""A run's model beside its tokenizer: sizes that fit, documents that can be kept apart."""

import dataclasses
import json
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.tokenizer import Tokenizer, train_tokenizer
from p2pswarm.node.run.run_model import checked_model
from p2pswarm.settings.config import ModelConfig, RunConfig

TEXT = Path(__file__).read_bytes()
SMALL = ModelConfig(d_model=8, layers=1, heads=2, sequence_length=8)


def sized(vocabulary: int) -> RunConfig:
    return RunConfig(model=dataclasses.replace(SMALL, vocabulary=vocabulary))


def test_a_vocabulary_may_be_rounded_up_and_not_be_too_small():
    tokenizer = train_tokenizer(320, [TEXT])

    assert checked_model(sized(384), tokenizer).model.vocabulary == 384
    with pytest.raises(Unusable, match=r"tokenizer has 320 tokens and the model 300: name the"):
        checked_model(sized(300), tokenizer)


def test_documents_apart_need_a_model_and_a_tokenizer_that_can():
    apart = dataclasses.replace(SMALL, documents="apart")
    tokenizer = train_tokenizer(320, [TEXT])

    assert checked_model(RunConfig(model=apart), tokenizer).model.documents == "apart"
    with pytest.raises(Unusable, match=r"needs a token that ends a document: .*train:32000"):
        checked_model(RunConfig(model=apart))
    other = dataclasses.replace(apart, family="mlp")
    with pytest.raises(Unusable, match=r"the family 'mlp' cannot keep documents apart"):
        checked_model(RunConfig(model=other), tokenizer)


def test_a_tokenizer_whose_numbers_no_model_has_is_told():
    model = {"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []}
    far = Tokenizer(json.dumps({"model": model}), "far.json")

    with pytest.raises(
        Unusable, match=r"tokens up to number 4,000,000,000, a model at most 4,194,"
    ):
        checked_model(RunConfig(model=SMALL), far)
