"""Texts of `p2pswarm status` and `p2pswarm explain`: lines for people, JSON for scripts."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.guard.bans import time_left
from p2pswarm.progress.events import Relocated, Waiting, called, gain_text, seconds_text
from p2pswarm.progress.printable import printable
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.balance import (
    BalanceStatus,
    BoundaryRate,
    MovesTake,
    PastMove,
    ServerPreparing,
)
from p2pswarm.run.messages.field_limits import PathCounts
from p2pswarm.run.messages.status import PeerName, RunStatus

NO_RUN = "there is no run in this swarm: start one with p2pswarm train run.toml"
NOT_ASKED = "nothing was decided yet: servers are looked at after each step"


def reached_at(offer: RunOffer, dialled_at: Callable[[PeerId], Address | None]) -> RunOffer:
    """The offer with the address at which its trainer can be dialled, if that is no relay's.

    A trainer on a private network names a relay to strangers, and neighbours dial it without.
    """
    peer = offer.trainer.peer
    at = None if peer is None else dialled_at(peer)
    return offer if at is None else dataclasses.replace(offer, trainer=Contact(peer, at))


def as_lines(offer: RunOffer, status: RunStatus | None) -> list[str]:
    """A run in a few lines; `status` is None if its trainer did not answer."""
    lines = [f"run {offer.config.name!r}, id {offer.run.hex()}, trainer at {offer.trainer.address}"]
    if (origin := offer.identity.origin) is not None:
        lines.append(f"  {origin.text}")
    if status is None:
        why = "it is gone, or this machine cannot reach it"
        if offer.config.closed:
            why += "; or you are not invited: the run is closed (--invite TEXT)"
        return [*lines, f"  its trainer does not answer: {why}"]
    counts = f"{status.asked:,} asked, {status.counted:,} counted, {status.replayed:,} replayed"
    lines += [
        f"  {_phase(offer, status)}",
        f"  servers: {', '.join(_stages(status))}",
        f"  microbatches: {counts}",
    ]
    if status.saved is not None and status.saved_ago_s is not None:
        lines.append(f"  checkpoint: step {status.saved:,}, {_ago(status.saved_ago_s)} ago")
    names = _names(status.names)
    lines += [
        f"  {_called(ban.peer, names)} is banned for another {time_left(ban.left_s)}: it "
        + printable(ban.reason)
        for ban in status.bans
    ]
    return lines


def as_json(found: list[tuple[RunOffer, RunStatus | None]]) -> str:
    """All runs as one line of JSON."""
    runs = [
        {
            "run": offer.run.hex(),
            "name": offer.config.name,
            "trainer": str(offer.trainer.address),
            "steps": offer.config.steps,
            "origin": None if offer.identity.origin is None else offer.identity.origin.text,
            "status": _status_fields(status) if status else None,
        }
        for offer, status in found
    ]
    return json.dumps({"runs": runs}, separators=(",", ":"))


def _status_fields(status: RunStatus) -> dict[str, object]:
    """A status as JSON has it: peer ids as people see them."""
    bans = [{**dataclasses.asdict(ban), "peer": str(PeerId(ban.peer))} for ban in status.bans]
    names = _named(status.names)
    return {**dataclasses.asdict(status), "bans": bans, "names": names}


def nothing_found(name: str, there: list[str]) -> str:
    """Return what to say where no run has the name that was asked for, or there is none at all."""
    if not there:
        return NO_RUN
    return f"no run is named {name!r}; there is {', '.join(map(repr, sorted(there)))}"


def nobody_knows(asked: Sequence[str]) -> str:
    """Return what to say where nobody is there but the nodes that were asked."""
    places = ", ".join(asked)
    return (
        f"no run is known at {places}, and no other node: a node that was started again is found by"
        " its swarm within seconds, so ask again; only if there was no run, start one with"
        " p2pswarm train run.toml"
    )


def _phase(offer: RunOffer, status: RunStatus) -> str:
    steps = f"step {status.done:,} of {offer.config.steps:,}"
    if status.ended:
        return f"over after {steps}: {printable(status.ended)}"
    parts = [steps]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.held_out is not None:
        parts.append(f"held-out loss {status.held_out:.4f}")
    if status.committed_ago_s is not None:
        parts.append(f"{status.tokens_per_s:,.0f} tokens/s")
        parts.append(f"last commit {status.committed_ago_s:.1f} s ago")
    if status.waiting:
        parts.append(Waiting(status.waiting).text)
    return ", ".join(parts)


def _ago(seconds: float) -> str:
    """A time in the unit that people would use."""
    for unit, size_s in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _links(links: PathCounts) -> str:
    """Return how links lead, the kinds that there are; nothing if no server has said."""
    kinds = [f"{count} {kind}" for kind, count in dataclasses.asdict(links).items() if count]
    return f" (links: {', '.join(kinds)})" if kinds else ""


def _stages(status: RunStatus) -> list[str]:
    return [
        f"stage {number}: {stage.ready} ready"
        + (f" and {stage.joining} joining" if stage.joining else "")
        + _links(stage.links)
        for number, stage in enumerate(status.stages)
    ]


def balance_lines(offer: RunOffer, status: BalanceStatus | None) -> list[str]:
    """A run in a few lines; `status` is None if its trainer did not answer."""
    lines = [f"run {offer.config.name!r}, rebalancing {offer.config.balance.rule!r}"]
    if status is None:
        return [*lines, "  its trainer does not answer: p2pswarm status may tell why"]
    if status.asked_ago_s is None:
        return [*lines, f"  {NOT_ASKED}"]
    lines += [f"  {line}" for line in _stage_lines(status)]
    lines += [f"  {_boundary_line(one)}" for one in status.boundaries]
    names = _names(status.names)
    lines += [f"  {_preparing_line(one, names)}" for one in status.preparing]
    lines += [f"  {_move_line(move, names)}" for move in status.moves]
    if not status.moves:
        lines.append("  no server has moved yet")
    if status.why:
        now = "now" if status.moves else "nobody moves"
        lines.append(f"  {now}: {printable(status.why)}")
    lines += [
        f"  {one.servers} cannot be moved: it {printable(one.reason)}"
        if one.servers == 1
        else f"  {one.servers} cannot be moved, of each: it {printable(one.reason)}"
        for one in status.stay
    ]
    return lines


def balances_as_json(found: list[tuple[RunOffer, BalanceStatus | None]]) -> str:
    """All runs as one line of JSON."""
    runs = [
        {
            "run": offer.run.hex(),
            "name": offer.config.name,
            "rule": offer.config.balance.rule,
            "balance": _balance_fields(status) if status else None,
        }
        for offer, status in found
    ]
    return json.dumps({"runs": runs}, separators=(",", ":"))


def _balance_fields(status: BalanceStatus) -> dict[str, object]:
    """A status as JSON has it: peer ids as people see them."""
    moves, preparing = map(_with_ids, status.moves), map(_with_ids, status.preparing)
    more = {"moves": [*moves], "preparing": [*preparing], "names": _named(status.names)}
    return {**dataclasses.asdict(status), **more}


def _named(names: Sequence[PeerName]) -> dict[str, str]:
    """The names of machines by their peer ids, as JSON has them."""
    return {str(PeerId(peer)): name for peer, name in _names(names).items()}


def _with_ids(one: PastMove | ServerPreparing) -> dict[str, object]:
    return {**dataclasses.asdict(one), "peer": str(PeerId(one.peer))}


def _stage_lines(status: BalanceStatus) -> list[str]:
    rates = [stage.rate_per_s for stage in status.stages]
    slowest = rates.index(min(rates)) if rates else None
    lines = []
    for number, stage in enumerate(status.stages):
        servers = f"{stage.ready} server" + ("" if stage.ready == 1 else "s")
        parts = [servers, f"{stage.rate_per_s:.2f} microbatches/s"]
        if stage.unmeasured:
            parts.append(f"{stage.unmeasured} not measured yet")
        if stage.queue_s is not None:
            parts.append(f"a microbatch waits {stage.queue_s:.2f} s")
        if number == slowest:
            parts.append("the run is as fast as this stage")
        lines.append(f"stage {number}: {', '.join(parts)}")
    return [*lines, f"each stage keeps {status.floor} ready", _take_line(status.take)]


def _boundary_line(one: BoundaryRate) -> str:
    """The codecs between two stages, what the links carry, and why."""
    up = _way("up", one.activation, one.up_bytes_per_s, one.up_s)
    down = _way("down", one.gradient, one.down_bytes_per_s, one.down_s)
    return f"stages {one.stage} and {one.stage + 1}: {up}, {down}: {printable(one.why)}"


def _way(way: str, codec: str, bytes_per_s: float | None, took_s: float) -> str:
    if bytes_per_s is None:
        return f"{printable(codec)} {way}"
    mbit = 8e-6 * bytes_per_s
    return f"{printable(codec)} {way} at {mbit:,.0f} Mbit/s, {1e3 * took_s:.1f} ms a microbatch"


def _take_line(take: MovesTake) -> str:
    """Return what a move costs its server, and whether that was measured."""
    waits = f" and waits {take.waits_s:.1f} s for a step" if take.waits_s else ""
    return (
        f"a move takes {seconds_text(take.prepared_s)} if it fetches first{waits}"
        f" ({_measured(take.prepared)}), {seconds_text(take.unprepared_s)} beside its download"
        f" if it leaves first ({_measured(take.unprepared)})"
    )


def _measured(moves: int) -> str:
    return f"by {moves} move{'' if moves == 1 else 's'}" if moves else "not measured yet"


def _names(told: Sequence[PeerName]) -> dict[bytes, str]:
    """The names of machines, by the ids of their peers."""
    return {one.peer: printable(one.name) for one in told}


def _called(peer: bytes, names: Mapping[bytes, str]) -> str:
    return called(PeerId(peer).short, names.get(peer, ""))


def _move_line(move: PastMove, names: Mapping[bytes, str]) -> str:
    """A move in the words of its event."""
    server, worth = _called(move.peer, names), (move.gain, move.away_s, move.planned)
    moves = Relocated(server, move.source, move.target, *worth)
    return f"{time_left(move.ago_s)} ago: {moves.text}"


def _preparing_line(one: ServerPreparing, names: Mapping[bytes, str]) -> str:
    where = f"from stage {one.source} to {one.target}"
    begun = f"it has fetched the weights for {time_left(one.since_s)}, and serves on"
    return f"{_called(one.peer, names)} is to move {where}: {gain_text(one.gain)}; {begun}"
