"""Files of data sets of the hub that we choose, beside those of the library `datasets`.

Repositories are drawn: names of files and folders with and without words for splits, shards, hidden
ones; patterns; and cards with subsets, splits, folders and a default. Of each, both say which files
every split has. The library lists a file twice that two of its patterns find; it is counted once.

    pip install datasets
    python bench/dataset_choice.py --tries 2000 --json choice.json
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import yaml
from datasets.data_files import DataFilesList, get_data_patterns, sanitize_patterns
from datasets.utils.metadata import MetadataConfigs
from results import command_line, write_json

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub_dataset.file_choice import chosen, matching
from p2pswarm.settings.dataset_name import DatasetName

WORDS = ["train", "training", "validation", "valid", "dev", "val", "test", "testing", "eval"]
OTHERS = ["evaluation", "other", "data", "trained", "tests", "x", "0", "v2"]
SPLITS = ["train", "test", "validation", "train_sft", "my.split"]
FOLDERS = ["data", "train", "a-b", "x1", "__p", ".h", "da"]
FILES = ["a.csv", "train-1.csv", "b.json", ".z.csv", "__q.csv", "README.md", "config.json"]
PATTERN_PARTS = ["*", "**", "d*", "data", "*a*", "[dt]*", "x?", ".*", "__*", "train"]
PATTERN_ENDS = ["*.csv", "**", "train-*", "*", "a.csv", "README.md", "*.json", "[ab].*", ".*"]
FILES_MAX = 5


def some_name(rng: Random) -> str:
    """One or two words with something between."""
    return rng.choice("-_. ").join(rng.choice(WORDS + OTHERS) for _ in range(rng.choice([1, 1, 2])))


def some_repository(rng: Random) -> list[str]:
    """Names of the files of a data set."""
    found = set[str]()
    if rng.random() < 0.2:
        for split in rng.sample(SPLITS, 2):
            count = rng.choice([1, 2])
            found |= {f"data/{split}-{n:05d}-of-{count:05d}.csv" for n in range(count)}
    for _ in range(rng.randrange(1, FILES_MAX)):
        folders = [some_name(rng) for _ in range(rng.choice([0, 0, 1, 1, 2]))]
        mark = rng.choice(["", "", "", "", "", "", "", ".", "__"])
        found.add("/".join([*(mark + each for each in folders), f"{some_name(rng)}.csv"]))
    return without_files_as_folders(found | set(rng.sample(["README.md", "dataset_infos.json"], 1)))


def some_tree(rng: Random) -> list[str]:
    """Names of files in several folders, for patterns."""
    depths = (rng.choice([0, 1, 1, 2, 3]) for _ in range(60))
    return without_files_as_folders(
        {"/".join([*rng.choices(FOLDERS, k=depth), rng.choice(FILES)]) for depth in depths}
    )


def without_files_as_folders(names: set[str]) -> list[str]:
    return sorted(n for n in names if not any(other.startswith(f"{n}/") for other in names))


def some_card(rng: Random) -> str:
    """The head of a README.md with subsets."""
    configs = []
    for name in rng.sample(["en", "de", "default", "2024"], rng.choice([1, 1, 2, 3])):
        config: dict[str, object] = {"config_name": name}
        kind = rng.choice(["text", "list", "splits", "folder", "both"])
        paths = ["data/*", "**/train-*", "train/**", "*.csv", "x1/a.csv"]
        if kind == "text":
            config["data_files"] = rng.choice(paths)
        elif kind == "list":
            config["data_files"] = rng.sample(paths, 2)
        elif kind in ("splits", "both"):
            named = {"train": rng.sample(paths, 2), "test": rng.choice(paths)}
            config["data_files"] = [{"split": s, "path": p} for s, p in named.items()]
        if kind in ("folder", "both"):
            config["data_dir"] = rng.choice(["data", "x1", "train"])
        configs.append(config)
    if len(configs) > 1 and rng.random() < 0.3 and "default" not in str(configs):
        configs[0]["default"] = True
    return yaml.safe_dump({"license": "mit", "configs": configs})


def theirs(base: Path, patterns: Sequence[str]) -> list[str]:
    """The files that the library finds."""
    try:
        found = DataFilesList.from_patterns(list(patterns), base_path=str(base))
    except FileNotFoundError:
        return []
    return sorted({os.path.relpath(file, base) for file in found})


def their_splits(base: Path, below: str = "") -> dict[str, list[str]]:
    """The files of each split by their names, as the library says."""
    place = base / below
    try:
        patterns = get_data_patterns(str(place))
    except FileNotFoundError:
        return {}
    found = {split: theirs(place, each) for split, each in patterns.items()}
    return {
        split: [str(Path(below) / file) for file in files if file.endswith(".csv")]
        for split, files in found.items()
    }


def their_card(base: Path, card: str) -> dict[str, list[str]]:
    """The files of each split of each subset, and of the default one, as the library says."""
    found = dict[str, list[str]]()
    configs = MetadataConfigs.from_dataset_card_data(yaml.safe_load(card))
    for name, config in configs.items():
        below = config.get("data_dir", "")
        if config.get("data_files"):
            splits = {
                split: [str(Path(below) / file) for file in theirs(base / below, patterns)]
                for split, patterns in sanitize_patterns(config["data_files"]).items()
            }
        else:
            splits = their_splits(base, below)
        for split, files in splits.items():
            found[f"#{name}:{split}"] = files
            if name == configs.get_default_config_name():
                found[f"#:{split}"] = files
    return found


def ours(names: Sequence[str], subset: str, split: str, card: str = "") -> list[str]:
    """The same of ours; nothing where we refuse."""
    head = f"---\n{card}---\n".encode() if card else b""
    try:
        return list(chosen(DatasetName("o/n", "", subset, split), names, head).files)
    except Unusable:
        return []


def placed(folder: str, names: Sequence[str]) -> Path:
    for name in names:
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    return Path(folder)


def differs(kind: str, rng: Random) -> str:
    """Try one repository; returns what differs, and nothing if both say the same."""
    names = some_repository(rng) if kind == "names" else some_tree(rng)
    if kind == "cards":  # we refuse files of several kinds
        names = [name for name in names if not name.endswith(".json")]
    with tempfile.TemporaryDirectory() as folder:
        base = placed(folder, names)
        if kind == "names":
            both = {
                split: (their_splits(base).get(split, []), ours(names, "", split))
                for split in SPLITS
            }
        elif kind == "patterns":
            inside = rng.choices(PATTERN_PARTS, k=rng.choice([0, 1, 1, 2]))
            pattern = "/".join([*inside, rng.choice(PATTERN_ENDS)])
            both = {pattern: (theirs(base, [pattern]), list(matching(names, pattern)))}
        else:
            card = some_card(rng)
            both = {
                key: (files, ours(names, *key.removeprefix("#").split(":"), card))
                for key, files in their_card(base, card).items()
                if all(file.endswith(".csv") for file in files)
            }
    names = [card, *names] if kind == "cards" else names
    wrong = {key: pair for key, pair in both.items() if pair[0] != pair[1]}
    return f"{kind}: {names}: {wrong}" if wrong else ""


def main() -> int:
    """Try all kinds."""
    parser = command_line(__doc__)
    parser.add_argument("--tries", type=int, default=500, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = Random(options.seed)
    result = {}
    for kind in ("names", "patterns", "cards"):
        wrong = [each for _ in range(options.tries) if (each := differs(kind, rng))]
        print(f"{kind}: {options.tries - len(wrong)} of {options.tries} equal")
        for each in wrong[:5]:
            print(f"  {each}")
        result[kind] = {"tried": options.tries, "different": len(wrong)}
    write_json(options.json, result)
    return 1 if any(each["different"] for each in result.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
