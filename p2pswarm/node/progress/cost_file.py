"""What runs have cost, in the folder of `state`: a trainer that is started again adds to it.

Errors:  Unusable for a file that is none, with the remedy.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small, write_durably
from p2pswarm.net.wire.message import encode
from p2pswarm.run.messages.cost import Spent

FILE_BYTES_MAX = 4_096
ENDING = ".cost.json"


def cost_file(state: Path, run: bytes) -> Path:
    """The file of a run."""
    return state / f"{run.hex()}{ENDING}"


def write_cost(path: Path, spent: Spent) -> None:
    """Keep the sums; they are on the disk when this returns. OSError if they cannot be."""
    write_durably(path, json.dumps(dataclasses.asdict(spent), indent=1).encode())


def read_cost(path: Path) -> Spent | None:
    """The sums of a file; None if there is none."""
    if not path.exists():
        return None
    text = read_small(path, FILE_BYTES_MAX, "it has no sums of money")
    try:
        fields: dict[str, Any] = json.loads(text)
        spent = Spent(**{name: _as_written(value) for name, value in fields.items()})
        encode(spent)  # it checks the limits
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Unusable(
            f"{path} does not say what the run has cost: move it away, and the sums begin with the "
            "newest checkpoint's"
        ) from error
    return spent


def _as_written(value: Any) -> Any:
    """A sum may be a whole number where somebody has mended the file by hand."""
    return float(value) if type(value) is int else value
