"""A page over real sockets: what it answers, and to whom."""

import asyncio
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families
from web.harness import RUN, TOKEN, begun, peers, served_page, stepped

from p2pswarm.progress.events import Departure, Left, Note
from p2pswarm.web.connection_slots import SLOTS
from p2pswarm.web.gate import SECURITY_HEADERS
from p2pswarm.web.page_server import FILE_TYPES, FILES, VIEWS
from p2pswarm.web.streams import VIEWERS_MAX

BYTES_MAX = 150_000


def body(answer: str) -> str:
    return answer.partition("\r\n\r\n")[2]


def status(answer: str) -> int:
    return int(answer.split(" ", 2)[1])


async def test_every_answer_has_the_headers_that_keep_others_out():
    async with served_page() as fed:
        answers = [
            await fed.got(path, Authorization=bearer)
            for path in (*VIEWS, "/view", "/metrics", "/livez", "/nowhere", "/page.js")
            for bearer in (f"Bearer {TOKEN}", "")
        ]

    for answer in answers:
        for name, value in SECURITY_HEADERS.items():
            assert f"\r\n{name}: {value}\r\n" in answer


async def test_the_link_leads_to_the_page_by_a_cookie():
    async with served_page() as fed:
        answer = await fed.got(f"/?t={TOKEN}", Authorization="")
        cookie = answer.partition("Set-Cookie: ")[2].partition(";")[0]
        page = await fed.got("/", Authorization="", Cookie=cookie)

    assert status(answer) == 303
    assert "\r\nLocation: /\r\n" in answer
    assert status(page) == 200
    assert TOKEN not in page


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_a_request_that_would_change_something_is_refused(method):
    async with served_page() as fed:
        answer = await fed.asked(
            f"{method} / HTTP/1.1\r\nHost: {fed.address}\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Length: 0\r\n\r\n"
        )

    assert status(answer) == 405
    assert "\r\nAllow: GET, HEAD\r\n" in answer


async def test_a_foreign_host_and_no_token_are_refused():
    async with served_page() as fed:
        assert status(await fed.got("/view", Host="evil.example")) == 421
        assert status(await fed.got("/view", Authorization="Bearer x")) == 401
        assert status(await fed.got("/stream", Authorization="")) == 401
        assert status(await fed.got("/readyz", Authorization="")) == 503
        assert status(await fed.got("/livez", Authorization="")) == 200


