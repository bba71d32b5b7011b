"""A model with adapters is compared with the library's own, whose weights are merged."""

import dataclasses

import pytest
import torch
from models.families import family_run

from p2pswarm.models.adapters.lora_modules import LoraLinear, LoraParameters
from p2pswarm.models.check.model_check import check_blocks, check_stages
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import RunConfig


def adapted(family: str, base: str = "full", **settings: object) -> RunConfig:
    adapter = AdapterConfig(rank=2, alpha=6.0, **settings)
    return resolved(dataclasses.replace(family_run(family), adapter=adapter, base=base))


@pytest.mark.parametrize("base", ["full", "nf4"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_stages_with_adapters_compute_what_the_library_does(family: str, base: str) -> None:
    found = check_stages(adapted(family, base))
    assert not found.problem
    assert found.parameters > 0


def test_a_layer_that_the_small_copy_lacks_may_have_the_only_adapter() -> None:
    run = adapted("llama", targets=("layers.1.self_attn.q_proj",))
    assert not check_stages(run).problem


@pytest.mark.parametrize(("family", "kind"), [("llama", LoraLinear), ("mixtral", LoraParameters)])
def test_an_adapter_that_counts_twice_is_found(monkeypatch, family: str, kind: type) -> None:
    once = kind.forward

    def forward(self: object, *given: object, **also: object) -> torch.Tensor:
        plain = super(kind, self).forward(*given, **also)
        made = once(self, *given, **also)
        return made + (made - plain) if isinstance(made, torch.Tensor) else made

    monkeypatch.setattr(kind, "forward", forward)
    check_blocks.cache_clear()  # a process checks a model once
    try:
        assert "the gradient of" in check_stages(adapted(family)).problem
    finally:
        check_blocks.cache_clear()
