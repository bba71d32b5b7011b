"""A checkpoint's manifest: what is in it, signed by the trainer that wrote it.

It is JSON in one form only: sorted keys, no spaces. So the bytes that were signed are made again
from what was read, and a manifest that is cut or changed anywhere does not verify.

Units:   bytes; hashes, ids and keys are hexadecimal in the file.
Errors:  BadCheckpoint for a manifest that is torn, changed or hostile; OtherCheckpoint for one of
         another version of the program; ValueError for values that cannot be written.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p2pswarm.base.errors import BadCheckpoint, BadMessage, OtherCheckpoint, one_line
from p2pswarm.base.ids import PeerId
from p2pswarm.base.version import VERSION
from p2pswarm.checkpoint.digests import DIGEST_BYTES, PIECE_BYTES_MAX, PIECES_MAX, FileDigest
from p2pswarm.checkpoint.names import CHAIN_NAME, STAGES_MAX, CheckpointId, is_stage_file
from p2pswarm.net.crypto.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, verify
from p2pswarm.net.wire.message import encode
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import RUN_ID_BYTES, OtherRunVersion, stored_run


class Fields:
    """Takes fields out of a JSON object that somebody else may have written, each once, checked.

    `end` refuses what is left. A ValueError names the field.
    """

    def __init__(self, values: object, place: str) -> None:
        """`place` is the object's own name, for errors."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{place or 'the whole'} is not an object")  # noqa: TRY004 - the file's
        self.values: Mapping[str, Any] = values
        self._left = dict(values)
        self._place = place

    def end(self) -> None:
        """Refuse fields that nobody took."""
        if self._left:
            raise self._wrong(min(self._left), "is not known")

    def number(self, name: str, most: int) -> int:
        """A whole number, 0 to `most`."""
        return self._number(name, self._take(name), most)

    def numbers(self, name: str, count: int, most: int) -> list[int]:
        """`count` whole numbers, 0 to `most`."""
        values = self._list(name, count)
        if len(values) != count:
            raise self._wrong(name, f"has {len(values)} entries, not {count}")
        return [self._number(name, value, most) for value in values]

    def real(self, name: str) -> float:
        """A finite number."""
        value = self._take(name)
        if type(value) is not float or not math.isfinite(value):
            raise self._wrong(name, "is not a number")
        return value

    def text(self, name: str, chars_max: int) -> str:
        """A text of at most `chars_max` characters."""
        return self._text(name, self._take(name), chars_max)

    def texts(self, name: str, count_max: int, chars_max: int) -> tuple[str, ...]:
        """At most `count_max` different texts."""
        values = tuple(self._text(name, value, chars_max) for value in self._list(name, count_max))
        if len(set(values)) != len(values):
            raise self._wrong(name, "has an entry twice")
        return values

    def raw(self, name: str, *sizes: int) -> bytes:
        """Bytes written as hexadecimal: of that size; between two sizes, of either or between."""
        text = self._take(name)
        if type(text) is not str or text != text.lower():
            raise self._wrong(name, "is not hexadecimal")
        data = bytes.fromhex(text)
        if not sizes[0] <= len(data) <= sizes[-1]:
            raise self._wrong(name, f"has {len(data)} bytes")
        return data

    def table(self, name: str) -> "Fields":
        """An object."""
        return Fields(self._take(name), self._path(name))

    def optional_table(self, name: str) -> "Fields | None":
        """An object or null."""
        value = self._take(name)
        return None if value is None else Fields(value, self._path(name))

    def tables(self, name: str, count_max: int) -> list["Fields"]:
        """At most `count_max` objects."""
        values = self._list(name, count_max)
        return [Fields(value, f"{self._path(name)}[{i}]") for i, value in enumerate(values)]

    def _take(self, name: str) -> object:
        if name not in self._left:
            raise self._wrong(name, "is missing")
        return self._left.pop(name)

    def _list(self, name: str, count_max: int) -> list[object]:
        values = self._take(name)
        if not isinstance(values, list) or len(values) > count_max:
            raise self._wrong(name, f"is not a list of at most {count_max}")
        return values

    def _number(self, name: str, value: object, most: int) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise self._wrong(name, f"is not a whole number from 0 to {most}")
        return value

    def _text(self, name: str, value: object, chars_max: int) -> str:
        if type(value) is not str or len(value) > chars_max:
            raise self._wrong(name, f"is not a text of at most {chars_max} characters")
        return value

    def _path(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _wrong(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self._path(name)[:80]} {what}")


FORMAT_WITHOUT_ORIGIN = 1  # as it was before there were others
FORMAT = 2  # with an origin
FORMAT_WITH_COST = 3  # of a run whose machines have prices; an origin may be there
FORMATS = FORMAT_WITHOUT_ORIGIN, FORMAT, FORMAT_WITH_COST
TAG = b"p2pswarm-checkpoint-1:"
MANIFEST_BYTES_MAX = 64 << 20  # 256 stages with 1,024 pieces each take 17 MB
COUNT_MAX = 2**62
STEP_MAX = 2**48  # as in a run's messages
SEED_MAX = 2**63 - 1
BLOCKS_MAX = 2**20
FILE_BYTES_MAX = 2**50
COPIES_MAX = 64  # as many replicas as a group has
TEXT_CHARS_MAX = 64
CURRENCY = "currency"
CONFIG_CHARS_MAX = 1 << 20  # as a settings file


@dataclass(frozen=True, slots=True)
class SavedStage:
    """One stage in a checkpoint."""

    stage: int
    stages: int
    """How many stages the run was cut into."""
    first_block: int
    end_block: int
    """The block after the stage's last."""
    state_digest: bytes
    """The digest of weights and moments that the servers of the stage agreed on, 32 bytes."""
    names: tuple[str, ...]
    """Its files; all have the same bytes."""
    digest: FileDigest

    def __post_init__(self) -> None:
        names = self.names
        if not (names and all(is_stage_file(name, self.stage, self.stages) for name in names)):
            raise ValueError(f"stage {self.stage} with the files {', '.join(names)[:100]}")
        if not 0 <= self.first_block < self.end_block:
            raise ValueError(f"stage {self.stage} has blocks {self.first_block}..{self.end_block}")


@dataclass(frozen=True, slots=True)
class RecordsFile:
    """The file of the run's records."""

    size: int
    sha256: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Where the trainer goes on."""

    optimizer_step: int
    """Steps of the optimizer so far; its bias correction depends on the number."""
    next_microbatch: int
    next_learning_rate: float
    """What the schedule gives for the next step."""
    seed: int
    corpus: bytes
    """The SHA-256 of the text that is trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointManifest:
    """All that a checkpoint says of itself."""

    run: bytes
    """The run's id."""
    config: bytes
    """The run's configuration, as `run_to_json` writes it."""
    step: int
    """Commits so far: the version of the weights."""
    head: bytes
    """The hash of the chain's newest record; empty if the run keeps no chain."""
    chain: RecordsFile | None
    cursor: Cursor
    stages: tuple[SavedStage, ...]
    program: str = VERSION
    origin: RunOrigin | None = None
    """What the run began from; None: the first weights."""
    spent: Spent | None = None
    """What the run had cost; None: no price was told."""

    def __post_init__(self) -> None:
        numbers = [(stage.stage, stage.stages) for stage in self.stages]
        if numbers != [(i, len(self.stages)) for i in range(len(self.stages))] or not numbers:
            raise ValueError("its stages are not all there")
        ends = [0, *(stage.end_block for stage in self.stages)]
        if [stage.first_block for stage in self.stages] != ends[:-1]:
            raise ValueError("its stages do not follow one another")
        if len(self.head) not in (0, DIGEST_BYTES):
            raise ValueError(f"a hash of {len(self.head)} bytes")

    def run_config(self) -> RunConfig:
        """The configuration; OtherCheckpoint if another version of the program wrote it."""
        try:
            return stored_run(self.config)
        except OtherRunVersion as error:
            raise OtherCheckpoint(
                f"a checkpoint of {error}; it was written by {self.program}"
            ) from error
        except BadMessage as error:
            raise BadCheckpoint(
                f"a checkpoint with a configuration that is wrong: {error}"
            ) from error

    def id(self) -> CheckpointId:
        """Return what it is a checkpoint of."""
        return CheckpointId(self.run_config().name, self.run, self.step, self.head)


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature is right, and who made it."""

    manifest: CheckpointManifest
    signer: PeerId


def sign(
    manifest: CheckpointManifest, identity: Identity, bytes_max: int = MANIFEST_BYTES_MAX
) -> bytes:
    """The bytes of the manifest's file."""
    values = _values(manifest)
    signature = identity.sign(TAG, _text(values))
    data = _signed_text(values, identity.public_key, signature)
    if len(data) > bytes_max:
        raise ValueError(f"a manifest of {len(data)} bytes, {bytes_max} are allowed")
    return data


def read(data: bytes) -> SignedManifest:
    """Check the bytes of a manifest's file, and its signature."""
    try:
        whole = Fields(json.loads(data), "")
        body = whole.table("manifest")
        key, signature = whole.raw("public_key", KEY_BYTES), whole.raw("signature", SIGNATURE_BYTES)
        whole.end()
        if not verify(key, TAG, _text(body.values), signature):
            raise BadCheckpoint("its signature is wrong: the manifest was changed")
        manifest = _manifest(body)
        _require_one_form(data, _signed_text(_values(manifest), key, signature))
    except (ValueError, RecursionError) as error:
        brief = one_line(error, 120)
        raise BadCheckpoint(f"its manifest is torn or broken: {brief}") from error
    return SignedManifest(manifest, PeerId.of_key(key))


def _signed_text(values: Mapping[str, Any], key: bytes, signature: bytes) -> bytes:
    return _text({"manifest": values, "public_key": key.hex(), "signature": signature.hex()})


def _require_one_form(data: bytes, written: bytes) -> None:
    if data != written:
        raise ValueError("it is not as this program writes one")


def _text(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _values(manifest: CheckpointManifest) -> dict[str, Any]:
    """The manifest as JSON has it."""
    cursor, chain, origin, spent = (
        *(manifest.cursor, manifest.chain),
        *(manifest.origin, manifest.spent),
    )
    return {
        "format": _format(manifest),
        **({} if origin is None else {"origin": _origin_values(origin)}),
        **({} if spent is None else {"origin": origin and _origin_values(origin)}),
        **({} if spent is None else {"spent": dataclasses.asdict(spent)}),
        "program": manifest.program,
        "run": manifest.run.hex(),
        "config": manifest.config.decode(),
        "step": manifest.step,
        "head": manifest.head.hex(),
        "chain": chain and {"name": CHAIN_NAME, "size": chain.size, "sha256": chain.sha256.hex()},
        **dataclasses.asdict(cursor),
        "corpus": cursor.corpus.hex(),
        "stages": [_stage_values(stage) for stage in manifest.stages],
    }


def _format(manifest: CheckpointManifest) -> int:
    """The lowest format that has what the manifest says: earlier releases read it as well."""
    if manifest.spent is not None:
        return FORMAT_WITH_COST
    return FORMAT_WITHOUT_ORIGIN if manifest.origin is None else FORMAT


def _origin_values(origin: RunOrigin) -> dict[str, Any]:
    return {
        "run": origin.run.hex(),
        "version": origin.version,
        "checkpoint": origin.checkpoint.hex(),
        "anew": int(origin.anew),
        "before": origin.before,
    }


def _origin(fields: Fields) -> RunOrigin:
    origin = RunOrigin(
        fields.raw("run", RUN_ID_BYTES),
        fields.number("version", STEP_MAX),
        fields.raw("checkpoint", DIGEST_BYTES),
        bool(fields.number("anew", 1)),
        fields.number("before", STEP_MAX),
    )
    fields.end()
    return origin


def _spent(fields: Fields) -> Spent:
    """Raises ValueError for what no trainer of this program writes."""
    sums = {
        each.name: fields.real(each.name)
        for each in dataclasses.fields(Spent)
        if each.name != CURRENCY
    }
    spent = Spent(fields.text(CURRENCY, TEXT_CHARS_MAX), **sums)
    encode(spent)  # it checks the limits
    fields.end()
    return spent


def _stage_values(stage: SavedStage) -> dict[str, Any]:
    digest = stage.digest
    return {
        "stage": stage.stage,
        "blocks": [stage.first_block, stage.end_block],
        "state_digest": stage.state_digest.hex(),
        "files": list(stage.names),
        "size": digest.size,
        "sha256": digest.sha256.hex(),
        "piece_bytes": digest.piece_bytes,
        "pieces": b"".join(digest.pieces).hex(),
    }


def _manifest(body: Fields) -> CheckpointManifest:
    """Read what `_values` gave; ValueError for anything else."""
    found = body.number("format", COUNT_MAX)
    program = body.text("program", TEXT_CHARS_MAX)
    if found not in FORMATS:
        raise OtherCheckpoint(
            f"a checkpoint of format {found}, written by release {program}; this program reads "
            f"format {max(FORMATS)}: install that release"
        )
    stages = body.tables("stages", STAGES_MAX)
    origin = None
    if found != FORMAT_WITHOUT_ORIGIN:
        origin = (
            body.optional_table("origin") if found == FORMAT_WITH_COST else body.table("origin")
        )
    manifest = CheckpointManifest(
        program=program,
        run=body.raw("run", RUN_ID_BYTES),
        config=body.text("config", CONFIG_CHARS_MAX).encode(),
        step=body.number("step", COUNT_MAX),
        head=body.raw("head", 0, DIGEST_BYTES),
        chain=_chain(body.optional_table("chain")),
        origin=None if origin is None else _origin(origin),
        spent=_spent(body.table("spent")) if found == FORMAT_WITH_COST else None,
        cursor=Cursor(
            optimizer_step=body.number("optimizer_step", COUNT_MAX),
            next_microbatch=body.number("next_microbatch", COUNT_MAX),
            next_learning_rate=body.real("next_learning_rate"),
            seed=body.number("seed", SEED_MAX),
            corpus=body.raw("corpus", DIGEST_BYTES),
        ),
        stages=tuple(_stage(fields, len(stages)) for fields in stages),
    )
    body.end()
    return manifest


def _chain(fields: Fields | None) -> RecordsFile | None:
    if fields is None:
        return None
    if fields.text("name", TEXT_CHARS_MAX) != CHAIN_NAME:
        raise ValueError("chain: another name")
    chain = RecordsFile(fields.number("size", FILE_BYTES_MAX), fields.raw("sha256", DIGEST_BYTES))
    fields.end()
    return chain


def _stage(fields: Fields, stages: int) -> SavedStage:
    first, end = fields.numbers("blocks", 2, BLOCKS_MAX)
    size = fields.number("size", FILE_BYTES_MAX)
    piece_bytes = fields.number("piece_bytes", PIECE_BYTES_MAX)
    pieces = fields.raw("pieces", 0, PIECES_MAX * DIGEST_BYTES)
    if piece_bytes < 1 or len(pieces) != -(-size // piece_bytes) * DIGEST_BYTES:
        raise ValueError("stages: the number of pieces is wrong")
    digest = FileDigest(
        size,
        fields.raw("sha256", DIGEST_BYTES),
        piece_bytes,
        tuple(pieces[i : i + DIGEST_BYTES] for i in range(0, len(pieces), DIGEST_BYTES)),
    )
    saved = SavedStage(
        stage=fields.number("stage", STAGES_MAX),
        stages=stages,
        first_block=first,
        end_block=end,
        state_digest=fields.raw("state_digest", DIGEST_BYTES),
        names=fields.texts("files", COPIES_MAX, TEXT_CHARS_MAX),
        digest=digest,
    )
    fields.end()
    return saved
