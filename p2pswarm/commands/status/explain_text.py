"""What `p2pswarm explain` prints about a run: lines for people, JSON for scripts.

Errors:  none.
"""

import dataclasses
import json

from p2pswarm.base.ids import PeerId
from p2pswarm.net.guard.bans import time_left
from p2pswarm.progress.events import gain_text, seconds_text, worth_text
from p2pswarm.progress.printable import printable
from p2pswarm.run.manifest import RunOffer
from p2pswarm.run.messages.balance import (
    BalanceStatus,
    MovesTake,
    PastMove,
    ServerPreparing,
)

NOT_ASKED = "nothing was decided yet: servers are looked at after each step"


def balance_lines(offer: RunOffer, status: BalanceStatus | None) -> list[str]:
    """A run in a few lines; `status` is None if its trainer did not answer."""
    lines = [f"run {offer.config.name!r}, rebalancing {offer.config.balance.rule!r}"]
    if status is None:
        return [*lines, "  its trainer does not answer: p2pswarm status may tell why"]
    if status.asked_ago_s is None:
        return [*lines, f"  {NOT_ASKED}"]
    lines += [f"  {line}" for line in _stage_lines(status)]
    lines += [f"  {_preparing_line(one)}" for one in status.preparing]
    lines += [f"  {_move_line(move)}" for move in status.moves]
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
            "balance": _fields(status) if status else None,
        }
        for offer, status in found
    ]
    return json.dumps({"runs": runs}, separators=(",", ":"))


def _fields(status: BalanceStatus) -> dict[str, object]:
    """A status as JSON has it: peer ids as people see them."""
    moves, preparing = map(_with_ids, status.moves), map(_with_ids, status.preparing)
    return {**dataclasses.asdict(status), "moves": [*moves], "preparing": [*preparing]}


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


def _take_line(take: MovesTake) -> str:
    """What a move costs its server, and whether that was measured."""
    waits = f" and waits {take.waits_s:.1f} s for a step" if take.waits_s else ""
    return (
        f"a move takes {seconds_text(take.prepared_s)} if it fetches first{waits}"
        f" ({_measured(take.prepared)}), {seconds_text(take.unprepared_s)} beside its download"
        f" if it leaves first ({_measured(take.unprepared)})"
    )


def _measured(moves: int) -> str:
    return f"by {moves} move{'' if moves == 1 else 's'}" if moves else "not measured yet"


def _move_line(move: PastMove) -> str:
    worth = worth_text(move.gain, move.planned, move.away_s)
    where = f"from stage {move.source} to {move.target}"
    return f"{time_left(move.ago_s)} ago: {PeerId(move.peer).short} moves {where}: {worth}"


def _preparing_line(one: ServerPreparing) -> str:
    where = f"from stage {one.source} to {one.target}"
    begun = f"it has fetched the weights for {time_left(one.since_s)}, and serves on"
    return f"{PeerId(one.peer).short} is to move {where}: {gain_text(one.gain)}; {begun}"
