"""Which files of the package an input enters: the path that a reader of it has to walk."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import p2pswarm

PACKAGE = Path(p2pswarm.__file__).parent


def files_entered(act: Callable[[], object]) -> list[str]:
    """The files whose functions `act` calls, itself or through others; in order of first entry.

    A file counts once a function of it is called on this thread. What a dataclass generates has no
    file, and the standard library does not count.
    """
    with tracing() as entered:
        act()
    return list(entered)


@contextmanager
def tracing() -> Iterator[dict[str, None]]:
    """Collect the files that this thread enters in the block, also in tasks of its event loop."""
    entered: dict[str, None] = {}

    def on_event(frame: FrameType, event: str, _value: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            entered[Path(path).relative_to(PACKAGE).as_posix()] = None

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield entered
    finally:
        sys.setprofile(before)
