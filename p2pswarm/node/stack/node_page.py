"""NodePage: a node's page that browsers can open, and what it says of the machine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from p2pswarm.base.ids import Address
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.node.stack.machine_name import machine_name
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.web.gate import TOKEN_KEY
from p2pswarm.web.own_figures import LinkBytes, Traffic
from p2pswarm.web.run_page import RunPage

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with
INCOMING = "incoming"
STOP = "Ctrl-C in its terminal, or SIGTERM: it hands over what it holds, within {:.0f} s."
FILES = (
    "No. The run's text never comes to a server, only numbers do; nothing executable is sent, and "
    "nothing that a peer says names a file of this machine."
)


class NodePage:
    """A page that browsers can open, and the node's own figures on it."""

    def __init__(
        self, page: RunPage, config: NodeConfig, address: Address, token: str, since: float
    ) -> None:
        """`since`: when this node began, on the wall clock."""
        self.page = page
        self._config = config
        self._address = address
        self._token = token
        self._since = since
        self._traffic = Traffic()
        self.reachable = ""
        """The newest line about how others reach this node."""
        self.of_role: Callable[[], Mapping[str, object]] = dict
        """What the role adds."""
        page.own, page.traffic = self._own, lambda: self._traffic.totals

    @property
    def link(self) -> str:
        """What its owner opens."""
        return page_link(self._address, self._token, "/you" if self.page.role == "stage" else "/")

    @property
    def line(self) -> str:
        """What the node prints; a trainer's has the name of its run before it."""
        other = self._address.host not in ("127.0.0.1", "::1")
        warning = "; it goes over the network in clear (docs/watch.md)" if other else ""
        return f"page {self.link}{warning}"

    def on_line(self, line: str) -> None:
        """Take a line that the node says: some tell how others reach it."""
        if line.startswith("reachable: "):
            self.reachable = line.removeprefix("reachable: ")

    def follow(self, links_of: Callable[[], Iterable[Link]]) -> None:
        """The node is in the swarm: look at its links from now on, once a second."""

        def look() -> None:
            self._traffic.on_links(
                LinkBytes(
                    id(link),
                    path_name(link),
                    link.stats.control_sent_bytes + link.stats.bulk_sent_bytes,
                    link.stats.bulk_received_bytes,
                )
                for link in links_of()
            )

        self.page.look = look

    def _own(self) -> dict[str, Any]:
        return {
            "role": self._config.role,
            "name": machine_name(self._config),
            "state": "in the swarm",
            "since": self._since,
            "up_bytes": self._traffic.sum_of("sent"),
            "down_bytes": self._traffic.sum_of("received"),
            "paths": self._traffic.by_path(),
            "reachable": self.reachable,
            "stop": STOP.format(self._config.serve.grace_s),
            "files": FILES,
            **self._price(),
            **self.of_role(),
        }

    def _price(self) -> dict[str, Any]:
        """What this machine costs, as its owner set it; nothing for one of its own."""
        config = self._config
        of = config.train if config.role == "trainer" else config.serve
        if config.role == "bootstrap" or not of.price_per_hour:
            return {}
        return {"price_per_hour": of.price_per_hour, "currency": of.currency}


def path_name(link: Link) -> str:
    """The kind of a link's path in a word; between two paths it has none.

    How the peer came here only it knows.
    """
    if link.path is None:
        return "none"
    return INCOMING if link.path.kind is None else link.path.kind.name.lower()


def page_link(at: Address, token: str, view: str = "/") -> str:
    """What an owner opens to see a view of the page that listens at an address."""
    here = Address(LOOPBACK, at.port) if at.host in EVERYWHERE else at
    return f"http://{here}{view}?{TOKEN_KEY}={token}"
