"""Reads TOML and JSON into the dataclasses of `settings/config.py`, and writes a run's manifest.

One walk over the dataclasses' own types finds unknown keys, wrong types and values outside
the limits that a type carries. So a new field needs no new code.

Errors:  Unusable for a user's file, BadMessage for a peer's manifest: one line with the key
         and what is allowed. OtherRunVersion for a manifest of another version of the program.
"""

import dataclasses
import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, TypeVar

from p2pswarm.base.errors import BadMessage, Unusable, one_line
from p2pswarm.base.files import refuse_pipe
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.changes import SHORT_FOR, changed, keys_of
from p2pswarm.settings.config import HF, STARTS, ModelConfig, RunConfig
from p2pswarm.settings.dataset_name import dataset_name, is_dataset
from p2pswarm.settings.limits import (
    BYTES,
    LONG_NAME,
    TRAIN,
    Between,
    Currency,
    Notice,
    OneOf,
    Text,
    TextPlace,
    Tokenizing,
    Wandb,
    hub_name,
    is_pinned,
    names_fit,
)
from p2pswarm.settings.names import unknown
from p2pswarm.settings.node_config import NodeConfig, ServeConfig
from p2pswarm.settings.service_hours import HoursText, LeaveWhen
from p2pswarm.settings.train_config import TrainConfig

RUN_VERSION = 16  # rises when a manifest's meaning, a run's arithmetic or its messages change
# of files; arithmetic as since 5, but for int-grid in a run with another's moments, and the
# correction of a delay, which are of 16
STORED_VERSIONS = RUN_VERSION, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5
NEWER_SETTINGS = {
    "strangers": 7,
    "codecs.exact": 8,
    "codecs.choice": 8,
    "codecs.coarsest": 8,
    "codecs.last_boundary": 8,
    "delay": 9,
    "delay_correction": 9,
    "codecs.averaging_rank": 10,
    "model.router_loss": 11,
    "model.document_begin": 12,
    "base": 12,
    "frozen": 12,
    "adapter": 12,
    "objective": 12,
}
"""Settings of a run, and the version that they came with."""
RUN_VERSION_MAX = 65_535  # a version is a small number: one a release at most
RUN_BYTES_MAX = 120 * 1024  # its JSON; with a trainer's card it is a message of several frames
RUN_TAG = b"p2pswarm-run-2:"
RUN_ID_BYTES = 16
SHORT = '; model = "NAME" is short for family = "NAME" in [run.model], optimizer = "NAME" for name'
TWICE = "Cannot overwrite", "Cannot declare"  # how `tomllib` says that a key is there already
SETTINGS_BYTES_MAX = 1 << 20  # a settings file has a page of text; anything larger is another file
BUDGET = "budget"  # in [train]; people look for it in [run], where it is read as well
FLOAT_MAX = 1 << 1023  # larger whole numbers do not fit a float
SHOWN_CHARS = 60  # at most so much of a wrong value, so that the message stays one line


T = TypeVar("T")


class OtherRunVersion(BadMessage):
    """A manifest of another version of the program; what else it says cannot be read."""

    def __init__(self, found: int, ours: int) -> None:
        super().__init__(
            f"a run of version {found}; this program speaks version {ours}: "
            "install the same release on both sides"
        )


