"""The trainer that a server asks for a stage, when it asks again, and when it is silent."""

import math
from collections.abc import Sequence

from p2pswarm.base.ids import Contact
from p2pswarm.run.messages.field_limits import TRAINERS_MAX
from p2pswarm.run.messages.trainers import SILENCE_S

REJOIN_FIRST_S, REJOIN_MAX_S = 0.25, 2.0
ELECTION_S = 5.0  # after a coordinator of several is lost, another leads by then: ask often
SEEK_S = 10.0  # between two tries once the trainer has been gone for `rejoin_s`
ANSWERS_S = 4 * SEEK_S  # a trainer that is silent for longer was away
KNOCK_FIRST_S = 1.0  # a first try may have gone into a cut that is over by then; round the world 3x
KNOCK_S = 2.0  # to dial a trainer while there is another one to ask
DIAL_S = 5.0  # as long as a dial may take by itself
STEADY_S = 10.0  # a session this long was a good one: the pauses start small again
REACHED_S = 15.0  # then the link to one that is dead has ended
NEVER_S = float("-inf")
HINTS_MAX = 4  # tries in a row that end on the word of another trainer; then one runs to its end
ASK_AGAIN_S = 0.5  # a takeover takes about one; a trainer that was asked in vain may lead by then


class JoinPauses:
    """The tries of one server, and when it was in the run."""

    def __init__(self, rejoin_s: float, now_s: float) -> None:
        """`rejoin_s`: how long to look for a trainer quickly."""
        self._rejoin_s = rejoin_s
        self._pause_s = REJOIN_FIRST_S
        self.tried_s = now_s
        """Time of the last question to a trainer."""
        self._seen_s = now_s
        self._there_s = self._answered_s = NEVER_S
        """Since when a trainer answers again, and when one answered last."""
        self._knock_s = DIAL_S
        """Limit of the next try to reach a trainer."""

    def in_run(self, now_s: float) -> None:
        """The server was in the run until now."""
        self._seen_s, self._knock_s = now_s, KNOCK_FIRST_S

    def on_answer(self, now_s: float) -> None:
        """A trainer answers that nobody coordinates, as far as it knows: it may do so itself soon.

        One that was away has to hear from a majority of the voters first, which seek it as we do.
        """
        if now_s > self._answered_s + ANSWERS_S:
            self._there_s = now_s
        self._answered_s = now_s

    def knock_s(self, *, others: bool) -> float | None:
        """The limit of the next try to reach a trainer; None: as long as a dial takes.

        Whoever was just in the run tries anew soon: the kernel asks less and less often, and what
        it is in the run for waits. `others`: there are other trainers to ask. So there are if one
        has answered lately.
        """
        knock_s, self._knock_s = self._knock_s, min(2 * self._knock_s, DIAL_S)
        if others or self.tried_s <= self._answered_s + ANSWERS_S:
            return min(knock_s, KNOCK_S)
        return knock_s if knock_s < DIAL_S else None

    def gone_s(self, now_s: float) -> float:
        """The time that it has been out of the run."""
        return now_s - self._seen_s

    def gone(self, now_s: float) -> bool:
        """Return whether that is so long that the trainer is looked for less often."""
        return now_s - max(self._seen_s, self._there_s) >= self._rejoin_s

    def steady(self, now_s: float) -> bool:
        """Return whether the session that ends now was a good one."""
        return now_s - self.tried_s > STEADY_S

    def next_s(self, now_s: float, *, met: bool, several: bool, elsewhere: bool) -> float:
        """The wait after a try, or a session, that has failed; 0: ask at once.

        `met`: it was a session. `several`: more than one trainer is known. `elsewhere`: it is known
        whom to ask next, and that one was not asked yet.
        """
        steady = self.steady(now_s)
        if steady:
            self._pause_s = REJOIN_FIRST_S
        if elsewhere or (met and several and steady):
            return 0.0
        if self.gone(now_s):
            return SEEK_S
        if several and not met and self.gone_s(now_s) < ELECTION_S:
            return REJOIN_FIRST_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, REJOIN_MAX_S)
        return pause_s


