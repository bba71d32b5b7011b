"""Which files of a data set are read: what users expect of `load_dataset`, and what is refused."""

import re

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub_dataset import file_choice
from p2pswarm.data.hub_dataset.file_choice import chosen, is_sound, literal_folder, matching
from p2pswarm.settings.dataset_name import dataset_name

SHARDS = [
    ".gitattributes",
    "README.md",
    "data/test-00000-of-00001.parquet",
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
]
CARD = b"""---
configs:
- config_name: en
  data_files:
  - {split: train, path: data/train-*}
  - {split: test, path: [data/test-*, data/none-*]}
- config_name: de
  data_files: "de/*.jsonl"
- config_name: fr
  data_dir: fr
---
"""


def files(text, names, card=b""):
    return list(chosen(dataset_name(text), sorted(names), card).files)


def refusal(text, names, card=b""):
    with pytest.raises(Unusable, match=re.escape(f"{text}: ")) as caught:
        chosen(dataset_name(text), sorted(names), card)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 600
    return said.removeprefix(f"{text}: ")


def test_names_of_shards_say_their_split():
    assert files("hf:o/n", SHARDS) == SHARDS[3:]
    assert files("hf:o/n#:test", SHARDS) == [SHARDS[2]]
    assert refusal("hf:o/n#:dev", SHARDS).startswith("has no split 'dev': name one, #:train; there")


@pytest.mark.parametrize(
    ("names", "train"),
    [
        (["train.jsonl", "dev.jsonl", "other.jsonl"], ["train.jsonl"]),
        (["a/my-train-v2.csv", "a/my-eval.csv"], ["a/my-train-v2.csv"]),
        (["training/a.jsonl", "valid/train.jsonl", "b.jsonl"], ["training/a.jsonl"]),
        (["a.jsonl", "b/c.jsonl", "dataset_infos.json", ".x/d.jsonl"], ["a.jsonl", "b/c.jsonl"]),
        (["trained.jsonl", "tests.jsonl"], ["tests.jsonl", "trained.jsonl"]),
        (["a.json.gz", "x.py", "y.jpg"], ["a.json.gz"]),
        (["train.txt", "README.md"], ["train.txt"]),
    ],
)
def test_words_in_names_say_their_split_and_else_all_rows_are_trained_on(names, train):
    assert files("hf:o/n", names) == train


def test_a_card_says_more_than_names():
    there = [*SHARDS, "de/b.jsonl", "fr/test.csv", "fr/train.csv"]

    assert files("hf:o/n#en", there, CARD) == SHARDS[3:]
    assert files("hf:o/n#en:test", there, CARD) == [SHARDS[2]]
    assert files("hf:o/n#de", there, CARD) == ["de/b.jsonl"]
    assert files("hf:o/n#fr:test", there, CARD) == ["fr/test.csv"]
    note = chosen(dataset_name("hf:o/n#en"), there, CARD).note
    assert note == "subset 'en', split 'train', as its card says"


def test_the_default_subset_is_the_only_one_or_says_so():
    one = b"---\nconfigs:\n- config_name: en\n  data_files: [data/train-*]\n---\n"
    marked = CARD.replace(b"de\n", b"de\n  default: true\n")
    named = CARD.replace(b": de\n", b": default\n")

    assert files("hf:o/n", SHARDS, one) == SHARDS[3:]
    for card in (marked, named):
        assert files("hf:o/n", [*SHARDS, "de/b.jsonl"], card) == ["de/b.jsonl"]
    said = refusal("hf:o/n", SHARDS, CARD)
    assert said == "has several subsets: name one, #en; there are en, de, fr"


def test_what_a_card_does_not_have_is_told_with_what_there_is():
    assert "did you mean 'fr'?" in refusal("hf:o/n#fra", SHARDS, CARD)
    assert "no such subset; there are en, de, fr" in refusal("hf:o/n#zz", SHARDS, CARD)
    assert "names no subsets" in refusal("hf:o/n#zz", SHARDS)
    assert "name one, #en:train; there are test, train" in refusal("hf:o/n#en:dev", SHARDS, CARD)
    half = CARD.replace(b"data/none-*", b"data/none.csv")
    assert "names 'data/none.csv' for the split" in refusal("hf:o/n#en:test", SHARDS, half)
    said = refusal("hf:o/n#de", SHARDS, CARD)
    assert "names 'de/*.jsonl' for the split 'train', and there is no such file" in said
    assert said.endswith("name files by a pattern behind OWNER/NAME, as /data/*.parquet")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("data/train-*.parquet", SHARDS[3:]),
        ("data/train-00001-of-00002.parquet", SHARDS[4:]),
        ("*/t*", SHARDS[2:]),
        ("**/t*", SHARDS[2:]),
        ("**", SHARDS[2:]),
        ("data/**", SHARDS[2:]),
        ("data/**/*", SHARDS[2:]),
        ("**/data/**/**/train-*", SHARDS[3:]),
        ("data/*-0000[1-9]-*", SHARDS[4:]),
        (".git*", SHARDS[:1]),
        ("README.md", SHARDS[1:2]),
        ("*", []),
        ("data", []),
        ("data/train", []),
        ("data/*/train*", []),
    ],
)
def test_a_pattern_finds_names_as_one_on_a_disk_finds_files(pattern, found):
    assert list(matching(SHARDS, pattern)) == found