def load(path: Path | None, changes: Sequence[str] = ()) -> NodeConfig:
    """Read a node's settings; paths in the file, and in changes, are relative to its folder.

    `changes`: KEY=VALUE, in the place of what the file says. Without a file, all else is default.
    """
    table = {} if path is None else read_table(path)
    if "device" in table:
        raise Unusable(f"{path}: a file of devices, for p2pswarm plan: name a node's settings")
    try:
        table = changed(table, changes)
    except ValueError as error:
        raise Unusable(f"--set: {error}") from error
    try:
        return _build(NodeConfig, table, "", Path() if path is None else path.parent)
    except ValueError as error:
        said = str(error)
        typed = path is None or any(said.startswith(key) for key in keys_of(changes))
        raise Unusable(f"{'--set' if typed else path}: {said}") from error


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file; Unusable says in one line why it is none."""
    try:
        refuse_pipe(path)
        with path.open("rb") as file:
            text = file.read(SETTINGS_BYTES_MAX + 1)
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror}; name another file") from error
    if len(text) > SETTINGS_BYTES_MAX:
        raise Unusable(f"{path}: larger than {SETTINGS_BYTES_MAX} bytes: not a settings file")
    try:
        return tomllib.loads(text.decode("utf-8-sig"))  # some editors begin a file with a BOM
    except UnicodeDecodeError as error:
        raise Unusable(f"{path}: not TOML: not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        what = one_line(error)
        if what.startswith(TWICE):
            what = f"something stands there twice: {what}{SHORT}"
        raise Unusable(f"{path}: not TOML: {what}") from error


def from_values(kind: type[T], values: Mapping[str, object], key: str = "") -> T:
    """Make a `kind` from Python values, checked like a settings file; a dataclass is a table.

    `key` is the place that the values would have in the file. ValueError names the wrong key.
    """
    return _build(kind, {name: _as_in_a_file(value) for name, value in values.items()}, key, Path())


def run_to_json(run: RunConfig, version: int = RUN_VERSION) -> bytes:
    """The canonical JSON of a run: the same run gives the same bytes everywhere."""
    settings = dataclasses.asdict(run)
    for place in [place for place, since in NEWER_SETTINGS.items() if version < since]:
        table, _, name = place.rpartition(".")
        del (settings[table] if table else settings)[name]
    whole = {"version": version, "run": settings}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def run_from_json(data: bytes, version: int = RUN_VERSION) -> RunConfig:
    """Read what a peer announced, as a program of `version` does.

    Raises OtherRunVersion for a run of another version, BadMessage for all else that
    `run_to_json` does not write.
    """
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a manifest that is not JSON: {one_line(error)}") from error
    if not isinstance(whole, dict) or "version" not in whole:
        raise BadMessage("a manifest without a version")
    found = whole["version"]
    if type(found) is not int or not 0 <= found <= RUN_VERSION_MAX:
        raise BadMessage(f"a manifest whose version is no number from 0 to {RUN_VERSION_MAX}")
    if found != version:
        raise OtherRunVersion(found, version)
    try:
        run = _build(RunConfig, whole.get("run"), "run", Path())
    except ValueError as error:
        raise BadMessage(f"manifest: {error}") from error
    if run.model.folder is not None or run.start not in STARTS:
        raise BadMessage("a manifest that names a folder")
    if run.model.hub and not is_pinned(run.model.hub):
        raise BadMessage("a manifest that names a model of the hub without its commit")
    if run.adapter is not None and not run.adapter.settled:
        raise BadMessage("a manifest whose adapter has patterns in the place of names")
    if run_to_json(run, version) != data:
        raise BadMessage("a manifest that is not in canonical form")
    return run


def stored_run(data: bytes) -> RunConfig:
    """Read the run of a checkpoint or of a file of weights; as `run_from_json`.

    An earlier version is read if the settings of a run meant the same then.
    """
    for version in STORED_VERSIONS[1:]:
        with suppress(OtherRunVersion):
            return run_from_json(data, version)
    return run_from_json(data)


def run_id(
    config: bytes,
    corpus: bytes = b"",
    nonce: bytes = b"",
    founder: bytes = b"",
    origin: bytes = b"",
) -> bytes:
    """A run's 16-byte id: a hash of all that makes it this run and no other.

    `config` is what `run_to_json` wrote, `corpus` the digest of the text. `nonce` is drawn when the
    run first starts, so that two runs of one file and one text are two. `founder` is the peer id
    of the trainer that makes it, `origin` names the checkpoint that it goes on from. Without text,
    as in a simulation, they may be empty.
    """
    named = (corpus, nonce, founder, origin)
    parts = [RUN_TAG, *(len(part).to_bytes(1) + part for part in named), config]
    return hashlib.sha256(b"".join(parts)).digest()[:RUN_ID_BYTES]


def _as_in_a_file(value: object) -> object:
    match value:
        case tuple() | list():
            return [_as_in_a_file(each) for each in value]
        case PurePath():
            return str(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {each.name: _as_in_a_file(getattr(value, each.name)) for each in fields}
        case _:
            return value


def _build(kind: type[T], table: object, key: str, base: Path) -> T:
    """An instance of the dataclass `kind`; ValueError names the wrong key."""
    table = _in_full(kind, table, base)
    if not isinstance(table, Mapping):
        raise ValueError(f"{key} is a table, not {_show(table)}")  # noqa: TRY004 - the user's, not ours
    hints = typing.get_type_hints(kind, include_extras=True)
    values = {}
    for name, value in table.items():
        path = f"{key}.{name}" if key else str(name)
        if name not in hints:
            raise ValueError(unknown(key, str(name), sorted(hints)))
        values[name] = _convert(hints[name], value, path, base)
    for setting in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = setting.default is setting.default_factory is dataclasses.MISSING
        if required and setting.name not in values:
            raise ValueError(f"{key}.{setting.name} is missing: it has no default, give one")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{key}: {error}" if key else str(error)) from error


def _in_full(kind: type, table: object, base: Path) -> object:
    if isinstance(table, str) and kind in SHORT_FOR:
        table = {SHORT_FOR[kind]: table}
    if not isinstance(table, Mapping):
        return table
    if kind is RunConfig:
        return _run_table(table, base)
    if kind is TrainConfig:
        return _train_table(table, base)
    changes = {
        NodeConfig: _node_table,
        ModelConfig: _model_table,
        ServeConfig: _serve_table,
        AdapterConfig: _adapter_table,
    }
    return changes[kind](table) if kind in changes else table


def _node_table(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's budget is the trainer's own setting: no manifest tells others what may be spent."""
    run, train = table.get("run"), table.get("train", {})
    if not isinstance(run, Mapping) or BUDGET not in run or not isinstance(train, Mapping):
        return table
    if BUDGET in train:
        raise ValueError("run.budget and train.budget are both given: leave one out")
    left = {name: value for name, value in run.items() if name != BUDGET}
    return {**table, "run": left, "train": {**train, BUDGET: run[BUDGET]}}


