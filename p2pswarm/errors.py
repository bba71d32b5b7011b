"""Every error of the package, named by what the caller should do about it.

    SwarmError
    |- PeerError      it broke the protocol  -> close, remember, do not retry it
    |    BadFrame  BadHandshake  BadRecord  BadChunk  BadMessage
    |- PathError      the path failed        -> the same peer by another path
    |    DialFailed  LinkLost
    |- Refused        it is well and says no -> another peer
    |    Busy(retry_after_s)  NotServing  TooLarge
    |- Late           also a TimeoutError    -> another peer, or hedge
    |- NoRoute        nobody can             -> wait, let somebody join or move
    |- RunEnded       the run is over        -> tell the user why
    '- Unusable       the user's input       -> one line that names the remedy

Our caller's mistake is a ValueError or TypeError; our own bug an AssertionError.
Errors carry primitives only, so that this floor imports nothing.
"""


class SwarmError(Exception):
    """The root of all that can go wrong between honest programs."""


class PeerError(SwarmError):
    """The peer broke the protocol: close the link, remember it, do not retry."""


class BadFrame(PeerError):
    """A mux frame with an unknown type, an impossible length or a wrong stream."""


class BadHandshake(PeerError):
    """The peer is not the one we asked for, speaks another protocol or version, or stalled."""


class BadRecord(PeerError):
    """A record whose tag or length is wrong: tampered with, replayed, or garbage."""


class BadChunk(PeerError):
    """A chunk outside the tensor that was granted."""


class BadMessage(PeerError):
    """A message that is not of its type: unknown code, wrong field, over a limit."""


class PathError(SwarmError):
    """The path to the peer failed; the peer may be well: try another path."""


class DialFailed(PathError):
    """No connection could be made to the address."""


class LinkLost(PathError):
    """The link ended while something was under way on it."""


class Refused(SwarmError):
    """The peer is well and says no: ask another."""


class Busy(Refused):
    """The peer's queue or memory is full for now."""

    def __init__(self, detail: str = "busy", retry_after_s: float = 0.05) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class NotServing(Refused):
    """The peer does not serve this stage, run, step or method."""


class TooLarge(Refused):
    """What was announced is over the receiver's budget and never will fit."""


class Late(SwarmError, TimeoutError):
    """The deadline passed; the peer may still do the work."""


class NoRoute(SwarmError):
    """Nobody can do it at present: wait for somebody to join or move."""


class RunEnded(SwarmError):
    """The run cannot go on; the message tells the user why."""


class Unusable(SwarmError):
    """What the user gave cannot be used; the message is one line with the remedy."""
