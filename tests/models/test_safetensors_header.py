"""The header of a safetensors file: read as the library does, and refused where it is none."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from p2pswarm.models.safetensors_header import (
    DIMENSIONS_MAX,
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    StoredTensor,
    header_bytes,
    joined,
    stored_tensors,
)

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "c": torch.tensor(3, dtype=torch.int8),
}


def read(file):
    length = header_bytes(file[:LENGTH_BYTES], len(file))
    return stored_tensors(file[LENGTH_BYTES : LENGTH_BYTES + length], len(file))


def test_tensors_lie_where_the_library_finds_them(tmp_path):
    file = save(TENSORS, metadata={"format": "pt"})
    (tmp_path / "file").write_bytes(file)

    found = read(file)

    with safe_open(tmp_path / "file", framework="pt") as theirs:
        assert found.keys() == set(theirs.keys())
        assert all(found[n].shape == tuple(theirs.get_slice(n).get_shape()) for n in found)
    stored = found["a"]
    assert stored.dtype == "F32"
    numbers = torch.frombuffer(bytearray(file[stored.start : stored.stop]), dtype=torch.float32)
    assert torch.equal(numbers.view(2, 3), TENSORS["a"])


@pytest.mark.parametrize(
    ("first", "size"),
    [
        (b"1234567", 100),
        ((93).to_bytes(8, "little"), 100),
        ((HEADER_BYTES_MAX + 1).to_bytes(8, "little"), 1 << 40),
    ],
)
def test_a_header_that_cannot_be_there_is_refused(first, size):
    with pytest.raises(ValueError, match="a header of"):
        header_bytes(first, size)

    assert header_bytes((92).to_bytes(8, "little"), 100) == 92


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 7]}, "7 bytes, and another shape"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "no whole numbers"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "no whole numbers"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0]}, "has no dtype"),
        ({"dtype": 3, "shape": [2], "data_offsets": [0, 8]}, "has no dtype"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "not lie in the file"),
        ({"dtype": "F32", "shape": [999], "data_offsets": [0, 3996]}, "not lie in the file"),
        ({"dtype": "F32", "shape": [1] * (DIMENSIONS_MAX + 1), "data_offsets": [0, 4]}, "not lie"),
        ("x", "has no dtype"),
    ],
)
def test_an_entry_that_names_no_bytes_of_the_file_is_refused(entry, match):
    header = json.dumps({"a": entry}).encode()

    with pytest.raises(ValueError, match=match):
        stored_tensors(header, LENGTH_BYTES + len(header) + 100)


@pytest.mark.parametrize(
    "header", [b"", b"{", b"[]", b"\xff", pytest.param(b"[" * 100_000, id="deep")]
)
def test_a_header_that_is_no_table_is_refused(header):
    with pytest.raises(ValueError, match=r"."):
        stored_tensors(header, 1 << 20)


def test_tensors_that_follow_each_other_are_one_group():
    first, second, third = (StoredTensor("F32", (2,), at, at + 8) for at in (0, 8, 24))

    assert joined([("c", third), ("b", second), ("a", first)]) == [
        [("a", first), ("b", second)],
        [("c", third)],
    ]