def _model_table(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """`hf:` names a folder, or a model of the hub."""
    family, folder = table.get("family"), table.get("folder")
    if isinstance(family, str) and family.startswith(HF) and not (table.get("config") or folder):
        place = family.removeprefix(HF)
        if not place:
            raise ValueError('run.model "hf:" names nothing: "hf:FOLDER", or "hf:NAME" of the hub')
        named = {"hub": place} if hub_name(place) else {}  # if there is no such folder
        return {**table, "family": HF.rstrip(":"), "folder": place, **named}
    return table


def _run_table(table: Mapping[str, Any], base: Path) -> Mapping[str, Any]:
    """First weights of the user's own are relative to the file, as other paths are."""
    start = table.get("start")
    if not isinstance(start, str) or start in STARTS or not start or "\0" in start:
        return table
    return {**table, "start": str(base / start)}


def _adapter_table(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Patterns may be a table, as in PEFT's own file: { "q_proj" = 8 }."""
    listed = {
        name: [f"{pattern}={number}" for pattern, number in sorted(of.items())]
        for name in ("rank_pattern", "alpha_pattern")
        if isinstance(of := table.get(name), Mapping)
    }
    return {**table, **listed}


def _serve_table(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Pretrained weights are in a folder, or `hf:NAME` on the hub."""
    place = table.get("pretrained")
    if not isinstance(place, str) or not place.startswith(HF):
        return table
    if hub_name(place.removeprefix(HF)) is None:
        raise ValueError(
            f'serve.pretrained is a folder, or "hf:NAME" with a name of the hub, not {_show(place)}'
        )
    return {**table, "pretrained": "", "hub": place.removeprefix(HF)}


def _train_table(table: Mapping[str, Any], base: Path) -> Mapping[str, Any]:
    """The folder of a tokenizer is relative to the file, as other paths are.

    A name of the hub begins with `hf:`, which OWNER/NAME gets where there is no such folder.
    """
    name = table.get("tokenizer")
    if not isinstance(name, str) or name == BYTES or name.startswith(TRAIN) or not name:
        return table
    if name.startswith(HF) and hub_name(name.removeprefix(HF)):
        return table
    name = name.removeprefix(HF)
    path = PurePath(name) if "\0" in name or name.startswith("~") else base / name
    if "/" in name and hub_name(name) and not (base / name).exists():
        return {**table, "tokenizer": f"{HF}{name}"}
    return {**table, "tokenizer": str(path)}


def _convert(hint: Any, value: object, key: str, base: Path) -> object:
    """Convert `value` to the type `hint`, and check the limit that an Annotated carries."""
    limit = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, limit = typing.get_args(hint)[:2]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return _convert_union(hint, limit, value, key, base)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, key, base)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{key} is a list, not {_show(value)}")
        of = typing.get_args(hint)[0]
        return tuple(_convert(of, item, f"{key}[{i}]", base) for i, item in enumerate(value))
    return _convert_scalar(hint, limit, value, key)


def _convert_union(hint: Any, limit: object, value: object, key: str, base: Path) -> object:
    arms = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
    lists = [arm for arm in arms if typing.get_origin(arm) is tuple]
    of = lists[0] if lists and isinstance(value, list) else arms[0]
    if value is None and len(arms) < len(typing.get_args(hint)):
        return None
    if of is Path:
        text = str(_convert_scalar(str, None, value, key))
        if "\0" in text:
            raise ValueError(f"{key} is a path, not {_show(value)}")
        if isinstance(limit, TextPlace) and is_dataset(text):
            return _dataset_path(text, key)
        if not names_fit(text):
            raise ValueError(f"{key} has {LONG_NAME}")
        try:
            return base / Path(text).expanduser() if text else None
        except RuntimeError as error:
            raise ValueError(f"{key}: {_show(value)}: there is no such user") from error
    found = _convert(of, value, key, base)
    if isinstance(limit, Notice) and not limit.allows(typing.cast("Any", found)):
        raise ValueError(f"{key} is {limit}, not {_show(value)}")
    return found


def _dataset_path(text: str, key: str) -> Path:
    """The name of a data set of the hub in the place of a path."""
    try:
        return dataset_name(text).path
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _convert_scalar(hint: Any, limit: object, value: object, key: str) -> object:
    if hint is float and type(value) is int and abs(value) < FLOAT_MAX:
        value = float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # many people write a thousand as 1e3
    if type(value) is not hint or not _fits(limit, value):
        raise ValueError(f"{key} is {_allowed(hint, limit)}, not {_show(value)}")
    return value


def _allowed(hint: Any, limit: object) -> str:
    if hint is int and isinstance(limit, Between):
        return limit.whole
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return str(limit or plain[hint])


def _fits(limit: object, value: Any) -> bool:
    match limit:
        case Between(low, high):
            return bool(low <= value <= high)  # false for NaN
        case OneOf():
            return value in limit.choices
        case Tokenizing() | Wandb() | LeaveWhen() | HoursText() | Currency():
            return limit.allows(value)
        case Text(longest, least):
            return least <= len(value) <= longest and value.isprintable()
        case _:
            return True


def _show(value: object) -> str:
    """The user's value, short enough for one line."""
    if isinstance(value, Mapping):
        return "a table"
    text = json.dumps(value, default=str)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
