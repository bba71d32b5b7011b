"""The commits of the data sets of the hub that a trainer's text names.

A branch may move while a run lasts for weeks. So each name is pinned before anything is read, and
the folder of `state` and the target of checkpoints keep what was pinned: a run that goes on reads
that again.
"""

import dataclasses
import hashlib
import json
import re
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small, write_durably
from p2pswarm.checkpoint.targets import keep_beside, open_store, places_beside
from p2pswarm.data.dataset_files import pinned_dataset
from p2pswarm.node.run.run_folder import RunFolder
from p2pswarm.settings.dataset_name import DatasetName, dataset_name, is_dataset
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import MixturePart

COMMITS_FILE = "datasets.json"
DIGITS = 16  # of a hash, in the name of a file
BESIDE = re.compile(r"datasets\.[0-9a-f]{16}\.json")
FILE_BYTES_MAX = 1 << 20  # 64 names have a page
DAMAGE = (ValueError, RecursionError, AttributeError, TypeError)


def with_commits(config: NodeConfig) -> NodeConfig:
    """The settings with a commit in each name of a data set of the hub."""
    train = config.train
    named = [part.data for part in train.parts if part.data is not None and is_dataset(part.data)]
    if not named:
        return config
    kept = _kept(config)
    commits = {data: Path(kept[str(data)]) for data in named if str(data) in kept}
    now = dict[DatasetName, DatasetName]()  # two texts may be of one data set
    for data in named:
        asked = dataset_name(str(data))
        whole = DatasetName(asked.name, asked.revision)
        if data not in commits:
            now[whole] = now.get(whole) or pinned_dataset(whole)
            commits[data] = asked.at(now[whole].revision).path
    if train.data is not None:
        train = dataclasses.replace(train, data=commits[train.data])
    else:
        parts = tuple(
            dataclasses.replace(part, data=commits.get(part.data, part.data))
            for part in train.mixture
            if part.data is not None
        )
        train = dataclasses.replace(train, mixture=parts)
    return dataclasses.replace(config, train=train)


def keep_commits(asked: NodeConfig, config: NodeConfig) -> None:
    """Write the commits that `config` has in the place of the names of `asked`.

    They go to the folder of `state`, and beside checkpoints under a name that says what is in it.
    """
    if asked.train == config.train:
        return
    pairs = zip(asked.train.parts, config.train.parts, strict=True)
    said = {str(name.data): str(pinned.data) for name, pinned in pairs if _is_named(name)}
    data = json.dumps(said, indent=1, sort_keys=True).encode()
    try:
        if config.state is not None:
            write_durably(config.state / COMMITS_FILE, data)
        if config.checkpoint.target:
            mark = hashlib.sha256(data).hexdigest()[:DIGITS]
            keep_beside(open_store(config.checkpoint.target), f"datasets.{mark}.json", data)
    except OSError as error:
        raise Unusable(
            f"the commits of the text cannot be written to {config.state or ''} "
            f"{config.checkpoint.target}: {error.strerror}"
        ) from error


def _is_named(part: MixturePart) -> bool:
    return part.data is not None and is_dataset(part.data)


def goes_on(config: NodeConfig) -> bool:
    """Return whether the folder of `state` has a run that is not over, and it is to go on."""
    if config.state is None or config.train.new or not config.state.is_dir():
        return False
    saved = RunFolder(config.state).read()
    return saved is not None and not saved.finished


def _kept(config: NodeConfig) -> dict[str, str]:
    """The names with their commits of the run that goes on; empty without one."""
    train = config.train
    if train.begin_from:
        return {}  # a new run, with the newest text
    if train.resume:
        return _beside_checkpoints(train.resume)
    if config.state is None or not goes_on(config):
        return {}
    file = config.state / COMMITS_FILE
    if not file.is_file():
        return {}
    return _commits(read_small(file, FILE_BYTES_MAX, "it names no texts"), str(file))


def _beside_checkpoints(target: str) -> dict[str, str]:
    """The names that lie beside checkpoints, if there is exactly one file of them.

    `target`: of all checkpoints, or a single one.
    """
    for place in places_beside(target):
        store = open_store(place)
        try:
            names = [name for name in store.entries() if BESIDE.fullmatch(name)]
            if len(names) == 1:
                found = store.read(names[0], 0, FILE_BYTES_MAX)
                return _commits(found, f"{store.place}/{names[0]}")
        except OSError as error:
            raise Unusable(f"{store.place}: cannot be read: {error.strerror}") from error
    return {}


def _commits(data: bytes, where: str) -> dict[str, str]:
    found = dict[str, str]()
    try:
        for name, pinned in json.loads(data).items():
            asked, there = dataset_name(name), dataset_name(pinned)
            if not there.is_pinned or there != asked.at(there.revision):
                raise ValueError(pinned)
            found[name] = pinned
    except DAMAGE as error:
        raise Unusable(
            f"{where}: does not say which commits the run reads: restore it from a copy, or remove "
            "it and name them in train.data"
        ) from error
    return found
