"""Every field of a run's messages that a peer may fill as it likes is listed in the docs."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import p2pswarm.node.serve
import p2pswarm.node.train  # noqa: F401 - with these two all messages of a run are known here
from p2pswarm.net.wire.message import Message, Size
from p2pswarm.settings.config import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "message_fields.md"
OF_A_RUN = ("p2pswarm.run.", "p2pswarm.discovery.gossip.", "p2pswarm.tensors.")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def kinds_below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds_below(one)


def hints(kind: type) -> dict[str, object]:
    """The fields of a message, each with its limits."""
    found = typing.get_type_hints(kind, include_extras=True)
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


def is_chosen(hint: object) -> bool:
    """Return whether a peer chooses how large, how many, when or where.

    It does not choose that of a yes or no, of bytes of one length, or of a nested message, whose
    own fields are looked at.
    """
    if typing.get_origin(hint) is typing.Annotated:
        base, *limits = typing.get_args(hint)
        sizes = [one for one in limits if isinstance(one, Size)]
        return not (base is bytes and any(one.least == one.most for one in sizes))
    if arguments := [one for one in typing.get_args(hint) if one is not type(None)]:
        return typing.get_origin(hint) is tuple or any(map(is_chosen, arguments))
    return hint in (int, float, str, bytes)


def messages() -> list[type]:
    return [kind for kind in kinds_below(Message) if kind.__module__.startswith(OF_A_RUN)]


def tables() -> list[type]:
    """The settings that a manifest has: a table, and those in it."""
    hints = typing.get_type_hints(RunConfig).values()
    kinds = (kind for hint in hints for kind in (typing.get_args(hint) or (hint,)))
    return [RunConfig, *(kind for kind in kinds if dataclasses.is_dataclass(kind))]


def is_setting(hint: object) -> bool:
    """As `is_chosen`, of a setting."""
    kinds = (hint, *typing.get_args(hint))
    nested = any(isinstance(kind, type) and dataclasses.is_dataclass(kind) for kind in kinds)
    return hint not in (bool, bool | None) and not nested


def expected() -> dict[str, set[str]]:
    """What has to be listed: by message or table of settings, the fields that a peer chooses."""
    chosen = [(kind, is_chosen) for kind in messages()] + [(kind, is_setting) for kind in tables()]
    found = {
        kind.__name__: {name for name, hint in hints(kind).items() if test(hint)}
        for kind, test in chosen
    }
    return {name: fields for name, fields in found.items() if fields}


def every_field() -> dict[str, set[str]]:
    kinds = {kind.__name__: set(hints(kind)) for kind in (*messages(), *tables())}
    return {name: fields for name, fields in kinds.items() if name in expected()}


def listed() -> dict[str, set[str]]:
    rows = ROW.findall(PAGE.read_text())
    assert all(sender.strip() and bound.strip() for _, sender, _, bound in rows)
    found = {name: set(re.findall(r"`(\w+)`", fields)) for name, _, fields, _ in rows}
    assert len(found) == len(rows), "each message has one row"
    return found


def test_every_field_that_a_peer_chooses_is_listed_with_its_sender_and_its_bounds():
    due, there = expected(), listed()

    lacking = {name: due[name] - there.get(name, set()) for name in due}
    assert not {name: fields for name, fields in lacking.items() if fields}
    assert not there.keys() - due.keys(), "no such message, or nothing in it is chosen"
    unknown = {name: there[name] - fields for name, fields in every_field().items()}
    assert not {name: fields for name, fields in unknown.items() if fields}


def test_no_message_names_a_path_but_those_whose_owner_is_asked():
    """Whoever adds one reads here that a peer must not choose it."""
    places = re.compile("path|target|folder|url|file|package|device|command|module")
    named = {
        (name, field)
        for name, fields in expected().items()
        for field in fields
        if places.search(field)
    }
    moves = {("PastMove", "target"), ("ServerPreparing", "target")}  # stages, for people
    tokens = {("StageCommit", "targets"), ("AdapterConfig", "targets")}  # and modules of a model

    assert named - moves - tokens == {
        ("SaveState", "target"),
        ("LoadState", "target"),
        ("LoadState", "folder"),
        ("ModelConfig", "folder"),
        ("ModelConfig", "package"),
    }
