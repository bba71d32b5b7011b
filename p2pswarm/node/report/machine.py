"""Facts of this machine that a report may have, and texts of it that none may have."""

import builtins
import errno
import functools
import getpass
import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from p2pswarm.base.version import version_text
from p2pswarm.node.report.redaction import Redaction, vocabulary_of
from p2pswarm.settings.node_config import NodeConfig

PACKAGE = Path(__file__).parents[2]
LIBRARIES = (
    *("aiohttp", "cryptography", "fsspec", "huggingface_hub", "matplotlib", "msgpack", "numba"),
    *("numpy", "ortools", "pyarrow", "regex", "rich", "safetensors", "tokenizers", "torch"),
    *("transformers", "uvloop", "zstandard"),
)
VERSION = re.compile(
    r"\d{1,4}(\.\d{1,5}){0,4}((a|b|rc|\.?dev|\.?post)\d{1,9})?(\+cpu|\+cu\d{2,3})?"
)
"""What is shown of a version; a build of one's own may have any name."""
RELEASE = re.compile(r"\d{1,3}(\.\d{1,5}){0,2}")
PLAIN_WORD = re.compile(r"[A-Za-z0-9_]{1,16}")
GPU_NAME = re.compile(
    r"(NVIDIA|AMD|Intel|Tesla|GeForce|Quadro|Radeon|Apple)[\w ().-]{0,60}", re.ASCII
)
KEY_BYTES_MAX = 4_096  # of a key or an invitation; a larger file is none
SYSTEMS = {"Linux", "Darwin", "Windows", "FreeBSD"}


def facts(gpus: Iterable[str] = ()) -> dict[str, object]:
    """Versions and sizes; nothing in it was chosen by the user."""
    release, kind = RELEASE.match(platform.release()), PLAIN_WORD.fullmatch(platform.machine())
    return {
        "version": version_text(),
        "python": platform.python_version(),
        "system": platform.system() if platform.system() in SYSTEMS else "another",
        "release": release[0] if release else "unknown",
        "machine": kind[0] if kind else "unknown",
        "processors": os.cpu_count(),
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
        "gpus": [name if GPU_NAME.fullmatch(name) else "another" for name in gpus],
    }


def redaction(config: NodeConfig | None, *, named: bool = False) -> Redaction:
    """What a report of this process may have; `named`: the name of the machine, too."""
    own = platform.node()
    secrets = {*os.environ.values(), *_user(), *_contents(config)}
    words = {own, own.partition(".")[0]} - {""}
    return Redaction(
        vocabulary=vocabulary(),
        secrets=frozenset(secrets - words if named else secrets | words),
        home=_home(),
        allowed=frozenset(words if named else ()),
    )


@functools.cache
def vocabulary() -> frozenset[str]:
    """The words of the program's source, of Python's modules and errors, and of the system's."""
    sources = (path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    known = [*sys.stdlib_module_names, *dir(builtins), *LIBRARIES]
    known += [os.strerror(number) for number in errno.errorcode]
    return vocabulary_of([*sources, *known])


@functools.cache
def _version(name: str) -> str:
    """The version of a library; empty if it is not installed."""
    try:
        found = VERSION.match(version(name))
    except PackageNotFoundError:
        return ""
    return found[0] if found else "another"


def _home() -> str:
    """The user's folder; empty if there is none, or it is the root of all."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return ""
    return home if len(home) > 1 else ""


def _user() -> set[str]:
    """The user's name, if the system has one."""
    try:
        return {getpass.getuser()}
    except (OSError, KeyError, ImportError):
        return set()


def _contents(config: NodeConfig | None) -> set[str]:
    """Key and invitation as texts may have them: as they are, and in hex."""
    if config is None:
        return set()
    found: set[str] = set()
    for file in (config.key_file, Path(config.invite) if config.invite else None):
        try:
            data = b"" if file is None else _head(file)
        except (OSError, ValueError):  # an invitation is often no path, or the key is not there yet
            continue
        found |= {data.hex(), data.decode("latin-1").strip()}
    return found


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(KEY_BYTES_MAX)
