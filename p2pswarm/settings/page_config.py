"""The settings of a node's page: where a browser finds it, and by which names."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.base.ids import PORT_MAX, Address
from p2pswarm.settings.limits import Text

AUTO, OFF = "auto", "off"
LISTEN_CHARS_MAX = 255  # of a name in DNS, a port too
NAMES_MAX = 16  # by which one machine is opened
PAGE_PORT = 4040  # the peers' port is 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class PageConfig:
    """Where the page is, if there is one."""

    listen: Annotated[str, Text(LISTEN_CHARS_MAX)] = AUTO
    """HOST:PORT, without HOST this machine alone; auto: port 4040 or the next that is free, for
    this machine alone, of trainers and of nodes in a terminal; off: none."""
    names: tuple[str, ...] = ()
    """Other names under which browsers may open it, as a proxy's (docs/watch.md)."""

    def __post_init__(self) -> None:
        if len(self.names) > NAMES_MAX or not all(map(_is_name, self.names)):
            raise ValueError(f"names has at most {NAMES_MAX} names of hosts, without ports")
        if self.listen not in (AUTO, OFF):
            self.address  # noqa: B018 - it is checked here

    @property
    def address(self) -> Address:
        """The address of `listen`, where it is one; ValueError for what is none."""
        host, _, port = self.listen.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        host = "127.0.0.1" if host == "localhost" else host
        if not (_is_address(host) and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
            raise ValueError(
                'listen is "auto", "off", or HOST:PORT with an address of this machine, not '
                f'"{self.listen}"'
            )
        return Address(host, int(port))


def _is_name(name: str) -> bool:
    fits = 0 < len(name) <= LISTEN_CHARS_MAX and name.isascii() and name.isprintable()
    return fits and not set(name) & set("/:@ ")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
