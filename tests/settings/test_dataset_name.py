"""Names of data sets of the hub: what each part means, and what is said of those that are none."""

from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.sources import files_of
from p2pswarm.settings.dataset_name import DatasetName, dataset_name, is_dataset
from p2pswarm.settings.parser import from_values, load
from p2pswarm.settings.train_config import TrainConfig

COMMIT = "0123456789" * 4
NAMES = {
    "hf:a/b": DatasetName("a/b"),
    "hf:a/b@v1.0": DatasetName("a/b", "v1.0"),
    "hf:a/b#s": DatasetName("a/b", subset="s"),
    "hf:a/b#s:t": DatasetName("a/b", subset="s", split="t"),
    "hf:a/b#:train_sft": DatasetName("a/b", split="train_sft"),
    f"hf:a/b@{COMMIT}#s": DatasetName("a/b", COMMIT, "s"),
    "hf:a/b/data/train-*.parquet": DatasetName("a/b", pattern="data/train-*.parquet"),
    "hf:a/b/c#d@e.jsonl": DatasetName("a/b", pattern="c#d@e.jsonl"),
    "hf:a/b@refs/pr/12/x": DatasetName("a/b", "refs/pr/12", pattern="x"),
    "hf:a/b@refs/convert/parquet/s/**": DatasetName("a/b", "refs/convert/parquet", pattern="s/**"),
    "hf:a/b@my%2Fbranch#:t": DatasetName("a/b", "my/branch", split="t"),
}


@pytest.mark.parametrize("text", NAMES)
def test_a_name_says_what_is_read_and_is_written_as_it_was(text):
    found = dataset_name(text)

    assert found == NAMES[text]
    assert str(found) == text
    assert found.path == Path(text)
    assert is_dataset(found.path)
    assert found.is_pinned is (COMMIT in text)
    assert dataset_name(str(found.at(COMMIT))).is_pinned


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("hf:imdb", "it has an owner"),
        ("hf:", "names no data set"),
        ("hf:./texts", "a path on this machine is written without hf:"),
        ("hf://datasets/a/b@main/x.jsonl", 'write "hf:a/b@main/x.jsonl"'),
        ("hf:a/b@", "a revision is a branch"),
        ("hf:a/b@refs/pr/one", "a revision is a branch"),
        ("hf:a/b@%2e%2e#s", "a revision is a branch"),
        ("hf:a/b#", "behind # is"),
        ("hf:a/b#s:t:u", "behind # is"),
        ("hf:a/b/../c", "a pattern of files in the repository"),
        ("hf:a/b//c", "a pattern of files in the repository"),
        ("hf:a/b\n/c", "names no data set"),
        (f"hf:{'a' * 60}/{'b' * 60}", "names no data set"),
        ("hf:a/b" + "/c" * 600, "a pattern of files in the repository"),
    ],
)
def test_what_is_no_name_is_one_line_before_anything_is_asked(text, match):
    with pytest.raises(ValueError, match=match) as caught:
        dataset_name(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300

    with pytest.raises(ValueError, match=r"^train.mixture\[0\].data: "):
        from_values(TrainConfig, {"mixture": [{"data": text}]}, "train")
    if "//" not in text:  # which a path does not keep
        with pytest.raises(Unusable, match=r"^train\.data: "):
            files_of(Path(text))


def test_settings_put_no_folder_before_a_name(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[train]\ndata = "hf:a/b"\nweights = "hf:a/b"')
    found = load(file).train
    changed = load(file, ["train.data=hf:a/b#s:t"]).train

    assert found.data == Path("hf:a/b")
    assert found.weights == tmp_path / "hf:a/b"  # that is a path
    assert changed.data == Path("hf:a/b#s:t")
