"""Models of the library that are made in another way than ours are taken apart."""

import pytest
import torch
from models.families import family_run

from p2pswarm.base.errors import Unusable
from p2pswarm.models.sliced import sliced, sliced_of


def test_what_is_made_in_another_way_is_refused_in_one_line():
    with pytest.raises(Unusable, match=r"^hf:odd cannot be cut: AttributeError: .*'base_model'"):
        sliced_of(object(), "hf:odd", None)


def test_a_block_that_is_given_another_width_names_itself():
    block = sliced(family_run("llama").model)[2]

    with pytest.raises(Unusable, match=r"LlamaForCausalLM cannot be cut: block 2 is given .* by 5"):
        block.trace(torch.zeros(1, 2, 5))
