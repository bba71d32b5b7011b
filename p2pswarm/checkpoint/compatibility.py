"""Whether a run may go on from a checkpoint: only if it then computes the same bits.

A new run may begin from one with other settings: `differences_anew` has what then stays. It takes
the weights, and the moments unless they are left behind.

The cut into stages, the codecs and the number of servers may differ. The model, the optimizer, the
batch, the seed and the text may not. Nor may the cut, if the model has modules there. With a delay
sums on a grid need what a state has only in a run with such. A state of sums in low rank has warm
factors of the matrices of some stages, with some rank, so all that says which and how many stays.

Errors:  OtherCheckpoint, which names the first difference and the remedy; BadCheckpoint for a
         configuration that is no configuration.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import OtherCheckpoint
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.checkpoint_manifest import SignedManifest
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import FORMER_SQUARES, POWERSGD, RANDOM, RunConfig

SAME_RUN = (
    *("seed", "emulated", "precision", "weight_storage", "delay", "delay_correction"),
    *("base", "frozen"),
)
KEPT_ANEW = "emulated", "weight_storage", "base", "frozen"
KEPT_WITH_MOMENTS = "delay", "delay_correction"
FREE_ANEW = ("hub", "sequence_length", "documents", "document_end", "router_loss")
"""Of the model: they decide what is computed with its weights, not which there are."""
FREE_OF_ADAPTER = ("dropout",)
NOT_BITS = ("hub",)  # of the model: where first weights lay; a checkpoint has later ones
SAME_BATCH = ("microbatches", "rows", "samples")  # what decides which samples a step has


Pair = tuple[str, object, object]
"""A setting, its value in the checkpoint, and its value here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a reader asks of a checkpoint; what is None is not asked."""

    run: bytes | None = None
    config: RunConfig | None = None
    """A run that is to go on from it, whatever its cut."""
    corpus: bytes | None = None
    """The SHA-256 of the text that the run trains on."""
    signer: PeerId | None = None
    blocks: range | None = None
    """The blocks whose state has to be there; None: all."""
    anew: bool = False
    """The run takes the weights for its version 0; else it goes on at the checkpoint's step."""
    fresh: bool = False
    """It takes no moments."""


def check(signed: SignedManifest, wanted: Wanted) -> None:
    """Raise OtherCheckpoint unless this checkpoint is what is wanted."""
    manifest = signed.manifest
    there = manifest.run_config()
    if wanted.signer is not None and signed.signer != wanted.signer:
        raise OtherCheckpoint(
            f"a checkpoint signed by {signed.signer.short}, not by {wanted.signer.short}: name one "
            "of your own, or ask for no signer"
        )
    if wanted.run is not None and manifest.run != wanted.run:
        raise OtherCheckpoint(
            f"a checkpoint of run {there.name!r} ({manifest.run.hex()[:12]}), not of run "
            f"{wanted.run.hex()[:12]}: name the folder of this run's checkpoints"
        )
    if wanted.config is not None and wanted.anew:
        _check_anew(there, wanted.config, fresh=wanted.fresh)
    elif wanted.config is not None:  # before the text: another tokenizer makes other tokens of it
        _check_config(manifest.step, manifest.cursor.next_learning_rate, there, wanted.config)
    if wanted.corpus is not None and not wanted.anew and manifest.cursor.corpus != wanted.corpus:
        raise OtherCheckpoint(
            f"a checkpoint of run {there.name!r} on another text: name the text that it was "
            "trained on, with the same suffixes and held_out_share, or the same commit of the hub"
        )


def differences(there: RunConfig, here: RunConfig) -> Iterator[str]:
    """The settings that decide the bits of the weights and are not the same, one line each."""
    pairs = [*_pairs(there, here, SAME_RUN), *_adapters(there, here)]
    for table in ("model", "optimizer", "objective", "adapter"):
        pairs += _of_table(there, here, table, NOT_BITS)
    pairs += [(f"batch.{n}", getattr(there.batch, n), getattr(here.batch, n)) for n in SAME_BATCH]
    if FORMER_SQUARES in here.state and FORMER_SQUARES not in there.state:
        pairs.append(("codecs.averaging", there.codecs.averaging, here.codecs.averaging))
    pairs += _low_rank(there, here)
    if here.optimizer.decay_steps == 0 and here.optimizer.schedule != "constant":
        # the schedule then ends with the run
        pairs.append(("steps", there.steps, here.steps))
    yield from _told(pairs)
    yield from _cut_differences(there, here)


