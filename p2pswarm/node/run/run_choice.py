"""The run that a node joins of those that are announced, and what it says while there is none."""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.net.guard.dial_budget import DialBudget
from p2pswarm.net.wire.message import decode
from p2pswarm.node.run.invitation_text import invitation_of
from p2pswarm.node.run.run_match import readable
from p2pswarm.run.access.grant import is_signed
from p2pswarm.run.access.invitation import Invitation
from p2pswarm.run.manifest import RunOffer, UnreadableOffer, read_offer
from p2pswarm.run.messages.run import Manifest
from p2pswarm.settings.config import EMULATED, RunConfig
from p2pswarm.settings.node_config import NodeConfig, ServeConfig
from p2pswarm.settings.parser import RUN_VERSION

TELL_AGAIN_S = 3600.0  # a trainer that did not listen is reminded, and hardly notices
NOTICES_MAX = 64  # told of in that time: no swarm has so many trainers of an older release
MANIFESTS_MAX = 256  # read at a look: checking their signatures takes 20 ms
ASKED_MAX = 16  # trainers dialled at a look: their addresses are what strangers claim
QUOTED_MAX = 64  # remarks with words of strangers, who can think of as many as they like
NAMES_MAX = 8  # of other runs, in one line
REFUSED_S = 600.0  # between two tries of a run that could not be served: each may load a library
OVER_MAX = 4_096  # runs that are over: a server of a year has fewer, and strangers may invent more
REFUSED_MAX = 1_024  # runs that are passed over: strangers may offer more, and those are tried anew
CLOCKS_DIFFER = (
    "by this machine's clock the runs of others are long over, or of the future: set the clocks, "
    "here or there"
)


class VersionNotices:
    """The trainers to tell that a server speaks another version: each manifest's, once an hour.

    Who signs a manifest chooses the address that is dialled, so their number is limited, too, for
    each host and network and for all.
    """

    def __init__(self, manifests_max: int = NOTICES_MAX) -> None:
        self._max = manifests_max
        self._told_s: dict[UnreadableOffer, float] = {}

    def due(self, found: Sequence[UnreadableOffer], now_s: float) -> list[Contact]:
        """The trainers of `found` to tell now; they count as told from here on."""
        self._told_s = {
            offer: told_s for offer, told_s in self._told_s.items() if now_s < told_s + TELL_AGAIN_S
        }
        budget = DialBudget(dials_max=self._max)
        for offer in self._told_s:
            budget.take([offer.trainer.address])
        fresh = [offer for offer in found if offer not in self._told_s]
        now = [offer for offer in fresh if budget.take([offer.trainer.address])]
        self._told_s.update(dict.fromkeys(now, now_s))
        return [offer.trainer for offer in now]


