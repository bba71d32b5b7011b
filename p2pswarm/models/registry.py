"""Model families by name: functions that make the list of a model's blocks.

Every member of a run makes the blocks itself, from the manifest. So each program must have
registered the run's family, under the same name and with the same code.

    @register("mlp")
    def mlp(config: ModelConfig) -> list[nn.Module]: ...

A block takes what the one before it gave, a tensor or a bundle (`base.Bundle`); the first takes
tokens_BT, the last gives scores_BTV. docs/bundle.md has the rules.

Errors:  Unusable for a family that nobody registered; ValueError for a name that cannot be used.
"""

from collections.abc import Callable, Iterable

from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.packages import function_of, is_place, require
from p2pswarm.models.sliced import sliced
from p2pswarm.settings.config import HF, ModelConfig

NAME_CHARS_MAX = 64  # it is in the manifest and in one line of a terminal

Family = Callable[[ModelConfig], Iterable[nn.Module]]
_FAMILIES: dict[str, Family] = {}


def register(name: str) -> Callable[[Family], Family]:
    """A decorator that makes a function known as the family `name`.

    The same function may be registered again, as when a notebook's cell is run twice.
    """
    if not (0 < len(name) <= NAME_CHARS_MAX and name.isprintable()):
        raise ValueError(f"a family's name has 1 to {NAME_CHARS_MAX} printable characters")

    def keep(build: Family) -> Family:
        known = _FAMILIES.get(name)
        if known is not None and _origin(known) != _origin(build):
            raise ValueError(f"the family {name!r} is registered already, by {_origin(known)}")
        _FAMILIES[name] = build
        return build

    return keep


def family(name: str, package: str = "") -> Family:
    """The function that makes the blocks of a family; `package`: where its code is, if it says."""
    build = _FAMILIES.get(name)
    if build is None and name.startswith(HF):
        build = sliced
    elif build is None and is_place(name):
        build = function_of(name)
    if package:
        require(package)
    if build is None:
        raise Unusable(
            f"no model family {name!r} here, known are {', '.join(sorted(_FAMILIES))}: import the "
            f'module that says @p2pswarm.models.register("{name}") before the node starts'
        )
    return build


def _origin(build: Family) -> str:
    return f"{build.__module__}.{build.__qualname__}"
