"""The command line: which command it names, and with which settings."""

import argparse
import dataclasses
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.base.version import VERSION
from p2pswarm.command_line import UNREAD, main, make_parser
from p2pswarm.commands.demo.flags import options_of
from p2pswarm.commands.demo.options import UNEVEN_REPLICAS, UNEVEN_STEPS, Options
from p2pswarm.commands.doctor.flags import config_of as doctors_config
from p2pswarm.commands.node import EXAMPLES, settings_of
from p2pswarm.commands.plan.devices import read_devices
from p2pswarm.plan.device_file import DeviceFile, SiteDevices
from p2pswarm.settings.node_config import ROLES, NodeConfig
from p2pswarm.settings.parser import load


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return str(path)

    return write


def parse(argv: Sequence[str]) -> argparse.Namespace:
    return make_parser().parse_args(argv)


def config_of(*argv: str) -> NodeConfig:
    """The settings of the node that a command line runs."""
    return settings_of(parse(argv))


def test_a_node_without_flags_starts_a_swarm():
    assert config_of("node").role == "bootstrap"


def test_a_node_with_an_address_serves():
    config = config_of("node", "--bootstrap", "a:1", "--bootstrap", "b:2")

    assert (config.role, config.bootstrap) == ("stage", ("a:1", "b:2"))


def test_a_flag_goes_before_the_file(written):
    file = written("listen = 'a:1'\nlog_level = 'info'\n[network]\nannounce = 'a:1'\npeer_mib = 3")

    config = config_of("node", "--config", file, "--listen", ":0", "--announce", "b:2")

    assert (config.listen, config.log_level) == (":0", "info")
    assert (config.network.announce, config.network.peer_mib) == ("b:2", 3)


def test_doctor_asks_through_nodes_or_alone():
    alone, through = parse(["doctor"]), parse(["doctor", "--bootstrap", "a:1", "--json"])

    assert (doctors_config(alone), alone.json) == (NodeConfig(), False)
    assert (doctors_config(through), through.json) == (NodeConfig(bootstrap=("a:1",)), True)
    with pytest.raises(Unusable, match="bootstrap"):
        doctors_config(parse(["doctor", "--bootstrap", "a"]))


def test_train_is_the_trainers_role(written, tmp_path):
    file = written("role = 'stage'\n[train]\ndata = 'text'")

    config = config_of("train", file, "--bootstrap", "a:1")

    assert (config.role, config.bootstrap) == ("trainer", ("a:1",))
    assert config.train.data == tmp_path / "text"


@pytest.mark.parametrize(
    ("argv", "text", "says"),
    [
        (["node"], "[train]\ndata = 'text'", r"\[train\] is for a trainer, .* role is bootstrap: "),
        (["node"], "[run]\nsteps = 7", r"\[run\] is for a trainer, .*: p2pswarm train .*run\.toml"),
        (["node", "--bootstrap", "a:1"], "[run]\nname = 'x'", "and this node's role is stage: p2p"),
        (["node", "--role", "stage"], "role = 'trainer'\n[train]\ndata = 'x'", "for a trainer"),
        (["node"], "[checkpoint]\ntarget = 'x'", r"\[checkpoint\] is for a trainer"),
        (["node"], "[serve]\nthreads = 1", "is for a server, .* --config .*run.toml --bootstrap"),
        (["node", "--role", "bootstrap"], "role = 'stage'\n[serve]\nthreads = 1", "for a server"),
    ],
)
def test_the_file_of_another_role_is_refused(written, argv, text, says):
    with pytest.raises(Unusable, match=says):
        config_of(*argv, "--config", written(text))


def test_a_servers_file_is_refused_by_train(written):
    with pytest.raises(
        Unusable, match=r"\[serve\] is for a server, and this node's role is trainer"
    ):
        config_of("train", written("role = 'stage'\n[serve]\nthreads = 1"))


def test_one_file_may_have_the_settings_of_two_roles(written):
    both = written("[train]\ndata = 'text'\n[serve]\nthreads = 1")

    assert config_of("node", "--bootstrap", "a:1", "--config", both).serve.threads == 1
    assert config_of("train", both).role == "trainer"