class TrainerSearch:
    """The known trainers of one run; the next to ask stands first.

    *Pauses.* A server that is out of the run asks a trainer again at once where it loses nothing
    by it: another trainer has not been asked yet, or the session was a good one and another
    trainer may lead by now. Else it waits a little, and twice as long each time, so that a trainer
    which throws it out again and again is not hammered. A trainer that has been gone for long is
    looked for seldom, and for ever.

    *Search.* One of a run's trainers coordinates it. The others stand by: they do not assign
    stages, and say who does. A server asks one after another, at once; it pauses when all have
    been asked. What the DHT or a standby names anew is asked next; the coordinator that was lost
    is asked last. A trainer that has been reached is given time: it answers when its step allows,
    and may be the one that leads though the DHT does not name it. A list that a peer makes too
    long loses the ones that were found first.

    *Silence.* The coordinator says something each half second on the stream of every member. When
    it does not, it may be stopped, cut off or dead. The server does not end its session for that,
    because the coordinator may go on, and its own voter may be the one that is cut off. It asks
    the other trainers who leads, and meanwhile looks for trainers that it does not know: the one
    that leads by now may be new.
    """

    def __init__(self, trainers: Sequence[Contact]) -> None:
        self._trainers: list[Contact] = []
        self.found(trainers)
        self._asked: list[Contact] = []
        """Those that were asked since the last pause."""
        self._reached_s = NEVER_S

    @property
    def present(self) -> Contact:
        """The trainer that was asked last or, before that, the first to ask."""
        return self._asked[-1] if self._asked else self._trainers[0]

    @property
    def others(self) -> bool:
        """Return whether there is another trainer to ask before the next pause."""
        return len(self._asked) < TRAINERS_MAX and any(t not in self._asked for t in self._trainers)

    @property
    def several(self) -> bool:
        """True if more than one trainer is known."""
        return len(self._trainers) > 1

    def beside(self, trainer: Contact) -> list[Contact]:
        """The other trainers that are known."""
        return [t for t in self._trainers if not _same(t, trainer)]

    def find(self, peer: bytes) -> Contact | None:
        """The address of a trainer, if that is known."""
        return next((t for t in self._trainers if t.peer is not None and t.peer.raw == peer), None)

    def ask(self) -> Contact:
        """The trainer to ask now; after a pause, all may be asked again."""
        if not self.others:
            self._asked = []
        trainer = next(t for t in self._trainers if t not in self._asked)
        self._asked.append(trainer)
        self._reached_s = NEVER_S
        return trainer

    def reached(self, now_s: float) -> None:
        """The trainer that was asked has taken the stream."""
        self._reached_s = now_s

    def has_reached(self, now_s: float) -> bool:
        """Return whether the trainer that was asked lives, and is to be given time to answer."""
        return now_s < self._reached_s + REACHED_S

    def coordinates(self) -> None:
        """The trainer that was asked coordinates: ask it first the next time, at this address."""
        present, self._asked = self.present, []
        self.found([present])

    def lost(self) -> None:
        """The coordinator is gone, as it seems: the others are asked before it."""
        self._trainers.append(self._trainers.pop(0))

    def on_trainers(self, trainers: Sequence[Contact]) -> None:
        """The coordinator says who may lead after it; it stays the first."""
        first = self._trainers[0]
        self.found([first, *(t for t in trainers if not _same(t, first))])

    def found(self, trainers: Sequence[Contact]) -> None:
        """These may coordinate, as the DHT or a standby says: ask them before the others."""
        for trainer in reversed(trainers):
            self._trainers = [trainer, *self.beside(trainer)]
        self._trainers = self._trainers[:TRAINERS_MAX]


def _same(one: Contact, other: Contact) -> bool:
    """Return whether two contacts are one peer, perhaps at two addresses."""
    return one == other or (one.peer is not None and one.peer == other.peer)


class CoordinatorWatch:
    """The stream of one server with a trainer, or the try to open one, as far as it is silent."""

    def __init__(self) -> None:
        self.next_deadline_s: float | None = None
        """Time to call `on_deadline`; None while there is no stream, and none is opened."""
        self._heard_s = math.inf
        self.silent = False
        """True if the other trainers are being asked."""

    def on_word(self, now_s: float) -> None:
        """The stream was opened, or something came."""
        self.next_deadline_s, self._heard_s = now_s + SILENCE_S, now_s
        self.silent = False

    def on_try(self, now_s: float) -> None:
        """A stream is being opened: one that is cut off never answers, and another may lead."""
        self.next_deadline_s = now_s + ASK_AGAIN_S

    def unheard_s(self, now_s: float) -> float:
        """The time for which nothing has come; 0 without a stream."""
        return max(0.0, now_s - self._heard_s)

    def ended(self) -> None:
        """The stream is over."""
        self.next_deadline_s, self._heard_s = None, math.inf
        self.silent = False

    def on_deadline(self, now_s: float) -> bool:
        """Return whether it is time to ask the other trainers who leads."""
        if self.next_deadline_s is None or now_s < self.next_deadline_s:
            return False
        self.next_deadline_s = now_s + ASK_AGAIN_S
        self.silent = self._heard_s < math.inf
        return True
