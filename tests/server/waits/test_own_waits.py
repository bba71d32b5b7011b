"""What a server says of itself: what it computes, whom it waits for, since when."""

import pytest

from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.averaging.round import MissingPieces
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.waits import (
    WAITS_TOLD_MAX,
    AveragingNow,
    ComputingNow,
    PeerWait,
    PieceKind,
    ServerWaits,
)
from p2pswarm.server.waits.own_waits import OwnWaits, averaging, committing

ANN, BOB = b"a" * 32, b"b" * 32


def said(waits: OwnWaits, now_s: float, **changes) -> ServerWaits:
    given = {
        "stage": 1,
        "version": 3,
        "state": "computes",
        "queued": 0,
        "coming": 0,
        "away": {},
        "held_by": {},
        "missing": MissingPieces(),
        "broken": (),
        "unheard_s": 0.0,
    }
    view = waits.view(now_s, **(given | changes))
    assert decode(encode(view)) == view
    return view


def test_it_tells_what_it_computes_since_when_and_how_long_that_takes_else():
    waits = OwnWaits(0.0)
    waits.on_compute(30, Work.FORWARD, 1.0)
    waits.on_compute_end(1.5)
    waits.on_compute(31, Work.FORWARD, 2.0)

    view = said(waits, 7.0, queued=9, coming=2)

    assert view.computing == ComputingNow(31, Work.FORWARD, 5.0, pytest.approx(0.5))
    assert (view.queued, view.coming) == (9, 2)


def test_it_tells_to_whom_it_gives_and_from_whom_it_waits_for_gradients():
    waits = OwnWaits(0.0)
    waits.on_offer((1, 0), ANN, 1.0)
    waits.on_offer((2, 0), ANN, 2.0)
    waits.on_offer((3, 0), BOB, 0.5)
    waits.on_offer_end((3, 0), BOB)

    view = said(waits, 4.0, away={(1, 0): 3.0, (9, 0): 0.0}, held_by={(1, 0): BOB})

    assert view.gives == (PeerWait(ANN, 2, 3.0),)
    assert view.gradients == (PeerWait(BOB, 1, 1.0),)


def test_it_names_those_who_owe_parts_before_those_who_owe_what_they_reduce():
    waits = OwnWaits(0.0)
    waits.on_averaging(5, 1.0)

    owe = MissingPieces(parts=(ANN,), reduced=(BOB,))
    assert said(waits, 3.0, missing=owe).averaging == AveragingNow(5, 2.0, (ANN,), 1, 0)
    owe = MissingPieces(reduced=(BOB,), shares=(ANN,))
    assert said(waits, 3.0, missing=owe).averaging == AveragingNow(
        5, 2.0, (BOB,), 1, PieceKind.REDUCED
    )


def test_an_answer_is_bounded_whatever_is_waited_for():
    waits = OwnWaits(0.0)
    peers = [bytes([number]) * 32 for number in range(200)]
    for number, peer in enumerate(peers):
        waits.on_offer((number, 0), peer, float(-number))
    waits.on_averaging(0, 0.0)

    view = said(waits, 1.0, missing=MissingPieces(parts=tuple(peers)), broken=peers)

    assert [one.peer for one in view.gives] == peers[::-1][:WAITS_TOLD_MAX]
    assert view.averaging.lack == 200
    assert len(view.broken) == len(view.averaging.missing) == WAITS_TOLD_MAX


def test_time_in_averaging_and_commit_ends_with_an_error_too():
    now_s = iter([1.0, 3.0, 4.0, 5.0])
    waits = OwnWaits(0.0)
    with pytest.raises(LookupError), averaging(waits, 0, lambda: next(now_s)):
        raise LookupError
    with pytest.raises(LookupError), committing(waits, lambda: next(now_s)):
        raise LookupError

    lap = waits.clock.lap(0, 9.0)

    assert (lap.averaging_s, lap.commit_s, lap.sum_s) == (2.0, 1.0, 9.0)
    assert said(waits, 9.0).averaging is None
