"""A trainer's folder for its state: which run it takes part in, its chain file, its key."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.base.files import refuse_pipe, write_durably
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.chain_file import ChainFile
from p2pswarm.run.chain.chain_log import Restored
from p2pswarm.run.manifest import NONCE_BYTES, RunIdentity
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.parser import run_from_json, run_to_json
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

RUN_FILE = "run.json"
TRIAL = "trial.part"
FILE_BYTES_MAX = 1 << 20
DIGEST_BYTES = 32
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading JSON raises that something else wrote."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The run that the folder names."""

    identity: RunIdentity
    finished: bool
    resumed: ResumedFrom | None = None
    """The place of the checkpoint that the run goes on from, as this trainer was told."""


class RunFolder:
    """The folder of the setting `state`; one node uses it at a time.

    `run.json` says which run it is and whether it is over. It is written after the chain file was
    made, so a run that it names has one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> SavedRun | None:
        """The run that is kept here; None if there is none."""
        file = self.path / RUN_FILE
        try:
            refuse_pipe(file)
            with file.open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            fields = json.loads(data)
            identity = _identity(fields)
            return SavedRun(identity, bool(fields["finished"]), _source(fields, identity.origin))
        except (*DAMAGE, BadMessage) as error:
            raise Unusable(
                f"{file} does not describe a run of this version: restore it from a copy, or "
                "begin another run with --new"
            ) from error

    def write(self, saved: SavedRun) -> None:
        """Keep which run this is; it is on the disk when this returns."""
        identity = saved.identity
        fields = {
            "run": run_to_json(identity.config).decode(),
            "corpus": identity.corpus.hex(),
            "nonce": identity.nonce.hex(),
            "founder": identity.founder.hex(),
            "origin": _origin_fields(identity.origin),
            "finished": saved.finished,
        }
        if saved.resumed is not None:
            fields |= {"target": saved.resumed.target, "folder": saved.resumed.folder}
        try:
            write_durably(self.path / RUN_FILE, json.dumps(fields, indent=1).encode())
        except OSError as error:
            raise _unusable(self.path, error) from error

    def has_chain(self, run: bytes) -> bool:
        """Return whether the chain file of a run is here."""
        return self._chain(run).exists()

    def open_chain(self, genesis: Genesis, memory: bytes) -> tuple[ChainFile, Restored]:
        """The chain file of a run; `memory` is for one that is begun now."""
        return ChainFile.open(self._chain(genesis.run), genesis, memory)

    def _chain(self, run: bytes) -> Path:
        return self.path / f"{run.hex()}.chain"


def _identity(fields: dict[str, Any]) -> RunIdentity:
    """Raises ValueError, KeyError, TypeError or BadMessage for what `write` does not write."""
    corpus, nonce, founder = (bytes.fromhex(fields[key]) for key in ("corpus", "nonce", "founder"))
    if (len(corpus), len(nonce), len(founder)) != (DIGEST_BYTES, NONCE_BYTES, DIGEST_BYTES):
        raise ValueError("digests of a wrong size")
    config, origin = run_from_json(fields["run"].encode()), _origin(fields["origin"])
    return RunIdentity(config, corpus, nonce, founder, origin)


def _source(fields: dict[str, Any], origin: RunOrigin | None) -> ResumedFrom | None:
    if origin is None or "target" not in fields:
        return None
    return ResumedFrom(origin, str(fields["target"]), str(fields["folder"]))


def _origin_fields(origin: RunOrigin | None) -> dict[str, Any] | None:
    if origin is None:
        return None
    return {
        "run": origin.run.hex(),
        "version": origin.version,
        "checkpoint": origin.checkpoint.hex(),
        "anew": origin.anew,
        "before": origin.before,
    }


def _origin(fields: dict[str, Any] | None) -> RunOrigin | None:
    if fields is None:
        return None
    run, checkpoint = bytes.fromhex(fields["run"]), bytes.fromhex(fields["checkpoint"])
    anew, before = bool(fields.get("anew", False)), int(fields.get("before", 0))
    return RunOrigin(run, int(fields["version"]), checkpoint, anew, before)


def make_folder(path: Path) -> None:
    """Make the folder if it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error


def try_folder(path: Path, setting: str) -> None:
    """Raise Unusable for a folder that could not be made or written; what is made is removed."""
    made: list[Path] = []
    try:
        made += [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        trial = path / TRIAL
        trial.write_bytes(b"0")
        trial.unlink()
    except OSError as error:
        raise _unusable(path, error, setting) from error
    finally:
        for each in made:
            if each.is_dir():
                each.rmdir()


def _unusable(path: Path, error: OSError, setting: str = "state") -> Unusable:
    return Unusable(
        f"{setting}: {path} cannot be used: {error.strerror or error}; free some space or name "
        "another folder"
    )
