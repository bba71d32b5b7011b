"""One message of each kind that the package knows, made from its fields' types."""

import dataclasses
import importlib
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import p2pswarm
from p2pswarm.net.wire import message as wire
from p2pswarm.net.wire.message import Message, Range, Size, encode


def load_all_kinds() -> None:
    """Import each module of the package that defines messages, so that no kind is forgotten."""
    top = Path(p2pswarm.__file__).parent
    for path in sorted(top.rglob("*.py")):
        if "\n@message(" in path.read_text():
            importlib.import_module(".".join(path.relative_to(top.parent).with_suffix("").parts))


def examples() -> list[bytes]:
    """Each kind with as little as is allowed in it, and with a little more.

    A few kinds refuse both, because their fields depend on each other.
    """
    load_all_kinds()
    found = []
    for kind in wire._writers:
        for more in (0, 2):
            try:
                found.append(encode(example(kind, more)))
            except ValueError:
                continue
    return found


def example(kind: type, more: int) -> Any:
    """A message of a kind; `more`: how much longer than they must be its texts and lists are."""
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(*[_value(hints[name], more) for name in names])


def _value(hint: Any, more: int) -> Any:
    notes: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        notes = tuple(rest)
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(each for each in get_args(hint) if each is not type(None))
        return _value(Annotated[(inner, *notes)] if notes else inner, more) if more else None
    size = next((note for note in notes if isinstance(note, Size)), Size(wire.STR_CHARS_MAX))
    length = min(size.least + more, size.most)
    if get_origin(hint) is tuple:
        return tuple(_value(get_args(hint)[0], more) for _ in range(length))
    if isinstance(hint, type) and issubclass(hint, Message):
        return example(hint, more)
    limits = next((note for note in notes if isinstance(note, Range)), Range(0, 3))
    number = min(limits.least + more, limits.most)
    plain = {int: int(number), float: float(number), bool: bool(more)}
    return plain[hint] if hint in plain else {str: "a" * length, bytes: b"a" * length}[hint]
