"""A trainer's text of the hub: pinned before it is read, and again where its run goes on."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.base.problems import Problems
from p2pswarm.commands.data.text_report import text_report
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.node.run.dataset_commits import COMMITS_FILE, with_commits
from p2pswarm.node.run.preparation import check_run, prepare_run
from p2pswarm.node.run.run_folder import RunFolder, SavedRun
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.node_config import CheckpointConfig, NodeConfig
from p2pswarm.settings.parser import run_from_json, run_to_json
from p2pswarm.settings.train_config import MixturePart, TrainConfig

RUN = RunConfig(model=ModelConfig(d_model=8, layers=1, heads=2, sequence_length=8))
_names = itertools.count()


def rows(text):
    return "".join(json.dumps({"text": f"{text} {n}"}) + "\n" for n in range(200)).encode()


@pytest.fixture
def name(hub):
    """A data set that no other test knows."""
    name = f"owner/commits-{next(_names)}"
    hub.publish(f"datasets/{name}", {"train.jsonl": rows("before"), "test.jsonl": rows("test")})
    return name


def node(tmp_path, **train):
    given = {"cache": tmp_path / "cache", "weights": None} | train
    return NodeConfig(role="trainer", run=RUN, train=TrainConfig(**given), state=tmp_path / "state")


def prepared(config):
    return prepare_run(config, "me", lambda _line: None)


def begun(config, found):
    """Have the folder of state hold the run."""
    identity = RunIdentity(found.config.run, found.text, b"n" * 16, Identity.generate().peer_id.raw)
    RunFolder(config.state).write(SavedRun(identity, finished=False))
    (config.state / f"{identity.run.hex()}.chain").touch()


def test_a_run_goes_on_with_the_commit_that_it_began_with(hub, name, tmp_path, caplog):
    config = node(tmp_path, data=Path(f"hf:{name}"))
    old = hub.models[f"datasets/{name}"].commit
    first = prepared(config)
    begun(config, first)
    hub.publish(f"datasets/{name}", {"train.jsonl": rows("after")})
    again = prepared(config)

    pinned = Path(f"hf:{name}@{old}")
    assert first.config.train.data == again.config.train.data == pinned
    assert f"{pinned}: split 'train', as the names of files say" in caplog.messages
    assert first.text == again.text
    (config.state / COMMITS_FILE).unlink()
    with pytest.raises(Unusable, match="with another text: restore them, or begin another run"):
        prepared(config)
    problems = Problems()
    check_run(config, problems)
    assert "with another text" in str(problems.lines)
    new = dataclasses.replace(config, train=dataclasses.replace(config.train, new=True))
    assert prepared(new).text != first.text


def test_a_resumption_elsewhere_does_not_take_another_text_unseen(hub, name, tmp_path):
    """Content decides: the digest of the text is that of the rows, whatever the commit is."""
    first = prepared(node(tmp_path / "a", data=Path(f"hf:{name}")))
    card = {"README.md": b"# What it is\n"}
    hub.publish(f"datasets/{name}", hub.models[f"datasets/{name}"].files | card)
    same = prepared(node(tmp_path / "b", data=Path(f"hf:{name}")))
    hub.publish(f"datasets/{name}", {"train.jsonl": rows("after")})
    other = prepared(node(tmp_path / "c", data=Path(f"hf:{name}")))

    assert first.config.train.data != same.config.train.data
    assert first.text == same.text
    assert first.text != other.text


def test_a_run_that_is_resumed_elsewhere_reads_the_commit_beside_its_checkpoints(
    hub, name, tmp_path
):
    target = str(tmp_path / "checkpoints")
    data, saving = Path(f"hf:{name}"), CheckpointConfig(target=target)
    first = prepared(dataclasses.replace(node(tmp_path / "a", data=data), checkpoint=saving))
    hub.publish(f"datasets/{name}", {"train.jsonl": rows("after")})
    elsewhere = node(tmp_path / "b", data=data, resume=target)
    newest = with_commits(node(tmp_path / "c", data=data, begin_from=target)).train.data

    assert with_commits(elsewhere).train.data == first.config.train.data != newest
    single = node(tmp_path / "d", data=data, resume=f"{target}/checkpoint-7")
    assert with_commits(single).train.data == first.config.train.data
    prepared(dataclasses.replace(node(tmp_path / "e", data=data), checkpoint=saving))
    assert with_commits(elsewhere).train.data == newest  # two runs: the digest of the text tells
    (file, *_) = Path(target).glob("datasets.*.json")
    file.unlink()
    next(Path(target).glob("datasets.*.json")).write_text("[")
    with pytest.raises(Unusable, match="does not say which commits the run reads"):
        with_commits(elsewhere)


def test_commits_that_were_not_kept_by_us_are_refused(hub, name, tmp_path):
    config = node(tmp_path, data=Path(f"hf:{name}"))
    begun(config, prepared(config))
    file = config.state / COMMITS_FILE
    for text in ("{", "[]", json.dumps({f"hf:{name}": f"hf:other/name@{'0' * 40}"}), '{"hf:": ""}'):
        file.write_text(text)
        with pytest.raises(Unusable, match=f"{file}: does not say which commits the run reads"):
            prepared(config)


def test_texts_of_a_mixture_are_of_one_commit_and_paths_stay(hub, name, tmp_path):
    (tmp_path / "a.txt").write_text("a text to learn\n" * 200)
    texts = (f"hf:{name}", f"hf:{name}#:test", str(tmp_path / "a.txt"))
    parts = tuple(MixturePart(data=Path(text)) for text in texts)
    config = with_commits(node(tmp_path, mixture=parts))

    commit = hub.models[f"datasets/{name}"].commit
    assert [str(part.data) for part in config.train.parts] == [
        f"hf:{name}@{commit}",
        f"hf:{name}@{commit}#:test",
        texts[2],
    ]
    assert [what for _, what, _ in hub.asked] == ["revision"]
    assert with_commits(config) == config
    assert prepared(config).corpus.files == 3


def test_what_is_wrong_with_a_data_set_is_one_problem(hub, tmp_path):
    problems = Problems()
    check_run(node(tmp_path, data=Path("hf:owner/nothing")), problems)

    assert len(problems.lines) == 1
    assert "has no such data set" in str(problems.lines)


def test_the_report_on_a_text_shows_the_commit(hub, name, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f'role = "trainer"\n[train]\ncache = "cache"\ndata = "hf:{name}#:test"\n')
    (found,) = text_report(file, 1).texts

    assert found.data == f"hf:{name}@{hub.models[f'datasets/{name}'].commit}#:test"
    assert found.names == ("test.jsonl",)
    assert found.remarks == (f"{found.data}: split 'test', as the names of files say",)


def test_a_manifest_has_no_place_for_a_text(hub):
    """A peer's manifest is all that a server learns of a run; hf: in it would be a download."""
    whole = json.loads(run_to_json(RUN))
    for table in (whole["run"], whole["run"]["batch"], whole["run"]["model"]):
        table["data"] = "hf:owner/name"
        said = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
        with pytest.raises(Exception, match="data is no setting"):
            run_from_json(said)
        del table["data"]
    assert hub.asked == []
