"""Model families by name: functions that make the list of a model's blocks.

Every member of a run makes the blocks itself, from the manifest. So each program must have
registered the run's family, under the same name and with the same code.

    @register("mlp")
    def mlp(config: ModelConfig) -> list[nn.Module]: ...

A block takes what the one before it gave, a tensor or a bundle (`base.Bundle`); the first takes
tokens_BT, the last gives scores_BTV. docs/bundle.md has the rules.

A family may be code of a package: `PACKAGE.MODULE:FUNCTION`, found where this program runs. No
code travels: a manifest names a function and the package that has it, by name and version. A
stranger's manifest could name any function of any module that is installed. So only packages are
imported whose models somebody on this machine asked for: the trainer's own settings, a server's
`serve.packages`, or the package itself, by an entry point of the group `p2pswarm.models`.

Errors:  Unusable, with the remedy, for a family that is not here; ValueError for a name that cannot
         be used.
"""

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence

from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.hf_model import sliced
from p2pswarm.models.library.foreign_code import foreign
from p2pswarm.settings.config import HF, ModelConfig

ENTRY_POINTS = "p2pswarm.models"
PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([A-Za-z0-9][A-Za-z0-9._+!-]*))?")
"""It is shown behind `pip install`, so nothing else may stand in it."""
_trusted: set[str] = set()


class NotTrusted(Unusable):
    """A model's code is of a package that nobody on this machine named."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the run's model is code of the package {package}: this node runs only code that its "
            f'owner names, so set serve.packages = ["{package}"] if you trust it'
        )
        self.package = package


def trust(packages: Iterable[str]) -> None:
    """Let models of these packages be imported; called with what this machine's owner set."""
    _trusted.update(packages)


def check_package(name: str) -> None:
    """Raise Unusable for a package of the settings that is not here; it is not imported."""
    if not name.isidentifier() or importlib.util.find_spec(name) is None:
        raise Unusable(
            f"serve.packages: there is no package {name!r:.60} here: install it, or leave it out"
        )


def is_place(family: str) -> bool:
    """Return whether a family's name names a function of a package."""
    return PLACE.fullmatch(family) is not None and not family.startswith(HF)


def package_of(family: str) -> str:
    """The package that a function is in: the first part of its module's name."""
    return family.partition(":")[0].partition(".")[0]


def requirement_of(family: str) -> str:
    """The function's package as a manifest has it: NAME==VERSION, or NAME if not installed."""
    package = package_of(family)
    names = importlib.metadata.packages_distributions().get(package, ())
    return f"{names[0]}=={importlib.metadata.version(names[0])}" if names else package


def require(requirement: str) -> None:
    """Raise Unusable unless what a manifest names is installed here, in the same version."""
    match = REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise Unusable(f"run.model.package is {requirement!r}, not NAME==VERSION")
    name, version = match.groups()
    if version is None:
        return
    try:
        here = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        here = "none"
    if here != version:
        raise Unusable(
            f"the run's model is of {requirement}, here is {here}: pip install {requirement}"
        )


def function_of(family: str) -> Callable[[ModelConfig], Sequence[nn.Module]]:
    """Import the function that makes the blocks."""
    package = package_of(family)
    if package not in _trusted and package not in _declared():
        raise NotTrusted(package)
    module, _, name = family.partition(":")
    with foreign(f"{family} cannot be imported"):
        try:
            found = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is not None and package_of(error.name) != package:
                raise Unusable(
                    f"{family} imports {error.name}, which is not here: install it beside {package}"
                ) from error
            raise Unusable(
                f"{family}: there is no module {error.name} here: install the package {package} or "
                "put its folder on PYTHONPATH"
            ) from error
    if not callable(found):
        raise Unusable(f"{family} is no function that makes a list of blocks")
    build: Callable[[ModelConfig], Sequence[nn.Module]] = found
    return build


def _declared() -> set[str]:
    """The packages that say themselves that they have models for p2pswarm."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.module.partition(".")[0] for point in points}


NAME_CHARS_MAX = 64  # it is in the manifest and in one line of a terminal

Family = Callable[[ModelConfig], Iterable[nn.Module]]
_FAMILIES: dict[str, Family] = {}


def register(name: str) -> Callable[[Family], Family]:
    """A decorator that makes a function known as the family `name`; it may be used again."""
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