def test_a_trainer_needs_text(written):
    with pytest.raises(Unusable, match=r"train\.data is missing"):
        config_of("train", written(""))


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--bootstrap", "nowhere"], "bootstrap: 'nowhere' is not HOST:PORT"),
        (["--bootstrap", "http://a"], "bootstrap: 'http://a': leave out 'http://'"),
        (["--bootstrap", "a:0"], "bootstrap: 'a:0': nobody can be dialled at port 0"),
        (
            ["--bootstrap", "a:1,b:2"],
            "bootstrap: 'a:1,b:2' is several addresses: give each by itself",
        ),
        (["--relay", "a:1,[::1]:2"], "network.relays: 'a:1,\\[::1\\]:2' is several addresses"),
        (["--listen", "4000"], "listen: '4000' is not HOST:PORT"),
        (["--announce", ":4000"], "network.announce: ':4000' has no host"),
    ],
)
def test_an_address_is_tried_before_anything_begins(flags, key):
    with pytest.raises(Unusable, match=key):
        config_of("node", *flags)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "auto"])
def test_an_example_is_a_good_settings_file_of_its_role(role, capsys):
    assert main(["node", "--example", role]) == 0

    assert tomllib.loads(capsys.readouterr().out)["role"] == role
    assert load(EXAMPLES / f"{role}.toml").role == role


def names(table: dict, prefix: str = "") -> set[str]:
    """Every setting of a table and its tables, as `run.model.heads`."""
    inner = {k: v for k, v in table.items() if isinstance(v, dict)}
    found = {prefix + key for key in table.keys() - inner.keys()}
    return found.union(*(names(v, f"{prefix}{k}.") for k, v in inner.items()))


@pytest.mark.parametrize(
    ("role", "others"), [("trainer", ("serve.",)), ("stage", ("train.", "run.", "checkpoint."))]
)
def test_an_example_names_every_setting_of_its_role_and_what_it_leaves_out_is_good(
    written, role, others
):
    text = (EXAMPLES / f"{role}.toml").read_text()
    whole = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)

    every = names(dataclasses.asdict(NodeConfig()))
    shown = {re.sub(r"^run\.adapter\..*", "run.adapter", n) for n in names(tomllib.loads(whole))}
    assert shown == {n for n in every if not n.startswith(others)}
    assert load(Path(written(whole))).role == role


SAID = re.compile(r'default: ("[^"]*"|\[[^]]*\]|[\w.+-]+)')
"""The default in the comment behind a setting."""


def comments(text: str) -> dict[str, str]:
    """The settings that stand in an example, by their full names, each with its comment."""
    table, found = "", {}
    for line in text.splitlines():
        if head := re.match(r"\[+([\w.]+)\]", line):
            table = f"{head[1]}."
        elif one := re.match(r"(\w+) = ([^#]*)(.*)", line):
            found[f"{table}{one[1]}"] = one[3]
    return found


def value(settings: object, name: str) -> object:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


@pytest.mark.parametrize("name", ["bootstrap", "stage", "trainer", "devices"])
def test_an_examples_values_are_the_defaults_or_are_said_to_differ(name):
    file = EXAMPLES / f"{name}.toml"
    if name == "devices":
        node, default = read_devices(file), DeviceFile(device=(SiteDevices(tflops=1),))
    else:
        node, default = load(file), NodeConfig()
    there = comments(file.read_text())
    free = {one for one in there if one.startswith(("device.", "link.", "network"))}
    told = {
        one: SAID.search(there[one])
        for one in there.keys() - (free if name == "devices" else set())
    }

    for one, said in told.items():
        usual = value(default, one)
        usual = file.parent / usual if isinstance(usual, Path) else usual
        if value(node, one) != usual:
            assert said is not None, f"{one} is not the default, {usual}, and its comment is silent"
            words = "none" if usual is None else said[1]
            found = None if usual is None else tomllib.loads(f"x = {said[1]}")["x"]
            assert said[1] == words
            assert (tuple(found) if isinstance(found, list) else found) == usual, one
    assert len(told) > 2


