"""The card of a data set, as people write it and as a stranger might."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub_dataset.card import subsets_of


def card(head):
    return f"---\n{head}\n---\n# A data set\n".encode()


def test_a_card_names_subsets_splits_and_files():
    found = subsets_of(
        card(
            "license: mit\n"
            "configs:\n"
            "- config_name: en\n"
            "  default: true\n"
            "  data_files:\n"
            "  - split: train\n"
            "    path: en/train-*\n"
            "  - split: test\n"
            '    path: ["en/test-*", "./more/test.csv"]\n'
            "- config_name: 2024\n"
            '  data_files: "all/*.jsonl"\n'
            "- config_name: fr\n"
            "  data_dir: fr\n"
            "  data_files: {train: a.csv, no: b.csv}\n"
            "- data_files: [x.csv, y.csv]\n"
        )
    )

    assert [(each.name, each.is_default) for each in found] == [
        ("en", True),
        ("2024", False),
        ("fr", False),
        ("default", False),
    ]
    assert found[0].patterns("test") == ["en/test-*", "more/test.csv"]
    assert found[1].patterns("train") == ["all/*.jsonl"]
    assert (list(found[2].splits), found[2].patterns("no")) == (["train", "no"], ["fr/b.csv"])
    assert found[3].patterns("train") == ["x.csv", "y.csv"]


@pytest.mark.parametrize(
    "text",
    [b"", b"# A data set", b"---\nconfigs: [", b"\xef\xbb\xbf---\nlicense: mit\n---\n", card("[]")],
)
def test_a_card_without_configs_names_nothing(text):
    assert subsets_of(text) == []


@pytest.mark.parametrize(
    ("head", "match"),
    [
        ("configs: [", "is not YAML"),
        ("a: \0", "is not YAML"),
        ("? [a]\n: b", "is not YAML"),
        ("a: " + "[" * 900 + "]" * 900, "is not YAML"),
        ("- " * 100_000, "is not YAML"),
        ("configs: 3", "no list of subsets"),
        ("configs: [[a]]", "no list of subsets"),
        ('configs:\n- config_name: "a\\nb"', "without a name that can be shown"),
        ("configs:\n- config_name: []", "without a name that can be shown"),
        ("configs:\n- data_dir: ../up", "files that are elsewhere"),
        ("configs: [" + "{a: b}," * 10_001 + "]", "more than 10,000 subsets"),
    ],
)
def test_a_card_that_cannot_be_read_is_one_line(head, match):
    with pytest.raises(Unusable, match=match) as caught:
        subsets_of(card(head))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("https://example.org/a.csv", "elsewhere"),
        ("zip://a.csv::b.zip", "elsewhere"),
        ("/etc/passwd", "elsewhere"),
        ("a/../../b", "elsewhere"),
        ("{a: b}", "something else than a short text"),
        ("a" * 2_000, "something else than a short text"),
        ("[" + "a," * 10_001 + "]", "more than 10,000 files"),
    ],
)
def test_a_card_names_files_of_its_own_repository_only(path, match):
    (found,) = subsets_of(card(f"configs:\n- data_files:\n  - {{split: train, path: {path}}}"))

    with pytest.raises(Unusable, match=match):
        found.patterns("train")


def test_aliases_and_tags_are_texts_and_are_not_multiplied():
    """Ten levels of ten aliases would be 10^10 texts, if anything copied them."""
    levels = ["a0: &a0 [x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)]
    merges = "m: &m {k: v}\nn: {<<: [*m, *m]}\no: !!python/object/apply:os.system [exit]"
    head = "\n".join([*levels, merges, "configs:\n- data_files: *a10\n- config_name: *a9"])

    with pytest.raises(Unusable, match="without a name"):
        subsets_of(card(head))
    (found,) = subsets_of(card(head.rpartition("\n")[0]))
    with pytest.raises(Unusable, match="something else than a short text"):
        found.patterns("train")
