"""The gate of a page: one test for each way in that is closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.web.gate import (
    METHODS,
    SECURITY_HEADERS,
    PageGate,
    PageRequest,
    Pass,
    Redirect,
    Refusal,
    host_name,
)

TOKEN = "a-token-of-a-test-that-nobody-guesses"
GATE = PageGate(TOKEN, 4040, names=["gpu.example"])


def asked(**fields):
    given = {"method": "GET", "host": "127.0.0.1:4040", "path": "/", "cookie": TOKEN}
    return GATE.verdict(PageRequest(**given | fields))


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X"]
)
@pytest.mark.parametrize("path", ["/", "/stream", "/livez", "/nowhere"])
def test_every_method_but_get_and_head_is_refused_for_every_path(method, path):
    assert asked(method=method, path=path).status == 405


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example:4040",
        "127.0.0.1.nip.io",
        "",
        "[::1",
        "a@localhost",
        "localhost@evil.example",
        "127.1",
        "0x7f.1",
        "x" * 300,
        "localhost:port:",
        "\u0131.example",
    ],
)
@pytest.mark.parametrize("path", ["/", "/metrics", "/livez"])
def test_a_foreign_host_is_refused_with_the_right_token_too(host, path):
    assert asked(host=host, path=path).status == 421


@pytest.mark.parametrize(
    "host",
    [
        "localhost:4040",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1:9",
        "[::1]:4040",
        "gpu.example:80",
        "192.0.2.7:4040",
    ],
)
def test_a_name_of_this_page_is_let_in(host):
    assert asked(host=host, arrived_at="::ffff:192.0.2.7") == Pass()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"token": "x"},
        {"cookie": TOKEN[:-1]},
        {"bearer": TOKEN + "x"},
        {"bearer": "é" * 20},
        {"token": "x" * 10_000},
        {"cookie": TOKEN.upper()},
    ],
)
@pytest.mark.parametrize(
    "path", ["/", "/view", "/events", "/metrics", "/stream", "/livez/", "/nowhere"]
)
def test_nothing_is_seen_without_the_token(fields, path):
    assert asked(**{"cookie": "", "path": path} | fields).status == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_probe_needs_no_token(path):
    assert asked(path=path, cookie="") == Pass()


def test_the_link_becomes_a_cookie_that_no_script_reads_and_no_other_site_sends():
    verdict = asked(path="/why", token=TOKEN, cookie="")

    assert isinstance(verdict, Redirect)
    assert verdict.to == "/why"
    assert verdict.cookie.startswith(f"p2pswarm-4040={TOKEN}; HttpOnly; SameSite=Strict; Path=/")


def test_two_pages_of_a_host_have_cookies_of_their_own():
    assert PageGate(TOKEN, 4041).cookie_name != GATE.cookie_name


def test_a_redirect_never_leads_away():
    assert asked(path="//evil.example/", token=TOKEN).to == "/evil.example/"
    assert asked(path="/\\evil.example", token=TOKEN).to == "/evil.example"


def test_a_bearer_sees_what_a_cookie_does():
    assert asked(path="/metrics", cookie="", bearer=TOKEN) == Pass()


def test_the_policy_allows_nothing_from_outside():
    policy = SECURITY_HEADERS["Content-Security-Policy"].split("; ")

    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not any("http" in part or "unsafe" in part or "*" in part for part in policy)
    assert SECURITY_HEADERS["X-Content-Type-Options"] == "nosniff"
    assert SECURITY_HEADERS["Referrer-Policy"] == "no-referrer"
    assert SECURITY_HEADERS["Cache-Control"] == "no-store"


@given(st.text(max_size=300), st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_no_text_but_the_token_opens_the_gate(host, token, cookie, bearer):
    verdict = GATE.verdict(PageRequest("GET", host, "/view", token, cookie, bearer))

    assert isinstance(verdict, Refusal) or TOKEN in (token, cookie, bearer)


@given(st.text(max_size=300))
def test_a_host_header_is_a_name_or_nothing(host):
    name = host_name(host)

    assert name == name.lower()
    assert "@" not in name or not name


def test_reading_is_all_there_is():
    assert METHODS == ("GET", "HEAD")
