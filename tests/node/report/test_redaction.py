"""Redaction keeps the program's own words, numbers and networks, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.node.report.machine import vocabulary
from p2pswarm.node.report.redaction import LEFT_OUT, Redaction, network_of, vocabulary_of

WORDS = vocabulary()
REDACTION = Redaction(vocabulary=WORDS, home="/home/anna", peers=frozenset({"k7f2abcd"}))
ID = "k7f2abcd" + "a2" * 22


@pytest.mark.parametrize(
    "text",
    [
        "step 12 loss=2.913 718 tokens/s 1,200 MB in 12ms, 40 % of it",
        "2026-11-26 16:05:14,123 W p2pswarm.net.link.liveness: no answer for 2.1 s",
        "at 2026-11-28T12:00:00.000+00:00",
        "[Errno 111] Connection refused",
        "p2pswarm/node/process.py:88",
        "k7f2abcd leaves stage 1",
        "1e-3 -7 +0.5 100%",
        "::1 127.0.0.1 0.0.0.0",
        "",
        "...",
    ],
)
def test_words_of_the_program_and_numbers_stay(text):
    assert REDACTION.text(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("run 'shakespeare-400m'", "run '…'"),
        ("hunter22", "…"),
        ("0123456789abcdef0123456789abcdef", "…"),
        ("4111111111111111 4111-1111-1111-1111 +491701234567", "… … …"),
        ("00:1a:2b:3c:4d:5e 12-34-56-78-90-12", "… …"),
        ("aGVsbG8gd29ybGQ=", "…"),
        ("anna@example.org", "…"),
        ("мой секрет", "… …"),
        ("8.8.8.8:53", "8.8.0.0/16:53"),
        ("8.8.8.8.", "8.8.0.0/16."),
        (
            "192.168.1.7:4000 10.0.0.1 100.64.0.9 203.0.113.7",
            "private:4000 private private private",
        ),
        ("[2a00:1450:4001:830::200e]:4000", "2a00:1450::/32:4000"),
        ("2a00:1450:4001:830::200e", "2a00:1450::/32"),
        ("::ffff:8.8.8.8", "8.8.0.0/16"),
        ("fe80::1%eth0", "private"),
        ("::1%anna", "::1"),
        ("999.1.1.1:1", "…"),
        ("tcp://8.8.8.8:4000/relay", "tcp://8.8.0.0/16:4000/relay"),
        ("8.8.8.8/24", "8.8.0.0/16…"),
        ("step=8.8.8.8-53", "step=8.8.0.0/16-53"),
        ("ip-8-8-8-8 8_8_8_8 8.8.8.8.8", "… … …"),
        ("http://[2a00:1450::200e]:80/", "http://2a00:1450::/32:80/"),
        ("2a00:1450::8.8.8.8", "2a00:1450::/32"),
        (ID, "k7f2abcd"),
        ("abcdefgh" + "a2" * 22, "…"),
        ("abcdefgh", "…"),
        ("/home/anna/texts/a.txt", "~/…"),
        ("/srv/texts", "…"),
        ("C:\\Users\\anna\\run.toml", "…"),
        (
            '"/home/anna/.venv/lib/python3.11/site-packages/p2pswarm/node/process.py"',
            '"p2pswarm/node/process.py"',
        ),
        ("/usr/lib/python3.11/asyncio/base_events.py", "asyncio/base_events.py"),
        ("/srv/p2pswarm/shakespeare.txt", "…"),
        ("a\x1b[2Jb\u202ec", "a [… c"),
        ("a\tb\0c", "a b c"),
    ],
)
def test_all_else_is_left_out(text, left):
    assert REDACTION.text(text) == left


def test_a_secret_of_the_programs_own_words_is_left_out():
    redaction = Redaction(vocabulary=WORDS, secrets=frozenset({"open stage", "open stage server"}))

    assert redaction.text("run Open Stage server begins") == f"run {LEFT_OUT} begins"


def test_a_short_secret_does_not_blot_out_words():
    redaction = Redaction(vocabulary=WORDS, secrets=frozenset({"a", "step", ""}))

    assert redaction.text("a step begins") == "a step begins"


def test_names_that_machines_and_runs_have_are_left_out_of_events():
    event = {"event": "joined", "name": "server", "run_name": "training", "server": "k7f2abcd"}

    assert REDACTION.value(event) == event | {"name": LEFT_OUT, "run_name": LEFT_OUT}


def test_id_of_a_run_stays_in_the_line_of_an_event_alone():
    line = {"v": 2, "n": 7, "run": "5f0c1a2b", "event": "started", "by": ID}

    assert REDACTION.value(line) == line | {"by": "k7f2abcd"}
    assert REDACTION.value({"run": "decade00", "server": "Anna's"}) == {
        "run": LEFT_OUT,
        "server": f"{LEFT_OUT}'s",
    }


@pytest.mark.parametrize("value", [1, 2.5, True, None, "NaN", [1, [2]], {"step": 1}])
def test_plain_values_stay(value):
    assert Redaction(vocabulary=vocabulary_of(["NaN step"])).value(value) == value


def test_a_number_that_no_figure_has_is_left_out():
    assert REDACTION.value([10**30, -(10**30), 2**63]) == [LEFT_OUT, LEFT_OUT, 2**63]


def test_a_number_that_json_lacks_is_a_text():
    assert REDACTION.value(float("nan")) == "NaN"


@given(st.text())
def test_no_text_raises_and_none_moves_a_cursor(text):
    left = REDACTION.text(text)

    assert left.isprintable()
    assert REDACTION.text(left).replace(LEFT_OUT, "") == left.replace(LEFT_OUT, "")


@given(st.ip_addresses())
def test_of_an_address_the_network_stays(address):
    shown = network_of(str(address))

    assert shown == "private" or shown.endswith(("/16", "/32")) or not address.is_global


def test_what_is_no_address_has_no_network():
    assert network_of("coordinator") is None
