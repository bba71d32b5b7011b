"""The parsers of closed runs, fed by an enemy: invitations as text, tokens, and access lists."""

import base64
import contextlib
from dataclasses import replace

from fuzzing.base import parser
from run.access.harness import ANN, NOW_S, OWNER, RUN, bearer, gate, personal

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.access.access_list import LIST_TAG, Revocations, list_part, sign_list
from p2pswarm.run.access.grant import GRANT_TAG, serial_of, signed_part
from p2pswarm.run.access.invitation import PREFIX, _checksum, as_text, from_text
from p2pswarm.run.access.messages import AccessList, ShowToken, Token


@parser
def invitation(data: bytes) -> None:
    """A text, and the same bytes with a checksum that is right: it is found out all the same."""
    enemys = PREFIX + base64.urlsafe_b64encode(data + _checksum(data)).decode().rstrip("=")
    for text in (data.decode("latin-1"), PREFIX + data.decode("latin-1"), enemys):
        with contextlib.suppress(Unusable):
            read = from_text(text)
            assert from_text(as_text(read)) == read
            with contextlib.suppress(Unusable):
                read.token(ANN)


@parser
def access_token(data: bytes) -> None:
    """A token that is shown, as it came, and with a grant that the owner has signed."""
    with contextlib.suppress(BadMessage):
        shown = decode(data)
        if not isinstance(shown, ShowToken) or shown.token is None:
            return
        grant = shown.token.grant
        signed = replace(grant, signature=OWNER.sign(GRANT_TAG, signed_part(grant)))
        at = gate()
        for token in (shown.token, Token(signed, shown.token.binding)):
            with contextlib.suppress(BadMessage):
                assert at.show(ANN.raw, token, NOW_S).isprintable()


@parser
def access_list(data: bytes) -> None:
    """A list that is told, as it came, and signed by the owner."""
    with contextlib.suppress(BadMessage):
        told = decode(data)
        if not isinstance(told, AccessList):
            return
        at = gate()
        at.show(ANN.raw, bearer().token(ANN), NOW_S)
        for access in (told, replace(told, signature=OWNER.sign(LIST_TAG, list_part(told)))):
            with contextlib.suppress(BadMessage):
                at.learn(access, NOW_S)
        assert len(at.barred()) <= 2


def _lists() -> list[bytes]:
    serial = serial_of(bearer().grant)
    contents = (
        Revocations(),
        Revocations([serial], [ANN.raw]),
        Revocations(extended={serial: NOW_S + 10**6}),
    )
    return [encode(sign_list(OWNER, RUN, n + 1, content)) for n, content in enumerate(contents)]


def _body(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "==")[:-4]


ACCESS_SEEDS = {
    "invitation": lambda: [
        text
        for one in (bearer(), personal(ANN))
        for text in (as_text(one).encode(), _body(as_text(one)))
    ],
    "access_token": lambda: [
        encode(ShowToken(RUN, one.token(ANN), 7))
        for one in (bearer(), personal(ANN), bearer(uses=1))
    ],
    "access_list": _lists,
}
