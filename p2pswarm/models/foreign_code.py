"""Code of others that makes or is a model: what it raises, as one line for who wrote it.

A family's function and a block's forward are a user's or a library's own. Whatever they raise, the
user is told what it was and in which line of which file, because no traceback is shown.

Errors:  Unusable, one line.
"""

import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from torch import nn

from p2pswarm.config import ModelConfig
from p2pswarm.errors import SwarmError, Unusable

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    OSError,
    RuntimeError,
    SystemExit,
    TypeError,
    ValueError,
)
"""What code that was not written for us raises."""
NOT_THE_USERS = (
    Path(__file__).parents[1],
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
)
"""Where this package, Python and installed libraries lie."""
LINE_CHARS_MAX = 300  # torch's messages have pages


def said(error: BaseException) -> str:
    """What an error is, what its first line says, and which line raised it."""
    what = str(error).strip().partition("\n")[0][:LINE_CHARS_MAX].rstrip(".")
    if isinstance(error, SwarmError):  # ours, and a line of its own
        return what
    place = _place(error.__traceback__)
    return f"{type(error).__name__}{': ' if what else ''}{what}{place}"


def blocks_of(
    build: Callable[[ModelConfig], Iterable[nn.Module]], model: ModelConfig
) -> list[nn.Module]:
    """The blocks that a family's function makes; Unusable where it makes none."""
    try:
        made = build(model)
        blocks = list(made) if isinstance(made, Iterable) else None
    except FAILURES as error:
        raise Unusable(f"the family {model.family!r} cannot be made: {said(error)}") from error
    if blocks is None:
        raise Unusable(
            f"the family {model.family!r} makes {type(made).__name__} and no list of torch modules"
        )
    for number, block in enumerate(blocks):
        if not isinstance(block, nn.Module):
            raise Unusable(
                f"block {number} of family {model.family!r} is {type(block).__name__} and no torch "
                "module"
            )
    return blocks


def _place(trace: TracebackType | None) -> str:
    """The user's file and line: the last that is not of an installed library."""
    found = ""
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_absolute() and not any(path.is_relative_to(each) for each in NOT_THE_USERS):
            found = f" ({path.name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
