"""PageServer: a page over HTTP. It accepts, asks the gate, and carries what `RunPage` has.

aiohttp parses requests. Connections are accepted here, so that what is half open is bounded before
anything is spent on it.

Errors:  Unusable if the address cannot be listened at.
Source:  docs/watch.md, "The page".
"""

import asyncio
import contextlib
import functools
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.os.sockets import SocketListener
from p2pswarm.web.connection_slots import ConnectionSlots
from p2pswarm.web.gate import (
    METHODS,
    PROBES,
    SECURITY_HEADERS,
    TOKEN_KEY,
    PageGate,
    PageRequest,
    Redirect,
    Refusal,
)
from p2pswarm.web.metrics import metrics_text
from p2pswarm.web.run_page import RunPage
from p2pswarm.web.streams import VIEWERS_MAX, Viewer, last_id, message

FILES = Path(__file__).parent / "files"
FILE_TYPES = {
    "page.html": "text/html",
    "page.js": "text/javascript",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
}
VIEWS = ("/", "/you", "/why", "/cost")
"""All are one page; its script shows the part that the path names."""
BACKLOG = 128  # connections that wait for us to accept them
TICK_S = 1.0  # looks for connections that say nothing, and shows that the loop turns
FLUSH_S = 0.25  # a viewer gets what has come since; people see no difference
WRITE_S = 10.0  # for a viewer to take a write; then it is dropped
STREAM_END_S = 1.0  # for viewers to hear that the node leaves
AFTER_KEY = "after"  # a stream that the script opens anew has no Last-Event-ID
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether an error is ours: aiohttp has a traceback for each that a stranger makes."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


_log = logging.getLogger(__name__)
_log.addFilter(_is_ours)


class _PageHandlers(web.Server):
    """The HTTP connections; tells which are over."""

    def __init__(
        self,
        serve: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        on_loss: Callable[[asyncio.BaseProtocol], None],
    ) -> None:
        super().__init__(serve, access_log=None, logger=_log, lingering_time=0.0)
        self._on_loss = on_loss

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """A connection is over."""
        super().connection_lost(handler, exc)
        self._on_loss(handler)


