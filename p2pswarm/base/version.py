"""The program's version, which `pyproject.toml` reads from here."""

from pathlib import Path

VERSION = "0.1.0"
COMMIT = Path(__file__).with_name("commit.txt")
"""A build from a clone writes it (hatch_build.py); in a clone itself it would soon be wrong."""


def version_text() -> str:
    """The version for people, with the commit if this was built from one."""
    commit = COMMIT.read_text(encoding="ascii").strip() if COMMIT.exists() else ""
    return f"p2pswarm {VERSION} ({commit})" if commit else f"p2pswarm {VERSION}"
