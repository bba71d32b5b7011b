"""The name of this machine, for people: what its owner calls it, or else what the system does."""

import socket

from p2pswarm.progress.printable import printable
from p2pswarm.settings.node_config import NAME_CHARS_MAX, NodeConfig

NAMELESS = "unnamed"


def machine_name(config: NodeConfig) -> str:
    """The name in the settings, or the host's; printable, and never empty."""
    name = config.name or socket.gethostname()
    return printable(name.strip()[:NAME_CHARS_MAX]) or NAMELESS
