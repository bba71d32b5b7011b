"""Settings from the environment: what a launcher gives to many nodes, and must not show in `ps`.

A flag goes before the environment, and that before the settings file. An empty value is none.
"""

import re
from collections.abc import Mapping
from typing import Any

VARIABLES = {
    "bootstrap": "P2PSWARM_BOOTSTRAP",
    "invite": "P2PSWARM_INVITE",
    "name": "P2PSWARM_NAME",
}
"""The setting of a node, and where its value may be."""


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that are there. Several nodes have commas or spaces between them."""
    found: dict[str, Any] = {
        setting: value
        for setting, variable in VARIABLES.items()
        if (value := environ.get(variable, "").strip())
    }
    if "bootstrap" in found:
        nodes = re.split(r"[,\s]+", found["bootstrap"])
        found["bootstrap"] = [each for each in nodes if each]
    return found
