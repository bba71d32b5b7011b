"""A hub on this host: the few routes of huggingface.co that are asked for, and every byte counted.

As there, a large file is redirected to another server, which must not see the token. `at(WHO)` is
an address for one machine, so that what each has downloaded can be told. A data set is published as
datasets/OWNER/NAME; its list of files comes in pages.
"""

import contextlib
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote

ROUTE = re.compile(r"/at-([^/]+)(/large)?/(.+)/resolve/([^/]+)/(.+)")
LISTS = re.compile(r"/at-([^/]+)/api/(datasets/[^/]+/[^/]+)/(revision|tree)/([^/]+)(?:/(.+))?")
PAGE = 3
"""Files in a page of a list."""
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
LARGE_BYTES = 4_096
"""Files from this size on lie at the other server."""


def lfs_of(data: bytes) -> dict[str, object]:
    """What a list says of a large file."""
    oid = hashlib.sha256(data).hexdigest()
    large = {"lfs": {"oid": oid, "size": len(data), "pointerSize": 130}}
    return large if len(data) >= LARGE_BYTES else {}


@dataclass
class Model:
    """One repository at one commit."""

    files: dict[str, bytes]
    commit: str


@dataclass
class LocalHub:
    """What the hub has, what it does wrong, and what was asked of it."""

    ports: tuple[int, int] = (0, 0)
    models: dict[str, Model] = field(default_factory=dict)
    commits: dict[str, Model] = field(default_factory=dict)
    """All data sets that were ever published; of a model only the newest stays."""
    branches: dict[str, str] = field(default_factory=dict)
    """The commit of each branch, but for main."""
    listed: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """Entries that the list of a data set has besides its files."""
    gated: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    """What it does wrong at ranges, one after the other; the last one lasts: see `Asked.ranged`."""
    busy: int = 0
    """How many questions for files it answers with: not now."""
    without: set[str] = field(default_factory=set)
    """Headers that it leaves out."""
    sent: Counter[str] = field(default_factory=Counter)
    """The bytes of bodies, by who asked."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, file and range."""
    tokens: set[tuple[bool, str]] = field(default_factory=set)
    """Whether the server of large files was asked, and with which token."""

    def publish(self, name: str, files: dict[str, bytes]) -> str:
        """Make a model; returns its commit."""
        whole = hashlib.sha1(name.encode(), usedforsecurity=False)
        for file, data in sorted(files.items()):
            whole.update(file.encode() + data)
        self.models[name] = Model(files, whole.hexdigest())
        if name.startswith("datasets/"):
            self.commits[whole.hexdigest()] = self.models[name]
        return whole.hexdigest()

    def at(self, who: str) -> str:
        """HF_ENDPOINT for one machine."""
        return f"http://127.0.0.1:{self.ports[0]}/at-{who}"

    def revision(self, name: str, revision: str) -> Model | None:
        """What a repository has at a branch or a commit."""
        newest = self.models[name]
        if revision in ("main", newest.commit):
            return newest
        return self.commits.get(self.branches.get(revision, revision))


