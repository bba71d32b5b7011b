"""Messages: frozen dataclasses that are sent as msgpack arrays and checked on arrival.

A message is `[code, field, field, ...]`. It has no names, no maps and no extension
types, so there is only one way to write it. Each class is compiled into a list of
checks once, when it is registered, and every field of a peer's message passes these
checks. The same checks run when we send, so that our own mistake is a ValueError here
and not a link that the other side closes.

    @message(17)
    @dataclass(frozen=True, slots=True)
    class Ping(Message):
        nonce: Annotated[bytes, Size(8, 8)]
        hops: Annotated[int, Range(0, 16)]

Fields are int, float, bool, str, bytes, tuple[X, ...], another Message or X | None.
A `__post_init__` may refuse a combination of fields by raising ValueError.

The last fields may be `Trailing`: they were added later, and their defaults are not written. So
what was written before keeps its bytes, and there is still only one way to write it.

Units:   a size counts bytes, characters of a str, or items of a tuple.
Errors:  `decode` raises BadMessage and nothing else; `encode` and `message` raise
         ValueError or TypeError if the caller defines or fills a message wrongly.
Source:  https://github.com/msgpack/msgpack/blob/master/spec.md
"""

import dataclasses
import math
import types
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]

from p2pswarm.base.errors import BadMessage

MESSAGE_BYTES_MAX = 64 * 1024  # one control record; a mux frame of 60 KiB fits with its header
STR_CHARS_MAX = 256  # enough for a name, an address, or a reason of one line
LONG_BYTES_MAX = 126 * 1024  # of a kind that may be longer than a frame: half a stream's window
BYTES_MAX = 60 * 1024  # one mux frame; a field of a long message may name more
ITEMS_MAX = 4096  # items of a tuple, here and in msgpack's own reader
DEPTH_MAX = 16  # how deep messages and tuples nest; no message needs more than 4
CODE_MAX = 65535
INT_MAX = 2**63 - 1
ARRAY_16 = b"\xdc"  # msgpack: two bytes of length follow
FIX_ARRAY = 0x9  # the upper half of the only byte before the items of an array of up to 15
CODE_BYTES = dict.fromkeys(range(128), 0) | {0xCC: 1, 0xCD: 2}  # behind a code's first byte
SHOWN_CHARS_MAX = 40  # at most so much of a wrong value in an error text: the peer chose it


class Message:
    """The base class of every message."""

    __slots__ = ()


class UnknownCode(BadMessage):
    """A message whose code is not registered here: a newer peer or another role may know it."""


M = TypeVar("M", bound=Message)
Check = Callable[[Any], Any]
"""Takes a field's value; returns its form on the other side, or raises ValueError."""


class Size:
    """The allowed length of a str, bytes or tuple: `Size(most)` or `Size(least, most)`."""

    __slots__ = ("least", "most")

    def __init__(self, first: int, second: int | None = None) -> None:
        self.least, self.most = (0, first) if second is None else (first, second)
        if not 0 <= self.least <= self.most:
            raise ValueError(f"a size lies in 0..most, not in {self.least}..{self.most}")


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value of an int or float, both allowed."""

    least: float
    most: float

    def __post_init__(self) -> None:
        if not self.least <= self.most:
            raise ValueError(f"{self.least}..{self.most} is an empty range")


@dataclasses.dataclass(frozen=True, slots=True)
class AnyFloat:
    """Allows a float to be infinite or NaN."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trailing:
    """Marks a last field whose default is not on the wire: `Annotated[bytes, Trailing()] = b""`."""


@dataclasses.dataclass(frozen=True, slots=True)
class _FieldType:
    """The reader and the writer of a type on the wire, and its depth."""

    read: Check
    write: Check
    depth: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _MessageLayout:
    """A compiled message class."""

    read: Callable[[Sequence[Any]], Any]
    """The fields' values, in order -> the message."""
    write: Callable[[Any], list[Any]]
    """The message -> its fields' values, in order."""
    depth: int


_message_layouts: dict[type, _MessageLayout] = {}
_readers: dict[int, Callable[[Sequence[Any]], Any]] = {}
_classes: dict[int, type[Message]] = {}
_longest: dict[type, int] = {}
_writers: dict[type, tuple[int, Callable[[Any], list[Any]]]] = {}
_pack = msgpack.Packer(autoreset=True, buf_size=MESSAGE_BYTES_MAX).pack
_unpack = msgpack.unpackb


