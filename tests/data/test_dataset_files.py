"""Data sets of a hub on this host, with the real library: what is asked, kept, and refused."""

import itertools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_hub import PAGE

from p2pswarm.base.errors import Unusable
from p2pswarm.data import dataset_files as download
from p2pswarm.data.dataset_files import dataset_files, pinned_dataset
from p2pswarm.data.hub import DATASET, cache_folder
from p2pswarm.data.sources import check_there, files_of
from p2pswarm.settings.dataset_name import dataset_name

LARGE = json.dumps({"text": "a" * 6_000}).encode() + b"\n"  # lies at the other server
ROWS = b'{"text": "one"}\n{"text": "two"}\n'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
FILES = {
    "README.md": b"# Texts\n",
    "train/b.jsonl": ROWS,
    "train/a.jsonl": LARGE,
    "test/a.jsonl": ROWS,
    "other.bin": b"\0" * 10_000,
}
_names = itertools.count()


@pytest.fixture
def name(hub, request):
    """A data set that no other test knows: the cache is one for all."""
    name = f"owner/{request.node.originalname}-{next(_names)}"[-90:]
    hub.publish(f"datasets/{name}", FILES)
    return name


def read(text):
    return dataset_files(pinned_dataset(dataset_name(text)))


def refusal(text, match):
    with pytest.raises(Unusable, match=match) as caught:
        read(text)
    assert str(caught.value).isprintable()
    return str(caught.value)


def commit(hub, name):
    return hub.models[f"datasets/{name}"].commit


