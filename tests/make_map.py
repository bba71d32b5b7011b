"""Write docs/map.md: each module of the package with the first sentence of its docstring.

    make map    # the same as python tests/make_map.py

The page is a function of the source tree alone, and needs nothing but Python.
"""

import ast
import itertools
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "map.md"
OPENING = """\
# Map of the code

Each folder of `p2pswarm/` and its modules, with the first sentence of each docstring.
`make map` writes this page, so edit the docstring and not the page.
[Contributing](contributing.md) answers questions with a file, and
[the glossary](glossary.md) has the terms.
"""


def map_page() -> str:
    """The text of docs/map.md."""
    modules = sorted((ROOT / "p2pswarm").rglob("*.py"), key=lambda path: (path.parent, path.name))
    parts = [OPENING]
    for folder, members in itertools.groupby(modules, key=lambda path: path.parent):
        parts.append(f"## {folder.relative_to(ROOT).as_posix()}/\n")
        sentences = {path.name: sentence(path) for path in members}
        if folder_sentence := sentences.pop("__init__.py", ""):
            parts.append(f"{folder_sentence}\n")
        parts.append("| module | is |\n|---|---|")
        parts += [f"| `{name}` | {is_} |" for name, is_ in sentences.items()]
        parts.append("")
    return "\n".join(parts)


def sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line and as a cell of a table."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(map_page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(map_page().splitlines())} lines")