def differences_anew(there: RunConfig, here: RunConfig) -> Iterator[str]:
    """The settings that keep a new run from the weights of another, one line each."""
    pairs = [*_pairs(there, here, KEPT_ANEW), *_adapters(there, here)]
    pairs += _of_table(there, here, "model", FREE_ANEW)
    pairs += _of_table(there, here, "adapter", FREE_OF_ADAPTER)
    pairs += _low_rank(there, here)
    drawn_base = here.has_base and here.start == RANDOM
    if here.model.boundary != "none" or drawn_base:  # they depend on the seed, and are not saved
        pairs.append(("seed", there.seed, here.seed))
    yield from _told(pairs)
    yield from _cut_differences(there, here)


def differences_of_moments(there: RunConfig, here: RunConfig) -> Iterator[str]:
    """The settings that keep a new run from the moments of another, one line each."""
    moments = _pairs(there, here, KEPT_WITH_MOMENTS)
    moments.append(("optimizer.name", there.optimizer.name, here.optimizer.name))
    if FORMER_SQUARES in here.state and FORMER_SQUARES not in there.state:
        moments.append(("codecs.averaging", there.codecs.averaging, here.codecs.averaging))
    yield from _told(moments)


def _pairs(there: RunConfig, here: RunConfig, names: Sequence[str]) -> list[Pair]:
    return [(name, getattr(there, name), getattr(here, name)) for name in names]


def _adapters(there: RunConfig, here: RunConfig) -> list[Pair]:
    """Whether both runs have one."""
    shown = ["a table" if run.adapter is not None else None for run in (there, here)]
    return [("adapter", shown[0], shown[1])]


def _of_table(there: RunConfig, here: RunConfig, table: str, free: Sequence[str]) -> list[Pair]:
    """The settings of a table, but for the `free` ones; none where a run lacks it."""
    one, other = getattr(there, table), getattr(here, table)
    if one is None or other is None:
        return []
    names = (field.name for field in dataclasses.fields(one) if field.name not in free)
    return [(f"{table}.{name}", getattr(one, name), getattr(other, name)) for name in names]


def _low_rank(there: RunConfig, here: RunConfig) -> list[Pair]:
    if POWERSGD not in there.codecs.averagings + here.codecs.averagings:
        return []
    one, other = there.codecs, here.codecs
    return [
        ("codecs.averaging", one.averaging, other.averaging),
        ("codecs.averaging_rank", one.averaging_rank, other.averaging_rank),
    ]


def _told(pairs: Sequence[Pair]) -> Iterator[str]:
    for name, one, other in pairs:
        if one != other:
            yield f"run.{name} is {_shown(one)} in the checkpoint and {_shown(other)} here"


def _cut_differences(there: RunConfig, here: RunConfig) -> Iterator[str]:
    """What a state has of one cut alone."""
    one, other = _cut_text(there), _cut_text(here)
    if POWERSGD in here.codecs.averagings and len(here.codecs.averagings) > 1 and one != other:
        yield (
            f"run.codecs.averaging has names for single stages, {one} in the checkpoint and "
            f"{other} here"
        )
    if here.model.boundary != "none" and one != other:
        yield (
            f"run.model.boundary has modules where the run is cut, {one} in the checkpoint and "
            f"{other} here"
        )


def _cut_text(run: RunConfig) -> str:
    stages = "1 stage" if run.stages == 1 else f"{run.stages} stages"
    return f"{stages} by run.cut {list(run.cut)}" if run.cut else stages


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return "not set" if value in ("", None) else value


def _check_config(step: int, next_rate: float, there: RunConfig, here: RunConfig) -> None:
    found = next(differences(there, here), None)
    if found is not None:
        raise OtherCheckpoint(
            f"{found}: set it back, or begin a new run from its weights with --from"
        )
    rate = learning_rate(here, step)
    if rate != next_rate:
        raise OtherCheckpoint(
            f"a checkpoint whose next learning rate is {next_rate!r}; this program computes "
            f"{rate!r}: install the release that wrote it"
        )


def _check_anew(there: RunConfig, here: RunConfig, *, fresh: bool) -> None:
    if (found := next(differences_anew(there, here), None)) is not None:
        raise OtherCheckpoint(f"{found}: set it back, because a new run has its weights' model")
    found = None if fresh else next(differences_of_moments(there, here), None)
    if found is not None:
        raise OtherCheckpoint(
            f"{found}, and what the optimizer keeps is of no use then: set it back, or leave it "
            "behind with --fresh-moments"
        )