def message(code: int, bytes_max: int = MESSAGE_BYTES_MAX) -> Callable[[type[M]], type[M]]:
    """Register a frozen dataclass under a code of its own, 1..65535.

    With a `bytes_max` above MESSAGE_BYTES_MAX it may be longer than a frame, and travels in parts.
    """
    if bytes_max > LONG_BYTES_MAX:
        raise ValueError(f"a message of {bytes_max} bytes, over {LONG_BYTES_MAX}")

    def register(cls: type[M]) -> type[M]:
        if not 1 <= code <= CODE_MAX:
            raise ValueError(f"{cls.__name__}: a code lies in 1..{CODE_MAX}, not {code}")
        if code in _readers:
            raise ValueError(f"{cls.__name__}: the code {code} is taken")
        layout = _message_layout(cls)
        _readers[code] = layout.read
        _writers[cls] = code, layout.write
        _classes[code] = cls
        _longest[cls] = bytes_max
        return cls

    return register


def encode(m: Message) -> bytes:
    """The bytes of a registered message; ValueError if a field breaks its limits."""
    writer = _writers.get(type(m))
    if writer is None:
        raise TypeError(f"{type(m).__name__} is not a registered message")
    data: bytes = _pack((writer[0], *writer[1](m)))
    if len(data) > MESSAGE_BYTES_MAX and len(data) > longest(type(m)):
        raise ValueError(f"{type(m).__name__}: {len(data)} bytes, over {longest(type(m))}")
    return data


def longest(cls: type[Message]) -> int:
    """Return how many bytes a message may have; above MESSAGE_BYTES_MAX it may be long."""
    return _longest[cls]


def class_at(start: bytes | memoryview) -> type[Message]:
    """The class that begins with these 6 bytes; UnknownCode, or BadMessage if none begins so."""
    at = 3 if start[:1] == ARRAY_16 else 1
    width = CODE_BYTES.get(start[at]) if len(start) > at else None
    if width is None or len(start) <= at + width or not (at > 1 or start[0] >> 4 == FIX_ARRAY):
        raise BadMessage("no array that starts with a code")
    code = int.from_bytes(start[at + bool(width) : at + 1 + width])
    if code not in _classes:
        raise UnknownCode(f"unknown code {code}")
    return _classes[code]


def decode(data: bytes | memoryview) -> Message:
    """The message in `data`, a contiguous buffer, with every field checked; or BadMessage."""
    try:
        return _decode(data)
    except ValueError as error:  # our own, msgpack's, and UnicodeDecodeError
        detail = str(error) or "nested too deep"  # msgpack's StackError comes without a text
        raise BadMessage(f"malformed message: {detail}") from error


def _decode(data: bytes | memoryview) -> Message:
    if len(data) > MESSAGE_BYTES_MAX and len(data) > (most := longest(class_at(data))):
        raise ValueError(f"{len(data)} bytes, over {most}")
    row = _unpack(
        data,
        use_list=False,
        strict_map_key=True,
        max_array_len=min(ITEMS_MAX, len(data)),  # msgpack allocates before it reads the items
        max_map_len=0,
        max_ext_len=0,
    )
    if type(row) is not tuple or not row or type(row[0]) is not int:
        raise ValueError("no array that starts with a code")
    reader = _readers.get(row[0])
    if reader is None:
        raise UnknownCode(f"unknown code {row[0]}")
    decoded: Message = reader(row[1:])
    return decoded


