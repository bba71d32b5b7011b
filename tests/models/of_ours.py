"""Code that seems to stand in a file of the package, as its own bugs would."""

from pathlib import Path

import p2pswarm

FILE = str(Path(p2pswarm.__file__).with_name("a_file_of_ours.py"))


def run_as_ours(code: str, **names: object) -> None:
    """Run it, so that its frames are the package's own."""
    exec(compile(code, FILE, "exec"), dict(names))
