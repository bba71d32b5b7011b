"""The invitation that a node's user gives, and the runs that it may join with it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.node.run.run_match import readable
from p2pswarm.run.access.grant import is_signed
from p2pswarm.run.access.invitation import PREFIX, Invitation, from_text
from p2pswarm.run.access.messages import INVITATION_CHARS_MAX
from p2pswarm.run.manifest import RunOffer
from p2pswarm.settings.config import EMULATED, NodeConfig, RunConfig, ServeConfig

# The invitation that a node's user gives: as text, or in a file; and where it says to join.
#
# Errors:  Unusable, one line with the remedy.


def invitation_of(config: NodeConfig) -> Invitation | None:
    """The invitation of the settings: a text, or a file that has it; None if there is none."""
    if not config.invite:
        return None
    if config.invite.startswith(PREFIX):
        return from_text(config.invite)
    try:
        with Path(config.invite).expanduser().open() as file:
            return from_text(file.read(INVITATION_CHARS_MAX + 1))
    except (OSError, ValueError, RuntimeError) as error:  # Runtime: ~NAME of nobody
        raise Unusable(
            f"the invitation {config.invite[:40]!r} is neither a text that begins with {PREFIX}, "
            "nor a file that has one"
        ) from error


def joining(config: NodeConfig) -> NodeConfig:
    """The settings with the addresses of the invitation, where the user names none."""
    invitation = invitation_of(config)
    if invitation is None or config.bootstrap:
        return config
    if not invitation.addresses:
        raise Unusable("the invitation does not say where to join: add --bootstrap HOST:PORT")
    return dataclasses.replace(config, bootstrap=tuple(map(str, invitation.addresses)))


# Which runs this node may join: those that are open, or the one that it is invited to.
#
# Whoever emulates computing joins no run that trains, because it would spoil the weights.
#
# Errors:  none: why a run cannot be joined is said in words.


def admits(offer: RunOffer, invitation: Invitation | None, me: PeerId | None = None) -> str:
    """Why this node cannot join a run, for its user; empty if it can.

    `me`: our peer id, if it is the same next time: then an invitation can be for it alone.
    """
    name, owner = offer.config.name, bytes.fromhex(offer.config.owner)
    if invitation is not None:
        if offer.run != invitation.run:
            return f"run {name!r} is not the one of the invitation: waiting for that"
        if not is_signed(invitation.grant, owner):
            return f"the invitation was not made by the owner of run {name!r}: ask for another"
    elif owner:
        alone = f" --peer {me}" if me else ""
        return (
            f"run {name!r} is closed: ask its owner for an invitation (p2pswarm invite{alone}), "
            "and start this node with --invite; waiting for an open run"
        )
    return ""


def emulates_otherwise(run: RunConfig, serve: ServeConfig) -> str:
    """Why a server that computes cannot join a run that is emulated, or the other way round."""
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


def owner_of(manifests: Mapping[bytes, bytes], invitation: Invitation | None) -> str:
    """Who closed the run of an invitation, if it is offered; empty otherwise."""
    for value in manifests.values() if invitation is not None else ():
        offer = readable(value)
        if offer is not None and not admits(offer, invitation):
            return offer.config.owner
    return ""
