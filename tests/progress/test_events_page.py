"""docs/events.md says what the classes of events say; `pytest --update` writes it anew."""

import ast
import dataclasses
import typing
from pathlib import Path

import pytest

from p2pswarm.progress import events
from p2pswarm.progress.event_lines import OWN, VERSION
from p2pswarm.progress.events import KINDS, Departure, Event, MicrobatchCounts, PeerLine

PAGE = Path(__file__).parents[2] / "docs" / "events.md"
MARK = "[comment]: # (What follows is made from the classes: pytest tests/progress --update)"
TABLE = "\n\n| in JSON | class | |\n|---|---|---|\n"


def sentences(kind: type) -> dict[str, str]:
    """The sentence of each field of a class."""
    tree = ast.parse(Path(events.__file__).read_text())
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    found = {}
    for field, text in zip(body, [*body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign):
            continue
        found[field.target.id] = ""
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = " ".join(text.value.value.split())
    return found


def kind_text(hint: object) -> str:
    """A type as people know JSON."""
    if typing.get_origin(hint) is tuple:
        return f"list of {kind_text(typing.get_args(hint)[0])}"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    if hint in names:
        return names[hint]
    if hint is Departure:
        return "one of " + ", ".join(f"`{each.value}`" for each in Departure)
    if dataclasses.is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    inner = next(each for each in typing.get_args(hint) if each is not type(None))
    return f"{kind_text(inner)} or null"


def table(kind: type) -> str:
    hints, told = typing.get_type_hints(kind), sentences(kind)
    rows = [
        f"| `{field.name}` | {kind_text(hints[field.name])} | {told.get(field.name, '')} |"
        for field in dataclasses.fields(kind)
        if field.name not in ("seconds", "text")
    ]
    if not rows:
        return ""
    return "\n".join(["", "| field | | |", "|---|---|---|", *rows, ""])


def section(heading: str, kind: type) -> str:
    return f"\n## {heading}\n\n{' '.join((kind.__doc__ or '').split())}\n{table(kind)}"


def events_page(head: str) -> str:
    """The page; `head`: what people have written before the mark."""
    first = [
        f"| [`{name}`](#{name}) | `{kind.__name__}` | {(kind.__doc__ or '').splitlines()[0]} |"
        for name, kind in KINDS.items()
    ]
    parts = [section(name, kind) for name, kind in KINDS.items()]
    parts += [section(kind.__name__, kind) for kind in (MicrobatchCounts, PeerLine)]
    return head + MARK + TABLE + "\n".join(first) + "\n" + "".join(parts)


def test_the_page_of_events_is_as_the_classes_say(pytestconfig):
    page = events_page(PAGE.read_text().partition(MARK)[0])
    if pytestconfig.getoption("update"):
        PAGE.write_text(page)

    assert PAGE.read_text() == page
    assert f'"v":{VERSION},' in page
    assert all(f"| `{name}` |" in page for name in OWN)


@pytest.mark.parametrize("kind", [*KINDS.values(), MicrobatchCounts, PeerLine])
def test_a_field_that_its_name_does_not_explain_has_a_sentence(kind):
    clear = {
        *("step", "stages", "stage", "server", "reason", "ready", "failed", "loss", "parameters"),
        *("learning_rate", "gradient_norm", "counts", "peers", "source", "target", "optimizer"),
        *("punched", "relayed", "backward_s", "out_bytes", "seconds", "text", "count", "term"),
        *("stage", "why", "name", "model", "steps"),
    }
    told = sentences(kind)

    assert not {name for name, sentence in told.items() if not sentence} - clear
    assert issubclass(kind, Event) or dataclasses.is_dataclass(kind)
