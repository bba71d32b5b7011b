"""Compiled loops of dither: every bit is that of torch's functions, whatever the tensor holds."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs import dither, hadamard, self_test
from p2pswarm.tensors.codecs.base import DTYPES, Unencodable
from p2pswarm.tensors.codecs.dither import PANEL_VALUES, Dither
from p2pswarm.tensors.codecs.meta import TensorLayout
from p2pswarm.tensors.codecs.registry import BY_NAME
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

dither_kernels = pytest.importorskip("p2pswarm.kernels.dither_kernels")

POOL = TensorPool()
KEY = bytes(range(8))
BITS = (2, 3, 4, 5, 6)
KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
every_width = pytest.mark.parametrize("bits", BITS)


def both(bits):
    """A codec by torch's functions, and by compiled loops."""
    plain = Dither(bits, 13 - bits)
    fast = copy.copy(plain)
    fast.kernels = dither_kernels
    return plain, fast


def encoded(codec, x):
    return bytes(codec.encode_keyed(x, KEY, POOL))


def decoded(codec, x, data):
    layout = TensorLayout(DTYPES[x.dtype], tuple(x.shape))
    place = codec.keyed_decoder(layout, len(data), KEY, POOL)
    place.buffer[:] = data
    return place.finish()


def same_bits(a, b):
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.view(whole), b.view(whole))


def expect_equal(bits, x):
    plain, fast = both(bits)
    data = encoded(plain, x)
    assert encoded(fast, x) == data
    assert same_bits(decoded(fast, x, data), decoded(plain, x, data))


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SHAPES = st.one_of(
    st.tuples(st.integers(0, 3000)),
    st.tuples(st.integers(0, 70), st.sampled_from([1, 15, 16, 32, 48, 64, 96, 160, 1024, 1056])),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.sampled_from([32, 37, 2080, 4096])),
)


@every_width
@settings(max_examples=examples(60))
@given(
    SHAPES,
    st.sampled_from(KINDS),
    st.integers(0, 2**32),
    st.floats(-44, 30),
    st.floats(0, 30),
    st.floats(0, 1),
)
def test_any_tensor_has_the_same_bytes_and_values(bits, shape, kind, seed, power, spread, zeros):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, dtype=torch.float64, generator=rng)
    x *= 10.0 ** (power - spread * torch.rand(shape, dtype=torch.float64, generator=rng))
    x[torch.rand(shape, generator=rng) < zeros] = 0.0
    x = x.clamp(-torch.finfo(kind).max / 64, torch.finfo(kind).max / 64).to(kind)

    expect_equal(bits, x)


@every_width
@pytest.mark.parametrize("kind", KINDS)
def test_panels_whole_and_short_have_the_same_bytes_and_values(bits, kind):
    for width in (1024, 4096, 96, 33):
        expect_equal(bits, gaussian(2 * PANEL_VALUES // width + 7, width).to(kind))
    expect_equal(bits, torch.zeros(300, 1024, dtype=kind))
    expect_equal(bits, torch.tensor(3.0, dtype=kind))


@every_width
def test_a_million_values_of_all_sizes_have_the_same_bytes_and_values(bits):
    x = gaussian(1 << 10, 1 << 10) * torch.linspace(-80, 60, 1 << 10).exp()

    expect_equal(bits, x)


@every_width
def test_lifted_panels_and_the_greatest_values_have_the_same_bytes_and_values(bits):
    x = gaussian(300, 1024)
    for scale in (2.0**-149, 2.0**-130, 2.0**-64, 2.0**-60, 2.0**100):
        expect_equal(bits, x * scale)
    lone = torch.zeros(4, 64)
    lone[1, 7], lone[2, 40] = hadamard.PEAK_MAX, -0.0
    expect_equal(bits, lone)


@every_width
def test_rows_that_lie_apart_have_the_same_bytes(bits):
    for x in (gaussian(96, 80).t(), gaussian(50, 200)[:, 3:99], gaussian(40, 64)[::3]):
        expect_equal(bits, x)


@every_width
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
def test_what_torch_refuses_is_refused_in_the_same_words(bits, value):
    x = torch.ones(3, 64)
    x[1, 5] = value
    words = []
    for codec in both(bits):
        with pytest.raises(Unencodable) as refused:
            encoded(codec, x)
        words.append(str(refused.value))

    assert words[0] == words[1]


@every_width
@settings(max_examples=examples(60))
@given(st.data(), st.integers(0, 2**32), st.sampled_from(KINDS))
def test_any_bytes_of_a_peer_become_the_same_values_or_the_same_error(bits, data, seed, kind):
    plain, fast = both(bits)
    x = torch.zeros(data.draw(st.integers(1, 70)), 96, dtype=kind)
    sent = bytearray(encoded(plain, x))
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (len(sent) - 4,), generator=rng, dtype=torch.uint8)
    sent[4:] = noise.numpy().tobytes()
    sent[4:6] = data.draw(
        st.one_of(st.integers(250, 1910), st.integers(4300, 6010), st.integers(0, 65535))
    ).to_bytes(2, "little")

    found = []
    for codec in (plain, fast):
        try:
            found.append(decoded(codec, x, bytes(sent)))
        except BadMessage as error:
            found.append(str(error))

    if isinstance(found[0], str):
        assert found[0] == found[1] == f"a dither{bits} scale that no encoder makes"
    else:
        assert same_bits(found[1], found[0])
        assert found[1].isfinite().all()


def test_threads_encode_at_once_without_meeting():
    plain, fast = both(4)
    tensors = [gaussian(400, 1024, seed=seed) for seed in range(6)]
    expected = [encoded(plain, x) for x in tensors]

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda x: encoded(fast, x), tensors * 3))

    assert found == expected * 3