def test_a_pattern_that_finds_nothing_is_told_with_the_nearest_name():
    said = refusal("hf:o/n/data/trian-00000-of-00002.parquet", SHARDS)

    assert said == f"no file is found by that pattern: the nearest is {SHARDS[3]}"
    assert refusal("hf:o/n/*", []) == "no file is found by that pattern: there are none"
    assert refusal("hf:o/n/data", SHARDS) == "is a folder there: name its files, /data/*.parquet"


def test_code_of_the_repository_is_refused_by_name():
    said = refusal("hf:o/squad", ["README.md", "squad.py", "raw.zip"])

    assert said.startswith("has only a loading script (squad.py), and no code of it is run")
    assert "hf:o/squad@refs/convert/parquet/SUBSET/train/*.parquet" in said
    assert files("hf:o/squad/*.csv", ["squad.py", "a.csv"]) == ["a.csv"]


@pytest.mark.parametrize(
    ("text", "names", "match"),
    [
        ("hf:o/n", ["a.jsonl", "a.parquet"], "has files of several kinds, .jsonl, .parquet: name"),
        ("hf:o/n", ["a.jpg", "b.jpg", "c.wav"], "holds no files with rows: its files are .jpg, .w"),
        ("hf:o/n", [], "holds no files with rows: its files are none"),
        ("hf:o/n/*.zip", ["a.zip"], "a.zip is an archive"),
        ("hf:o/n/*", ["a.tar.gz"], "a.tar.gz is an archive"),
        ("hf:o/n/*", ["a.csv", "b.jpg"], "finds files with rows, and b.jpg without: name one kind"),
        ("hf:o/n", [f"{n}.csv" for n in range(10_001)], "means 10,001 files, 10,000 are allowed"),
    ],
)
def test_what_would_be_a_guess_or_cannot_be_read_is_refused(text, names, match):
    assert refusal(text, names).startswith(match)


@pytest.mark.parametrize(
    "name",
    [
        *("../x.jsonl", "/etc/x.jsonl", "a/../x.jsonl", "a//x.jsonl", "./x.jsonl", "a\\x.jsonl"),
        *("x\n.jsonl", "\x1b[2Jx.jsonl", "x" * 260 + ".jsonl", "a/" * 600 + "x.jsonl", ""),
    ],
)
def test_names_that_lead_out_of_a_folder_are_passed_over_and_told(name):
    assert not is_sound(name)
    found = chosen(dataset_name("hf:o/n/**"), ["a.jsonl", name], b"")

    assert found.files == ("a.jsonl",)
    told = "passed over: 1 whose names have no place in a folder"
    assert found.note == f"files by its pattern; {told}"
    assert "passed over: 1 whose names" in refusal("hf:o/n/**", [name])


def test_a_card_cannot_keep_the_processor_busy(monkeypatch):
    many = ", ".join(f"a{n}*" for n in range(100))
    card = f"---\nconfigs:\n- data_files: [{many}]\n---\n".encode()
    there = [f"a{n}.csv" for n in range(100)]
    assert files("hf:o/n", there, card) == sorted(there)
    monkeypatch.setattr(file_choice, "TRIED_CHARS_MAX", 100)
    assert "too many patterns for its files" in refusal("hf:o/n", there, card)

    # with every way tried, this would not end
    deep, stars = "/".join(["a"] * 200) + "/x.csv", "**/" * 300 + "a/**/" * 3 + "*a" * 100 + "b"
    assert matching([deep, "a/a/a/" + "a" * 250 + ".csv"], stars) == ()
    assert "more than 4 of **" in refusal("hf:o/n/" + "**/a/" * 5 + "x", [deep])


def test_only_the_folder_that_a_pattern_is_in_has_to_be_listed():
    patterns = ("a/b/*.csv", "a/b/c.csv", "a/*/c.csv", "*.csv", "c.csv", "**")

    assert [literal_folder(each) for each in patterns] == ["a/b", "a/b", "a", "", "", ""]
