"""The field of a row that is its document: a name, or the names of nested fields with dots between.

A name that has dots itself comes before the path that it looks like. A number is a place in a list.

Errors:  LookupError where a row has no such field.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

NAME_CHARS_MAX = 80  # of a name that is shown
Pairs = list[tuple[str, Any]]


def value_at(row: Any, field: str) -> Any:
    """The value of a field in a row as `json` reads it."""
    if isinstance(row, dict):
        if field in row:
            return row[field]
        for head, rest in _parted(field):
            if head in row:
                return value_at(row[head], rest)
    elif isinstance(row, list):
        head, _, rest = field.partition(".")
        if head.isdecimal() and int(head) < len(row):
            return value_at(row[int(head)], rest) if rest else row[int(head)]
    raise LookupError(field)


class JsonObject(Pairs):
    """What `json` reads with `object_pairs_hook`: an object may have a name twice."""


def is_twice(row: Any, field: str) -> bool:
    """Return whether a name on the way to a field stands twice: the last one would be taken."""
    if isinstance(row, JsonObject):
        for head, rest in ((field, ""), *_parted(field)):
            if values := [value for name, value in row if name == head]:
                return len(values) > 1 or is_twice(values[0], rest)
    elif isinstance(row, list):
        head, _, rest = field.partition(".")
        if rest and head.isdecimal() and int(head) < len(row):
            return is_twice(row[int(head)], rest)
    return False


class TwiceError(ValueError):
    """An object of JSON has a name twice: `json` would take the last one."""

    def __init__(self, name: str) -> None:
        super().__init__(f"has two fields {name[:NAME_CHARS_MAX]!r}: remove one of them")


def object_once(pairs: Pairs) -> dict[str, Any]:
    """An object, as an `object_pairs_hook` of `json`; TwiceError if a name stands twice in it."""
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise TwiceError(next(name for name in counts if counts[name] > 1))
    return made


def require_once(row: Any, fields: Collection[str]) -> None:
    """TwiceError if one of these fields of a row, or a name in their values, stands twice."""
    if isinstance(row, JsonObject):
        _require_once(JsonObject(pair for pair in row if pair[0] in fields))


def _require_once(value: Any) -> None:
    if isinstance(value, JsonObject):
        object_once(value)
        value = [each for _, each in value]
    if isinstance(value, list):
        for each in value:
            _require_once(each)


def column_names(schema: Any) -> list[str]:
    """The columns of a schema of pyarrow, and the fields of those that are structs."""
    return [name for field in schema for name in _names(field.name, field.type)]


def column_type(schema: Any, field: str) -> Any:
    """The type of a column, or of a field of a struct."""
    first, *inner = column_path(schema, field)
    kind = schema.field(first).type
    for place in inner:
        kind = kind.field(place).type
    return kind


def column_path(schema: Any, field: str) -> list[int]:
    """The places of a column and, in it, of the fields of structs on the way to a field."""
    return _places(list(schema), field)


def _parted(field: str) -> Iterator[tuple[str, str]]:
    """The name at the beginning of a path, and the rest, the longest name first."""
    end = len(field)
    while (end := field.rfind(".", 0, end)) > 0:
        yield field[:end], field[end + 1 :]


def _fields(kind: Any) -> list[Any]:
    """The fields of a struct's type; none of another one's."""
    structs = type(kind).__name__ == "StructType"
    return [kind.field(number) for number in range(kind.num_fields)] if structs else []


def _names(name: str, kind: Any) -> Iterator[str]:
    yield name
    for field in _fields(kind):
        yield from (f"{name}.{inner}" for inner in _names(field.name, field.type))


def _places(fields: list[Any], field: str) -> list[int]:
    """The places of a field and of the structs that it is in, the outermost first."""
    names = [each.name for each in fields]
    if field in names:
        return [names.index(field)]
    for head, rest in _parted(field):
        if head in names:
            place = names.index(head)
            return [place, *_places(_fields(fields[place].type), rest)]
    raise LookupError(field)
