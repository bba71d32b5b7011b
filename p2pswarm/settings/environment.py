"""Settings from the environment: what a launcher gives to many nodes, and must not show in `ps`.

A flag goes before the environment, and that before the settings file. An empty value is none.
"""

import re
from collections.abc import Mapping

BOOTSTRAP = "P2PSWARM_BOOTSTRAP"
VARIABLES = {"bootstrap": BOOTSTRAP, "invite": "P2PSWARM_INVITE", "name": "P2PSWARM_NAME"}
"""The setting of a node, and where its value may be."""


def from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the settings that are there. Several nodes have commas or spaces between them."""
    found: dict[str, object] = {
        setting: value
        for setting, variable in VARIABLES.items()
        if (value := environ.get(variable, "").strip())
    }
    if "bootstrap" in found:
        found["bootstrap"] = bootstrap_of(environ)
    return found


def bootstrap_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes through which a swarm is joined or asked."""
    return tuple(each for each in re.split(r"[,\s]+", environ.get(BOOTSTRAP, "")) if each)
