"""Views of the membership: each member is told what it needs, and only what has changed.

Units:   views of a stage count from 1.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from p2pswarm.run.member_cards import leads_there
from p2pswarm.run.member_view import view_parts
from p2pswarm.run.messages.membership import MemberRecord, View
from p2pswarm.trainer.reports.actions import MemberChange

PAUSE_S = 0.1  # a server computes for longer than that between two microbatches
PAUSE_PER_MEMBER_S = 0.0005  # at most 2,000 messages a second in all
CARDS_MEMBERS_MAX = 300  # 10 stages of 30: 7 MB of cards in all; 1,000 servers would get 70 MB
REMEMBERED = 64  # views: more than six seconds of changes without a pause


@dataclass(slots=True)
class ViewDifference:
    """The changes from one view to another; incarnations by their numbers."""

    gone: dict[int, None] = field(default_factory=dict)
    joined: dict[int, MemberRecord] = field(default_factory=dict)
    carded: dict[int, MemberRecord] = field(default_factory=dict)
    """Members that were known before, with another card; told like those that have joined."""
    ready: dict[int, MemberRecord] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.gone or self.joined or self.carded or self.ready)

    def lose(self, number: int) -> None:
        """An incarnation is over."""
        if self.joined.pop(number, None) is None:
            self.carded.pop(number, None)
            self.ready.pop(number, None)
            self.gone[number] = None

    def make_ready(self, record: MemberRecord) -> None:
        """A member that is known is ready now."""
        told = (known for known in (self.joined, self.carded) if record.incarnation in known)
        next(told, self.ready)[record.incarnation] = record

    def card(self, record: MemberRecord) -> None:
        """A member that is known has another card."""
        self.ready.pop(record.incarnation, None)  # the record says that, too
        known = self.joined if record.incarnation in self.joined else self.carded
        known[record.incarnation] = record

    def add(self, later: "ViewDifference") -> None:
        """Let a later difference follow this one."""
        for number in later.gone:
            self.lose(number)
        self.joined |= later.joined
        for record in later.carded.values():
            self.card(record)
        for record in later.ready.values():
            self.make_ready(record)


class StageViews:
    """The views of the members of one stage."""

    def __init__(self, stage: int, remembered: int, also: frozenset[int] = frozenset()) -> None:
        """`also`: another stage whose members it averages with."""
        self._all_of = also | {stage}
        """The stages of which those are shown that are not ready, too."""
        self.number = 0
        """Of the newest view."""
        self._members: dict[int, MemberRecord] = {}
        """Those that it shows."""
        self._next = ViewDifference()
        self._last: deque[ViewDifference] = deque(maxlen=remembered)
        self._made: dict[int, list[View]] = {}
        """The messages of the newest view, by the view that they follow."""

    def change(self, change: MemberChange) -> None:
        """A member of this stage, or of another that it deals with, has changed."""
        record, ours = change.record, change.record.stage in self._all_of
        if not (ours or record.ready):
            return
        if change.gone:
            self._next.lose(record.incarnation)
        elif change.carded:
            self._next.card(record)
        elif ours and record.ready:
            self._next.make_ready(record)
        else:
            self._next.joined[record.incarnation] = record

    def publish(self) -> bool:
        """Make a view of what has changed; False if nothing has."""
        if not self._next:
            return False
        changed, self._next = self._next, ViewDifference()
        for number in changed.gone:
            del self._members[number]
        self._members |= changed.joined | changed.carded | changed.ready
        self.number += 1
        self._last.append(changed)
        self._made = {}
        return True

    def since(self, number: int, *, large: bool) -> list[View]:
        """Return what to tell a member that has the view `number`, 0 if none; `large`: the run."""
        behind = self.number - number
        if behind and number not in self._made:
            whole = number == 0 or behind > len(self._last)
            self._made[number] = (
                self._whole(large=large) if whole else self._difference(number, behind, large=large)
            )
        return self._made[number] if behind else []

    def _whole(self, *, large: bool) -> list[View]:
        return view_parts(self.number, _compact(self._members.values(), large=large))

    def _difference(self, since: int, behind: int, *, large: bool) -> list[View]:
        changed = ViewDifference()
        for one in list(self._last)[-behind:]:
            changed.add(one)
        joined = _compact((*changed.joined.values(), *changed.carded.values()), large=large)
        gone, ready = tuple(changed.gone), tuple(changed.ready)
        return view_parts(self.number, joined, since, gone=gone, ready=ready)


def _compact(records: Iterable[MemberRecord], *, large: bool) -> tuple[MemberRecord, ...]:
    """Records as they are told; `large`: without the cards that say the same."""
    if not large:
        return tuple(records)
    return tuple(
        replace(record, card=b"") if leads_there(record.card, record.address) else record
        for record in records
    )


class Views:
    """The views of all stages, and when the next are made.

    A member deals with its own stage, and with the ready members of the stages before and after
    it. So each stage has views of its own, numbered one by one. A member is sent the whole once,
    and then the difference from the view that it has. The difference is made when its stream takes
    it: a slow member is sent one large one instead of many. One that has missed more views than
    are remembered is sent the whole.

    A change goes out at once if there was none shortly before; what changes within the pause after
    that goes out together at its end. The pause grows with the members, so that the messages in a
    second have a limit, however many join.

    A card is several times as long as the rest of a record. So a large run's views leave out the
    cards that name the address beside them: the peer that is found there gives its card itself.
    """

    def __init__(
        self,
        stages: int,
        ends: tuple[int, int] | None = None,
        pause_s: float = PAUSE_S,
        pause_per_member_s: float = PAUSE_PER_MEMBER_S,
        remembered: int = REMEMBERED,
    ) -> None:
        """`ends`: the two stages that average a tied tensor, so that all of them know all."""
        self._ends = frozenset(ends or ())
        self._of = [
            StageViews(stage, remembered, self._ends if stage in self._ends else frozenset())
            for stage in range(stages)
        ]
        self._pause_s = pause_s
        self._pause_per_member_s = pause_per_member_s
        self._known: list[dict[int, MemberRecord]] = [{} for _ in range(stages)]
        """The members of each stage."""
        self._beside: set[tuple[int, int]] = set()
        """Pairs of a stage and one that it sees, though they are no neighbours."""
        self._not_before_s = float("-inf")
        self._changed = self._large = False

    def change(self, changes: Iterable[MemberChange]) -> None:
        """The membership has changed."""
        for change in changes:
            record = change.record
            stage, known = record.stage, self._known[record.stage]
            if change.gone:
                known.pop(record.incarnation, None)
            else:
                known[record.incarnation] = record
            for seeing in sorted(self._seeing(stage)):
                self._of[seeing].change(change)
            for seeing, seen in self._beside:
                if seen == stage:
                    self._of[seeing].change(change)
            self._changed = True

    def beside(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Show to each other the members of stages that are no neighbours: just these pairs.

        A server of one prepares for the other: donors and observers have to know each other.
        """
        far = {(a, b) for a, b in pairs if b not in self._seeing(a)}
        wanted = far | {(b, a) for a, b in far}
        if wanted == self._beside:
            return
        for seeing, seen in sorted(wanted ^ self._beside):
            for record in self._known[seen].values():
                gone = (seeing, seen) not in wanted
                if record.ready:
                    self._of[seeing].change(MemberChange(record, gone=gone))
        self._beside = wanted
        self._changed = True

    def _seeing(self, stage: int) -> frozenset[int]:
        """The stages that always see members of this one, which it is one of."""
        near = frozenset(range(max(0, stage - 1), min(stage + 2, len(self._of))))
        return near | self._ends if stage in self._ends else near

    def due(self, now_s: float) -> bool:
        """Return whether there is something to publish, and the pause is over."""
        return self._changed and now_s >= self._not_before_s

    def publish(self, members: int, now_s: float) -> list[int]:
        """Make the new views; the stages that have one. `members`: how many are told."""
        self._changed = False
        self._large = members > CARDS_MEMBERS_MAX
        self._not_before_s = now_s + self._pause_s + members * self._pause_per_member_s
        return [stage for stage, views in enumerate(self._of) if views.publish()]

    def since(self, stage: int, number: int) -> tuple[int, list[View]]:
        """The newest view of a stage, and how to tell it to a member that has `number`."""
        views = self._of[stage]
        return views.number, views.since(number, large=self._large)

    def next_deadline_s(self) -> float | None:
        """Return when the pause is over, if something waits for that."""
        return self._not_before_s if self._changed else None
