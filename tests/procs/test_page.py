"""The pages of real nodes: a trainer's, a server's, and one of a run that is watched from afar."""

import http.client
import json

import pytest
from procs.test_full_disk import HERE, RUN

from p2pswarm.command_line import main

pytestmark = pytest.mark.timeout(300)  # several processes each, and machines may be busy
STEPS = 400


def write_run(path, steps=STEPS):
    text = RUN.format(
        state='name = "attic"\nstate = "state"', target='""', steps=steps, standby="false"
    )
    path.write_text(text)
    return path


def link_in(line):
    page, _, token = line.partition("http://")[2].split()[0].partition("?t=")
    return page.partition("/")[0], token


def asked(place, path, **headers):
    connection = http.client.HTTPConnection(place, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def seen(place, token, path="/view"):
    status, text = asked(place, path, Authorization=f"Bearer {token}")
    assert status == 200, text
    return json.loads(text)


def test_a_run_has_a_page_and_so_has_a_server_that_is_asked_for_one(
    start, seed_node, text_folder, tmp_path, capsys
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join, "--name", "cellar", "--set", "page.listen=127.0.0.1:0")
    server_at, server_token = link_in(server.line_with("page http://"))
    assert main(["health", server_at]) == 1
    trainer = start("train", write_run(tmp_path / "run.toml"), *join, module="p2pswarm")
    line = trainer.line_with("page http://")
    at, token = link_in(line)
    assert line.startswith("run ")
    assert f"p2pswarm watch --bootstrap {address}" in line
    trainer.line_with("loss")
    server.line_with("serving stage")

    run, own = seen(at, token)["run"], seen(server_at, server_token)["you"]

    assert run["name"] == "full"
    assert [row["name"] for row in run["servers"].values()] == ["cellar"]
    assert (own["role"], own["stage"], own["stages"], own["run"]) == ("stage", 0, 1, "full")
    assert own["unheard_s"] is not None
    assert asked(at, "/view")[0] == 401
    assert "p2pswarm_step " in asked(at, "/metrics", Authorization=f"Bearer {token}")[1]
    assert main(["health", at]) == 0
    assert main(["health", at, "--json"]) == 0
    assert main(["health", server_at, "--live"]) == 0
    assert '{"ok":true,"why":"leads the run"}' in capsys.readouterr().out
    assert (tmp_path / "state" / "page.token").stat().st_mode & 0o777 == 0o600
    trainer.interrupt()
    trainer.end()
    assert main(["health", at]) == 1


def test_a_taken_port_costs_the_page_and_no_node(start, seed_node):
    _, address = seed_node
    first = start("--role", "bootstrap", *HERE, "--set", "page.listen=127.0.0.1:0")
    place, _ = link_in(first.line_with("page http://"))

    second = start(
        "--bootstrap", address, "--role", "bootstrap", *HERE, "--set", f"page.listen={place}"
    )

    said = second.line_with("page.listen")
    assert "the node goes on without a page" in said
    assert second.address
    second.interrupt()
    second.end()


def test_a_run_is_watched_from_afar_in_a_browser(start, seed_node, text_folder, tmp_path):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join)
    trainer = start("train", write_run(tmp_path / "run.toml"), *join, module="p2pswarm")
    trainer.line_with("loss")

    watch = start("watch", "--bootstrap", address, "--page", "127.0.0.1:0", module="p2pswarm")
    at, token = link_in(watch.line_with("page http://"))
    while (run := seen(at, token)["run"])["state"] == "starting":
        assert watch.process.poll() is None, watch.errors

    assert (run["name"], len(run["stages"]), run["state"]) == ("full", 1, "training")
    assert run["stages"][0]["ready"] == 1
    assert seen(at, token)["you"] == {}
    watch.interrupt()
    assert watch.end() in (0, 130)