def test_numbers_are_those_of_the_format():
    kernels = dither_kernels
    assert (kernels.PERIOD, kernels.LIFT) == (hadamard.PERIOD, hadamard.LIFT)
    assert kernels.PEAK_MAX_BITS.view("f4") == hadamard.PEAK_MAX
    assert kernels.TINY_BITS.view("f4") == hadamard.TINY
    for name in ("CODE_SHIFT", "TOP_MAX", "TOP_MIN", "TOP_OF_ZEROS", "TOP_BYTES", "LIFTED"):
        assert getattr(kernels, name) == getattr(dither, name)
    assert kernels.BELOW_TOP == dither.BELOW_TOP
    assert kernels.TO_NEXT_CODE == (1 << dither.CODE_SHIFT) - 1
    assert kernels.TILE <= kernels.PERIOD


# What a process uses


@pytest.fixture
def as_before():
    """The registry's codecs, without kernels before and after."""
    codecs = [codec for codec in BY_NAME.values() if hasattr(codec, "kernels")]
    before = [codec.kernels for codec in codecs]
    for codec in codecs:
        codec.kernels = None
    yield
    for codec, kernels in zip(codecs, before, strict=True):
        codec.kernels = kernels


def kernels_that(**changes):
    names = ("encode", "decode", "encoding_floats", "TILE")
    found = {name: getattr(dither_kernels, name) for name in names}
    return SimpleNamespace(**found | changes)


def makes_another_byte(*given):
    held = dither_kernels.encode(*given)
    given[-1][-1] ^= 1
    return held


def makes_another_value(*given):
    right = dither_kernels.decode(*given)
    given[-1][0] += 1
    return right


def fails(*given):
    raise TypeError("No matching definition for argument type(s)")


def test_codecs_of_a_run_use_loops_that_make_the_same_bytes_and_others_stay(as_before):
    self_test.use_kernels(["bf16", "dither4"])

    assert BY_NAME["dither4"].kernels is dither_kernels
    assert BY_NAME["dither6"].kernels is None
    assert self_test.codec_fault(BY_NAME["dither4"], self_test.CPU) is None


@pytest.mark.parametrize(
    "changes",
    [{"encode": makes_another_byte}, {"decode": makes_another_value}, {"encode": fails}],
)
def test_loops_that_make_other_bytes_or_fail_are_not_used(as_before, monkeypatch, caplog, changes):
    monkeypatch.setattr(self_test.loader, "kernels", lambda name: kernels_that(**changes))

    self_test.use_kernels(["dither5"])

    assert BY_NAME["dither5"].kernels is None
    assert "torch runs dither5, slower: compiled loops" in caplog.text


def test_without_compiled_loops_torch_runs_as_before(as_before, monkeypatch):
    monkeypatch.setattr(self_test.loader, "kernels", lambda name: None)

    self_test.use_kernels(["dither3", "int-grid"])

    assert BY_NAME["dither3"].kernels is None
