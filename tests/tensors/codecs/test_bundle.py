"""What a bundle may be, and which announcements are of it."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.tensors.codecs.bundle import (
    BUNDLE_BYTES_MAX,
    BUNDLE_KEYS_MAX,
    KEY_CHARS_MAX,
    BundleKey,
    BundleSpec,
)
from p2pswarm.tensors.codecs.meta import RANK_MAX, Dtype, TensorLayout, TensorMeta


def key(name="x", dtype=Dtype.FLOAT32, shape=(2, 3), *, differentiable=True):
    return BundleKey(name, TensorLayout(dtype, shape), differentiable)


def meta(of, **changes):
    told = TensorMeta(of.layout.dtype, of.layout.shape, 1, of.layout.raw_bytes)
    return dataclasses.replace(told, **changes)


THREE = BundleSpec(
    (key(), key("marks", Dtype.INT64, differentiable=False), key("memory", Dtype.FLOAT64, (4,)))
)
TOLD = tuple(meta(each) for each in THREE.keys)


def test_the_gradient_of_a_bundle_is_that_of_its_differentiable_tensors():
    assert THREE.names == ("x", "marks", "memory")
    assert THREE.gradient().names == ("x", "memory")
    assert THREE.raw_bytes == 24 + 48 + 32


def test_an_announcement_of_the_bundle_is_fine_in_any_codec():
    THREE.check(TOLD)
    THREE.check([dataclasses.replace(each, codec=99, encoded_bytes=1) for each in TOLD])
    BundleSpec().check(())


@given(st.permutations(TOLD))
def test_another_order_is_another_bundle(metas):
    if tuple(metas) == TOLD:
        THREE.check(metas)
        return
    with pytest.raises(BadMessage, match="is due"):
        THREE.check(metas)


@pytest.mark.parametrize(
    "metas",
    [
        (),
        TOLD[:2],
        (*TOLD, TOLD[0]),
        (meta(THREE.keys[0], dtype=Dtype.FLOAT64), *TOLD[1:]),
        (meta(THREE.keys[0], dtype=77), *TOLD[1:]),
        (meta(THREE.keys[0], shape=(3, 2)), *TOLD[1:]),
        (meta(THREE.keys[0], shape=(2, 3, 1)), *TOLD[1:]),
    ],
)
def test_any_other_announcement_is_the_peers_fault(metas):
    with pytest.raises(BadMessage, match=r"due"):
        THREE.check(metas)


@pytest.mark.parametrize(
    "keys",
    [
        tuple(key(f"k{number}") for number in range(BUNDLE_KEYS_MAX + 1)),
        (key("two words"),),
        (key(""),),
        (key("k" * (KEY_CHARS_MAX + 1)),),
        (key(shape=(1,) * (RANK_MAX + 1)),),
        (key(shape=(BUNDLE_BYTES_MAX // 4,)), key("y", shape=(1,))),
    ],
    ids=["many", "no name", "empty", "long", "rank", "bytes"],
)
def test_a_model_that_asks_for_too_much_is_told_the_limit(keys):
    with pytest.raises(Unusable):
        BundleSpec(keys)


def test_the_limits_themselves_are_allowed():
    BundleSpec(tuple(key(f"k{number}") for number in range(BUNDLE_KEYS_MAX)))
    BundleSpec((key("k" * KEY_CHARS_MAX, shape=(1,) * RANK_MAX),))
    BundleSpec((key(shape=(BUNDLE_BYTES_MAX // 4,)),))
