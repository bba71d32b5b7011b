"""`p2pswarm node` and `p2pswarm train`: the settings of a node, from its file and its flags.

A node has few flags; all other settings are in the settings file. A flag overrides the file.

Errors:  Unusable for settings that cannot be used.
"""

import argparse
import dataclasses
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import PORT_MAX
from p2pswarm.base.problems import Problems
from p2pswarm.commands.arguments import (
    INVITE_HELP,
    USAGE_CODE,
    Commands,
    add_bootstrap,
    add_json,
    add_set,
    file_path,
    run_main,
    say,
    say_beside,
    whole,
    write,
)
from p2pswarm.commands.settings_report import check_files, report
from p2pswarm.node.run.invitation_text import joining
from p2pswarm.node.stack.addresses import check
from p2pswarm.progress.printable import printable
from p2pswarm.settings.node_config import LOG_LEVELS, ROLES, NetworkConfig, NodeConfig, ServeConfig
from p2pswarm.settings.parser import load
from p2pswarm.settings.train_config import TrainConfig

EXAMPLES = Path(__file__).parents[1] / "settings" / "examples"
"""Commented settings, one file for each role."""
NODE_TEXT = (
    "Runs a node of a swarm. Without flags it starts a swarm; with --bootstrap it joins one "
    "and serves the stage that needs it most."
)
TRAIN_TEXT = (
    "Starts a training run on your text, waits for servers, and writes the weights at the end: to "
    "the file that train.weights names, with the run's name and step added, such as "
    "weights-my-run-step-2000.safetensors. A file that is there is never overwritten."
)
FROM_HELP = (
    "begin a new run from the weights and moments of a checkpoint, at step 0 of its own settings "
    "and text: TARGET is one, or a folder or URL that has some, of which the newest good one is "
    "taken"
)
NODE_FLAGS = ("listen", "role", "identity", "invite", "name", "log_level")
TRAIN_FLAGS = ("standby", "new", "closed", "begin_from", "fresh_moments")
NETWORK_FLAGS = ("announce", "relay_port", "relay_web")
"""The flags of `[network]` that have one value."""
ROLE_TABLES = {"trainer": ("train", "run", "checkpoint"), "stage": ("serve",)}
"""What a settings file has for one role alone."""
THE_ROLE = {"trainer": "trainer", "stage": "server"}
INSTEAD = {
    "trainer": "p2pswarm train {}",
    "stage": "p2pswarm node --config {} --bootstrap HOST:PORT",
}
"""The command line that a file of a role is for."""

S = TypeVar("S", NodeConfig, NetworkConfig, ServeConfig, TrainConfig)


def add(commands: Commands) -> None:
    """Add both commands."""
    node = commands.add_parser(
        "node",
        help="join a swarm, or start one",
        description=NODE_TEXT,
        epilog="python -m p2pswarm.node is the same.",
    )
    node.set_defaults(main=_run, resume=None, **dict.fromkeys(TRAIN_FLAGS))
    node.add_argument(
        "--checkpoint-target",
        action="append",
        metavar="TARGET",
        help="let the trainers of runs name this folder or URL for checkpoints; may be given "
        "several times; default: none",
    )
    node.add_argument(
        "--role", choices=ROLES, help="default: stage with --bootstrap, else bootstrap"
    )
    node.add_argument("--config", type=file_path, metavar="FILE", help="settings; see --example")
    node.add_argument(
        "--example",
        choices=[role for role in ROLES if role != "auto"],
        help="print a commented settings file for this role, and exit",
    )
    _add_node_flags(node)
    _add_train(commands)


def _add_train(commands: Commands) -> None:
    train = commands.add_parser(
        "train",
        help="train on your text, with the servers that join",
        description=TRAIN_TEXT,
        epilog="p2pswarm node --example trainer prints a file to begin with.",
    )
    train.set_defaults(main=_run, role="trainer", example=None, checkpoint_target=None)
    train.add_argument("config", type=file_path, metavar="FILE", help="the run's settings, in TOML")
    train.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="TARGET",
        help="go on from a checkpoint: TARGET is one, or a folder or URL that has some, of which "
        "the newest good one is taken; default: checkpoint.target of FILE",
    )
    train.add_argument("--from", dest="begin_from", metavar="TARGET", help=FROM_HELP)
    train.add_argument(
        "--fresh-moments",
        action="store_true",
        help="with --from: take the weights alone, as the optimizer's first step does",
    )
    train.add_argument(
        "--standby",
        action="store_true",
        help="found no run: stand by for this one, and lead it when its trainer is gone",
    )
    train.add_argument(
        "--new",
        action="store_true",
        help="begin another run, though the folder of `state` holds one that is not finished",
    )
    train.add_argument(
        "--closed",
        action="store_true",
        help="only who is invited takes part: see p2pswarm invite, and docs/closed_runs.md",
    )
    _add_node_flags(train)


