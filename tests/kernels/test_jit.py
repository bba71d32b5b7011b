"""What numba compiles rounds as torch does, and where it compiles nothing torch computes."""

import logging
import sys

import numpy as np
import pytest

from p2pswarm.kernels import loader


@pytest.fixture
def unloaded():
    """A loader that has loaded nothing, before and after."""
    loader.kernels.cache_clear()
    yield loader
    loader.kernels.cache_clear()


def test_a_sum_of_a_product_is_rounded_twice_as_by_torch():
    jit = pytest.importorskip("p2pswarm.kernels.jit")

    @jit.compiled_for("void(float32[::1], float32[::1], float32[::1], float32[::1])")
    def products_and_sums(a, b, c, out):
        for m in range(len(out)):
            out[m] = a[m] * b[m] + c[m]

    factor, term = np.full(64, 1 + 2.0**-12, np.float32), np.full(64, -1 - 2.0**-11, np.float32)
    out = np.ones(64, np.float32)

    products_and_sums(factor, factor, term, out)

    assert not out.any()  # fused it were 2**-24


def test_other_types_than_those_it_was_compiled_for_are_an_error_and_no_work_for_a_compiler():
    jit = pytest.importorskip("p2pswarm.kernels.jit")

    @jit.compiled_for("float32(float32[::1])")
    def first(a):
        return a[0]

    assert first(np.ones(1, np.float32)) == 1
    with pytest.raises(TypeError, match="No matching definition"):
        first(np.ones(1, np.float64))


def test_without_numba_there_are_no_kernels_and_a_line_names_the_extra(
    unloaded, monkeypatch, caplog
):
    for name in [each for each in sys.modules if each.startswith("p2pswarm.kernels.")]:
        if name != "p2pswarm.kernels.loader":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    caplog.set_level(logging.INFO)

    assert unloaded.kernels("dither_kernels") is None
    assert unloaded.kernels("dither_kernels") is None

    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "pip install '.[fast]'" in caplog.text


def test_where_nothing_can_be_compiled_there_are_no_kernels_and_a_warning_says_why(
    unloaded, monkeypatch, caplog
):
    def refuse(name):
        raise RuntimeError("cannot cache function 'encode': no locator available\nfor file ...")

    monkeypatch.setattr(loader.importlib, "import_module", refuse)

    assert unloaded.kernels("grid_kernels") is None
    assert "no grid_kernels, torch runs them, slower (NUMBA_CACHE_DIR names" in caplog.text
    assert ": cannot cache function 'encode': no locator available" in caplog.text
    assert "\n" not in caplog.records[0].getMessage()
