"""Small pieces: matrices of the tests' stages are cut as large ones are."""

import pytest
from server.harness import PIECE_VALUES

from p2pswarm.tensors import flat_layout


@pytest.fixture(autouse=True)
def _small_row_blocks(monkeypatch):
    monkeypatch.setattr(flat_layout, "ROW_BLOCK_VALUES", PIECE_VALUES)