class RunChoice:
    """Chooses among manifests; remembers which runs are over and what was said.

    A node may join runs that are open, or the one that it is invited to. Whoever emulates
    computing joins no run that trains, because it would spoil the weights. A manifest that cannot
    be used is complained about once and passed over.
    """

    def __init__(
        self,
        serve: ServeConfig,
        version: int = RUN_VERSION,
        admits: Callable[[RunOffer], str] = lambda _offer: "",
    ) -> None:
        """`admits` says why a run cannot be joined by this node, or nothing if it can."""
        self.version = version
        """The version of runs that this program speaks."""
        self._serve = serve
        self._admits = admits
        self._notices = VersionNotices()
        self._unreadable: list[UnreadableOffer] = []
        self._said: set[str] = set()
        self._quoted: set[str] = set()
        self._remarks: list[str] = []
        self._over: RecentItems[tuple[bytes, bytes], None] = RecentItems(OVER_MAX)
        """Runs with the trainers that are passed over."""
        self._refused_s: RecentItems[bytes, float] = RecentItems(REFUSED_MAX)
        """Until when each run is passed over that could not be served here."""
        self._tries = 0
        self._tried: RecentItems[bytes, int] = RecentItems(REFUSED_MAX)
        """The last try of each run that this node gave up, since no trainer of it answered."""

    def over(self, offer: RunOffer) -> None:
        """Pass over a trainer's run that has ended, or is not its: its record may stay a while."""
        self._over[offer.run, _trainer(offer)] = None
        self._said.clear()

    def give_up(self, offer: RunOffer) -> None:
        """Try all other runs before this one: no trainer of it has answered.

        It may come back, so the run is not passed over. But a stranger that has invented one
        answers pings, and would be joined again and again.
        """
        self._tries += 1
        self._tried[offer.run] = self._tries

    def refuse(self, offer: RunOffer, reason: str, now_s: float) -> None:
        """Pass over a run that cannot be served here, for a while.

        Strangers describe runs as they like, and places in a run become free. So neither is a
        reason to end this node: its user is told once, and other runs are looked for.
        """
        self._refused_s[offer.run] = now_s + REFUSED_S
        self._quote(
            f"run {offer.config.name!r} of {offer.trainer.address} cannot be served here: "
            f"{reason}; waiting for another run"
        )

    def retry(self, now_s: float) -> None:
        """Try again those runs that were passed over for long enough."""
        for run in [run for run, until_s in self._refused_s.items() if until_s <= now_s]:
            del self._refused_s[run]

    def fitting(
        self, manifests: Mapping[bytes, bytes], *, clocks_differ: bool = False
    ) -> list[RunOffer]:
        """The runs that may be joined, in the order of `manifests`, which are by trainers' ids.

        Those that were given up come last, the longest ago first. If there is none, a remark says
        why. `clocks_differ`: others know runs that are over, or not yet possible, by this machine's
        clock.
        """
        offers = self.usable(manifests)
        named = self._named(offers)
        open_to_us = self._open_to_us(named)
        fitting = self._with_stage(open_to_us)
        if fitting:
            return sorted(fitting, key=lambda offer: self._tried.get(offer.run, 0))
        if named and not open_to_us:
            self._quote(self._admits(named[0]))
        elif named:
            run = named[0].config
            self._quote(
                f"run {run.name!r} has no stage {self._serve.stage} (serve.stage), its stages are "
                f"0 to {run.stages - 1}: waiting for another run"
            )
        elif offers:
            names = sorted({repr(offer.config.name) for offer in offers})
            more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            there = ", ".join(names[:NAMES_MAX]) + more
            self._quote(f"no run is named {self._serve.run!r}; there is {there}: waiting")
        elif clocks_differ:
            self._say(CLOCKS_DIFFER)
        else:
            self._say("there is no run yet: waiting for a trainer")
        return []

    def instead_of(self, lost: RunOffer, manifests: Mapping[bytes, bytes]) -> list[RunOffer]:
        """The offers of a run whose trainer was lost, then those of other runs; no remarks."""
        fitting = self._with_stage(self._open_to_us(self._named(self.usable(manifests))))
        return sorted(fitting, key=lambda offer: offer.run != lost.run)

    def remarks(self) -> list[str]:
        """Return what is to be said, each thing once; drained by reading."""
        remarks, self._remarks = self._remarks, []
        return remarks

    def to_be_told(self, now_s: float) -> list[Contact]:
        """The trainers of the last choice to tell now that we speak another version."""
        return self._notices.due(self._unreadable, now_s)

    def usable(self, manifests: Mapping[bytes, bytes]) -> list[RunOffer]:
        """Every run that has not ended, by trainer."""
        offers = []
        self._unreadable = []
        for subkey, manifest in manifests.items():
            try:
                offer = _offer(subkey, manifest, self.version)
            except BadMessage as error:
                self._quote(f"a run cannot be joined: {error}")
                continue
            if isinstance(offer, UnreadableOffer):
                self._quote(f"a run cannot be joined: {offer.reason}")
                self._unreadable.append(offer)
            elif (offer.run, subkey) not in self._over and offer.run not in self._refused_s:
                offers.append(offer)
        return offers

    def _named(self, offers: list[RunOffer]) -> list[RunOffer]:
        return [offer for offer in offers if self._serve.run in ("", offer.config.name)]

    def _open_to_us(self, offers: list[RunOffer]) -> list[RunOffer]:
        return [offer for offer in offers if not self._admits(offer)]

    def _with_stage(self, offers: list[RunOffer]) -> list[RunOffer]:
        stage = self._serve.stage
        return [offer for offer in offers if stage is None or stage < offer.config.stages]

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._remarks.append(text)

    def _quote(self, text: str) -> None:
        """Say what has words of strangers in it."""
        if text in self._quoted or len(self._quoted) < QUOTED_MAX:
            self._quoted.add(text)
            self._say(text)


