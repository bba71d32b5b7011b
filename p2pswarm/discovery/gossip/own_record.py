"""Our own record: what it says, and when it is renewed.

What concerns others goes out at once. Everything else waits for the next renewal, and renewals are
rarer the more members there are, so that all together make no more than a member can follow.

Units:   seconds on the caller's monotonic clock; `wall_ms` milliseconds since 1970.
Errors:  ValueError for a standing that others would not take.
Source:  docs/directory.md, "Life".
"""

import math
import random
from dataclasses import replace

from p2pswarm.discovery.gossip.messages import LIFE_MOST_S, VERSION_MAX, RunStanding
from p2pswarm.discovery.gossip.record import PeerRecord, make
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity

RENEW_LEAST_S = 5.0  # a load that is older says little
RENEWALS_PER_S = 50.0  # of all members together: 17 KB a second at each
URGENT_LEAST_S = 1.0  # between two records, whatever happens
JITTER = 0.1
LIVES = 3  # renewals, of which two may fail
SLACK_S = 30.0  # beside them: spreading takes 15 s among 1,000, and a process may be stopped
NEVER_S = float("inf")


class OwnRecord:
    """What we say of ourselves in one run."""

    def __init__(self, identity: Identity, run: bytes, rng: random.Random) -> None:
        self._identity = identity
        self._run = run
        self._rng = rng
        self._standings: dict[int, RunStanding] = {}
        self._said: tuple[object, ...] = ()
        """What others were told that concerns them."""
        self._version = 0
        self._lives_s = 1
        self._signed_s = -NEVER_S
        self._renew_s = NEVER_S
        self._urgent = False

    def stand(self, standing: RunStanding) -> None:
        """Say from now on what we are in one role."""
        self._standings[standing.role] = standing
        self._urgent = self._urgent or self._concerns(self._said[0] if self._said else None)

    def withdraw(self, role: int) -> None:
        """Have one role no longer."""
        if self._standings.pop(role, None) is not None:
            self._urgent = True

    def leave(self) -> bool:
        """Have no role any more; whether others were told of one."""
        self._standings.clear()
        return bool(self._said and self._said[1])

    def card_is(self, card: Card) -> None:
        """Our card as it is now: a new one goes out at once."""
        self._urgent = self._urgent or (bool(self._said) and self._concerns(card.seq))

    def heard_of(self, version: int, now_s: float) -> None:
        """Others have a record of ours that we do not know: we were here before, or our clock is
        wrong. The next one is above it; that of the end of time cannot be passed.
        """
        if self._version < version < VERSION_MAX:
            self._version = version
            self._renew_s = min(self._renew_s, now_s)

    def next_deadline_s(self) -> float:
        """When to sign the next record; infinite if there is nothing to say."""
        if not self._standings and not self._said:
            return NEVER_S
        if self._urgent:
            return self._signed_s + URGENT_LEAST_S
        return max(self._renew_s, self._signed_s + URGENT_LEAST_S)

    def sign(self, card: Card, members: int, now_s: float, wall_ms: int) -> PeerRecord:
        """The next record. Without a standing it says that we have left."""
        period_s = max(RENEW_LEAST_S, members / RENEWALS_PER_S)
        lives_s = min(math.ceil(LIVES * period_s + SLACK_S), LIFE_MOST_S)
        if not self._standings:
            lives_s = max(lives_s, self._lives_s)  # it outlives the last one
        self._version = min(max(self._version + 1, wall_ms), VERSION_MAX)
        self._lives_s, self._signed_s, self._urgent = lives_s, now_s, False
        self._renew_s = now_s + period_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
        if not self._standings:
            self._renew_s = NEVER_S
        self._said = card.seq, self._outlines()
        standings = (self._standings[role] for role in sorted(self._standings))
        return make(self._identity, self._run, self._version, lives_s, card, standings)

    def _concerns(self, card_seq: object) -> bool:
        """Whether others were told something else, figures aside."""
        return (card_seq, self._outlines()) != self._said

    def _outlines(self) -> tuple[RunStanding, ...]:
        return tuple(replace(self._standings[r], figures=()) for r in sorted(self._standings))
