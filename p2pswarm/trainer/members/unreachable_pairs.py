"""Pairs of members of a stage that cannot reach each other, and who leaves before they average."""

from collections.abc import Callable, Iterable

from p2pswarm.base.recent_items import RecentItems
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.trainer.members.membership import Member, Membership

PAIR = 2
AVERAGINGS_SPENT = 32  # as many as make failures forgotten, `RECOVERED` of blame.py
MUTUAL_S = 60.0  # both find a cut within seconds, but perhaps not in the same averaging


class UnreachablePairs:
    """Pairs of members that cannot reach each other, as both say.

    Each member of a stage averages with all others, so an averaging with such a pair in it can
    only fail. Members ask each other from time to time, and tell when no answer comes. If both of
    a pair say so, one of them leaves when its stage has counted all of the step, and its
    microbatches are done again. Not sooner: the cut may be over by then. The one that left is not
    ready again while both still say so.

    The word of one alone does nothing here. A member that is silent to others, and says that they
    are, could have them thrown out one by one; so one that stayed when another left, and is apart
    from a third one soon after, leaves. What is said of other stages is passed over.

    Source: docs/membership.md, "Silence".
    """

    def __init__(self, members: Membership, peers_max: int = MEMBERS_MAX) -> None:
        self._members = members
        self._said: dict[Incarnation, frozenset[bytes]] = {}
        """Peers from which nothing comes, as each member says."""
        self.any = False
        """True if there may be a pair; this is asked after every note."""
        self.stayed = RecentItems[bytes, tuple[bytes, int]](peers_max)
        """By peer that stayed: the one that left, and the averagings for which that counts."""

    def on_report(self, by: Incarnation, peers: Iterable[bytes]) -> None:
        """A member says from whom nothing comes."""
        said = frozenset(peers)
        if said and self._members.alive(by):
            self._said[by] = said
        else:
            self._said.pop(by, None)
        self.any = len(self._said) >= PAIR

    def on_end(self, one: Incarnation) -> None:
        """An incarnation is over."""
        self._said.pop(one, None)
        self.any = len(self._said) >= PAIR

    def unreachable_from(self, member: Member) -> list[Incarnation]:
        """The ready members of its stage between which and this one nothing passes."""
        if member.incarnation not in self._said:
            return []
        others = [one.incarnation for one in self._members.ready(member.stage)]
        return [one for one in others if self._both_say(one, member.incarnation)]

    def leavers(self, stage: int, counted: Callable[[Incarnation], int]) -> list[Incarnation]:
        """The fewest members of a stage without whom all others can average, as far as is known.

        Of two, the one that has counted less: that is done again.
        """
        pairs = {one.incarnation: self.unreachable_from(one) for one in self._members.ready(stage)}
        pairs = {one: others for one, others in pairs.items() if others}
        leave = []
        while pairs:
            first = max(
                pairs,
                key=lambda one: (len(pairs[one]), self._again(one, pairs[one]), -counted(one), one),
            )
            for other in pairs.pop(first):
                self._stays(other.peer, first.peer)
                pairs[other].remove(first)
            pairs = {one: others for one, others in pairs.items() if others}
            leave.append(first)
        return leave

    def on_averaging(self, peers: Iterable[bytes]) -> None:
        """These have averaged with each other."""
        for peer in peers:
            other, left = self.stayed.pop(peer, (b"", 1))
            if left > 1:
                self.stayed[peer] = other, left - 1

    def _both_say(self, one: Incarnation, other: Incarnation) -> bool:
        nothing: frozenset[bytes] = frozenset()
        said, answered = self._said.get(one, nothing), self._said.get(other, nothing)
        return other.peer in said and one.peer in answered

    def _again(self, one: Incarnation, others: list[Incarnation]) -> bool:
        """Return whether another than these had to leave beside it before."""
        beside, _ = self.stayed.get(one.peer, (others[0].peer, 0))
        return all(beside != other.peer for other in others)

    def _stays(self, peer: bytes, beside: bytes) -> None:
        self.stayed[peer] = beside, AVERAGINGS_SPENT


class SingleWords:
    """Members on whose word alone another has lost its place; then it counts no more for a while.

    Two that accuse each other cannot be told apart, and one that lies could have all others thrown
    out. So the word of one alone costs another its place once in `AVERAGINGS_SPENT` averagings.
    """

    def __init__(self, peers_max: int = MEMBERS_MAX) -> None:
        self.spent = RecentItems[bytes, int](peers_max)
        """Number of averagings for which a peer's word does not count."""

    def spend(self, peer: bytes) -> bool:
        """Return whether the word of a peer counts; from now on it does not."""
        if peer in self.spent:
            return False
        self.spent[peer] = AVERAGINGS_SPENT
        return True

    def on_averaging(self, peers: Iterable[bytes]) -> None:
        """These have averaged with each other."""
        for peer in peers:
            left = self.spent.pop(peer, 1) - 1
            if left:
                self.spent[peer] = left


class FailedPairs:
    """Reports of pairs between which nothing passes.

    Each member of a stage averages with all others, so no averaging succeeds that has two members
    with a cut between them. One of them has to leave, and what it counted is done again: so it is
    the one that has counted less. A newcomer that has counted nothing costs nothing.

    The word of one member alone counts once (`SingleWords`); after that it is the speaker that
    leaves. What both members say of each other counts always.
    """

    def __init__(self, words: SingleWords, pairs_max: int = MEMBERS_MAX) -> None:
        self._words = words
        self._said_s = RecentItems[tuple[bytes, bytes], float](pairs_max)
        """Time at which a peer said it last of another."""

    def on_report(self, by: bytes, of: bytes, now_s: float) -> None:
        """A member says that nothing passes between it and another."""
        self._said_s[by, of] = now_s

    def leaver(self, by: bytes, of: bytes, counts: tuple[int, int], now_s: float) -> bytes:
        """Return which of two leaves; `counts`: how much `by`, which says so, and `of` counted."""
        ours, theirs = counts
        if ours <= theirs:
            return by
        mutual = now_s < self._said_s.get((of, by), float("-inf")) + MUTUAL_S
        return of if mutual or self._words.spend(by) else by
