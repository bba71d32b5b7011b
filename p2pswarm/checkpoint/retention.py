"""Deletes outdated checkpoints of a run after a new one.

Errors:  NotSaved when the target refuses.
"""

from collections.abc import Mapping

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.catalogue import folders, open_checkpoint
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.names import MANIFEST_NAME, FolderName, is_ours
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.writer import saving
from p2pswarm.settings.node_config import CheckpointConfig


def outdated(
    candidates: Mapping[FolderName, bool], config: CheckpointConfig, newest: int | None = None
) -> list[FolderName]:
    """The checkpoints to delete, the oldest first.

    `candidates`: those of the run, True if the manifest verifies and the files are there.
    `newest`: the step of the one that was just written. A later one is of steps that were taken
    back: it is not counted, and stays.

    Only good ones are counted, and nothing is deleted that is as new as the newest good one: an
    unfinished checkpoint that is newer may be one that is being written.
    """
    present = (name for name in candidates if newest is None or name.step <= newest)
    good = sorted((name for name in present if candidates[name]), reverse=True)
    if not good:
        return []
    kept = set(good[: config.keep_newest])
    if config.keep_every:
        kept |= {name for name in good if name.step % config.keep_every == 0}
    return sorted(name for name in candidates if name not in kept and name.step < good[0].step)


def prune(
    store: CheckpointStore,
    run: bytes,
    config: CheckpointConfig,
    wanted: Wanted,
    newest: int | None = None,
) -> list[str]:
    """Delete what is outdated of a run; returns the names of the folders.

    `wanted.blocks` is what a checkpoint needs to count here, where a folder has only the stages
    that its machine served. Blocks until it is done.
    """
    names = (name for name in folders(store) if name.is_of(run))
    old = outdated({name: _is_good(store, name, wanted) for name in names}, config, newest)
    for name in old:
        with saving(f"{store.place}/{name.text}"):
            files = [entry for entry in store.entries(name.text) if is_ours(entry)]
            files.sort(key=lambda entry: entry != MANIFEST_NAME)  # it no longer counts as there
            store.remove(name.text, files)
    return [name.text for name in old]


def _is_good(store: CheckpointStore, name: FolderName, wanted: Wanted) -> bool:
    try:
        open_checkpoint(store, name.text, wanted)
    except Unusable:
        return False
    return True
