"""Greeting: the first bytes of both sides on a connection that came of dialling each other at once.

Nobody knows then whose dial succeeded, so both greet. The token shows which attempt it belongs to.

    greeting = "PSX1" | token 16

Units:   bytes.
Source:  docs/punching.md.
"""

MAGIC = b"PSX1"
TOKEN_BYTES = 16
GREETING_BYTES = len(MAGIC) + TOKEN_BYTES


def greeting(token: bytes) -> bytes:
    """The greeting with a token that both sides have agreed on."""
    assert len(token) == TOKEN_BYTES
    return MAGIC + token
