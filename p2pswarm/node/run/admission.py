"""Which runs this node may join: those that are open, or the one that it is invited to.

Whoever emulates computing joins no run that trains, because it would spoil the weights.
"""

from collections.abc import Mapping

from p2pswarm.base.ids import PeerId
from p2pswarm.node.run.invitation_text import invitation_of
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.node.run.run_match import readable
from p2pswarm.run.access.grant import is_signed
from p2pswarm.run.access.invitation import Invitation
from p2pswarm.run.manifest import RunOffer
from p2pswarm.settings.config import EMULATED, NodeConfig, RunConfig, ServeConfig


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
    """Return who closed the run of an invitation, if it is offered; empty otherwise."""
    for value in manifests.values() if invitation is not None else ():
        offer = readable(value)
        if offer is not None and not admits(offer, invitation):
            return offer.config.owner
    return ""