def _add_node_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every node."""
    add_bootstrap(parser, "join through this node of the swarm; may be given several times")
    parser.add_argument(
        "--listen",
        metavar="[HOST]:PORT",
        help="default: every address of this machine, port 4000 or any free one",
    )
    parser.add_argument(
        "--announce",
        metavar="HOST:PORT",
        help="what others dial, if it is not this machine's own address",
    )
    _add_relay_flags(parser)
    add_set(parser)
    parser.add_argument(
        "--identity",
        type=file_path,
        metavar="FILE",
        help="keep this node's id in this file; the file is made if it is not there",
    )
    parser.add_argument("--invite", metavar="TEXT", help=INVITE_HELP)
    parser.add_argument(
        "--name", metavar="NAME", help="what people call this machine; default: the host's name"
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="default: warning")
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what the settings mean, or all that is wrong with them and with the files that "
        "they name, and exit",
    )
    add_json(parser, "with --check: one JSON object, for scripts")


def _add_relay_flags(parser: argparse.ArgumentParser) -> None:
    port = whole(1, PORT_MAX)
    parser.add_argument(
        "--relay",
        action="append",
        dest="relays",
        metavar="HOST:PORT",
        help="others cannot dial this machine: let them reach it through this node of the swarm; "
        "may be given several times",
    )
    parser.add_argument(
        "--relay-port",
        type=port,
        metavar="PORT",
        help="listen on this port, too; 443 passes most firewalls",
    )
    parser.add_argument(
        "--relay-web",
        type=port,
        metavar="PORT",
        help="take connections over WebSocket here, from hosts that have only the web",
    )


def _run(flags: argparse.Namespace) -> int:
    """Run a node until it is done or asked to leave; or print an example or what settings mean."""
    if flags.example:
        return print_example(flags.example)
    if flags.check:
        return _check(flags)
    if flags.json:
        raise Unusable("--json is the answer of --check: add --check, or leave it out")
    config = settings_of(flags)
    check_files(config)
    return run_main("node.process", config, flags.begun_s)


def _check(flags: argparse.Namespace) -> int:
    """Say what the settings mean, or all that is wrong with them; nothing is begun."""
    problems = Problems()
    with problems.noted():
        config = settings_of(flags)
    found = problems.lines or importlib.import_module("p2pswarm.node.check").problems_of(config)
    if flags.json:
        say(json.dumps({"good": not found, "problems": found}))
    elif not found:
        write(report(config, flags.config))
    else:
        for line in found:
            say_beside(f"error: {printable(line)}")
    return USAGE_CODE if found else 0


def print_example(name: str) -> int:
    """Print a commented settings file."""
    write((EXAMPLES / f"{name}.toml").read_text())
    return 0


def settings_of(flags: argparse.Namespace) -> NodeConfig:
    """The settings of the file and the flags together."""
    config = load(flags.config, flags.changes)
    values = {name: getattr(flags, name) for name in NODE_FLAGS}
    values["bootstrap"] = tuple(flags.bootstrap or ())
    train = {name: getattr(flags, name) for name in TRAIN_FLAGS}
    if flags.resume is not None:
        train["resume"] = _resumed(flags.resume, config)
    values["train"] = given(config.train, train)
    values["serve"] = given(
        config.serve, {"checkpoint_targets": tuple(flags.checkpoint_target or ())}
    )
    config = given(config, values)
    network = {name: getattr(flags, name) for name in NETWORK_FLAGS}
    network["relays"] = tuple(flags.relays or ())
    config = dataclasses.replace(config, network=given(config.network, network))
    config = joining(config)
    if config.role == "auto":
        config = dataclasses.replace(config, role="stage" if config.bootstrap else "bootstrap")
    check(config)
    if flags.config:
        _check_tables(config, flags.config)
    if config.role == "trainer" and not config.train.parts:
        there = flags.config or "--config run.toml"
        raise Unusable(f"train.data is missing: name a text file or a folder in {there}")
    _check_beginning(config.train)
    return config


def _check_tables(config: NodeConfig, file: Path) -> None:
    """Raise Unusable for a file that sets what another role reads, and nothing of this one's."""
    default = NodeConfig()
    there = {
        role: [name for name in names if getattr(config, name) != getattr(default, name)]
        for role, names in ROLE_TABLES.items()
    }
    if there.get(config.role):
        return
    for role, names in there.items():
        if names:
            raise Unusable(
                f"{file}: [{names[0]}] is for a {THE_ROLE[role]}, and this node's role is "
                f"{config.role}: {INSTEAD[role].format(file)}, or name another file"
            )


def _check_beginning(train: TrainConfig) -> None:
    """Raise Unusable if a trainer is to stand by for a run and to begin another one."""
    if train.begin_from and train.resume:
        raise Unusable(
            "--resume goes on with a run, and --from begins another: leave one of them out"
        )
    if train.fresh_moments and not train.begin_from:
        raise Unusable("--fresh-moments is about a checkpoint's: name one with --from")
    beginnings = (train.new, "--new"), (train.resume, "--resume"), (train.begin_from, "--from")
    for named, flag in beginnings:
        if train.standby and named:
            raise Unusable(
                f"--standby waits for a run that another trainer has begun, and {flag} begins one: "
                "leave one of them out"
            )


def given(settings: S, values: Mapping[str, Any]) -> S:
    """The settings with those values that a flag gives."""
    return dataclasses.replace(settings, **{name: v for name, v in values.items() if v})


def _resumed(named: str, config: NodeConfig) -> str:
    """The target to go on from: the one that was named, or the settings' own."""
    target = named or config.checkpoint.target
    if not target:
        raise Unusable("--resume names no target: add one, or set checkpoint.target in the file")
    return target
