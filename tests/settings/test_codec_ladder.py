"""The ladder: its codes are the registry's, and a manifest says how far down it goes."""

import pytest

from p2pswarm.settings.codec_ladder import (
    CODES,
    LADDER,
    MILDEST,
    BoundaryCodecs,
    allowed_codes,
    boundary_ladder,
    codecs_of,
)
from p2pswarm.settings.config import CodecConfig
from p2pswarm.tensors.codecs.registry import BY_NAME

MEASURED = CodecConfig(choice="measured")


def test_the_codes_are_the_registrys():
    assert {name: BY_NAME[name].code for name in CODES} == CODES
    assert {name for rung in LADDER for name in (rung.activation, rung.gradient)} == set(CODES)


def test_codes_name_the_codecs_and_none_name_the_mildest():
    rungs = [codecs_of(MEASURED, rung.codes) for rung in LADDER]

    assert rungs == list(LADDER)
    assert MILDEST.codes == b""
    assert codecs_of(CodecConfig(gradient="int8"), b"") == BoundaryCodecs("bf16", "int8")


def test_no_boundary_goes_beyond_the_coarsest_and_the_last_one_is_milder():
    coarsest = CodecConfig(choice="measured", coarsest=("dither4", "dither3"))

    rungs = [
        [len(boundary_ladder(one, 3, stage)) for stage in (0, 1)] for one in (MEASURED, coarsest)
    ]

    assert rungs == [[3, 2], [4, 2]]


def test_a_record_may_name_each_pair_up_to_the_coarsest_but_the_mildest():
    inner, last, none = allowed_codes(MEASURED, 3)

    assert BoundaryCodecs("bf16", "dither3").codes in inner
    assert BoundaryCodecs("dither4", "dither3").codes not in inner
    assert last == {bytes((up, down)) for up in (3, 4) for down in (3, 9)} - {b"\3\3"}
    assert (none, allowed_codes(CodecConfig(), 3)) == (frozenset(), ())


def test_a_coarsest_that_is_no_rung_and_a_start_that_is_not_the_mildest_are_refused():
    with pytest.raises(ValueError, match=r'coarsest is \["bf16", "bf16"\] or'):
        CodecConfig(coarsest=("dither3", "dither3"))
    with pytest.raises(ValueError, match="begins with bf16 both ways: leave activation"):
        CodecConfig(choice="measured", activation="int8")
