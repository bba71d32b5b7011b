"""Which run fits a trainer's settings and text, and what must be true before it takes part."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.net.wire.message import decode
from p2pswarm.node.run.run_folder import RunFolder, SavedRun
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.record import members_that_fit
from p2pswarm.run.manifest import RunIdentity, RunOffer, read_offer
from p2pswarm.run.messages.run import Manifest
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import run_to_json
from p2pswarm.trainer.coordinator_io.chain_start import genesis_of as founded_genesis

VALUE_CHARS = 60  # of a setting in a line for people: the other one may be a stranger's
END_TAG = b"p2pswarm-run-over-1:"


def check_records(run: RunConfig) -> None:
    """Raise Unusable if a step's record has no room for the members that the run waits for."""
    microbatches, needed = run.batch.microbatches, run.stages * run.min_replicas
    room = members_that_fit(run.stages, microbatches)
    if room < needed:
        raise Unusable(
            f"a step of {microbatches} microbatches in {run.stages} stages has a record with room "
            f"for {max(0, room)} servers, and the run begins with {needed}: lower "
            "run.batch.microbatches, and raise run.batch.rows"
        )


def genesis_of(identity: RunIdentity) -> Genesis:
    """Return what the first record of a run is checked against."""
    return founded_genesis(identity.run, identity.founder, identity.config, identity.origin)


def owned_as(run: RunConfig, known: RunConfig) -> RunConfig:
    """The settings of a run which is `known`: from there come its owner, and whether it is closed.

    Neither is in the file of a trainer that did not found the run.
    """
    strangers = known.strangers if known.closed else run.strangers
    return dataclasses.replace(run, owner=run.owner or known.owner, strangers=strangers)


def _unowned(run: RunConfig) -> RunConfig:
    """The settings without what `owned_as` takes from elsewhere."""
    strangers = "compute" if run.closed else run.strangers
    return dataclasses.replace(run, owner="", strangers=strangers)


def end_key(config: RunConfig, corpus: bytes) -> bytes:
    """The DHT's key of the ends of all runs of these settings and this text."""
    whoever_owns_it = _unowned(config)  # who looks for it may not know
    return hashlib.sha256(END_TAG + corpus + run_to_json(whoever_owns_it)).digest()


def fitting(
    found: Mapping[bytes, bytes], config: RunConfig, corpus: bytes, me: bytes
) -> tuple[list[RunOffer], str]:
    """The offers of others of exactly this run's settings and text; or why there is none."""
    offers, why = [], "nobody offers the run yet: waiting for its trainer"
    for manifest in found.values():
        offer = readable(manifest)
        if offer is None or offer.trainer.peer is None or offer.trainer.peer.raw == me:
            continue
        identity = offer.identity
        if (_unowned(identity.config), identity.corpus) == (_unowned(config), corpus):
            if why_not := _why_no_standby(identity.config, config):
                why = why_not
            else:
                offers.append(offer)
        elif identity.config.name == config.name:
            what = "another text" if identity.config == config else _other(identity.config, config)
            why = f"run {config.name!r} is offered with {what}: a standby needs the same"
    return offers, why


def _why_no_standby(there: RunConfig, here: RunConfig) -> str:
    """Return why a trainer of these settings cannot stand by for a run; empty if it can.

    `here` names the owner if the trainer is invited.
    """
    if there.strangers == "lead" or (there.owner and there.owner == here.owner):
        return ""
    if not there.owner:
        return (
            f"run {there.name!r} takes no standby: its trainer keeps no owner's key, which a "
            "`state` folder there would hold"
        )
    what = "is closed" if there.closed else "takes only standbys that its owner has invited"
    return (
        f"run {there.name!r} {what}: ask its owner for an invitation (p2pswarm invite --role "
        "train), and add --invite"
    )


def _other(there: RunConfig, here: RunConfig) -> str:
    """Return which setting of two runs is not the same, by its name in a settings file."""
    values = dict(_flat(dataclasses.asdict(here), "run"))
    name, value = next(
        (name, value)
        for name, value in _flat(dataclasses.asdict(there), "run")
        if values.get(name) != value
    )
    what = f"{_short(value)} there and {_short(values.get(name))} here"
    return f"other settings ({name} is {what})"


def _short(value: object) -> str:
    return repr(value)[:VALUE_CHARS]


def _flat(table: Mapping[str, object], key: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.{name}")
        else:
            yield f"{key}.{name}", value


def check_same(saved: SavedRun, folder: RunFolder, run: RunConfig, corpus: bytes) -> None:
    """Raise Unusable if the unfinished run of a folder has other settings, or lacks its file."""
    identity = saved.identity
    if (identity.config, identity.corpus) != (run, corpus):
        what = _other(identity.config, run) if identity.config != run else "another text"
        raise Unusable(
            f"{folder.path} holds a run that is not finished, {identity.config.name!r}, with "
            f"{what}: restore them, or begin another run with --new"
        )
    if not folder.has_chain(identity.run):
        raise Unusable(
            f"{folder.path} has lost the chain file of its run {identity.config.name!r}: restore "
            "it from a copy, or begin another run with --new"
        )


def readable(value: bytes) -> RunOffer | None:
    """A manifest's offer, if it is sound and of our version."""
    try:
        manifest = decode(value)
        offer = read_offer(manifest) if isinstance(manifest, Manifest) else None
    except BadMessage:
        return None
    return offer if isinstance(offer, RunOffer) else None
