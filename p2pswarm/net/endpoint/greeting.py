"""Greeting: the first bytes of both sides on a connection that came of dialling each other at once.

Nobody knows then whose dial succeeded, so both greet. The token shows which attempt it belongs to.

    greeting = "PSX1" | token 16

Units:   bytes.
Source:  docs/punching.md.
"""

PUNCH_MAGIC = b"PSX1"
PUNCH_TOKEN_BYTES = 16
PUNCH_PREFACE_BYTES = len(PUNCH_MAGIC) + PUNCH_TOKEN_BYTES


def punch_preface(token: bytes) -> bytes:
    """The greeting with a token that both sides have agreed on."""
    assert len(token) == PUNCH_TOKEN_BYTES
    return PUNCH_MAGIC + token
