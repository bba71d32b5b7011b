"""The manifest: read back as it was written, and refused if anybody touched it."""

import dataclasses
import json
from dataclasses import replace

import pytest
from checkpoint.harness import CUT, HEAD, RUN, TRAINER, WRITER, checkpoint_id, manifest_of
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadCheckpoint, OtherCheckpoint
from p2pswarm.checkpoint.checkpoint_manifest import (
    FORMAT_WITH_COST,
    FORMATS,
    TAG,
    SavedStage,
    read,
    sign,
)
from p2pswarm.checkpoint.digests import FileDigest
from p2pswarm.checkpoint.names import stage_file_name
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.parser import RUN_VERSION, STORED_VERSIONS, run_to_json


def stages(cut=CUT) -> list[SavedStage]:
    return [
        SavedStage(
            number,
            len(cut),
            blocks.start,
            blocks.stop,
            b"s" * 32,
            (stage_file_name(number, len(cut), WRITER),),
            FileDigest(100, b"f" * 32, 60, (b"1" * 32, b"2" * 32)),
        )
        for number, blocks in enumerate(cut)
    ]


MANIFEST = manifest_of(stages())
DATA = sign(MANIFEST, TRAINER)


def resigned(change) -> bytes:
    """A manifest that somebody changed and signed with a key of its own."""
    body = json.loads(DATA)["manifest"]
    body = change(body) or body
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    enemy = Identity.generate(b"enemy")
    whole = {
        "manifest": body,
        "public_key": enemy.public_key.hex(),
        "signature": enemy.sign(TAG, text).hex(),
    }
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def test_a_manifest_is_read_as_it_was_written():
    signed = read(DATA)

    assert signed.manifest == MANIFEST
    assert signed.signer == TRAINER.peer_id
    assert signed.manifest.id() == checkpoint_id()
    assert signed.manifest.run_config() == RUN


def test_a_run_without_a_chain_has_neither_head_nor_records():
    manifest = manifest_of(stages(), checkpoint_id(head=b""), chain=None)

    assert read(sign(manifest, TRAINER)).manifest == manifest


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_one_changed_byte_is_noticed(place, change):
    data = bytearray(DATA)
    data[place] ^= change

    with pytest.raises(BadCheckpoint):
        read(bytes(data))


@given(st.integers(0, len(DATA) - 1))
def test_a_manifest_that_is_cut_off_is_noticed(length):
    with pytest.raises(BadCheckpoint, match="torn or broken"):
        read(DATA[:length])


@given(st.binary(max_size=100))
def test_bytes_that_are_no_manifest_are_refused(data):
    with pytest.raises(BadCheckpoint, match="torn or broken"):
        read(data)


def test_a_space_more_is_another_form():
    with pytest.raises(BadCheckpoint, match="not as this program writes one"):
        read(DATA + b" ")


def stage(body, number=0):
    return body["stages"][number]


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.update(step=-1),
        lambda b: b.update(step=1.0),
        lambda b: b.update(step=True),
        lambda b: b.update(step=2**80),
        lambda b: b.update(more=1),
        lambda b: b.pop("head") and None,
        lambda b: b.update(head="00"),
        lambda b: b.update(head="zz"),
        lambda b: b.update(head=HEAD.hex().upper().replace("6", "A")),
        lambda b: b.update(head=None),
        lambda b: b.update(run="00"),
        lambda b: b.update(config="x" * (2**20 + 1)),
        lambda b: b.update(config=1),
        lambda b: b.update(next_learning_rate=1),
        lambda b: b.update(next_learning_rate="1"),
        lambda b: b.update(corpus=""),
        lambda b: b.update(chain=[]),
        lambda b: b["chain"].update(name="../x"),
        lambda b: b["chain"].update(more=1),
        lambda b: b.update(stages={}),
        lambda b: b.update(stages=[]),
        lambda b: b.update(stages=b["stages"] * 200),
        lambda b: b.update(stages=b["stages"][:1]),
        lambda b: b.update(stages=b["stages"][::-1]),
        lambda b: stage(b).update(blocks=[0, 3]),
        lambda b: stage(b).update(blocks=[0]),
        lambda b: stage(b).update(blocks=[1, 2]),
        lambda b: stage(b).update(blocks=[0, 0]),
        lambda b: stage(b).update(files=[]),
        lambda b: stage(b).update(files=["../../etc/passwd"]),
        lambda b: stage(b).update(files=stage(b, 1)["files"]),
        lambda b: stage(b).update(files=stage(b)["files"] * 2),
        lambda b: stage(b).update(piece_bytes=0),
        lambda b: stage(b).update(piece_bytes=1),
        lambda b: stage(b).update(pieces=""),
        lambda b: stage(b).update(size=2**60),
        lambda b: stage(b).update(stage=7),
        lambda b: stage(b).update(more=7),
        lambda b: b.update(stages=[1]),
        lambda b: [b],
    ],
)
def test_a_hostile_manifest_with_a_right_signature_is_refused(change):
    with pytest.raises(BadCheckpoint, match="torn or broken") as caught:
        read(resigned(change))

    assert str(caught.value).count("\n") == 0
    assert len(str(caught.value)) < 200