def in_own_order(own: bytes, manifests: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The manifests in an order of this node's own, MANIFESTS_MAX of them at most.

    Nobody can choose an id that is the first for many nodes, as it could among sorted ids. Without
    a wish, servers spread over the runs of a swarm.
    """

    def rank(subkey: bytes) -> bytes:
        return hashlib.sha256(own + subkey).digest()

    first = sorted(manifests, key=rank)[:MANIFESTS_MAX]
    return {subkey: manifests[subkey] for subkey in first}


def preferred(offers: Sequence[RunOffer], answering: Collection[Contact]) -> RunOffer | None:
    """The first offer whose trainer answers; the first of all if none does.

    Of several offers of that run its founder's comes first: anybody can call itself a trainer.
    """
    there = [offer for offer in offers if offer.trainer in answering] or list(offers)
    founders = [o for o in there if o.run == there[0].run and _trainer(o) == o.identity.founder]
    return next(iter([*founders, *there]), None)


def _trainer(offer: RunOffer | UnreadableOffer) -> bytes:
    assert offer.trainer.peer is not None, "the manifest was signed with its key"
    return offer.trainer.peer.raw


def _offer(subkey: bytes, value: bytes, version: int) -> RunOffer | UnreadableOffer:
    manifest = decode(value)
    if not isinstance(manifest, Manifest):
        raise BadMessage(f"a record with a {type(manifest).__name__} for a manifest")
    offer = read_offer(manifest, version)
    if _trainer(offer) != subkey:
        raise BadMessage("a manifest under another peer's name")
    return offer


def admits(offer: RunOffer, invitation: Invitation | None, me: PeerId | None = None) -> str:
    """Return why this node cannot join a run, for its user; empty if it can.

    `me`: our peer id, if it is the same next time: then an invitation can be for it alone.
    """
    name, owner = offer.config.name, bytes.fromhex(offer.config.owner)
    if invitation is not None:
        if offer.run != invitation.run:
            return f"run {name!r} is not the one of the invitation: waiting for that"
        if not is_signed(invitation.grant, owner):
            return f"the invitation was not made by the owner of run {name!r}: ask for another"
    elif offer.config.closed:
        alone = f" --peer {me}" if me else ""
        return (
            f"run {name!r} is closed: ask its owner for an invitation (p2pswarm invite{alone}), "
            "and start this node with --invite; waiting for an open run"
        )
    return ""


def emulates_otherwise(run: RunConfig, serve: ServeConfig) -> str:
    """Return why a server that computes cannot join an emulated run, or the other way round."""
    device = serve.device
    if run.emulated and device != EMULATED:
        return (
            f"run {run.name!r} is a rehearsal, in which nobody computes: set serve.device to "
            f'"{EMULATED}" to take part; waiting for another run'
        )
    if device == EMULATED and not run.emulated:
        return (
            f"run {run.name!r} trains, and this server only emulates: set serve.device to what "
            "computes, or run.emulated = true at the trainer for a rehearsal; waiting"
        )
    return ""


def run_choice(config: NodeConfig, peer: PeerId) -> RunChoice:
    """The choice among runs of a node: those that are open, or the one that it is invited to.

    A server that only emulates computing chooses among runs that are emulated, and no other does.
    """
    invitation = invitation_of(config)
    me = peer if config.identity or config.state else None
    return RunChoice(
        config.serve,
        admits=lambda offer: (
            emulates_otherwise(offer.config, config.serve) or admits(offer, invitation, me)
        ),
    )


def invited_to(manifests: Mapping[bytes, bytes], invitation: Invitation | None) -> RunConfig | None:
    """Return the run of an invitation, if that is offered by whom its owner lets; else None."""
    for value in manifests.values() if invitation is not None else ():
        offer = readable(value)
        if offer is not None and not admits(offer, invitation):
            return offer.config
    return None
