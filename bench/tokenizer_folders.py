"""Prints which folders of tokenizers are read as `AutoTokenizer` of transformers reads them.

    PYTHONPATH=.:tests python bench/tokenizer_folders.py [--json] [KIND ...]

The folders are made by rule (`tests/data/tokenizer_folders.py`). Token ids of 23 texts, with and
without special tokens in them, and the token that ends a text; or the line that refuses it.
"""

import json
import sys
import tempfile
from pathlib import Path

from data.tokenizer_folders import KINDS, compared, make

SAME, REFUSED = "same", "refused: "


def main(names: list[str]) -> int:
    kinds = [name for name in names if not name.startswith("--")] or list(KINDS)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for number, name in enumerate(kinds):
            found[name] = compared(make(Path(place) / str(number), name)).replace(place, "")
    refused = sum(each.startswith(REFUSED) for each in found.values())
    same = sum(each == SAME for each in found.values())
    if "--json" in names:
        print(json.dumps({"kinds": len(kinds), "same": same, "refused": refused, "each": found}))
    else:
        for name, each in found.items():
            print(f"{name:44} {each}")
        print(f"{len(kinds)} kinds: {same} the same, {refused} refused by name")
    return 0 if same + refused == len(kinds) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
