"""Say what is wrong with a release: tag, version and the changelog's newest heading are one.

python .ci/check_release.py v0.1.0
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNRELEASED = "Unreleased"


def newest_heading(changelog: str) -> str:
    """The first heading of a changelog's second level: a version, or "Unreleased"."""
    found = re.search(r"^## \[?([^\]\n]+?)\]?(?: - .*)?$", changelog, re.MULTILINE)
    return found[1] if found else ""


def problems(tag: str, version: str, changelog: str) -> list[str]:
    """What keeps a release from being made; `tag` is empty while none is."""
    heading = newest_heading(changelog)
    found = []
    if tag and tag != f"v{version}":
        found.append(f"the tag is {tag}, and p2pswarm/base/version.py says {version}")
    if heading != version and (tag or heading != UNRELEASED):
        found.append(f"CHANGELOG.md begins with {heading!r}, and the version is {version}")
    return found


def main() -> int:
    """Print the problems of this clone; returns the exit code."""
    sys.path.insert(0, str(ROOT))
    from p2pswarm.base.version import VERSION  # noqa: PLC0415  of this clone, not of an installed one

    found = problems(sys.argv[1], VERSION, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    for each in found:
        print(f"error: {each}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
