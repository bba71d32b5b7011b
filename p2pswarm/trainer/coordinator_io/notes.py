"""What a member's notes mean to the coordinator.

Errors:  BadMessage for a message that is no note, or that comes before the assignment.
"""

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.wire.message import Message
from p2pswarm.run.messages.membership import CannotPrepare, Load, Ready, WillLeave
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Sketch, Undelivered
from p2pswarm.run.messages.peer_health import Apart
from p2pswarm.run.messages.trainers import Alive
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.coordinator.coordinator import Coordinator


def take_note(
    coordinator: Coordinator, by: Incarnation | None, note: Message, now_s: float
) -> bool:
    """Tell the coordinator a note of the member `by`; None if it has no assignment yet.

    Returns whether something may have to be done now.
    """
    if by is None:
        raise BadMessage(f"a {type(note).__name__} before Assigned")
    coordinator.silence.heard(by, now_s)
    match note:
        case Handed():
            coordinator.handed(Incarnation(note.peer, note.incarnation), note, now_s)
        case Counted():
            coordinator.counted(by, note, now_s)
        case Undelivered():
            coordinator.undelivered(note, now_s, by)
        case Sketch():
            coordinator.sketched(by, note, now_s)
        case Evaluated():
            coordinator.evaluated(by, note, now_s)
        case Ready():
            coordinator.ready(by, note, now_s)
        case WillLeave():
            coordinator.will_leave(by, note.grace_s, now_s)
        case Load() | Alive() | Apart() | CannotPrepare():
            return _take_word(coordinator, by, note, now_s)
        case _:
            raise BadMessage(f"a {type(note).__name__} where a note is due")
    return True


def _take_word(
    coordinator: Coordinator,
    by: Incarnation,
    word: Load | Alive | Apart | CannotPrepare,
    now_s: float,
) -> bool:
    """A member lives. Most say nothing else in half a second, so this must cost next to nothing."""
    if isinstance(word, Alive):
        return False
    if isinstance(word, Apart):
        coordinator.apart(by, word.peers, now_s)
        return True
    if isinstance(word, CannotPrepare):
        coordinator.cannot_prepare(by, word, now_s)
        return True
    coordinator.silence.unheard(by, word.unheard_s, now_s)
    coordinator.loaded(by, word)
    return True
