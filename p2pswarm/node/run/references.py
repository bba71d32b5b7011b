"""Where a run's references are kept, and of what they are: its text, first weights and rounding.

The file lies in the folder of `state`, or else in the cache, under a digest of all that decides the
numbers. It is written to the target of checkpoints, too, once it is whole.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import write_durably
from p2pswarm.checkpoint.catalogue import open_checkpoint
from p2pswarm.checkpoint.targets import keep_beside, open_store, places_beside
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.pair_corpus import MISSING, PairCorpus
from p2pswarm.data.samples.references import References
from p2pswarm.node.run.run_text import cache_of
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

TAG = b"p2pswarm-references-2:"
DIGITS = 16  # of the key, in the name of a file
ELSEWHERE = ("folder", "hub")  # of the model: where it lies; its files are told by their bytes
FILE_BYTES_MAX = 1 << 30  # 40 million pairs


def with_references(
    config: NodeConfig,
    corpus: Corpus,
    origin: RunOrigin | None = None,
    resumed: ResumedFrom | None = None,
) -> Corpus:
    """The text with its references, as far as they are known; itself for runs without any.

    `origin`: what the run began from; `resumed`: the checkpoint, if its place is known here.
    Unusable for a file of others, and for a run that goes on from a checkpoint without a file.
    """
    if not config.run.objective.refers:
        return corpus
    assert isinstance(corpus, PairCorpus), "the objective takes pairs"
    key = _key(config.run, corpus, origin)
    folders = [config.state, cache_of(config.train)]
    places = [folder / _name(key) for folder in folders if folder is not None]
    place = config.train.references or places[0]
    found = _references(place, key, corpus)
    others = [_references(other, key, corpus) for other in places if other != place]
    goes_on = resumed is not None and not resumed.origin.anew
    if resumed is not None and goes_on and not found.complete:
        others += _of_former(config, corpus, resumed)
    for other in others:
        if other.complete and not found.complete:
            found.keep(0, other.part(0, len(other)))
    if goes_on and not found.complete:
        raise Unusable(MISSING)
    return dataclasses.replace(corpus, references=found)


def check_references(config: NodeConfig, corpus: Corpus) -> None:
    """Raise Unusable for a file of others that `train.references` names; nothing is written."""
    place = config.train.references
    if config.run.objective.refers and place is not None:
        assert isinstance(corpus, PairCorpus), "the objective takes pairs"
        _references(place, _key(config.run, corpus, None), corpus)


def keep_references(config: NodeConfig, corpus: Corpus) -> None:
    """Write references that are whole to the cache, and to the target of checkpoints."""
    references = corpus.references if isinstance(corpus, PairCorpus) else None
    if references is None or not references.complete:
        return
    data, name = references.as_bytes, _name(references.key)
    try:
        cache = cache_of(config.train)
        cache.mkdir(parents=True, exist_ok=True)
        if not (cache / name).exists():
            write_durably(cache / name, data)
        if config.checkpoint.target:
            keep_beside(open_store(config.checkpoint.target), name, data)
    except OSError as error:
        raise Unusable(f"{name} cannot be written: {error.strerror}") from error


def _of_former(config: NodeConfig, corpus: PairCorpus, resumed: ResumedFrom) -> list[References]:
    """Those of the run whose checkpoint it is, which lie beside its checkpoints."""
    manifest = open_checkpoint(open_store(resumed.target), resumed.folder).manifest
    former = manifest.run_config()
    model = dataclasses.replace(former.model, folder=config.run.model.folder)
    key = _key(dataclasses.replace(former, model=model), corpus, manifest.origin)
    place = cache_of(config.train) / _name(key)
    for target in places_beside(resumed.target):
        store = open_store(target)
        try:
            if _name(key) in store.entries():
                place.parent.mkdir(parents=True, exist_ok=True)
                write_durably(place, store.read(_name(key), 0, FILE_BYTES_MAX))
                return [_references(place, key, corpus)]
        except OSError as error:
            raise Unusable(f"{store.place}: cannot be read: {error.strerror}") from error
    return []


def _references(place: Path, key: bytes, corpus: PairCorpus) -> References:
    return References(place, key, len(corpus.train_side), corpus.answers)


def _name(key: bytes) -> str:
    return f"references.{key.hex()[:DIGITS]}.bin"


def _key(run: RunConfig, corpus: Corpus, origin: RunOrigin | None) -> bytes:
    """What the numbers are of.

    What trains has no part in it: adapters begin as nothing. What rounds has, and what the run
    began from.
    """
    model = dataclasses.asdict(run.model)
    for name in ELSEWHERE:
        del model[name]
    codecs = run.codecs
    said = {
        "model": model,
        "first": [run.start, run.seed if run.start == "random" else 0, run.base],
        "precision": [run.precision, run.weight_storage],
        "codecs": [codecs.activation, codecs.activation_keys, codecs.choice, codecs.coarsest],
        "cut": [run.stages, run.cut],
        "weights": _weights(run),
    }
    digest = hashlib.sha256(TAG + corpus.digest())
    digest.update(json.dumps(said, sort_keys=True).encode())
    digest.update(b"" if origin is None else origin.encoded)
    return digest.digest()


def _weights(run: RunConfig) -> list[str]:
    """What the first weights are: a commit of the hub, or each file of a folder by its bytes."""
    folder = run.model.folder
    if run.start == "random":
        return []
    if run.model.hub or folder is None:
        return [run.model.hub]
    found = []
    for file in sorted(folder.glob("*.safetensors")):
        about = file.stat()
        found.append(f"{file.name} {_sha256(file, about.st_size, about.st_mtime_ns)}")
    return found


@functools.cache
def _sha256(file: Path, size: int, changed_ns: int) -> str:
    """Of a file as it is: a base may have 100 GB, and is asked for several times."""
    del size, changed_ns
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
