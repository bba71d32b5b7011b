"""A reader of small XML documents from strangers: the texts of elements, and nothing else.

A document type ends the reading, and so no entity is ever defined, expanded or fetched. Size,
depth and the number of elements are bounded. Namespaces are dropped, because routers mix them.

Units:   bytes.
Errors:  BadMessage for whatever is not such a document.
Source:  https://github.com/tiran/defusedxml: what an XML reader must not do for strangers.
"""

from dataclasses import dataclass, field
from xml.parsers import expat

from p2pswarm.base.errors import BadMessage

XML_BYTES_MAX = 64 * 1024  # descriptions of routers have 2 to 20 KiB
DEPTH_MAX = 32
ELEMENTS_MAX = 2048
TEXT_CHARS_MAX = 1024  # of one element: addresses, names, error texts


@dataclass(slots=True)
class Element:
    """An element: its name without namespace, its own text, and what is in it."""

    name: str
    text: str = ""
    children: list["Element"] = field(default_factory=list)

    def find_all(self, name: str) -> list["Element"]:
        """Every element of a name below this one, in the document's order."""
        found: list[Element] = []
        waiting = list(reversed(self.children))
        while waiting:
            element = waiting.pop()
            if element.name == name:
                found.append(element)
            waiting.extend(reversed(element.children))
        return found

    def text_of(self, name: str) -> str:
        """The text of the first element of a name below this one; empty if there is none."""
        found = self.find_all(name)
        return found[0].text.strip() if found else ""


class _ElementBuilder:
    """Builds the elements while expat reads."""

    def __init__(self) -> None:
        self.root = Element("")
        self._open = [self.root]
        self._elements = 0

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._elements += 1
        if len(self._open) > DEPTH_MAX or self._elements > ELEMENTS_MAX:
            raise BadMessage(f"XML: over {DEPTH_MAX} deep, or over {ELEMENTS_MAX} elements")
        element = Element(name.rpartition(":")[2])
        self._open[-1].children.append(element)
        self._open.append(element)

    def end(self, _name: str) -> None:
        self._open.pop()

    def text(self, text: str) -> None:
        element = self._open[-1]
        if len(element.text) + len(text) > TEXT_CHARS_MAX:
            raise BadMessage(f"XML: a text of more than {TEXT_CHARS_MAX} characters")
        element.text += text


def read_xml(data: bytes) -> Element:
    """The document's root, as the only child of a nameless element."""
    if len(data) > XML_BYTES_MAX:
        raise BadMessage(f"XML: {len(data)} bytes, over {XML_BYTES_MAX}")
    reader = _ElementBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    try:  # as text, so that expat never looks for an encoding that the document names
        parser.Parse(data.decode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise BadMessage(f"XML: {error}") from error
    return reader.root


def _refuse(*_: object) -> None:
    raise BadMessage("XML: a document type, which may define entities")
