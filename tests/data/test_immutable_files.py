"""Files that must stay as they are, and the digest by which others recognise them."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.immutable_files import ImmutableFiles

FEW = {"block_bytes": 64, "blocks_max": 8}


@pytest.fixture
def paths(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(range(number, 200)) * 5)
    return paths


def test_places_count_through_all_files(paths):
    assert ImmutableFiles(paths).begins == [0, 1000, 1995, 2985]


def test_a_small_text_is_known_by_every_byte(paths):
    before = ImmutableFiles(paths).digest("how")

    assert ImmutableFiles(paths).digest("how") == before
    assert ImmutableFiles(paths).digest("otherwise") != before
    paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"!")
    assert ImmutableFiles(paths).digest("how") != before


def test_a_large_text_is_known_by_its_length_and_blocks_of_it(paths):
    before = ImmutableFiles(paths).digest("how", **FEW)

    assert ImmutableFiles(paths).digest("how", **FEW) == before
    assert ImmutableFiles(paths).digest("how") != before
    paths[2].write_bytes(paths[2].read_bytes() + b"!")
    assert ImmutableFiles(paths).digest("how", **FEW) != before


@pytest.mark.parametrize("change", ["grown", "gone", "closed"])
def test_a_file_that_changes_is_named(paths, change):
    files = ImmutableFiles(paths)
    match change:
        case "grown":
            paths[1].write_bytes(bytes(9999))
        case "gone":
            paths[1].unlink()
        case "closed":
            paths[1].unlink()
            paths[1].mkdir()
            files.sizes[1] = paths[1].stat().st_size  # as if it had been one from the beginning
    with pytest.raises(Unusable, match=r"b: (changed while|cannot be read)"), files.opened(1):
        pass


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Unusable, match="gone: cannot be read: No such file"):
        ImmutableFiles([tmp_path / "gone"])
