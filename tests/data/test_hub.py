"""Files of the hub, from a hub on this host: what is asked for, and what is said of a bad one."""

import itertools
import os
import subprocess
import sys

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub import (
    HubFile,
    HubForbidden,
    HubSilent,
    Pinned,
    asking,
    file_bytes,
    kept_file,
    library,
    pinned_file,
    ranged,
    small_file,
    whole_file,
)

INSTEAD = "put the file into a folder"
NUMBERS = bytes(range(256)) * 32
_names = itertools.count()


@pytest.fixture
def name(hub, request):
    """A model that no other test knows: the cache is one for all."""
    name = f"owner/{request.node.originalname}-{next(_names)}"[:90]
    hub.publish(name, {"config.json": b"{}", "numbers": NUMBERS})
    return name


def pin(name):
    return pinned_file(name, "config.json", 100, INSTEAD)


def model_of(hub, name):
    return Pinned(name, hub.models[name].commit)


def span(model, start, stop):
    return b"".join(ranged(model, "numbers", (start, stop), INSTEAD, pauses_s=(0.0, 0.0)))


def refusal(call, match):
    with pytest.raises(Unusable, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert INSTEAD in str(caught.value)
    return str(caught.value)


def test_a_name_is_pinned_to_the_commit_that_it_has_now(hub, name):
    before, path = pin(name)
    hub.publish(name, {"config.json": b"[]"})
    after, _ = pin(name)

    assert path.read_bytes() == b"{}"
    assert before != after
    assert after == model_of(hub, name)
    assert str(after) == f"{name}@{after.commit}"


def test_a_commit_that_is_kept_is_not_asked_for(hub, name):
    model, path = pin(name)
    hub.asked.clear()

    assert pin(str(model)) == (model, path)
    assert small_file(model, "config.json", 100, INSTEAD) == path == kept_file(model, "config.json")
    assert hub.asked == []


def test_a_commit_that_is_not_kept_is_downloaded(hub, name):
    model = model_of(hub, name)

    assert pin(str(model))[0] == model


def test_a_file_that_the_model_lacks_is_none(hub, name):
    assert small_file(model_of(hub, name), "other.json", 100, INSTEAD) is None


def test_ranges_are_the_bytes_and_nothing_else_is_sent(hub, name):
    model = model_of(hub, name)

    assert file_bytes(model, "numbers", INSTEAD) == len(NUMBERS)
    assert span(model, 100, 5_000) == NUMBERS[100:5_000]
    assert span(model, 7, 7) == b""
    assert hub.sent["us"] == 4_900


def test_the_token_goes_to_the_hub_and_not_to_the_server_of_large_files(hub, name, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    span(model_of(hub, name), 0, 10)

    assert hub.tokens == {(False, "Bearer hf_secret"), (True, "")}


def test_a_connection_that_breaks_is_taken_up_where_it_ended(hub, name):
    hub.faults = ["cut", "cut", "short", ""]

    assert span(model_of(hub, name), 0, 4_000) == NUMBERS[:4_000]
    asked = [where for _, _, where in hub.asked]
    assert list(dict.fromkeys(asked))[1] == "bytes=2000-3999"


def test_a_hub_that_sends_nothing_is_asked_again_and_then_named(hub, name):
    hub.faults = ["busy", "dead", ""]
    assert span(model_of(hub, name), 0, 40) == NUMBERS[:40]
    hub.faults = ["dead"]

    refusal(lambda: span(model_of(hub, name), 0, 40), "cannot be reached")
    hub.faults = ["busy"]
    refusal(lambda: span(model_of(hub, name), 0, 40), "does not give numbers")

    asked = [where for _, _, where in hub.asked if where]
    assert len(asked) == 2 * (3 + 3 + 3)  # at the hub, and at the server of large files


def test_a_whole_file_is_asked_for_again_at_a_busy_hub(hub, name):
    model, file = model_of(hub, name), HubFile("numbers", len(NUMBERS))
    hub.busy = 1_000
    with pytest.raises(HubSilent, match="does not give numbers"):
        whole_file(model, file, INSTEAD, pauses_s=(0.0, 0.0))
    asked = 1_000 - hub.busy
    hub.busy = asked - 1

    path = whole_file(model, file, INSTEAD, pauses_s=(0.0, 0.0))

    assert path.read_bytes() == NUMBERS
    assert whole_file(model, file, INSTEAD) == path


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ("whole", "whole and not by ranges"),
        ("never", "does not give numbers"),
        ("elsewhere", "other bytes of numbers than asked"),
        ("long", "more of numbers than asked"),
    ],
)
def test_a_hub_that_gives_other_bytes_is_refused(hub, name, fault, match):
    hub.faults = [fault]

    refusal(lambda: span(model_of(hub, name), 0, 40), match)

    assert len([where for _, _, where in hub.asked if where]) == 2  # it is not asked again