def _message_layout(cls: type) -> _MessageLayout:
    """Compile a message class, once."""
    if cls in _message_layouts:
        return _message_layouts[cls]
    if not issubclass(cls, Message) or "__dataclass_fields__" not in vars(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass that derives from Message")
    hints = get_type_hints(cls, include_extras=True)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    shapes = [_field_type(hints[name], f"{cls.__name__}.{name}") for name in names]
    depth = 1 + max((shape.depth for shape in shapes), default=0)
    if depth > DEPTH_MAX:
        raise ValueError(f"{cls.__name__} nests {depth} deep, over {DEPTH_MAX}")
    read = _row_reader(cls, [shape.read for shape in shapes])
    write = _row_writer(names, [shape.write for shape in shapes])
    if defaults := _trailing_defaults(cls, hints):
        last = shapes[len(shapes) - len(defaults) :]
        written = tuple(shape.write(value) for shape, value in zip(last, defaults, strict=True))
        read, write = _short_reader(cls, read, len(names), defaults), _short_writer(write, written)
    layout = _MessageLayout(read, write, depth)
    _message_layouts[cls] = layout
    return layout


def _row_reader(cls: type, checks: list[Check]) -> Callable[[Sequence[Any]], Any]:
    count = len(checks)

    def read(row: Sequence[Any]) -> Any:
        if len(row) != count:
            raise ValueError(f"{cls.__name__} has {count} fields, not {len(row)}")
        return cls(*[check(value) for check, value in zip(checks, row, strict=True)])

    return read


def _row_writer(names: list[str], checks: list[Check]) -> Callable[[Any], list[Any]]:
    # attrgetter fetches all fields in one call, but gives a bare value for a single name
    if len(names) < 2:  # noqa: PLR2004
        pairs = list(zip(checks, names, strict=True))
        return lambda m: [check(getattr(m, name)) for check, name in pairs]
    values = attrgetter(*names)
    return lambda m: [check(value) for check, value in zip(checks, values(m), strict=True)]


def _trailing_defaults(cls: type, hints: dict[str, Any]) -> tuple[Any, ...]:
    """The defaults of the last fields that are `Trailing`; TypeError if another one follows."""
    fields = dataclasses.fields(cls)
    marked = [
        any(isinstance(note, Trailing) for note in getattr(hints[field.name], "__metadata__", ()))
        for field in fields
    ]
    count = sum(marked)
    defaults = tuple(field.default for field in fields[len(fields) - count :])
    if not all(marked[len(fields) - count :]) or dataclasses.MISSING in defaults:
        raise TypeError(f"{cls.__name__}: a trailing field is among the last, and has a default")
    return defaults


def _short_reader(
    cls: type, read: Callable[[Sequence[Any]], Any], count: int, defaults: tuple[Any, ...]
) -> Callable[[Sequence[Any]], Any]:
    """A reader of rows whose last values may be missing."""

    def read_short(row: Sequence[Any]) -> Any:
        missing = count - len(row)
        if not 0 <= missing <= len(defaults):
            return read(row)  # it says how many there are
        if missing < len(defaults) and row[-1] == defaults[len(defaults) - missing - 1]:
            raise ValueError(f"{cls.__name__}: a default is written that is to be left out")
        return read((*row, *defaults[len(defaults) - missing :]))

    return read_short


def _short_writer(
    write: Callable[[Any], list[Any]], defaults: tuple[Any, ...]
) -> Callable[[Any], list[Any]]:
    """A writer that leaves the last values out as long as they are the defaults."""

    def write_short(m: Any) -> list[Any]:
        row = write(m)
        for default in reversed(defaults):
            if row[-1] != default:
                break
            row.pop()
        return row

    return write_short


def _field_type(hint: Any, where: str) -> _FieldType:
    """Compile the type of one field; its limits are in Annotated, also around a union."""
    notes: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        notes = tuple(rest)
    if get_origin(hint) in (Union, types.UnionType):
        return _optional(hint, notes, where)
    if get_origin(hint) is tuple:
        return _tuple(hint, _size(notes, ITEMS_MAX, ITEMS_MAX, where), where)
    if isinstance(hint, type) and issubclass(hint, Message):
        return _nested(hint, where)
    if hint is float:
        return _float(notes, where)
    check = _plain_check(hint, notes, where)
    return _FieldType(check, check)


def _plain_check(hint: Any, notes: tuple[Any, ...], where: str) -> Check:
    """The check of a type that is the same on the wire and in Python."""
    if hint is bool:
        return _bool_check(where)
    if hint is int:
        return _int_check(_range(notes, where), where)
    if hint is str:
        return _sized_check(str, _size(notes, STR_CHARS_MAX, BYTES_MAX, where), where)
    if hint is bytes:
        return _sized_check(bytes, _size(notes, BYTES_MAX, LONG_BYTES_MAX, where), where)
    raise TypeError(f"{where}: {hint!r} cannot travel in a message")


def _size(notes: tuple[Any, ...], usual: int, most: int, where: str) -> Size:
    found = next((note for note in notes if isinstance(note, Size)), Size(usual))
    if found.most > most:
        raise ValueError(f"{where}: a size over {most}, which no message has room for")
    return found


def _range(notes: tuple[Any, ...], where: str) -> tuple[int, int]:
    found = next((note for note in notes if isinstance(note, Range)), Range(0, INT_MAX))
    least, most = int(found.least), int(found.most)
    if least < -INT_MAX - 1 or most > INT_MAX:
        raise ValueError(f"{where}: an int on the wire has 64 bits and a sign")
    return least, most


def _bool_check(where: str) -> Check:
    def check(value: Any) -> Any:
        if value is True or value is False:
            return value
        raise ValueError(f"{where}: expected a bool, not {_shown(value)}")

    return check


def _int_check(limits: tuple[int, int], where: str) -> Check:
    least, most = limits

    def check(value: Any) -> Any:
        # we may write an IntEnum; isinstance takes a bool for an int, and we do not
        is_int = type(value) is int or (isinstance(value, int) and type(value) is not bool)
        if is_int and least <= value <= most:
            return value
        raise ValueError(f"{where}: expected an int in {least}..{most}, not {_shown(value)}")

    return check


def _float(notes: tuple[Any, ...], where: str) -> _FieldType:
    anything = any(isinstance(note, AnyFloat) for note in notes)
    limits = next((note for note in notes if isinstance(note, Range)), None)
    least, most = (limits.least, limits.most) if limits else (-math.inf, math.inf)

    def read(value: Any) -> Any:
        if type(value) is float and (anything or (least <= value <= most and math.isfinite(value))):
            return value
        raise ValueError(f"{where}: expected a float in {least}..{most}, not {_shown(value)}")

    def write(value: Any) -> Any:
        # Python accepts an int as a float; the wire does not
        return read(float(value) if type(value) is int else value)

    return _FieldType(read, write)


def _sized_check(kind: type[str | bytes | tuple[Any, ...]], size: Size, where: str) -> Check:
    least, most = size.least, size.most

    def check(value: Any) -> Any:
        if type(value) is kind and least <= len(value) <= most:
            return value
        raise ValueError(
            f"{where}: expected {kind.__name__} of length {least}..{most}, not {_shown(value)}"
        )

    return check


def _tuple(hint: Any, size: Size, where: str) -> _FieldType:
    args = get_args(hint)
    if len(args) != 2 or args[1] is not ...:  # noqa: PLR2004
        raise TypeError(f"{where}: a tuple is written tuple[X, ...]")
    item = _field_type(args[0], where)
    sized = _sized_check(tuple, size, where)

    def read(value: Any) -> Any:
        return tuple([item.read(one) for one in sized(value)])

    def write(value: Any) -> Any:
        return [item.write(one) for one in sized(value)]

    return _FieldType(read, write, item.depth + 1)


def _optional(hint: Any, notes: tuple[Any, ...], where: str) -> _FieldType:
    arms = [arm for arm in get_args(hint) if arm is not type(None)]
    if len(arms) != 1 or len(get_args(hint)) == 1:
        raise TypeError(f"{where}: the only union is X | None")
    inner = _field_type(Annotated[(arms[0], *notes)] if notes else arms[0], where)

    def read(value: Any) -> Any:
        return None if value is None else inner.read(value)

    def write(value: Any) -> Any:
        return None if value is None else inner.write(value)

    return _FieldType(read, write, inner.depth)


def _nested(cls: type, where: str) -> _FieldType:
    layout = _message_layout(cls)

    def read(value: Any) -> Any:
        if type(value) is tuple:
            return layout.read(value)
        raise ValueError(f"{where}: expected {cls.__name__}, not {_shown(value)}")

    def write(value: Any) -> Any:
        if type(value) is cls:
            return layout.write(value)
        raise ValueError(f"{where}: expected {cls.__name__}, not {_shown(value)}")

    return _FieldType(read, write, layout.depth)


def _shown(value: Any) -> str:
    """A wrong value, short enough for a log line."""
    if isinstance(value, str | bytes | tuple):
        return f"{type(value).__name__} of length {len(value)}"
    return f"{type(value).__name__} {value!r}"[:SHOWN_CHARS_MAX]
