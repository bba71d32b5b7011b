"""Whether a run may go on from a checkpoint: only if it then computes the same bits.

The cut into stages, the codecs and the number of servers may differ. The model, the optimizer, the
batch, the seed and the text may not. Nor may the cut, if the model has modules there. With a delay
sums on a grid need what a state has only in a run with such. A state of sums in low rank has warm
factors of the matrices of some stages, with some rank, so all that says which and how many stays.

Errors:  OtherCheckpoint, which names the first difference and the remedy; BadCheckpoint for a
         configuration that is no configuration.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from p2pswarm.base.errors import OtherCheckpoint
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.checkpoint_manifest import SignedManifest
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import FORMER_SQUARES, POWERSGD, RunConfig

SAME_RUN = (
    *("seed", "emulated", "precision", "weight_storage", "delay", "delay_correction"),
    *("base", "frozen"),
)
NOT_BITS = ("hub",)  # of the model: where first weights lay; a checkpoint has later ones
SAME_BATCH = ("microbatches", "rows", "samples")  # what decides which samples a step has


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
    if wanted.config is not None:  # before the text: another tokenizer makes other tokens of it
        _check_config(manifest.step, manifest.cursor.next_learning_rate, there, wanted.config)
    if wanted.corpus is not None and manifest.cursor.corpus != wanted.corpus:
        raise OtherCheckpoint(
            f"a checkpoint of run {there.name!r} on another text: name the text that it was "
            "trained on, with the same suffixes and held_out_share"
        )


def differences(there: RunConfig, here: RunConfig) -> Iterator[str]:
    """The settings that decide the bits of the weights and are not the same, one line each."""
    pairs: list[tuple[str, object, object]] = [
        (n, getattr(there, n), getattr(here, n)) for n in SAME_RUN
    ]
    adapters = there.adapter, here.adapter
    if None in adapters:
        shown = ["a table" if one is not None else None for one in adapters]
        pairs.append(("adapter", shown[0], shown[1]))
    for table in ("model", "optimizer", "objective", *(() if None in adapters else ("adapter",))):
        one, other = getattr(there, table), getattr(here, table)
        for field in dataclasses.fields(one):
            name = field.name
            if name not in NOT_BITS:
                pairs.append((f"{table}.{name}", getattr(one, name), getattr(other, name)))
    pairs += [(f"batch.{n}", getattr(there.batch, n), getattr(here.batch, n)) for n in SAME_BATCH]
    if FORMER_SQUARES in here.state and FORMER_SQUARES not in there.state:
        pairs.append(("codecs.averaging", there.codecs.averaging, here.codecs.averaging))
    if POWERSGD in there.codecs.averagings + here.codecs.averagings:
        pairs += [
            (f"codecs.{name}", getattr(there.codecs, name), getattr(here.codecs, name))
            for name in ("averaging", "averaging_rank")
        ]
    if here.optimizer.decay_steps == 0 and here.optimizer.schedule != "constant":
        # the schedule then ends with the run
        pairs.append(("steps", there.steps, here.steps))
    yield from (
        f"run.{name} is {_shown(one)} in the checkpoint and {_shown(other)} here"
        for name, one, other in pairs
        if one != other
    )
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
        raise OtherCheckpoint(f"{found}: set it back, or begin a new run")
    rate = learning_rate(here, step)
    if rate != next_rate:
        raise OtherCheckpoint(
            f"a checkpoint whose next learning rate is {next_rate!r}; this program computes "
            f"{rate!r}: install the release that wrote it"
        )