@pytest.mark.parametrize(
    "request_text",
    [
        "GET\r\n\r\n",
        "BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\x00" * 400,
        "GET / HTTP/1.1\r\n" + "A: b\r\n" * 5_000 + "\r\n",
        "GET /" + "x" * 100_000 + " HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused(request_text, caplog):
    async with served_page() as fed:
        answer = await fed.asked(request_text)

        assert not answer or status(answer) in (400, 401, 421)
        assert status(await fed.got("/livez")) == 200
    assert caplog.records == []


async def test_a_thousand_half_open_connections_keep_no_viewer_out():
    async with served_page() as fed:
        halves = [await asyncio.open_connection(*host_port(fed)) for _ in range(1_000)]
        for number, (_, writer) in enumerate(halves):
            if number % 2:
                writer.write(b"GET /stream HTTP/1.1\r\nHost: loc")

        assert status(await fed.got("/view")) == 200

        over = sum(
            reader.at_eof() or bool(writer.transport.is_closing()) for reader, writer in halves
        )
        for _, writer in halves:
            writer.close()
    assert over >= 1_000 - 2 * SLOTS


def host_port(fed):
    return fed.address.host, fed.address.port


async def opened_stream(fed, **headers):
    reader, writer = await asyncio.open_connection(*host_port(fed))
    fields = {"Host": str(fed.address), "Authorization": f"Bearer {TOKEN}"} | headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"GET /stream HTTP/1.1\r\n{lines}\r\n".encode())
    return reader, writer


async def test_probes_without_a_token_hold_no_slot():
    async with served_page() as fed:
        probes = [await asyncio.open_connection(*host_port(fed)) for _ in range(SLOTS)]
        for reader, writer in probes:
            writer.write(f"GET /livez HTTP/1.1\r\nHost: {fed.address}\r\n\r\nGET /l".encode())
            await reader.readuntil(b"turns")

        assert status(await fed.got("/view")) == 200
        for _, writer in probes:
            writer.close()


async def test_a_stream_has_the_run_and_goes_on_where_it_was():
    async with served_page() as fed:
        fed.tell(*begun(), stepped(1), peers())
        reader, writer = await opened_stream(fed)
        text = (await reader.readuntil(b'"viewers":1}\n\n')).decode()
        writer.close()
        fed.tell(Left("peer1", 1, Departure.LOST, "no answer for 2.1 s", 5, "machine-1"))
        again, writer = await opened_stream(fed, **{"Last-Event-ID": str(fed.page.streams.n - 1)})
        more = (await again.readuntil(b"event: view")).decode()
        writer.close()

    assert text.count("event: line") == fed.page.streams.n - 1
    view = json.loads(text.partition("event: view\ndata: ")[2].split("\n")[0])
    assert (view["run"]["step"], view["run"]["run"]) == (1, RUN)
    assert len(view["run"]["servers"]) == 4
    assert more.count("event: line") == 1
    assert "no answer for 2.1 s" in more


async def test_there_are_sixteen_streams_and_the_next_is_told_to_come_back():
    async with served_page() as fed:
        fed.tell(*begun())
        streams = [await opened_stream(fed) for _ in range(VIEWERS_MAX)]
        for reader, _ in streams:
            await reader.readuntil(b"event: view")

        answer = await fed.got("/stream")
        for _, writer in streams:
            writer.close()

    assert status(answer) == 503
    assert "\r\nRetry-After: " in answer


async def test_a_viewer_that_does_not_read_is_dropped_and_others_go_on():
    async with served_page() as fed:
        reader, writer = await opened_stream(fed)
        await reader.readuntil(b"text/event-stream")
        writer.transport.pause_reading()
        viewer = next(iter(fed.page.streams._viewers))
        for number in range(1_000):
            fed.page.streams.on_line(f'"{number}"')

        while fed.page.streams.viewers:
            await asyncio.wait_for(asyncio.shield(next_turn()), 60)
        writer.close()

        assert viewer.dropped
        assert status(await fed.got("/view")) == 200


async def next_turn():
    loop = asyncio.get_running_loop()
    turned = loop.create_future()
    loop.call_later(0.01, turned.set_result, None)
    await turned


async def test_head_has_the_headers_alone():
    async with served_page() as fed:
        for path in ("/", "/stream", "/metrics"):
            answer = await fed.asked(
                f"HEAD {path} HTTP/1.1\r\nHost: {fed.address}\r\nConnection: close\r\n"
                f"Authorization: Bearer {TOKEN}\r\n\r\n"
            )
            assert status(answer) == 200
            assert body(answer) == ""


async def test_metrics_are_as_prometheus_reads_them_and_no_label_is_of_a_stranger():
    async with served_page() as fed:
        fed.tell(*begun(), stepped(1, 0.3), stepped(2, 700.0), peers())
        fed.tell(Left("evil{", 1, Departure.LOST, 'x"} 1\nbad 2', 5, "evil\nname"))
        text = body(await fed.got("/metrics"))

    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert families["p2pswarm_tokens"].samples[0].value == 2 * 8 * 2 * 128
    assert {"p2pswarm_servers", "p2pswarm_losses", "p2pswarm_step_seconds"} <= families.keys()
    assert "evil" not in text
    labels = {name for one in families.values() for sample in one.samples for name in sample.labels}
    ours = {
        "version",
        "run",
        "role",
        "state",
        "stage",
        "le",
        "why",
        "direction",
        "path",
        "currency",
    }
    assert labels <= ours
    histogram = {
        s.labels.get("le"): s.value
        for s in families["p2pswarm_step_seconds"].samples
        if "le" in s.labels
    }
    assert (histogram["0.5"], histogram["500.0"], histogram["+Inf"]) == (1, 1, 2)


async def test_a_reason_of_any_characters_is_a_line():
    """Of a machine that goes people see why, whatever it is called."""
    async with served_page() as fed:
        for reason in ("\U0001f600" * 400, "\ud800" * 400, '"\\\x00' * 400):
            fed.tell(Left("peer1", 1, Departure.LOST, reason, 0, "\U0001f600" * 60))
        reader, writer = await opened_stream(fed)
        text = (await reader.readuntil(b"event: view")).decode()
        writer.close()

    assert text.count("event: line") == 3
    assert "\U0001f600" * 300 in text


async def test_events_that_are_too_many_are_left_out_and_counted():
    async with served_page() as fed:
        fed.tell(*(Note(f"note {number}") for number in range(2_000)))
        shown = json.loads(body(await fed.got("/view")))

    assert shown["left_out"] >= 1_500
    assert shown["left_out"] + len(list(fed.page.streams.after(0))) == 2_000


def test_page_and_script_are_small_and_name_no_other_place():
    texts = {name: (FILES / name).read_text() for name in FILE_TYPES}

    assert sum(len(text.encode()) for text in texts.values()) <= BYTES_MAX
    for text in texts.values():
        there = text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in there.replace("https://html.spec.whatwg.org", "")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
        ):
            assert way not in text
