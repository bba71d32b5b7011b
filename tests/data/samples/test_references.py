"""The file of references: it grows, survives a torn end, and tells another run's."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.references import References

KEY, PAIRS, ANSWERS = b"k" * 32, 3, 10


def opened(path: Path, key: bytes = KEY) -> References:
    return References(path, key, PAIRS, ANSWERS)


def test_they_are_kept_part_by_part_and_read_again(tmp_path: Path):
    path = tmp_path / "folder" / "references"
    found = opened(path)
    assert (found.known, found.complete, found.due(4)) == (0, False, (0, 1, 2))

    found.keep(4, [-1.5, -2.5, -3.5, -4.5])
    assert found.due(4) == opened(path).due(4) == (0, 2)
    found.keep(8, [-8.0, -9.0, -77.0, -78.0])  # the last batch has answers of the first again
    found.keep(0, [-0.0, -1e-300, -2.0, -3.0])

    again = opened(path)
    assert again.complete
    assert again.due(4) == ()
    assert again.train.tolist() == [[-0.0, -1e-300], [-2.0, -3.0], [-1.5, -2.5]]
    assert again.held_out.tolist() == [[-3.5, -4.5], [-8.0, -9.0]]
    assert again.part(8, 4096) == (-8.0, -9.0)
    copy = tmp_path / "copy"
    copy.write_bytes(again.as_bytes)
    assert np.array_equal(opened(copy).train, again.train)


def test_what_is_no_number_is_not_known(tmp_path: Path):
    found = opened(tmp_path / "references")

    found.keep(0, [-1.0, float("inf"), float("nan"), -2.0])

    assert found.known == opened(found.path).known == 2
    assert found.due(2) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("lost", [1, 20, 40, 50, 80, 119])
def test_of_a_torn_file_what_is_whole_counts_and_it_goes_on(tmp_path: Path, lost: int):
    path = tmp_path / "references"
    found = opened(path)
    found.keep(0, [-1.0, -2.0])
    found.keep(2, [-3.0, -4.0])
    data = path.read_bytes()
    path.write_bytes(data[:-lost])

    again = opened(path)

    assert again.known == (0 if lost > 36 else 2)
    again.keep(again.known, [-5.0, -6.0, -7.0])
    assert opened(path).known == again.known


def test_a_large_file_of_others_is_refused_by_its_begin(tmp_path: Path):
    path = tmp_path / "references"
    with path.open("wb") as file:
        file.write(b"other")
        file.truncate(64 << 20)

    tracemalloc.start()
    try:
        with pytest.raises(Unusable, match="references of another text, model or template"):
            opened(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, f"{peak:,} bytes"


def test_a_flipped_bit_ends_what_is_believed(tmp_path: Path):
    path = tmp_path / "references"
    opened(path).keep(0, [-1.0, -2.0])
    data = bytearray(path.read_bytes())
    data[-10] ^= 4
    path.write_bytes(data)

    assert opened(path).known == 0


def test_references_of_another_text_and_other_files_are_refused(tmp_path: Path):
    path = tmp_path / "references"
    opened(path).keep(0, [-1.0])
    other = "references: references of another text, model or template: remove it to have"
    with pytest.raises(Unusable, match=other):
        opened(path, b"x" * 32)
    with pytest.raises(Unusable, match=other):
        References(path, KEY, PAIRS, ANSWERS + 2)
    path.write_bytes(b"{}")
    with pytest.raises(Unusable, match=other):
        opened(path)
    with pytest.raises(Unusable, match="cannot be read: Is a directory"):
        opened(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(Unusable, match="cannot be"):
        References(tmp_path / "file" / "x", KEY, PAIRS, ANSWERS).keep(0, [-1.0])
