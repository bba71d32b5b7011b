"""The fields of a JSON object that somebody else may have written: each is taken once, checked.

Errors:  ValueError, which names the field.
"""

import math
from collections.abc import Mapping
from typing import Any


class Fields:
    """Takes fields out of an object; `end` refuses what is left."""

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
