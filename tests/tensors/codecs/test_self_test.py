"""The self-test: it passes what is right, and finds what a broken kernel would do."""

import pytest
import torch

from p2pswarm.tensors.codecs import self_test
from p2pswarm.tensors.codecs.base import CPU, TORCH, Decoder
from p2pswarm.tensors.codecs.cast import Cast
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.dither import Dither
from p2pswarm.tensors.codecs.fp4 import NvFp4Eden
from p2pswarm.tensors.codecs.int8 import Int8
from p2pswarm.tensors.codecs.meta import Dtype
from p2pswarm.tensors.codecs.registry import BY_NAME, CODECS
from p2pswarm.tensors.codecs.self_test import codec_fault, device_fault

ROUNDING = [codec for codec in CODECS if codec.kind is not CodecKind.EXACT]


def changed(decoder, layout, change):
    """A decoder whose values a broken kernel changes."""
    return Decoder(decoder.buffer, lambda: change(decoder.finish()).to(TORCH[layout.dtype]))


def broken(codec_class, change, *arguments):
    """A codec like one of ours on a device where what it decodes is changed."""

    class Broken(codec_class):
        def decoder(self, layout, encoded_bytes, pool):
            return changed(super().decoder(layout, encoded_bytes, pool), layout, change)

        def keyed_decoder(self, layout, encoded_bytes, key, pool):
            made = super().keyed_decoder(layout, encoded_bytes, key, pool)
            return changed(made, layout, change)

    return Broken(*arguments)


def numbers_of_nan(codec_class):
    """A codec that does not look for NaN."""

    class Broken(codec_class):
        def encode(self, tensor, pool):
            return super().encode(tensor.nan_to_num(0.0, 0.0, 0.0), pool)

    return Broken()


class FixedKey(Dither):
    """It draws the same each time, as with a seed of zero on one kind of GPU."""

    def encode_keyed(self, tensor, key, pool):
        return super().encode_keyed(tensor, bytes(8), pool)

    def keyed_decoder(self, layout, encoded_bytes, key, pool):
        return super().keyed_decoder(layout, encoded_bytes, bytes(8), pool)


@pytest.mark.parametrize("codec", ROUNDING, ids=lambda codec: codec.name)
def test_each_codec_passes_and_makes_the_bytes_that_every_device_makes(codec):
    assert codec_fault(codec, CPU) is None
    assert self_test.DIGESTS[codec.name] == self_test.digest(codec, CPU)


def test_every_codec_that_rounds_has_a_digest_and_no_other():
    assert set(self_test.DIGESTS) == {codec.name for codec in ROUNDING}


@pytest.mark.parametrize(
    ("codec", "fault"),
    [
        (broken(Dither, torch.zeros_like, 4, 9), "loses common values"),
        (broken(NvFp4Eden, torch.zeros_like), "loses common values"),
        (broken(Int8, torch.zeros_like), "loses common values"),
        (broken(Int8, lambda x: x + 1.0), "makes something else of zeros"),
        (broken(Int8, lambda x: x.where(x > -3.0, -0.0)), "loses a lone value"),
        (broken(Int8, lambda x: x.where(x < 1e30, torch.inf)), "loses its greatest value"),
        (
            broken(Dither, lambda x: x.where(x.abs() > 1e-30, 0.0), 4, 9),
            "loses values next to zero",
        ),
        (numbers_of_nan(Int8), "makes a number of NaN"),
        (
            broken(Dither, lambda x: x + 0.06 * (x.abs() > 0.1), 4, 9),
            "is biased: the mean of 64 draws",
        ),
        (FixedKey(4, 9), "is biased: the mean of 64 draws"),
        (broken(NvFp4Eden, lambda x: x * 0.96), "is biased: the mean of 64 draws"),
        (broken(Int8, lambda x: x * (1 + 2.0**-20)), "makes other bytes"),
        (
            broken(Cast, lambda x: x * (1 + 2.0**-20), "bf16", 3, Dtype.BFLOAT16),
            "makes other bytes",
        ),
    ],
)
def test_what_a_broken_kernel_would_do_is_found(codec, fault):
    found = codec_fault(codec, CPU)

    assert found is not None
    assert found.startswith(f"codec {codec.name} on cpu {fault}")


def test_a_device_that_cannot_do_it_is_found():
    found = codec_fault(BY_NAME["dither4"], torch.device("meta"))

    assert found is not None
    assert found.startswith("codec dither4 on meta fails: ")
    assert "\n" not in found


def test_codecs_of_a_run_are_tested_but_those_that_keep_every_bit():
    assert device_fault(["raw", "planes-zstd"], torch.device("meta")) is None
    assert "codec bf16 on meta" in str(device_fault(["raw", "bf16"], torch.device("meta")))
    assert device_fault(["bf16", "int8"], CPU) is None
