"""What `p2pswarm status` prints about a run: lines for people, JSON for scripts.

Errors:  none.
"""

import dataclasses
import json
from collections.abc import Callable

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.guard.bans import time_left
from p2pswarm.progress.printable import printable
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.path_counts import PathCounts
from p2pswarm.run.messages.status import RunStatus

NO_RUN = "there is no run in this swarm: start one with p2pswarm train run.toml"


def reached_at(offer: RunOffer, seen_at: Callable[[PeerId], Address | None]) -> RunOffer:
    """The offer with the address at which its trainer was reached, if that is no relay's.

    A trainer on a private network names a relay to strangers, and neighbours dial it without.
    """
    peer = offer.trainer.peer
    at = None if peer is None else seen_at(peer)
    return offer if at is None else dataclasses.replace(offer, trainer=Contact(peer, at))


def as_lines(offer: RunOffer, status: RunStatus | None) -> list[str]:
    """A run in a few lines; `status` is None if its trainer did not answer."""
    lines = [f"run {offer.config.name!r}, id {offer.run.hex()}, trainer at {offer.trainer.address}"]
    if status is None:
        why = "it is gone, or this machine cannot reach it"
        if offer.config.owner:
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
    lines += [
        f"  {PeerId(ban.peer).short} is banned for another {time_left(ban.left_s)}: it "
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
            "status": _fields(status) if status else None,
        }
        for offer, status in found
    ]
    return json.dumps({"runs": runs}, separators=(",", ":"))


def _fields(status: RunStatus) -> dict[str, object]:
    """A status as JSON has it: peer ids as people see them."""
    bans = [{**dataclasses.asdict(ban), "peer": str(PeerId(ban.peer))} for ban in status.bans]
    return {**dataclasses.asdict(status), "bans": bans}


def nothing_found(name: str, there: list[str]) -> str:
    """What to say where no run has the name that was asked for, or there is none at all."""
    if not there:
        return NO_RUN
    return f"no run is named {name!r}; there is {', '.join(map(repr, sorted(there)))}"


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
        parts.append(f"waiting for a server of stage {', '.join(map(str, status.waiting))}")
    return ", ".join(parts)


def _ago(seconds: float) -> str:
    """A time in the unit that people would use."""
    for unit, size_s in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _links(links: PathCounts) -> str:
    """How links lead, the kinds that there are; nothing if no server has said."""
    kinds = [f"{count} {kind}" for kind, count in dataclasses.asdict(links).items() if count]
    return f" (links: {', '.join(kinds)})" if kinds else ""


def _stages(status: RunStatus) -> list[str]:
    return [
        f"stage {number}: {stage.ready} ready"
        + (f" and {stage.joining} joining" if stage.joining else "")
        + _links(stage.links)
        for number, stage in enumerate(status.stages)
    ]