class PageServer(Closing):
    """One page at one address. Make it in an event loop."""

    def __init__(
        self, page: RunPage, gate: Callable[[int], PageGate], listener: socket.socket
    ) -> None:
        """`gate`: makes the gate of a port; `listener`: a socket that listens."""
        listener.setblocking(False)
        self._page = page
        self._listener = SocketListener(listener, TICK_S)
        self.address = self._listener.address
        self._gate = gate(self.address.port)
        self._loop = asyncio.get_running_loop()
        self._handlers = _PageHandlers(self._serve, self._on_loss)
        self._slots: ConnectionSlots[asyncio.BaseProtocol] = ConnectionSlots()
        self._transports: dict[asyncio.BaseProtocol, asyncio.Transport] = {}
        self._files = {
            name: ((FILES / name).read_bytes(), kind) for name, kind in FILE_TYPES.items()
        }
        self._answers: dict[str, Callable[[], web.Response]] = {
            "/livez": lambda: self._probe("livez"),
            "/readyz": lambda: self._probe("readyz"),
            "/view": lambda: _json(page.snapshot_json()),
            "/curves": lambda: _json(page.curves_json()),
            "/events": lambda: _json(page.lines_json()),
            "/metrics": lambda: web.Response(
                body=metrics_text(page), headers={"Content-Type": METRICS_TYPE}
            ),
        }
        for name in FILE_TYPES:
            self._answers[f"/{name}"] = functools.partial(self._file, name)
        self._answers |= dict.fromkeys(VIEWS, self._answers["/page.html"])
        self._tasks = OwnedTasks()
        self._tasks.spawn(self._accept())
        self._tasks.spawn(self._tick())

    async def close(self) -> None:
        """End every connection."""
        self._page.end()
        await self._handlers.shutdown(STREAM_END_S)
        await self._tasks.close()
        for transport in list(self._transports.values()):
            transport.abort()
        self._listener.close()
        await asyncio.sleep(0)  # their sockets close in the loop's next turn

    async def _accept(self) -> None:
        while True:
            try:
                connection = await self._listener.accept()
            except LinkLost as error:
                _log.info("%s", error)
                await asyncio.sleep(TICK_S)
                continue
            handler = self._handlers()
            for one in self._slots.on_open(handler, self._loop.time()):
                self._abort(one)
                if one is handler:
                    connection.close()
            if connection.closed:
                continue
            accepted = connection.release()
            with contextlib.ExitStack() as undo:  # also if the server closes meanwhile
                undo.callback(accepted.close)
                undo.callback(self._slots.on_close, handler)
                with contextlib.suppress(OSError):  # the connection is over already
                    transport, _ = await self._loop.connect_accepted_socket(
                        functools.partial(_itself, handler), accepted
                    )
                    self._transports[handler] = transport
                    undo.pop_all()

    async def _tick(self) -> None:
        while True:
            now_s = self._loop.time()
            self._page.health.on_turn(now_s)
            self._page.look()
            for handler in self._slots.late(now_s):
                self._abort(handler)
            await asyncio.sleep(TICK_S)

    def _abort(self, handler: asyncio.BaseProtocol) -> None:
        if (transport := self._transports.get(handler)) is not None:
            transport.abort()

    def _on_loss(self, handler: asyncio.BaseProtocol) -> None:
        self._slots.on_close(handler)
        self._transports.pop(handler, None)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        match self._gate.verdict(self._asked(request)):
            case Redirect(to, cookie):
                return _closed(303, "", {"Location": to, "Set-Cookie": cookie})
            case Refusal(status, reason):
                return _closed(status, reason, {"Allow": ", ".join(METHODS)})
        if request.path not in PROBES:  # which show no token, and hold no slot
            self._slots.on_pass(request.protocol)
        if request.path == "/stream":
            return await self._stream(request)
        answer = self._answers.get(request.path)
        if answer is None:
            return _closed(404, "there is no such page", {})
        response = answer()
        response.headers.update(SECURITY_HEADERS)
        return response

    def _asked(self, request: web.BaseRequest) -> PageRequest:
        arrived = request.transport.get_extra_info("sockname") if request.transport else None
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        return PageRequest(
            method=request.method,
            host=request.headers.get("Host", ""),
            path=request.path,
            token=request.query.get(TOKEN_KEY, ""),
            cookie=request.cookies.get(self._gate.cookie_name, ""),
            bearer=bearer.strip() if scheme.lower() == "bearer" else "",
            arrived_at=str(arrived[0]) if arrived else "",
        )

    def _file(self, name: str) -> web.Response:
        body, kind = self._files[name]
        return web.Response(body=body, content_type=kind, charset="utf-8")

    def _probe(self, name: str) -> web.Response:
        health, now_s = self._page.health, self._loop.time()
        answer = health.live(now_s) if name == "livez" else health.ready(now_s)
        response = _json(answer.to_json())
        response.set_status(answer.status)
        response.force_close()
        return response

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """Follow the run, until the viewer goes or is too slow."""
        viewer = self._page.streams.open()
        if viewer is None:
            why = f"{VIEWERS_MAX} viewers follow already: close another window"
            return _closed(503, why, {"Retry-After": "10"})
        headers = {**SECURITY_HEADERS, "Content-Type": "text/event-stream"}
        response = web.StreamResponse(headers=headers)
        try:
            await response.prepare(request)
            if request.method == "GET":
                await self._follow(request, response, viewer)
        except (ConnectionError, TimeoutError):
            viewer.dropped = True
        finally:
            self._page.streams.close(viewer)
        if viewer.dropped and request.transport is not None:
            request.transport.abort()  # what it has not read is not sent to it any more
        return response

    async def _follow(
        self, request: web.BaseRequest, response: web.StreamResponse, viewer: Viewer
    ) -> None:
        page = self._page
        after = last_id(request.headers.get("Last-Event-ID", request.query.get(AFTER_KEY, "")))
        lines = list(page.streams.after(after))
        viewer.drain()  # what came while the answer began is among them
        seen = None
        while not (viewer.dropped or page.over):
            view = page.newest_view(self._loop.time())
            parts = [message("line", each.line, each.n) for each in lines]
            if view is not seen:
                parts.append(view)
                seen = view
            if parts:
                async with asyncio.timeout(WRITE_S):
                    await response.write(b"".join(parts))
            await asyncio.sleep(FLUSH_S)
            lines = viewer.drain()


def _itself(handler: web.RequestHandler) -> web.RequestHandler:
    return handler


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")


def _closed(status: int, reason: str, headers: dict[str, str]) -> web.Response:
    """An answer after which the connection ends: who has no token holds no slot."""
    response = web.Response(status=status, text=reason, headers={**SECURITY_HEADERS, **headers})
    response.force_close()
    return response


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; OSError if it is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.ExitStack() as undo:
        undo.callback(listener.close)
        if sys.platform != "win32":  # where it would take a port that another program has
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        undo.pop_all()
    return listener
