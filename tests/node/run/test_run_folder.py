"""A trainer's folder, and which run it takes part in by it."""

import dataclasses
import stat

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.run_folder import RUN_FILE, RunFolder, SavedRun, make_folder
from p2pswarm.node.run.run_match import (
    check_records,
    check_same,
    fitting,
    genesis_of,
)
from p2pswarm.run.chain.record import VoterId
from p2pswarm.run.manifest import RunIdentity, sign_manifest
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

FOUNDER = Identity.generate(b"founder")
RUN = RunConfig(name="a run", stages=2)
TEXT = b"t" * 32
IDENTITY = RunIdentity(RUN, TEXT, b"n" * 16, FOUNDER.peer_id.raw)


def offered(run: RunIdentity, by: Identity = FOUNDER) -> dict[bytes, bytes]:
    return {by.peer_id.raw: encode(sign_manifest(by, run, Address("203.0.113.7", 4000)))}


@pytest.mark.parametrize("finished", [False, True])
def test_what_is_kept_is_read_again(tmp_path, finished):
    folder = RunFolder(tmp_path)

    assert folder.read() is None
    folder.write(SavedRun(IDENTITY, finished))

    assert folder.read() == SavedRun(IDENTITY, finished)
    assert [path.name for path in tmp_path.iterdir()] == [RUN_FILE]


def test_which_run_it_is_is_the_owners_alone(tmp_path):
    RunFolder(tmp_path).write(SavedRun(IDENTITY, finished=False))

    assert stat.S_IMODE((tmp_path / RUN_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"run": 1}', "x" * 100, "[" * 100_000])
def test_a_file_that_says_something_else_is_refused_with_the_remedy(tmp_path, text):
    (tmp_path / RUN_FILE).write_text(text)

    with pytest.raises(Unusable, match="begin another run with --new"):
        RunFolder(tmp_path).read()


def test_an_origin_without_a_version_is_refused_with_the_remedy(tmp_path):
    origin = RunOrigin(b"r" * 16, 7, b"m" * 32)
    RunFolder(tmp_path).write(SavedRun(dataclasses.replace(IDENTITY, origin=origin), False))
    file = tmp_path / RUN_FILE
    file.write_text(file.read_text().replace('"version": 7', '"version": Infinity'))

    with pytest.raises(Unusable, match="begin another run with --new"):
        RunFolder(tmp_path).read()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(Unusable, match="name another folder"):
        make_folder(tmp_path / "file" / "state")
    with pytest.raises(Unusable, match="name another folder"):
        RunFolder(tmp_path / "away").write(SavedRun(IDENTITY, finished=False))


def test_a_run_with_other_settings_another_text_or_without_its_chain_is_not_gone_on_with(tmp_path):
    folder, saved = RunFolder(tmp_path), SavedRun(IDENTITY, finished=False)
    other = dataclasses.replace(RUN, steps=7)

    with pytest.raises(Unusable, match=r"\(run.steps is .* and 7 here\): restore them, or begin"):
        check_same(saved, folder, other, TEXT)
    with pytest.raises(Unusable, match="other text: restore them, or begin another"):
        check_same(saved, folder, RUN, b"T" * 32)
    with pytest.raises(Unusable, match="has lost the chain file"):
        check_same(saved, folder, RUN, TEXT)
    store, restored = folder.open_chain(genesis_of(IDENTITY), b"memories")
    store.close()
    check_same(saved, folder, RUN, TEXT)
    assert not restored.votes_alone(VoterId(FOUNDER.peer_id.raw, b"memories"))
    assert restored.votes_alone(VoterId(FOUNDER.peer_id.raw, IDENTITY.run[:8]))


def test_the_founder_is_the_first_voter():
    assert genesis_of(IDENTITY).voters == (VoterId(FOUNDER.peer_id.raw, IDENTITY.run[:8]),)


def test_a_standby_takes_the_run_of_its_settings_and_text():
    trusting = dataclasses.replace(RUN, strangers="lead")
    identity = dataclasses.replace(IDENTITY, config=trusting)
    offers, _ = fitting(offered(identity), trusting, TEXT, b"me" * 16)

    assert [offer.identity for offer in offers] == [identity]
    assert fitting(offered(identity), trusting, TEXT, FOUNDER.peer_id.raw)[0] == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"corpus": b"T" * 32}, "with another text"),
        (
            {"config": RunConfig(name="a run", stages=3)},
            "with other settings (run.stages is 3 there and 2 here): a standby needs the same",
        ),
        (
            {"config": RunConfig(name="a run", stages=2, model=ModelConfig(layers=7))},
            "(run.model.layers is 7 there and ",
        ),
        ({"config": RunConfig(name="another")}, "nobody offers"),
    ],
)
def test_a_standby_says_why_it_waits(change, why):
    found = offered(dataclasses.replace(IDENTITY, **change))

    offers, said = fitting(found | {b"x" * 32: b"no manifest"}, RUN, TEXT, b"me" * 16)

    assert offers == []
    assert why in said


def test_a_step_that_no_record_has_room_for_is_refused_at_the_start():
    model = ModelConfig(layers=100)
    large = RunConfig(stages=50, model=model, batch=BatchConfig(microbatches=3_000))

    check_records(RUN)
    with pytest.raises(Unusable, match=r"lower run\.batch\.microbatches"):
        check_records(large)


def test_a_run_that_goes_on_from_a_checkpoint_remembers_where_that_lies(tmp_path):
    """Started again before its first step is decided, its servers still have to load it."""
    origin = RunOrigin(b"o" * 16, 7, b"m" * 32)
    identity = dataclasses.replace(IDENTITY, origin=origin)
    saved = SavedRun(identity, finished=False, resumed=ResumedFrom(origin, "s3://there", "x"))
    folder = RunFolder(tmp_path)

    folder.write(saved)

    assert folder.read() == saved
    folder.write(SavedRun(identity, finished=False))
    assert folder.read().resumed is None
