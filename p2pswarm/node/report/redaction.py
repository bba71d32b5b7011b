"""Redaction: text of which only the program's own words stay, and numbers.

A list of what is secret would lack the next secret. So this is a list of what is not: words that
stand in the program's own source, numbers of few digits, short ids of peers that events name, and
addresses as the network that they are in. All else becomes an ellipsis. What is known to be secret
goes even if it is made of such words.

A path stays below the folder of the program, of Python or of a library; others are left out.
"""

import functools
import ipaddress
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LEFT_OUT = "…"
CHUNK = re.compile(r"[^\s\"'`,;()<>{}|]+")
"""What is kept or left out as a whole: an address, a path, a word with its numbers."""
PART = re.compile(r"[^\W_]+")
NUMBER = re.compile(r"[+-]?\d{1,12}(\.\d{1,12})?(e[+-]?\d{1,3})?", re.IGNORECASE)
TELEPHONE = re.compile(r"\+\d{6}")
DIGITS_MAX = 12  # of a chunk with words or signs in it; a card has 16
INT_MAX = 2**64  # bytes and nanoseconds are less
QUANTITY = re.compile(r"\d{1,12}([A-Za-z%/]{1,8})")
GROUPED = re.compile(r"\d{1,3}(,\d{3}){1,5}")
ADDRESS = re.compile(
    r"(?<![\w.])(?<!\d-)\[?(?P<host>[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){1,7}:(?:\d{1,3}(?:\.\d{1,3}){3}|"
    r"[0-9A-Fa-f]{0,4})(?:%[\w.~-]{1,63})?)\]?(?![\w.]*\w)"
    r"|(?<!\d)(?<!\d\.)(?P<host4>\d{1,3}(?:\.\d{1,3}){3})(?!\d|\.\d)"
)
"""What may be an address, IPv6 or IPv4; `ipaddress` knows."""
QUAD = re.compile(r"(?<!\d)\d{1,3}([-_.]\d{1,3}){3}(?!\d)")
"""An address in the name of a host, as clouds and reverse names have it."""
HARDWARE = re.compile(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")
AROUND = ".:!?[]"  # of a sentence, around a chunk
UNITS = frozenset({"s", "ms", "us", "ns", "min", "h", "d", "b", "%", "x", "hz", "mhz", "/s"})
UNITS |= {
    f"{size}{of}" for size in ("k", "m", "g", "t", "ki", "mi", "gi", "ti") for of in ("b", "b/s")
}
SECRET_CHARS_MIN = 6  # a shorter text would blot out words that say nothing of it
PEER_SHORT_CHARS, PEER_CHARS = 8, 52
PEER_SHORT = re.compile(rf"[a-z2-7]{{{PEER_SHORT_CHARS}}}")
PEER_ID = re.compile(
    rf"[a-z2-7]{{{PEER_SHORT_CHARS}}}(?:[a-z2-7]{{{PEER_CHARS - PEER_SHORT_CHARS}}})?"
)
PEER_KEYS = frozenset({"by", "peer", "server"})
"""Fields of events that hold the short id of a peer, which is the hash of a key."""
RUN_KEY, LINE_KEYS = "run", frozenset({"v", "n", "event"})
"""The id of a run stands in the line of an event; elsewhere that key may have its name."""
RUN_SHORT = re.compile(r"[0-9a-f]{8,64}")
NAME_KEYS = frozenset({"name", "run_name", "run", "place", "region", "model"})
"""Fields of events that people or machines chose: their words may be the program's by chance."""
CLOCK = r"\d\d:\d\d(:\d\d([.,]\d{1,6})?)?"
TIMES = re.compile(rf"\d{{4}}-\d\d-\d\d(T{CLOCK}([+-]\d\d:?\d\d|Z)?)?|{CLOCK}")
OURS = "p2pswarm/"
LIBRARIES = ("site-packages/", "dist-packages/")
PYTHON = re.compile(r".*/python3\.\d+/(.+)")
DEPTH_MAX = 8  # of an event's lists and tables
BITS_KEPT_4, BITS_KEPT_6 = 16, 32


def vocabulary_of(sources: Iterable[str]) -> frozenset[str]:
    """The words of texts, in small letters; they begin with a letter."""
    words = (word for text in sources for word in PART.findall(text) if not word[0].isdigit())
    return frozenset(word.casefold() for word in words)


def network_of(host: str) -> str | None:
    """An address as the network that it is in, or "private"; None if it is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.is_unspecified or address.is_loopback:
        return str(address)
    if not address.is_global:
        return "private"
    bits = BITS_KEPT_4 if address.version == 4 else BITS_KEPT_6  # noqa: PLR2004
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))


def _is_run(fields: Mapping[str, object]) -> bool:
    """Return whether these are the fields of an event's line with the id of a run."""
    run = fields.get(RUN_KEY)
    return fields.keys() >= LINE_KEYS and isinstance(run, str) and bool(RUN_SHORT.fullmatch(run))


@dataclass(frozen=True, kw_only=True)
class Redaction:
    """What may stay in a report, and what may not."""

    vocabulary: frozenset[str]
    """The program's own words."""
    secrets: frozenset[str] = frozenset()
    """Texts that go wherever they stand, with `SECRET_CHARS_MIN` characters or more."""
    home: str = ""
    """The user's folder, which becomes a tilde; empty if there is none."""
    allowed: frozenset[str] = frozenset()
    """Words that the owner allows besides, such as the name of the machine."""
    peers: frozenset[str] = field(default_factory=frozenset)
    """Short ids of peers."""

    def text(self, text: str) -> str:
        """A text without what may not stay; without characters that move a cursor, too."""
        if not text.isprintable():
            text = "".join(c if c.isprintable() else " " for c in text)
        if self._secret is not None:
            text = self._secret.sub(LEFT_OUT, text)
        parts, at = [], 0
        for found in ADDRESS.finditer(text):
            network = network_of(found["host"] or found["host4"])
            if network is not None:
                parts += [self._chunks(text[at : found.start()]), network]
                at = found.end()
        return "".join([*parts, self._chunks(text[at:])])

    def value(self, value: object, key: str = "", depth: int = 0) -> object:
        """A value of JSON: numbers and truth values stay, texts are redacted."""
        match value:
            case None | int() if value is None or abs(value) < INT_MAX:  # True is an int, too
                return value
            case float():
                return value if math.isfinite(value) else json.dumps(value)
            case str():
                return self._field(key, value)
            case Mapping() if depth < DEPTH_MAX:
                of_a_run = {RUN_KEY: value[RUN_KEY]} if _is_run(value) else {}
                return {
                    self.text(str(name)): self.value(each, str(name), depth + 1)
                    for name, each in value.items()
                } | of_a_run
            case Sequence() if depth < DEPTH_MAX:
                return [self.value(each, key, depth + 1) for each in value]
            case _:
                return LEFT_OUT

    @functools.cached_property
    def _secret(self) -> re.Pattern[str] | None:
        """Longest first: a secret may begin another one."""
        long = [each for each in self.secrets if len(each) >= SECRET_CHARS_MIN]
        if not long:
            return None
        ordered = sorted(long, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, ordered)), re.IGNORECASE)

    def _field(self, key: str, text: str) -> str:
        if key in PEER_KEYS and PEER_ID.fullmatch(text):
            return text[:PEER_SHORT_CHARS]
        if key in NAME_KEYS and text and text not in self.allowed:
            return LEFT_OUT
        return self.text(text)

    def _chunks(self, text: str) -> str:
        return CHUNK.sub(lambda found: self._chunk(found[0]), text)

    def _chunk(self, chunk: str) -> str:
        inner = chunk.strip(AROUND)
        before, _, after = chunk.partition(inner) if inner else (chunk, "", "")
        return f"{before}{self._inner(inner)}{after}"

    def _inner(self, inner: str) -> str:
        if not inner or inner == LEFT_OUT or inner in self.allowed or inner in self.peers:
            return inner
        if any(each.search(inner) for each in (QUAD, HARDWARE, TELEPHONE)):
            return LEFT_OUT
        if NUMBER.fullmatch(inner) or GROUPED.fullmatch(inner) or TIMES.fullmatch(inner):
            return inner
        if len(inner) == PEER_CHARS and inner[:PEER_SHORT_CHARS] in self.peers:
            return inner[:PEER_SHORT_CHARS]
        if "/" in inner or "\\" in inner:
            return self._path(inner.replace("\\", "/"))
        return inner if self._ours(inner) else LEFT_OUT

    def _path(self, path: str) -> str:
        """A path from the folder of a library on; others are left out."""
        if not path.startswith("/") and self._ours(path):  # also "tokens/s"
            return path
        starts = [at + len(name) for name in LIBRARIES if (at := path.rfind(name)) >= 0]
        if (at := path.rfind(OURS)) >= 0:
            starts.append(at)
        if found := PYTHON.fullmatch(path):
            starts.append(found.start(1))
        if starts and self._ours(inside := path[max(starts) :]):
            return inside
        return f"~/{LEFT_OUT}" if self.home and path.startswith(self.home) else LEFT_OUT

    def _ours(self, chunk: str) -> bool:
        """Return whether all words of a chunk are the program's, and its numbers short."""
        few = sum(map(str.isdigit, chunk)) <= DIGITS_MAX
        return few and all(map(self._part, PART.findall(chunk)))

    def _part(self, part: str) -> bool:
        if part.casefold() in self.vocabulary or part in self.peers or part in self.allowed:
            return True
        if NUMBER.fullmatch(part):
            return True
        found = QUANTITY.fullmatch(part)
        return found is not None and found[1].casefold() in UNITS