class Asked(BaseHTTPRequestHandler):
    """One connection, for one request, so that none outlives the hub."""

    timeout = 30
    hub: LocalHub

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer."""
        path, _, query = self.path.partition("?")
        if listing := LISTS.fullmatch(path):
            self.about(*listing.groups(""), query)
        else:
            self.answer(path)

    def answer(self, path: str) -> None:
        """Answer with a file, or what is known of it."""
        found = ROUTE.fullmatch(path)
        if found is None:  # the library may ask for news of its own
            return self.refuse(404, "EntryNotFound")
        who, large, name, revision, file = found.groups()
        revision, file = unquote(revision), unquote(file)
        hub = self.hub
        hub.tokens.add((bool(large), self.headers.get("Authorization", "")))
        hub.asked.append((self.command, file, self.headers.get("Range", "")))
        model = hub.models.get(name)
        missing = None
        if hub.busy:
            hub.busy, missing = hub.busy - 1, (503, "Busy")
        elif model is None:
            missing = 401, "RepoNotFound"
        elif name in hub.gated:
            missing = 403, "GatedRepo"
        elif (model := hub.revision(name, revision)) is None:
            missing = 404, "RevisionNotFound"
        elif file not in model.files:
            missing = 404, "EntryNotFound"
        if missing:
            return self.refuse(*missing)
        data = model.files[file]
        about = {
            "X-Repo-Commit": model.commit,
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Linked-Size": str(len(data)),
        }
        if len(data) >= LARGE_BYTES and not large:
            there = f"http://127.0.0.1:{hub.ports[1]}/at-{who}/large/"
            about["Location"] = there + self.path.partition(f"/at-{who}/")[2]
            return self.say(302, about, b"", 0)
        if asked := RANGE.fullmatch(self.headers.get("Range", "")):
            return self.ranged(who, about, data, (int(asked[1]), int(asked[2]) + 1))
        body = data if self.command == "GET" else b""
        hub.sent[who] += len(body)
        return self.say(200, about, body, len(data))

    def about(self, who: str, name: str, what: str, revision: str, folder: str, query: str) -> None:
        """Answer what a data set's commit is, or with a page of its files."""
        hub, folder = self.hub, unquote(folder)
        hub.asked.append((self.command, f"{what} {folder}".rstrip(), ""))
        if name not in hub.models:
            return self.refuse(401, "RepoNotFound")
        there = hub.revision(name, unquote(revision))
        if there is None:
            return self.refuse(404, "RevisionNotFound")
        if what == "revision":
            about: object = {"id": name.partition("/")[2], "sha": there.commit}
            body = json.dumps(about).encode()
            return self.say(200, {}, body, len(body))
        asked = parse_qs(query)
        inside = f"{folder}/" if folder else ""
        deep = asked["recursive"][0].lower() == "true"
        entries = [
            {"type": "file", "path": file, "size": len(data), "oid": "0"} | lfs_of(data)
            for file, data in sorted(there.files.items())
            if file.startswith(inside) and (deep or "/" not in file.removeprefix(inside))
        ]
        if folder and not entries:
            return self.refuse(404, "EntryNotFound")
        entries += hub.listed.get(name, [])
        first = int(asked.get("cursor", ["0"])[0])
        headers = {}
        if first + PAGE < len(entries):
            here = f"{hub.at(who)}{self.path.partition(f'/at-{who}')[2].partition('?')[0]}"
            following = f"recursive={asked['recursive'][0]}&cursor={first + PAGE}"
            headers["Link"] = f'<{here}?{following}>; rel="next"'
        body = json.dumps(entries[first : first + PAGE]).encode()
        return self.say(200, headers, body, len(body))

    def ranged(self, who: str, about: dict[str, str], data: bytes, span: tuple[int, int]) -> None:
        """Answer with a part of a file, or do what goes wrong next."""
        hub, (start, stop) = self.hub, span
        faults = hub.faults
        fault = (faults.pop(0) if len(faults) > 1 else faults[0]) if faults else ""
        about["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        body, said = data[start:stop], stop - start
        match fault:
            case "whole":
                return self.say(200, about, b"", 0)
            case "busy":
                return self.say(503, {}, b"", 0)
            case "never":
                return self.say(403, {}, b"", 0)
            case "cut":  # the connection breaks in the middle
                body = body[: len(body) // 2]
            case "dead":  # before the first byte
                body = b""
            case "short":
                body = body[:-1]
                said = len(body)
            case "long":
                body += b"!"
                said = len(body)
            case "elsewhere":
                about["Content-Range"] = f"bytes {start + 1}-{stop}/{len(data)}"
            case "wrong":
                body = body[:-1] + bytes([body[-1] ^ 1])
        hub.sent[who] += len(body)
        self.say(206, about, body, said)
        return None

    def refuse(self, status: int, code: str) -> None:
        self.say(status, {"X-Error-Code": code, "X-Error-Message": code}, b"", 0)

    def say(self, status: int, headers: dict[str, str], body: bytes, said: int) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if key not in self.hub.without:
                self.send_header(key, value)
        if "Content-Length" not in self.hub.without or self.command == "GET":
            self.send_header("Content-Length", str(said))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A hub that listens on loopback until the block ends."""
    hub = LocalHub()
    handler = type("AskedHere", (Asked,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.ports = (servers[0].server_port, servers[1].server_port)
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
