"""The name of the file of weights that a run writes at its end, and the file that a name means.

The trainer adds the run's name and the step to the name in its settings, so that no file is
overwritten. So the name in the settings means the file that was made of it, if there is one alone.

Errors:  Unusable where no file is meant, or several may be.
"""

import re
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.names import slug
from p2pswarm.settings.config import RunConfig

AVERAGE_ENDING = "-average"
"""The end of the name of a file with the average of weights over time."""
SUFFIX = ".safetensors"
NAMES_SHOWN = 8


def weights_name(path: Path, run: RunConfig, step: int) -> Path:
    """The path of a run's weights of a step: `path` with the run's name and the step in its name.

    So a run that is started again does not come to the file of the run before.
    """
    return path.with_name(f"{path.stem}-{slug(run.name)}-step-{step}{path.suffix}")


def file_of(path: Path) -> Path:
    """The file of weights that a path means: itself, one made of its name, or one in a folder."""
    if path.is_file():
        return path
    if path.is_dir():
        found = sorted(path.glob(f"*{SUFFIX}"))
        if len(found) != 1:
            raise Unusable(f"{path}: a folder: name the file of weights in it ({_there(found)})")
        return found[0]
    found = _made_of(path)
    if len(found) > 1:
        raise Unusable(
            f"{path}: there is no such file, as runs add their name and step: name one "
            f"({_there(found)})"
        )
    if not found:
        raise Unusable(
            f"{path}: there is no such file: name the {SUFFIX} file that a trainer wrote"
        )
    return found[0]


def _made_of(path: Path) -> list[Path]:
    """The files beside `path` that have the names which `weights_name` makes of it."""
    made = rf"{re.escape(path.stem)}-[A-Za-z0-9_-]+-step-[0-9]+(-[0-9]+)?{re.escape(path.suffix)}"
    if not path.parent.is_dir():
        return []
    return sorted(file for file in path.parent.iterdir() if re.fullmatch(made, file.name))


def _there(found: list[Path]) -> str:
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return f"there are: {', '.join(file.name for file in found[:NAMES_SHOWN]) or 'none'}{more}"
