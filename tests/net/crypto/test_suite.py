"""The suites: their names in Noise, their keys, and HKDF against the standard's own cases."""

import pytest

from p2pswarm.net.crypto.suite import Suite, hkdf


def test_noise_names_fill_a_hash_without_being_hashed():
    """A name of 32 bytes or fewer is padded (Noise 5.2); one over would have to be hashed."""
    assert Suite.AES_GCM.noise_name == b"Noise_XX_25519_AESGCM_SHA256"
    assert Suite.CHACHA20_POLY1305.noise_name == b"Noise_XX_25519_ChaChaPoly_SHA256"
    assert all(len(suite.noise_name) <= 32 for suite in Suite)


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_key_of_another_length_is_refused(suite: Suite, length: int):
    """AES would take 16 bytes in silence and be another cipher."""
    with pytest.raises(ValueError, match=f"not {length}"):
        suite.aead(bytes(length))


def test_hkdf_agrees_with_rfc_5869_case_1():
    secret = bytes([0x0B] * 22)
    salt = bytes(range(13))
    info = bytes(range(0xF0, 0xFA))

    output = b"".join(hkdf(secret, salt, info, 2))

    assert output[:42].hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_hkdf_agrees_with_rfc_5869_case_3():
    output = b"".join(hkdf(bytes([0x0B] * 22), b"", b"", 2))

    assert output[:42].hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )
