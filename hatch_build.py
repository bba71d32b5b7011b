"""What a build adds: README's links as addresses, and the commit that it was built from.

The project's address is $P2PSWARM_SOURCE_URL, which the release workflow sets. Without one, links
that lead into the clone become plain text, and its pictures are left out. An sdist keeps address
and commit, so a wheel that is built from it equals the one that is built from the clone.
"""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

URL = "P2PSWARM_SOURCE_URL"
ORIGIN = "ORIGIN.json"
COMMIT = "p2pswarm/base/commit.txt"
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
"""A link or a picture of markdown that leads into the clone."""


def absolute(text: str, url: str, version: str) -> str:
    """README for readers elsewhere: links lead to the release's tag at `url`, or are plain text."""

    def there(found: re.Match[str]) -> str:
        picture, label, path = found.groups()
        if not url:
            return "" if picture else label
        return f"{picture}[{label}]({url}/{'raw' if picture else 'blob'}/v{version}/{path})"

    return LINK.sub(there, text)


def origin(root: Path) -> dict[str, str]:
    """The address and the commit: as an sdist keeps them, or as those of a clone are now."""
    kept = root / ORIGIN
    if kept.exists():
        found: dict[str, str] = json.loads(kept.read_text())
        return found
    return {"url": os.environ.get(URL, "").rstrip("/"), "commit": commit(root)}


def commit(root: Path) -> str:
    """The clone's commit, with a plus sign if files differ from it; empty outside of a clone."""
    if not (root / ".git").exists():  # a clone around this folder is another project's
        return ""
    try:
        named = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):  # no git here, or one that refuses the folder
        return ""
    return f"{named}+" if changed else named


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)  # noqa: S603, S607
    return done.stdout.strip()


class Metadata(MetadataHookInterface):
    """Gives the metadata its README and its addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling."""
        root, version = Path(self.root), metadata["version"]
        url = origin(root)["url"]
        text = absolute((root / "README.md").read_text(encoding="utf-8"), url, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {}
        if url:
            metadata["urls"] = {
                "Source": url,
                "Documentation": f"{url}/blob/v{version}/docs/index.md",
                "Changelog": f"{url}/blob/v{version}/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }


class Commit(BuildHookInterface):
    """Adds the commit to a wheel, and the origin to an sdist."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling; `version` is the kind of a wheel."""
        if version == "editable":  # the next commit would make it wrong
            return
        found = origin(Path(self.root))
        self._folder = tempfile.TemporaryDirectory()
        if self.target_name == "sdist":
            text, place = json.dumps(found) + "\n", ORIGIN
        else:
            text, place = f"{found['commit']}\n", COMMIT
        written = Path(self._folder.name) / Path(place).name
        written.write_text(text)
        build_data["force_include"][str(written)] = place

    def finalize(self, version: str, *_: object) -> None:
        """See hatchling."""
        if version != "editable":
            self._folder.cleanup()
