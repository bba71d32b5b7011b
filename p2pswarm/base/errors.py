"""Every error of the package, named by what the caller should do about it.

    SwarmError
    |- PeerError      the peer broke the protocol  -> close the link, do not retry
    |    BadFrame  BadHandshake  BadRecord  BadChunk  BadMessage
    |- PathError      the connection failed        -> dial the same peer again
    |    DialFailed  LinkLost
    |      NobodyThere    nothing listens there     -> its process has ended
    |      UnknownLink    the peer has dropped it   -> dial for a new link
    |- Refused        the peer works and says no   -> ask another peer
    |    Busy(retry_after_s)  NotServing  TooLarge  NotComputed
    |    NotAdmitted    the run is closed to us   -> ask its owner for an invitation
    |- Late           also a TimeoutError          -> ask another peer, or hedge
    |- NoRoute        no peer can do it            -> wait until one joins or moves
    |- RunEnded       the run is over              -> tell the user why
    |- NotSaved       a checkpoint was not written -> train on, tell the user why
    '- Unusable       the user's input is wrong    -> print one line with the remedy
         BadCheckpoint    it is torn or damaged    -> use the one before
         OtherCheckpoint  it is of another run     -> name the right one

A caller's mistake is a ValueError or TypeError; our own bug is an AssertionError.
Errors carry only strings and numbers, so that this module imports nothing.
"""


class SwarmError(Exception):
    """The base of every error that this package raises on purpose."""


class PeerError(SwarmError):
    """The peer broke the protocol: close the link and do not retry."""


class BadFrame(PeerError):
    """A frame has an unknown type, an impossible length or a wrong stream number."""


class BadHandshake(PeerError):
    """The peer is not the one we asked for, speaks another protocol or version, or stalled."""


class BadRecord(PeerError):
    """A record has a wrong tag or length: it was changed, replayed, or is garbage."""


class BadChunk(PeerError):
    """A chunk does not fit the memory that was granted for its tensor."""


class BadMessage(PeerError):
    """A message has an unknown code, a wrong field, or exceeds a limit."""


class PathError(SwarmError):
    """The connection to the peer failed; the peer itself may still work."""


class DialFailed(PathError):
    """No connection could be made to the address."""


class NobodyThere(DialFailed):
    """A host answered that nothing listens at the address."""


class UnknownLink(DialFailed):
    """The peer at the address does not know the link that was to go on there."""


class LinkLost(PathError):
    """The link ended before the work on it was done."""


class Refused(SwarmError):
    """The peer works and says no: ask another peer."""


class Busy(Refused):
    """The peer's queue or memory is full for now."""

    def __init__(self, detail: str = "busy", retry_after_s: float = 0.05) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class NotServing(Refused):
    """The peer does not serve this stage, run, step or method."""


class TooLarge(Refused):
    """What was announced exceeds the receiver's budget and will never fit."""


class NotComputed(Refused):
    """The peer could not compute what it was given; nothing of it is in its gradient sum."""


class NotAdmitted(Refused):
    """The run is closed, and one of both sides is no member of it: ask the owner to invite it."""


class Late(SwarmError, TimeoutError):
    """The deadline passed; the peer may still do the work."""


class NoRoute(SwarmError):
    """No peer can do it at present: wait until one joins or moves."""


class RunEnded(SwarmError):
    """The run cannot go on; the message tells the user why."""


class Unusable(SwarmError):
    """What the user gave cannot be used; the message is one line with the remedy."""


class NotSaved(SwarmError):
    """A file of the state could not be written: training goes on, and the user is told why."""


class BadCheckpoint(Unusable):
    """A checkpoint is torn, damaged or half deleted: use the one before."""


class OtherCheckpoint(Unusable):
    """A checkpoint is of another run, model, text or program: name the right one."""


def missing_extra(what: str, extra: str) -> Unusable:
    """The error where a library of an extra of ours is missing: `what` needs which.

    The extras are installed from a clone: the name p2pswarm is on no index, where a stranger could
    take it.
    """
    return Unusable(f"{what}: pip install '.[{extra}]' in the clone of p2pswarm")


def one_line(error: BaseException, chars_max: int | None = None) -> str:
    """Return what an error of others' code says, as a part of one of our lines; never empty."""
    return " ".join(str(error).split())[:chars_max] or type(error).__name__
