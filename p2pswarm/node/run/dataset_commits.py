"""The commits of the data sets of the hub that a trainer's text names.

A branch may move while a run lasts for weeks. So each name is pinned before anything is read, and
the folder of `state` keeps what was pinned: a run that is not over goes on with that.
"""

import dataclasses
import json
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small, write_durably
from p2pswarm.data.dataset_files import pinned_dataset
from p2pswarm.node.run.run_folder import RunFolder
from p2pswarm.settings.dataset_name import DatasetName, dataset_name, is_dataset
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import MixturePart

COMMITS_FILE = "datasets.json"
FILE_BYTES_MAX = 1 << 20  # 64 names have a page
DAMAGE = (ValueError, RecursionError, AttributeError)


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
    """Write the commits that `config` has in the place of the names of `asked`."""
    if config.state is None or asked.train == config.train:
        return
    pairs = zip(asked.train.parts, config.train.parts, strict=True)
    said = {str(name.data): str(pinned.data) for name, pinned in pairs if _is_named(name)}
    try:
        write_durably(config.state / COMMITS_FILE, json.dumps(said, indent=1).encode())
    except OSError as error:
        raise Unusable(
            f"{config.state}: {COMMITS_FILE} cannot be written: {error.strerror}"
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
    if config.state is None or train.resume or train.begin_from or not goes_on(config):
        return {}
    file = config.state / COMMITS_FILE
    if not file.is_file():
        return {}
    found = dict[str, str]()
    try:
        said = json.loads(read_small(file, FILE_BYTES_MAX, "it names no texts"))
        for name, pinned in said.items():
            asked, there = dataset_name(name), dataset_name(pinned)
            if not there.is_pinned or there != asked.at(there.revision):
                raise ValueError(pinned)
            found[name] = pinned
    except DAMAGE as error:
        raise Unusable(
            f"{file}: does not say which commits the run reads: restore it from a copy, or remove "
            "it and name them in train.data"
        ) from error
    return found