def test_a_configuration_that_is_none_is_refused_when_it_is_asked_for():
    signed = read(resigned(lambda b: b.update(config="{}")))

    with pytest.raises(BadCheckpoint, match="a configuration that is wrong"):
        signed.manifest.run_config()


SPENT = Spent("EUR", trainer=1.5, invited=30.25, others=0.5, tokens=4e6, per_hour=1.83)


@pytest.mark.parametrize("origin", [None, RunOrigin(b"r" * 16, 7, b"d" * 32, anew=True, before=3)])
def test_what_the_run_has_cost_is_signed_with_its_state(origin):
    manifest = replace(MANIFEST, spent=SPENT, origin=origin)

    data = sign(manifest, TRAINER)

    assert read(data).manifest == manifest
    assert json.loads(data)["manifest"]["format"] == FORMAT_WITH_COST


def test_a_run_without_prices_is_read_by_earlier_releases():
    assert json.loads(DATA)["manifest"]["format"] == min(FORMATS)


@pytest.mark.parametrize(
    "change",
    [
        {"currency": "usd"},
        {"currency": "$\x1b[2J"},
        {"trainer": -1.0},
        {"trainer": 1e300},
        {"trainer": 5},
        {"trainer": "much"},
        {"more": 1.0},
    ],
)
def test_sums_that_no_trainer_writes_are_refused(change):
    def body(old):
        spent = dataclasses.asdict(SPENT) | change
        return old | {"format": FORMAT_WITH_COST, "origin": None, "spent": spent}

    with pytest.raises(BadCheckpoint):
        read(resigned(body))


def test_another_format_names_the_release_to_install():
    data = resigned(lambda b: b.update(format=max(FORMATS) + 1, program="9.1"))

    with pytest.raises(OtherCheckpoint, match=r"format 4, written by release 9\.1.*install"):
        read(data)


def test_a_configuration_of_another_version_names_both():
    config = run_to_json(RUN, version=RUN_VERSION + 1).decode()
    signed = read(resigned(lambda b: b.update(config=config)))

    told = f"version {RUN_VERSION + 1}; this program speaks version {RUN_VERSION}"
    with pytest.raises(OtherCheckpoint, match=told):
        signed.manifest.run_config()


@pytest.mark.parametrize("version", STORED_VERSIONS)
def test_a_configuration_of_a_version_with_the_same_settings_is_read(version):
    config = run_to_json(RUN, version=version).decode()

    assert read(resigned(lambda b: b.update(config=config))).manifest.run_config() == RUN


def test_a_signature_of_another_key_is_wrong():
    whole = json.loads(DATA)
    whole["public_key"] = Identity.generate(b"enemy").public_key.hex()

    with pytest.raises(BadCheckpoint, match="signature is wrong"):
        read(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


def test_a_manifest_that_no_reader_would_take_is_not_written():
    with pytest.raises(ValueError, match="not all there"):
        manifest_of([])
    with pytest.raises(ValueError, match="a hash of 5 bytes"):
        manifest_of(stages(), checkpoint_id(head=b"short"))
    with pytest.raises(ValueError, match=f"{len(DATA) - 1} are allowed"):
        sign(MANIFEST, TRAINER, bytes_max=len(DATA) - 1)
