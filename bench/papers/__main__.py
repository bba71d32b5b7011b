"""Prints the tables of papers: `python bench/papers --table NAME`; see `tables.py`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the folder of this package

from papers.tables import main  # noqa: E402 - found by the line above

if __name__ == "__main__":
    sys.exit(main())