def test_a_data_set_is_its_files_at_one_commit(hub, name, caplog):
    found = read(f"hf:{name}")

    assert str(found.name) == f"hf:{name}@{commit(hub, name)}"
    assert [path.relative_to(found.folder).as_posix() for path in found.paths] == [
        "train/a.jsonl",
        "train/b.jsonl",
    ]
    assert [path.read_bytes() for path in found.paths] == [LARGE, ROWS]
    assert found.note == "split 'train', as the names of folders say"
    assert hub.sent["us"] == len(LARGE) + len(ROWS) + len(FILES["README.md"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{found.name}: downloading 2 files, 5.9 KiB"


def test_what_is_kept_is_not_asked_for(hub, name):
    before = read(f"hf:{name}#:test")
    hub.asked.clear()
    download._choice_at.cache_clear()

    assert read(str(before.name)) == before
    assert hub.asked == []
    assert read(f"hf:{name}#:test") == before
    assert [what for _, what, _ in hub.asked] == ["revision"]


def test_a_branch_that_has_moved_is_another_commit_and_the_old_one_stays(hub, name):
    before = read(f"hf:{name}")
    hub.publish(f"datasets/{name}", {"train.jsonl": ROWS})
    after = read(f"hf:{name}")

    assert before.name != after.name
    assert [path.name for path in after.paths] == ["train.jsonl"]
    assert read(str(before.name)) == before
    assert read(f"{before.name}#:test").paths[0].read_bytes() == ROWS  # of the old commit, now


def test_branches_and_patterns_are_read_with_one_list_of_one_folder(hub, name):
    hub.branches["refs/convert/parquet"] = hub.publish(
        f"datasets/{name}", {f"s/train/{n}.jsonl": b"%d\n" % n + ROWS for n in range(2 * PAGE)}
    )
    hub.publish(f"datasets/{name}", FILES)
    found = read(f"hf:{name}@refs/convert/parquet/s/train/[0-4].jsonl")

    assert [path.name for path in found.paths] == [f"{n}.jsonl" for n in range(5)]
    lists = [what for _, what, _ in hub.asked if what.startswith("tree")]
    assert lists == ["tree s/train"] * 2  # it comes in pages


def test_no_file_below_another_folder_is_listed_for_a_pattern(hub, name):
    there = {f"images/{n}.jpg": b"" for n in range(3 * PAGE)} | FILES
    hub.publish(f"datasets/{name}", there)

    assert len(read(f"hf:{name}/train/*").paths) == 2
    assert [what for _, what, _ in hub.asked if what.startswith("tree")] == ["tree train"]
    said = refusal(f"hf:{name}/trian/b.jsonl", "no file is found by that pattern")
    assert said.endswith("the nearest is train/b.jsonl")


def test_data_sets_names_and_revisions_that_are_not_there_are_told_apart(hub, name):
    said = refusal("hf:owner/nothing", "has no such data set, or HF_TOKEN may not read it")
    assert "check the name, or download its files (hf download --repo-type dataset" in said
    refusal(f"hf:{name}@v9", "there is no such revision: name another")
    hub.gated.add(f"datasets/{name}")
    refusal(f"hf:{name}", "is gated: accept its terms on its page and set HF_TOKEN")


def test_a_script_alone_is_refused_and_not_downloaded(hub, name):
    script = f"{name.partition('/')[2]}.py"
    hub.publish(f"datasets/{name}", {script: b"raise SystemExit", "raw.zip": b"PK"})

    refusal(f"hf:{name}", "has only a loading script")
    assert not hub.sent


def test_a_card_says_which_files(hub, name):
    card = b"---\nconfigs:\n- config_name: x\n  data_files: test/*\n---\n"
    hub.publish(f"datasets/{name}", FILES | {"README.md": card})

    assert [path.name for path in read(f"hf:{name}").paths] == ["a.jsonl"]
    hub.publish(f"datasets/{name}", FILES | {"README.md": card.replace(b"test", b"../test")})
    refusal(f"hf:{name}", "its card names files that are elsewhere")
    hub.publish(f"datasets/{name}", FILES | {"README.md": b"#" * (4 << 20) + b"#"})
    refusal(f"hf:{name}", "README.md has 4194305 bytes, 4194304 are allowed: download its files")
    assert len(read(f"hf:{name}/train/*").paths) == 2  # which needs no card


def test_a_file_that_stands_for_another_is_told_as_its_owners_mistake(hub, name):
    hub.publish(f"datasets/{name}", {"train.jsonl": POINTER})

    refusal(f"hf:{name}", "train.jsonl only stands for a file that its owner has not uploaded")


def test_lists_that_no_hub_makes_are_refused(hub, name, monkeypatch):
    listed = hub.listed[f"datasets/{name}"] = [
        {"type": "file", "path": "../../../up.jsonl", "size": 3, "oid": "0"},
        {"type": "directory", "path": "train", "oid": "0"},
    ]
    found = read(f"hf:{name}/**/*.jsonl")
    assert found.note.endswith("; passed over: 1 whose names have no place in a folder")
    assert all(found.folder in path.parents for path in found.paths)

    listed.append({"type": "file", "path": "train/c.jsonl", "size": 3, "oid": "0"})
    refusal(f"hf:{name}/train/**", "has no train/c.jsonl")
    listed[-1] = {"type": "file", "path": "train/b.jsonl", "size": 3, "oid": "0"}
    refusal(f"hf:{name}/train/b*", f"b.jsonl: has {len(ROWS)} bytes, and 3 in the list of hf:")
    listed[-1] = {"type": "file", "path": "other.bin", "size": 3, "oid": "0"}
    refusal(f"hf:{name}/*.bin", "other.bin has 10000 bytes, 3 are allowed")
    listed[-1] = {"type": "file", "path": "train/d.jsonl", "size": "many", "oid": "0"}
    refusal(f"hf:{name}/train/[d]*", "as no hub does")
    monkeypatch.setattr(download, "LISTED_MAX", 6)
    refusal(f"hf:{name}/**/e.jsonl", "has more than 6 files: name those of one folder")


def test_a_disk_without_room_is_told_before_the_download(hub, name):
    large = {"type": "file", "path": "train/c.jsonl", "size": 1 << 60, "oid": "0"}
    hub.listed[f"datasets/{name}"] = [large]

    said = refusal(f"hf:{name}", "1073741824.0 GiB are to be downloaded, and .* has room for ")
    assert "set HF_HOME to a folder on another disk" in said
    assert hub.sent["us"] == len(FILES["README.md"])


def test_large_downloads_name_each_file(hub, name, monkeypatch, caplog):
    monkeypatch.setattr(download, "LARGE_BYTES", 1_000)
    read(f"hf:{name}")

    lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert lines == [
        "downloading 2 files, 5.9 KiB",
        "1 of 2: train/a.jsonl (5.9 KiB)",
        "2 of 2: train/b.jsonl (32 bytes)",
    ]


def test_a_silent_hub_gives_way_to_what_is_kept(hub, name, monkeypatch, caplog):
    kept = read(f"hf:{name}")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    caplog.clear()

    assert read(f"hf:{name}") == kept
    assert "the hub is silent: its commit is the last one known" in caplog.text
    refusal("hf:owner/never-seen", r"127\.0\.0\.1:9 cannot be reached")


def test_a_list_that_was_kept_and_is_torn_is_made_anew(hub, name, caplog):
    kept = read(f"hf:{name}")
    (file,) = (cache_folder(name, DATASET) / download.KEPT).glob("*.json")
    for text in ("{", '{"files": [["../x", 1]], "note": ""}', '{"files": []}'):
        file.write_text(text)
        download._choice_at.cache_clear()
        assert read(f"hf:{name}") == kept
    assert "is no list of files (JSONDecodeError): it is made anew" in caplog.text


def test_offline_nothing_is_asked(hub, name):
    """In a process of its own: the library reads that setting when it is loaded."""
    read(f"hf:{name}")
    hub.asked.clear()
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from p2pswarm.base.errors import Unusable\n"
        "from p2pswarm.data.sources import files_of\n"
        "for text in sys.argv[1:]:\n"
        "    try:\n"
        "        print(len(files_of(Path(text)).paths))\n"
        "    except Unusable as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"hf:{name}", f"hf:{name}#:test", "hf:a/b"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )

    first, *others = done.stdout.splitlines()
    assert first == "2"
    for line in others:
        assert "HF_HUB_OFFLINE forbids to ask the hub: unset it, or download its files" in line
    assert hub.asked == []


def test_a_text_of_the_hub_has_rows_and_short_names(hub, name, caplog):
    caplog.set_level(logging.ERROR)
    text = pinned_dataset(dataset_name(f"hf:{name}")).path
    check_there(text)
    assert hub.sent["us"] == len(FILES["README.md"])  # only the list was asked for
    found = files_of(text)

    assert (found.data, found.rows) == (text, True)
    assert [found.name_of(path) for path in found.paths] == ["train/a.jsonl", "train/b.jsonl"]
    assert found.lines(tokenised=False) == [f"{text}: split 'train', as the names of folders say"]
    with pytest.raises(Unusable, match="no such data set"):
        check_there(Path("hf:owner/nothing"))
