"""Writes the root folder of an image that has this Python, some packages and nothing else.

    python slim_root.py SITE ROOT

SITE is a folder of `pip install --target`. Python's own modules and the packages' are kept as
bytecode alone, which loads at once also where nothing can be written.
"""

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

USER = 10_001
LEFT_OUT = (
    *("__pycache__", "site-packages", "dist-packages", "bin", "config-3*", "lib2to3"),
    *("test", "tests", "unittest", "idlelib", "pydoc_data", "ensurepip", "venv", "distutils"),
    *("tkinter", "turtledemo", "curses", "dbm", "sqlite3", "wsgiref", "xmlrpc"),
    *("*.a", "*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "*.js", "*.whl"),
    *("_tkinter*", "_curses*", "readline*", "_dbm*", "_gdbm*", "_sqlite3*", "nis.*", "nis.c*"),
    *("_test*", "xx*", "_xx*", "_codecs_*"),
)
"""What no node loads, nor the libraries that it needs."""
LEXERS = "pygments/lexers"
LEXERS_KEPT = {"__init__.py", "_mapping.py", "python.py", "special.py"}
"""rich colours Python's errors, and no node shows another language."""
LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)")
PASSWD = f"root:x:0:0::/:/bin/false\np2pswarm:x:{USER}:{USER}::/state:/bin/false\n"
GROUP = f"root:x:0:\np2pswarm:x:{USER}:\n"
NAMES = "hosts: files dns\n"
"""How names become addresses; the runtime brings /etc/hosts and /etc/resolv.conf."""
RESOLVERS = ("libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2")
"""glibc opens these by name, so no file names them as needed."""


def libraries(files: Iterable[Path]) -> set[Path]:
    """The shared libraries that these files need, and theirs."""
    found: set[Path] = set()
    for file in files:
        said = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        found.update(map(Path, LIBRARY.findall(said)))
    return found


def copy(file: Path, root: Path) -> None:
    """Copy one file to its own place below `root`."""
    there = root / file.relative_to("/")
    there.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, there, follow_symlinks=True)


def copy_modules(source: Path, there: Path, optimize: int = 0) -> None:
    """Copy modules, and leave their bytecode in the place of their text.

    `optimize`: 2 leaves out what a program says of itself: docstrings and assertions.
    """
    ignore = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(source, there, ignore=ignore, symlinks=False, dirs_exist_ok=True)
    for lexer in (there / LEXERS).glob("*.py"):
        if lexer.name not in LEXERS_KEPT:
            lexer.unlink()
    if not compileall.compile_dir(there, quiet=1, legacy=True, workers=1, optimize=optimize):
        sys.exit(f"{source}: some modules cannot be compiled")
    for text in there.rglob("*.py"):
        text.unlink()


def main(site: Path, root: Path) -> None:
    """Write the folder."""
    python = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    copy(python, root)
    copy_modules(stdlib, root / stdlib.relative_to("/"), optimize=2)
    copy_modules(site, root / "p2pswarm")
    binaries = [python, *root.rglob("*.so")]
    needed = libraries(binaries)
    folders = {library.parent for library in needed}
    needed |= {f / name for f in folders for name in RESOLVERS if (f / name).exists()}
    for library in sorted(needed):
        copy(library, root)
    (root / "bin").mkdir(exist_ok=True)
    (root / "bin/python").symlink_to(python)
    (root / "etc").mkdir(exist_ok=True)
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("nsswitch.conf", NAMES)):
        (root / "etc" / name).write_text(text)
    for folder, mode in (("tmp", 0o1777), ("state", 0o700)):
        (root / folder).mkdir(mode=mode)
        (root / folder).chmod(mode)
    shutil.chown(root / "state", USER, USER)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
