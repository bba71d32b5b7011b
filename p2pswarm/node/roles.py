"""The roles of a node, by name; torch takes seconds, so a role is imported when it is taken up."""

import importlib
from types import ModuleType

ROLES = {
    "bootstrap": "p2pswarm.node.bootstrap",
    "stage": "p2pswarm.node.serve",
    "trainer": "p2pswarm.node.train",
}


def role_module(name: str) -> ModuleType:
    """Import the module of a role."""
    return importlib.import_module(ROLES[name])
