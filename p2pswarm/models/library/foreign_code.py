"""Code of others that makes or is a model: what it raises, as one line for who wrote it.

A family's function, a block's forward and a library are not ours. Whatever they raise, also a class
of their own, the user is told what it was and in which line of which file, because no traceback is
shown. What our own code raises is our bug, and stays a traceback: the frames of an error tell whose
it is.
"""

import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.settings.config import ModelConfig


class Owner(Enum):
    """Whose a file of code is."""

    OURS = auto()
    PYTHON = auto()
    """Python's own, or made while it runs: it tells nothing of who called it wrongly."""
    TORCH = auto()
    LIBRARY = auto()
    USER = auto()


OTHERS = frozenset({Owner.LIBRARY, Owner.USER})
FOLDERS = (
    (Path(__file__).parents[2], Owner.OURS),
    (Path(torch.__file__).parent, Owner.TORCH),
    (Path(sysconfig.get_path("purelib")), Owner.LIBRARY),
    (Path(sysconfig.get_path("platlib")), Owner.LIBRARY),
    (Path(sysconfig.get_path("stdlib")), Owner.PYTHON),
)
"""The first that a file lies in counts: some lie in others."""
LINE_CHARS_MAX = 300  # torch's messages have pages
CALLING_FRAMES = 2  # `foreign` itself and the block that it is round
Frame = tuple[Owner, str, int]
"""Whose it is, its file's name and the line."""


@contextmanager
def foreign(what: str, remedy: str = "") -> Iterator[None]:
    """Inside, code of others is called; what it raises is told as `what` and the error.

    A SwarmError and what our own code raises pass as they are.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if not (is_foreign(error) or _could_not_be_called(error)):
            raise
        raise Unusable(f"{what}: {said(error)}{remedy}") from error


def is_foreign(error: BaseException) -> bool:
    """Return whether code of others raised an error, to where this is asked.

    The last frame tells. In ours it is still theirs if they called us with what cannot be, or if
    torch raised it, whose C code has no frames.
    """
    if isinstance(error, SwarmError):
        return False
    frames = [frame for frame in _frames(error.__traceback__) if frame[0] is not Owner.PYTHON]
    if not frames or frames[-1][0] is not Owner.OURS:
        return True
    if isinstance(error, AssertionError):
        return False
    return isinstance(error, RuntimeError) or any(owner in OTHERS for owner, _, _ in frames)


def _could_not_be_called(error: BaseException) -> bool:
    """Return whether the call itself failed: a wrong argument or name has no frame of its own."""
    ours = [frame for frame in _frames(error.__traceback__) if frame[0] is not Owner.PYTHON]
    return len(ours) <= CALLING_FRAMES and not isinstance(error, SwarmError | AssertionError)


def said(error: BaseException) -> str:
    """An error's class, the first that it says, and the line that raised it."""
    what = _first_sentence(str(error))[:LINE_CHARS_MAX].rstrip(".")
    if isinstance(error, SwarmError):  # ours, and a line of its own
        return what
    return f"{type(error).__name__}{': ' if what else ''}{what}{_place(error.__traceback__)}"


def _first_sentence(text: str) -> str:
    """Its first line, and the next ones as long as each announces them with a colon."""
    lines = iter([line.strip() for line in text.splitlines() if line.strip()])
    found = next(lines, "")
    while found.endswith(":") and (more := next(lines, "")):
        found = f"{found} {more}"
    return found


def blocks_of(
    build: Callable[[ModelConfig], Iterable[nn.Module]], model: ModelConfig
) -> list[nn.Module]:
    """The blocks that a family's function makes; Unusable where it makes none."""
    with foreign(f"the family {model.family!r} cannot be made"):
        made = build(model)
        blocks = list(made) if isinstance(made, Iterable) else None
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
    """The user's file and line, the last of those; else the last of a library other than torch."""
    frames = _frames(trace)
    for owner in (Owner.USER, Owner.LIBRARY):
        for whose, file, line in reversed(frames):
            if whose is owner:
                return f" ({file}, line {line})"
    return ""


def _frames(trace: TracebackType | None) -> list[Frame]:
    """The frames of an error, from where it was caught to where it was raised."""
    found = []
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        found.append((_owner(path), path.name, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _owner(path: Path) -> Owner:
    if not path.is_absolute():  # such as <string> and <frozen importlib._bootstrap>
        return Owner.PYTHON
    return next((owner for folder, owner in FOLDERS if path.is_relative_to(folder)), Owner.USER)
