"""Everything that keeps a node with these settings from beginning, found before it begins.

What is tried is taken back: no file stays but what is prepared of a text, which the run then uses.
"""

import importlib
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address
from p2pswarm.base.problems import Problems
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.node.roles import role_module
from p2pswarm.node.run.run_folder import try_folder
from p2pswarm.node.stack.addresses import places_to_listen
from p2pswarm.settings.node_config import NodeConfig


def problems_of(config: NodeConfig) -> list[str]:
    """All problems, each in one line with its remedy."""
    problems = Problems()
    if config.state is not None:
        with problems.noted():
            try_folder(config.state, "state")
    if config.identity is not None:
        with problems.noted():
            _try_key(config.identity)
    with problems.noted():
        run(_try_ports(config))
    role_module(config.role).check(config, problems)
    return problems.lines


def _try_key(file: Path) -> None:
    """Raise Unusable for a key that cannot be used, or could not be made."""
    if not file.exists():
        try_folder(file.parent, "identity")
        return
    with identity_from(file):
        return


async def _try_ports(config: NodeConfig) -> None:
    """Raise Unusable if this node could not listen where the settings say."""
    net, reason = SocketNet(), None
    for place in places_to_listen(config.listen):
        try:
            listener = await net.listen(place)
        except Unusable as error:
            reason = error
            continue
        host, network = listener.address.host, config.network
        listener.close()
        if network.relay_port:
            (await net.listen(Address(host, network.relay_port))).close()
        if network.relay_web:
            web_socket = importlib.import_module("p2pswarm.net.os.web_socket")
            at = Address(host, network.relay_web)
            async with web_socket.WebUpgrade(network.relay_certificate):
                (await net.listen(at)).close()
        return
    assert reason is not None, "there is a place to listen"
    raise reason