def test_the_demo_has_its_defaults_and_takes_others(tmp_path):
    def options(*argv: str) -> Options:
        return options_of(parse(["demo", *argv]), pytest.fail)

    assert options() == Options()
    uneven = Options(uneven=True, steps=UNEVEN_STEPS, replicas=UNEVEN_REPLICAS, kill_every=0)
    assert options("--uneven") == uneven
    others = Options(stages=3, kill_every=0, data=tmp_path)
    assert options("--stages", "3", "--kill-every", "0", "--data", str(tmp_path)) == others


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ([], "COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["node", "--role", "cook"], "--role"),
        (["node", "--flavour", "sweet"], "--flavour"),
        (["train"], "FILE"),
        (["demo", "--stages", "0"], "'0' is not a whole number from 1 to 8"),
        (["demo", "--steps", "many"], "'many' is not a whole number"),
        (["demo", "--uneven", "--stages", "1"], "--uneven needs 2 stages and 3 replicas at least"),
        (["demo", "--uneven", "--replicas", "2"], "there is nobody to spare"),
        (["demo", "--plot", "no/such/x.png"], "there is no folder no/such for x.png"),
        (["demo", "--json", "no/such/x.json"], "there is no folder no/such for x.json"),
        (["demo", "--data", "/nowhere"], "no file or folder /nowhere"),
    ],
)
def test_wrong_flags_are_one_line(argv, part, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)

    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert part in said


COMMANDS = [
    "completion",
    "report",
    "node",
    "train",
    "pause",
    "resume",
    "drain",
    "data",
    "status",
    "explain",
    "watch",
    "doctor",
    "health",
    "verify",
    "generate",
    "evaluate",
    "export",
    "plan",
    "simulate",
    "invite",
    "invitations",
    "revoke",
    "renew",
    "demo",
]


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])

    said = re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert sorted(said) == sorted(COMMANDS)


@pytest.mark.parametrize("argv", [["--help"], *([name, "-h"] for name in COMMANDS)])
def test_every_command_explains_itself(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(argv)

    assert caught.value.code == 0
    assert "usage: p2pswarm" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys, request):
    with pytest.raises(SystemExit):
        parse(["--version"])

    project = tomllib.loads((request.config.rootpath / "pyproject.toml").read_text())
    assert capsys.readouterr().out == f"p2pswarm {VERSION}\n"
    assert project["tool"]["hatch"]["version"] == {
        "path": "p2pswarm/base/version.py",
        "pattern": 'VERSION = "(?P<version>[^"]+)"',
    }


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        ((), ""),
        (("--resume",), "out"),
        (("--resume", "s3://bucket/other"), "s3://bucket/other"),
    ],
)
def test_a_run_goes_on_from_what_is_named_or_from_its_own_target(written, flags, target):
    file = written("[train]\ndata = '.'\n[checkpoint]\ntarget = 'out'")

    assert config_of("train", file, *flags).train.resume == target


def test_a_resume_without_any_target_says_what_to_do(written):
    with pytest.raises(Unusable, match=r"add one, or set checkpoint\.target"):
        config_of("train", written("[train]\ndata = '.'"), "--resume")


def test_a_path_with_a_name_that_no_file_system_has_is_one_line(capsys):
    with pytest.raises(SystemExit):
        parse(["generate", "x" * 256, "hello"])

    assert capsys.readouterr().err.endswith("which no file system has; see --help\n")


def test_a_new_run_begins_from_what_is_named_with_changed_settings(written):
    file = written("[train]\ndata = '.'\n[run]\nsteps = 10")
    changes = ("--set", "run.steps=4e3", "--set", "run.optimizer=muon")

    config = config_of("train", file, "--from", "there", "--fresh-moments", *changes)

    assert (config.train.begin_from, config.train.fresh_moments) == ("there", True)
    assert (config.run.steps, config.run.optimizer.name) == (4000, "muon")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--from", "a", "--resume", "b"), "--resume goes on with a run, and --from begins"),
        (("--fresh-moments",), "--fresh-moments is about a checkpoint's: name one with --from"),
        (("--standby", "--from", "a"), "--from begins one: leave one of them out"),
    ],
)
def test_beginnings_that_exclude_each_other_are_a_line(written, flags, said):
    with pytest.raises(Unusable, match=said):
        config_of("train", written("[train]\ndata = '.'"), *flags)


def test_who_reads_no_further_ends_a_command_without_a_word(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert main(["node", "--example", "trainer"]) == UNREAD

    assert capsys.readouterr().err == ""


def test_an_answer_that_a_full_disk_takes_no_more_is_one_line(monkeypatch, capsys):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["node", "--example", "trainer"]) == 2

    assert capsys.readouterr().err == (
        "error: the answer cannot be written: No space left on device\n"
    )


def test_an_answer_without_stdout_is_refused_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)

    assert main(["node", "--example", "stage"]) == 2
    assert capsys.readouterr().err == "error: the answer cannot be written: stdout is closed\n"
