"""Secrets that can be found again: a node all of whose texts are markers, and a search for them."""

import ast
import base64
import dataclasses
import io
import typing
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from p2pswarm.settings.limits import OneOf

PACKAGE = Path(__file__).parents[3] / "p2pswarm"
SHARE = 8  # characters of a marker that nothing has by chance


def marked(config: object, marker: Callable[[], str]) -> object:
    """The settings with a marker in each text, path and list of texts.

    Limits are passed by: a report is to be safe for settings that a later release allows, too.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    fields = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    made = object.__new__(type(config))
    for name, value in fields.items():
        object.__setattr__(made, name, _marked(value, hints[name], marker))
    return made


def _marked(value: object, hint: object, marker: Callable[[], str]) -> object:
    if dataclasses.is_dataclass(value):
        return marked(value, marker)
    limits = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    if any(isinstance(limit, OneOf) for limit in limits):
        return value
    if isinstance(value, PurePath) or (value is None and "Path" in str(hint)):
        return Path("/srv", marker(), marker())
    if isinstance(value, str):
        return marker()
    if isinstance(value, tuple):
        return (marker(), marker())
    return value


def log_templates() -> list[str]:
    """Each text that the package gives to its log, with the places of its values."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log" | "_log")),
                    args=[ast.Constant(value=str(text)), *_],
                ):
                    found.append(text)
    return found


def forms(marker: str) -> Iterator[bytes]:
    """A marker as it is, and as programs encode it; all in small letters."""
    data = marker.encode()
    yield data
    yield data[::-1]
    yield data.hex().encode()
    yield marker.encode("utf-16-le")
    yield urllib.parse.quote(marker).lower().encode()
    yield base64.b32encode(data).rstrip(b"=").lower()[:-1]
    for shift in range(3):  # where a piece of four characters begins
        coded = base64.b64encode(b"\0" * shift + data)
        yield coded[4:-4].lower()


def found_in(archive: bytes, markers: list[str]) -> list[str]:
    """The markers, or parts of them, that an archive has in any form."""
    texts = [archive.lower()]
    with zipfile.ZipFile(io.BytesIO(archive)) as zipped:
        texts.append(zipped.comment)
        for entry in zipped.infolist():
            texts += [
                zipped.read(entry).lower(),
                entry.filename.encode(),
                entry.comment,
                entry.extra,
            ]
    hay = b"\0".join(texts)
    wanted = {form for marker in markers for form in forms(marker)}
    wanted |= {
        marker.encode()[at : at + SHARE] for marker in markers for at in (0, len(marker) - SHARE)
    }
    return sorted(str(each) for each in wanted if each in hay)
