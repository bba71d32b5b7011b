"""Names of the hub, told from paths and from each other; where settings may have them."""

import pytest

from p2pswarm.base.errors import BadMessage
from p2pswarm.settings.config import HF, RunConfig
from p2pswarm.settings.limits import HUB_NAME_CHARS_MAX, hub_name, is_pinned, names_fit
from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import RUN_VERSION, from_values, load, run_from_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", "")),
        ("gpt2", ("gpt2", "")),
        ("a/b@v1.0", ("a/b", "v1.0")),
        ("a/b@refs/pr/3", ("a/b", "refs/pr/3")),
        (f"a/b@{COMMIT}", ("a/b", COMMIT)),
        *(
            (path, None)
            for path in ("./a", "../a", "/a/b", "~/a", "a/b/c", "a/", "", "a b", "a/b@")
        ),
        *((odd, None) for odd in ("a/..", "a--b/c", "a/b@../c", "a\\b", "é/b", "http://a/b")),
        ("a" * 48 + "/" + "b" * 47, ("a" * 48 + "/" + "b" * 47, "")),
        ("a" * 48 + "/" + "b" * 48, None),
    ],
)
def test_a_name_of_the_hub_is_told_from_a_path(text, found):
    assert hub_name(text) == found
    assert found is None or len(found[0]) <= HUB_NAME_CHARS_MAX


def test_only_a_commit_pins_a_name():
    assert is_pinned(f"a/b@{COMMIT}")
    assert not any(is_pinned(each) for each in ("a/b", "a/b@main", f"a/b@{COMMIT[1:]}", "./a"))


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("owner/name", f"{HF}owner/name"),
        (f"{HF}owner/name@v1", f"{HF}owner/name@v1"),
        (f"{HF}gpt2", f"{HF}gpt2"),
        ("owner/here", "HERE/owner/here"),
        ("plain", "HERE/plain"),
        ("./owner/name", "HERE/owner/name"),
        (f"{HF}./owner", "HERE/owner"),
        ("bytes", "bytes"),
        ("train:400", "train:400"),
    ],
)
def test_a_tokenizer_is_a_folder_or_of_the_hub(tmp_path, setting, found):
    (tmp_path / "owner" / "here").mkdir(parents=True)
    (tmp_path / "run.toml").write_text(f'[train]\ntokenizer = "{setting}"\n')

    train = load(tmp_path / "run.toml").train

    assert train.tokenizer == found.replace("HERE", str(tmp_path))


def test_a_server_names_a_folder_or_a_model_of_the_hub(tmp_path):
    (tmp_path / "node.toml").write_text('[serve]\npretrained = "owner/name"\n')
    folder = load(tmp_path / "node.toml").serve
    hub = from_values(ServeConfig, {"pretrained": "hf:owner/name"}, "serve")

    assert (folder.pretrained, folder.hub) == (tmp_path / "owner" / "name", "")
    assert (hub.pretrained, hub.hub) == (None, "owner/name")
    with pytest.raises(ValueError, match=r'run\.model "hf:" names nothing'):
        from_values(RunConfig, {"model": "hf:"}, "run")
    with pytest.raises(ValueError, match=r'serve\.pretrained is a folder, or "hf:NAME"'):
        from_values(ServeConfig, {"pretrained": "hf:/etc"}, "serve")


@pytest.mark.parametrize("name", ["a/b", "a/b@main", "http://10.0.0.1/x", "../../etc"])
def test_a_manifest_names_nothing_but_a_commit_of_the_hub(name):
    text = f'{{"run":{{"model":{{"hub":"{name}"}}}},"version":{RUN_VERSION}}}'

    with pytest.raises(BadMessage, match="names a model of the hub without its commit"):
        run_from_json(text.encode())


def test_each_name_of_a_path_has_255_bytes_at_most():
    assert names_fit("x" * 255 + "/" + "y" * 255)
    assert not names_fit("a/" + "x" * 256)
    assert not names_fit("\u00e9" * 128)
