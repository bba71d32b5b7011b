"""The invitation that a node's user gives: as text, or in a file; and where it says to join."""

import dataclasses
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import refuse_pipe
from p2pswarm.run.access.invitation import PREFIX, Invitation, from_text
from p2pswarm.run.access.messages import INVITATION_CHARS_MAX
from p2pswarm.settings.node_config import NodeConfig


def invitation_of(config: NodeConfig) -> Invitation | None:
    """The invitation of the settings: a text, or a file that has it; None if there is none."""
    if not config.invite:
        return None
    if config.invite.startswith(PREFIX):
        return from_text(config.invite)
    try:
        path = Path(config.invite).expanduser()
        refuse_pipe(path)
        with path.open(encoding="utf-8") as file:
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
