"""The commands of the owner of a run: invite, list, renew, revoke.

Units:   seconds; times since 1970, UTC.
"""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.commands.arguments import write
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run as run_loop
from p2pswarm.node.run.discovery import looked_up, offered
from p2pswarm.node.run.owner_folder import OwnerFolder
from p2pswarm.node.run.run_folder import RunFolder
from p2pswarm.node.stack.stack import NodeStack, open_stack
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.run.access.grant import ROLES, GrantTerms, day
from p2pswarm.run.access.invitation import SEED_BYTES, as_text, invite_bearer, invite_peer
from p2pswarm.run.access.invitation_book import InvitationBook, InvitationEntry
from p2pswarm.run.access.messages import (
    CLOCK_TOLERANCE_S,
    USES_MAX,
    AccessKnown,
    AccessList,
    TellAccess,
)
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.settings.node_config import NodeConfig

TELL_S = 5.0  # for a trainer to take a list
ANY_PORT = ":0"

log = logging.getLogger(__name__)


def owners_run(config: NodeConfig) -> tuple[OwnerFolder, RunIdentity]:
    """The run in the folder of `state`, whose owner's key is there. Raises Unusable for none."""
    assert config.state is not None, "the command line requires it"
    saved = RunFolder(config.state).read()
    if saved is None or not saved.identity.config.owner:
        what = "no run yet" if saved is None else "a run without an owner"
        raise Unusable(
            f"{config.state} holds {what}: start one with p2pswarm train FILE, or FILE --closed"
        )
    return OwnerFolder(config.state), saved.identity


@contextlib.contextmanager
def opened(folder: OwnerFolder, identity: RunIdentity) -> Iterator[tuple[Identity, InvitationBook]]:
    """The key of the run's owner, locked for this block, and the run's invitations."""
    with folder.key() as owner:
        if owner.public_key.hex() != identity.config.owner:
            raise Unusable(
                f"the owner's key in {folder.path} is not that of run {identity.config.name!r}: "
                "restore it from a copy"
            )
        yield owner, folder.book(identity.run)


def check_asked(role: str, uses: int) -> None:
    """Raise ValueError for an invitation that cannot be; flags are checked before."""
    if role not in ROLES:
        raise ValueError(f"an invitation is for one of {', '.join(ROLES)}, not for {role!r}")
    if not 0 <= uses <= USES_MAX:
        raise ValueError(f"an invitation for {uses} peers; allowed are 1 to {USES_MAX}, or 0: all")


def invite(config: NodeConfig, *, name: str, role: str, uses: int, peer: str, lasts_s: int) -> str:
    """A new invitation, as text; an empty `name` or `peer` is any."""
    (folder, identity), now_s = owners_run(config), int(time.time())
    run, terms = identity.run, GrantTerms(ROLES[role], now_s, now_s + lasts_s, uses)
    with opened(folder, identity) as (owner, book):
        book.drop_expired(now_s)
        name, places = book.free_name(name), _places(config, folder)
        if peer:
            invitation = invite_peer(owner, run, terms, _peer_id(peer), places)
        else:
            invitation = invite_bearer(owner, run, terms, os.urandom(SEED_BYTES), places)
        book.add(name, invitation.grant)
        folder.write_book(run, book)
    return as_text(invitation)


def revoke(config: NodeConfig, whom: str) -> int:
    """Take back what has this name, serial number or peer id, and tell the trainers."""
    folder, identity = owners_run(config)
    with opened(folder, identity) as (owner, book):
        what = book.revoke(whom)
        access = folder.next_list(owner, identity.run, book, time.time())
    return _spread(config, folder, access, f"{what} is revoked")


def renew(config: NodeConfig, whom: str, lasts_s: int) -> int:
    """Let an invitation hold for so long from now, and tell the trainers."""
    (folder, identity), now_s = owners_run(config), int(time.time())
    with opened(folder, identity) as (owner, book):
        entry = book.renew(whom, now_s + lasts_s)
        access = folder.next_list(owner, identity.run, book, now_s)
    what = f"invitation {entry.name!r} is good until {day(entry.not_after)}"
    return _spread(config, folder, access, what)


def listing(config: NodeConfig, *, as_json: bool) -> str:
    """The invitations of a run, a line each; or as one line of JSON."""
    folder, identity = owners_run(config)
    book = folder.book(identity.run)
    if as_json:
        return json.dumps(asdict(book), separators=(",", ":"))
    lines = [f"run {identity.config.name!r}, id {identity.run.hex()}"]
    lines += [_line(entry, time.time()) for entry in book.entries]
    lines += [f"  peer {peer} is revoked" for peer in book.peers]
    if len(lines) == 1:
        lines.append("  nobody was invited yet: p2pswarm invite FILE")
    return "\n".join(lines)


def _line(entry: InvitationEntry, now_s: float) -> str:
    state = "revoked" if entry.revoked else f"until {day(entry.not_after)}"
    if not entry.revoked and now_s > entry.not_after + CLOCK_TOLERANCE_S:
        state = f"expired on {day(entry.not_after)}"
    uses = f", at most {entry.uses} peers" if entry.uses else ""
    whom = f", for {entry.peer}" if entry.peer else ""
    return f"  {entry.name}: {entry.role}, {state}{uses}{whom}; serial {entry.serial}"


def _peer_id(text: str) -> PeerId:
    try:
        return PeerId.parse(text)
    except ValueError as error:
        raise Unusable(f"--peer: {error}") from error


def _places(config: NodeConfig, folder: OwnerFolder) -> tuple[Address, ...]:
    """Return where the run's swarm can be joined."""
    named = tuple(Address.parse(place) for place in config.bootstrap)
    trainer = folder.trainer_address()
    return tuple(dict.fromkeys((*named, *((trainer,) if trainer else ()))))


def _spread(config: NodeConfig, folder: OwnerFolder, access: AccessList, done: str) -> int:
    """Tell the run's trainers a list, and the user how that went; returns the exit code."""
    log_to_stderr(config.log_level)
    places = _places(config, folder)
    told, why = 0, "no node of the swarm is known: add --bootstrap HOST:PORT"
    if places:
        joining = NodeConfig(bootstrap=tuple(map(str, places)), listen=ANY_PORT)
        try:
            told, why = run_loop(_tell_all(joining, access)), "no trainer answers"
        except Unusable as error:
            why = str(error)
    if told:
        trainers = "1 trainer knows" if told == 1 else f"{told} trainers know"
        write(f"{done}; {trainers}, and all members will within seconds\n")
        return 0
    write(f"{done}, and nobody was told ({why}); the trainer reads it when it starts\n")
    return 1


async def _tell_all(config: NodeConfig, access: AccessList) -> int:
    """Tell every trainer that offers the run; returns how many took the list."""
    with identity_from(None) as identity:
        async with open_stack(config, identity, passing=True) as stack:
            trainers = await looked_up(stack, lambda: offered(stack, access.run))
            told = await asyncio.gather(*(_tell(stack, one, access) for one in trainers))
    return sum(told)


async def _tell(stack: NodeStack, trainer: Contact, access: AccessList) -> bool:
    try:
        answer = await stack.rpc.call(trainer, TellAccess(access), TELL_S)
    except SwarmError as error:
        log.info("%s was not told: %s", trainer.address, error)
        return False
    return isinstance(answer, AccessKnown) and answer.version >= access.version
