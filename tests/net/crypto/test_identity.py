"""An identity: stable, printable, and signatures that serve one purpose each."""

import pytest

from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import Identity, verify

TAG = b"p2pswarm-test:"


def test_identity_survives_its_own_bytes():
    identity = Identity.generate()

    again = Identity.from_bytes(identity.raw)

    assert again.public_key == identity.public_key
    assert again.peer_id == identity.peer_id == PeerId.of_key(identity.public_key)


def test_two_fresh_identities_differ():
    assert Identity.generate().peer_id != Identity.generate().peer_id


def test_same_seed_gives_the_same_identity_and_another_seed_another():
    assert Identity.generate(b"seed").peer_id == Identity.generate(b"seed").peer_id
    assert Identity.generate(b"seed").peer_id != Identity.generate(b"seed 2").peer_id


def test_signature_convinces_for_its_own_key_tag_and_data_only():
    identity = Identity.generate(b"a")
    signature = identity.sign(TAG, b"data")

    assert verify(identity.public_key, TAG, b"data", signature)
    assert not verify(Identity.generate(b"b").public_key, TAG, b"data", signature)
    assert not verify(identity.public_key, b"another-tag:", b"data", signature)
    assert not verify(identity.public_key, TAG, b"datum", signature)


def test_tag_and_data_cannot_trade_bytes():
    """What was signed as (ab, c) is not the signature of (a, bc)."""
    identity = Identity.generate(b"a")

    assert not verify(identity.public_key, b"a", b"bc", identity.sign(b"ab", b"c"))


@pytest.mark.parametrize(
    ("key_bytes", "signature_bytes"), [(0, 64), (31, 64), (33, 64), (32, 0), (32, 63), (32, 65)]
)
def test_key_or_signature_of_another_length_convinces_nobody(key_bytes, signature_bytes):
    assert not verify(bytes(key_bytes), TAG, b"data", bytes(signature_bytes))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_private_key_of_another_length_is_refused(length: int):
    with pytest.raises(ValueError, match=f"not {length}"):
        Identity.from_bytes(bytes(length))


@pytest.mark.parametrize("tag", [b"", bytes(256)])
def test_tag_without_or_over_length_is_refused(tag: bytes):
    with pytest.raises(ValueError, match=f"not {len(tag)}"):
        Identity.generate(b"a").sign(tag, b"data")


def test_private_key_shows_in_no_log():
    identity = Identity.generate(b"a")

    assert repr(identity) == f"Identity({identity.peer_id.short})"
