"""A knock: the bytes on a connection by which a peer shows that it could dial us.

Who asks for it has chosen a nonce. What is sent is a hash of it, so that nobody has a peer send
bytes of his choice to a port of his choice.

Units:   bytes.
Errors:  none.
Source:  docs/reachability.md section 3; docs/wire.md.
"""

import hashlib

KNOCK_MAGIC = b"PSD1"
KNOCK_NONCE_BYTES = 16
KNOCK_TOKEN_BYTES = 16
_KNOCK_TAG = b"p2pswarm-dial-back:"


def token_of(nonce: bytes) -> bytes:
    """The token that answers to a nonce."""
    return hashlib.sha256(_KNOCK_TAG + nonce).digest()[:KNOCK_TOKEN_BYTES]


def knock(nonce: bytes) -> bytes:
    """All that is sent on the connection."""
    return KNOCK_MAGIC + token_of(nonce)
