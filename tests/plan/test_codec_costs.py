import re
from pathlib import Path

import pytest
import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.codec_costs import CODEC_CHOICES, CODECS, GRID, PAIRS, codec_of
from p2pswarm.settings.config import FP4_NAMES, CodecConfig
from p2pswarm.tensors.codecs.registry import encode


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_bytes_of_a_value_are_what_codecs_send(codec):
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(1))

    sent = len(encode(x, codec.name, key=bytes(8)).data) / x.numel()

    assert sent == pytest.approx(codec.bytes_per_value, rel=0.02)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_costs_the_mean_of_its_ways(name):
    forward, backward = (codec_of(each).bytes_per_value for each in name.split("/"))

    assert codec_of(name).bytes_per_value == (forward + backward) / 2


@pytest.mark.parametrize("name", CODEC_CHOICES)
def test_a_run_may_have_what_is_planned_for(name):
    up, down = codec_of(name).ways

    assert CodecConfig(activation=up, gradient=down).names >= {up, down}


def test_a_codec_of_both_ways_has_one_name():
    assert codec_of("bf16/bf16") == codec_of("bf16")


def test_the_planner_knows_every_4_bit_float():
    assert {codec.name for codec in CODECS} >= set(FP4_NAMES)


def test_an_unknown_codec_is_refused_with_those_that_are_known():
    with pytest.raises(Unusable, match=r"'int2' is not known to the planner: choose of raw, "):
        codec_of("int2")


def test_the_speeds_are_those_of_the_figures():
    """Of the second table, by torch: what a core encodes and decodes of float32."""
    text = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()
    row = r"^\| (\S+) \| [\d.]+ \|[^|]*\| ([\d,]+), [\d.]+ \|[^|]*\| ([\d,]+), [\d.]+ \|"
    found = {
        name: 1e6 / 4 / sum(1 / float(rate.replace(",", "")) for rate in rates)
        for name, *rates in re.findall(row, text, re.MULTILINE)
    }
    assert found.keys() >= {"int8", "dither6", "dither3", "nvfp4", "int-grid"}

    for codec in (*CODECS, GRID):
        if codec.name in found:
            assert codec.values_per_s == pytest.approx(found[codec.name], rel=0.05), codec.name