def test_unknown_names_revisions_and_files_are_told_apart(hub, name):
    refusal(lambda: pin("owner/nothing"), "has no such model, or HF_TOKEN may not read it")
    refusal(lambda: pin(f"{name}@v9"), "no such revision")
    refusal(lambda: pinned_file(name, "none", 100, INSTEAD), "has no none")
    hub.gated.add(name)
    refusal(lambda: pin(name), "is gated: accept its terms")


def test_a_file_that_is_too_large_is_not_downloaded(hub, name):
    refusal(lambda: pinned_file(name, "numbers", 100, INSTEAD), "8192 bytes, 100 are allowed")

    assert not hub.sent


def test_a_hub_that_says_less_than_the_hub_does_is_refused(hub, name):
    hub.without = {"X-Repo-Commit"}
    refusal(lambda: pin(name), "names no commit")
    hub.without = {"X-Linked-Size", "Content-Length"}
    refusal(lambda: pin(name), "has None bytes")
    refusal(lambda: file_bytes(model_of(hub, name), "config.json", INSTEAD), "how long")
    hub.without = {"ETag"}
    refusal(lambda: pin(name), "ETag|no answer")


def test_a_hub_that_cannot_be_reached_gives_way_to_what_is_kept(hub, name, monkeypatch):
    kept = pin(name)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    assert pin(name) == kept
    refusal(lambda: pin("owner/never-seen"), r"127\.0\.0\.1:9 cannot be reached")


def test_offline_nothing_is_asked(hub, name):
    """In a process of its own: the library reads that setting when it is loaded."""
    pin(name)
    model = model_of(hub, name)
    hub.asked.clear()
    program = (
        "import sys\n"
        "from p2pswarm.base.errors import Unusable\n"
        "from p2pswarm.data.hub import pinned_file, ranged, Pinned\n"
        "name, commit = sys.argv[1:]\n"
        "print(pinned_file(name, 'config.json', 100, 'x')[0].commit == commit)\n"
        "for ask in (lambda: pinned_file('a/b', 'config.json', 100, 'do this'),\n"
        "            lambda: list(ranged(Pinned(name, commit), 'numbers', (0, 9), 'do that'))):\n"
        "    try:\n"
        "        ask()\n"
        "    except Unusable as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, name, model.commit],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )

    first, second, third = done.stdout.splitlines()
    assert first == "True"
    assert "HF_HUB_OFFLINE forbids to ask the hub: unset it, or do this" in second
    assert "HF_HUB_OFFLINE forbids to ask the hub: unset it, or do that" in third
    assert hub.asked == []
    assert done.stderr == ""


def test_a_hub_that_must_not_be_asked_says_which_setting_forbids_it():
    forbidden = library().errors.OfflineModeIsEnabled("offline")

    with pytest.raises(HubForbidden, match="it, or put the"), asking("a/b", "file", INSTEAD):
        raise forbidden


def test_without_the_library_a_name_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(Unusable, match=r"pip install '\.\[hf\]' in the clone"):
        library.__wrapped__()


def test_an_answer_on_which_the_library_fails_is_one_line(hub):
    """Some of what it asks for of itself it reads as if the hub had written it."""

    def fail():
        with asking("owner/name", "numbers", INSTEAD):
            raise AttributeError("'int' object\nhas no attribute 'get'")

    refusal(fail, "answers for numbers as no hub does")
