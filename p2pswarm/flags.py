"""The command line as a value: which command, with which settings.

A node has few flags; all other settings are in the settings file. A flag overrides the file.

Errors:  SystemExit with one line for flags that cannot be read, as argparse does; Unusable for the
         settings.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from p2pswarm.config import NetworkConfig, NodeConfig, TrainConfig
from p2pswarm.demo.options import Options
from p2pswarm.errors import Unusable
from p2pswarm.flag_parser import make_parser
from p2pswarm.roles.addresses import check
from p2pswarm.roles.invitation_text import joining
from p2pswarm.settings import load

EXAMPLES = Path(__file__).parent / "examples"
"""Commented settings, one file for each role."""
ANY_PORT = ":0"
OWNER_COMMANDS = ("invite", "invitations", "revoke", "renew")

NETWORK_FLAGS = ("announce", "relay_port", "relay_web")
"""The flags of `[network]` that have one value."""

S = TypeVar("S", NodeConfig, NetworkConfig, TrainConfig)


@dataclass(frozen=True, slots=True)
class CheckCommand:
    """Print what the settings mean, and do nothing else."""

    config: NodeConfig
    source: Path | None
    """The settings file."""


@dataclass(frozen=True, slots=True)
class ExampleCommand:
    """Print a commented settings file."""

    text: str


@dataclass(frozen=True, slots=True)
class StatusCommand:
    """Ask the trainers of a swarm how their runs stand."""

    config: NodeConfig
    run: str
    """The name of a run; empty: all."""
    json: bool


@dataclass(frozen=True, slots=True)
class ExplainCommand:
    """Ask the trainers of a swarm why servers move or stay."""

    config: NodeConfig
    run: str
    """The name of a run; empty: all."""
    json: bool


@dataclass(frozen=True, slots=True)
class DoctorCommand:
    """Find out how others reach this machine, and what slows it down."""

    config: NodeConfig
    json: bool
    """Print one JSON object instead of lines."""


@dataclass(frozen=True, slots=True)
class VerifyCommand:
    """Prove that a checkpoint is whole."""

    target: str
    """A checkpoint, or a folder or URL that holds some."""
    json: bool
    """Print one JSON object instead of lines."""


@dataclass(frozen=True, slots=True)
class PlanCommand:
    """Find out which device should serve which stage."""

    matrix: Path
    """The devices' links and the task, in JSON."""
    seconds: float
    """How long to search."""
    seed: int
    json: Path | None
    """Where the plan is written for scripts."""


@dataclass(frozen=True, slots=True)
class InviteCommand:
    """Sign an invitation to a closed run, and print it."""

    config: NodeConfig
    lasts_s: int
    name: str
    """Under which the owner finds it again; empty: any that is free."""
    role: str
    uses: int
    """How many peers may use it; 0: as many as want to."""
    peer: str
    """The peer id that it is for; empty: whoever has its text."""


@dataclass(frozen=True, slots=True)
class InvitationsCommand:
    """Print who was invited to a closed run."""

    config: NodeConfig
    json: bool


@dataclass(frozen=True, slots=True)
class RevokeCommand:
    """Take back an invitation."""

    config: NodeConfig
    whom: str
    """Its name, its serial number, or a peer id."""


@dataclass(frozen=True, slots=True)
class RenewCommand:
    """Let an invitation hold for longer."""

    config: NodeConfig
    whom: str
    lasts_s: int


Query = StatusCommand | ExplainCommand | VerifyCommand | DoctorCommand | PlanCommand
Owner = InviteCommand | InvitationsCommand | RevokeCommand | RenewCommand
Command = NodeConfig | Options | CheckCommand | ExampleCommand | Query | Owner


def parse(argv: Sequence[str]) -> Command:
    """The command of a command line."""
    parser = make_parser()
    flags = parser.parse_args(argv)
    if flags.command == "demo":
        return _options(flags, parser)
    if flags.command in OWNER_COMMANDS:
        return _owners(flags)
    if flags.command in ("status", "explain", "doctor", "verify", "plan"):
        return _query(flags)
    if flags.command == "node" and flags.example:
        return ExampleCommand((EXAMPLES / f"{flags.example}.toml").read_text())
    config = _settings(flags)
    return CheckCommand(config, flags.config) if flags.check else config


def _query(flags: argparse.Namespace) -> Query:
    """A command that asks something and changes nothing."""
    if flags.command == "verify":
        return VerifyCommand(flags.target, flags.json)
    if flags.command == "plan":
        return PlanCommand(flags.matrix, flags.seconds, flags.seed, flags.json)
    through = tuple(flags.bootstrap or ())
    if flags.command == "doctor":
        config = NodeConfig(bootstrap=through, listen=flags.listen or "")
        check(config)
        return DoctorCommand(config, flags.json)
    config = joining(NodeConfig(bootstrap=through, listen=ANY_PORT, invite=flags.invite or ""))
    if not config.bootstrap:
        raise Unusable("say through which node to ask: --bootstrap HOST:PORT, or --invite TEXT")
    check(config)
    command = ExplainCommand if flags.command == "explain" else StatusCommand
    return command(config, flags.run, flags.json)


def _settings(flags: argparse.Namespace) -> NodeConfig:
    """The settings of the file and the flags together."""
    config = load(flags.config) if flags.config else NodeConfig()
    given = {
        "bootstrap": tuple(flags.bootstrap or ()),
        "listen": flags.listen,
        "role": flags.role,
        "identity": flags.identity,
        "invite": flags.invite,
        "log_level": flags.log_level,
    }
    train: dict[str, Any] = {
        "standby": flags.standby,
        "new": flags.new,
        "closed": flags.closed,
    }
    if flags.resume is not None:
        train["resume"] = _resumed(flags.resume, config)
    given["train"] = _given(config.train, train)
    config = _given(config, given)
    network = {name: getattr(flags, name) for name in NETWORK_FLAGS}
    network["relays"] = tuple(flags.relays or ())
    config = dataclasses.replace(config, network=_given(config.network, network))
    config = joining(config)
    if config.role == "auto":
        config = dataclasses.replace(config, role="stage" if config.bootstrap else "bootstrap")
    check(config)
    if config.role == "trainer" and config.train.data is None:
        raise Unusable("train.data is missing: name a text file or a folder in --config run.toml")
    _check_beginning(config.train)
    return config


def _owners(flags: argparse.Namespace) -> Owner:
    """A command of the owner of a closed run, whose settings are in the run's file."""
    config = load(flags.config)
    if config.state is None:
        raise Unusable(f"{flags.config} names no `state`: a closed run keeps its owner's key there")
    config = _given(config, {"bootstrap": tuple(flags.bootstrap or ()), "role": "bootstrap"})
    check(config)
    match flags.command:
        case "invite":
            given = flags.name or "", flags.role, flags.uses, flags.peer or ""
            return InviteCommand(config, flags.lasts, *given)
        case "revoke":
            return RevokeCommand(config, flags.whom)
        case "renew":
            return RenewCommand(config, flags.whom, flags.lasts)
        case _:
            return InvitationsCommand(config, flags.json)


def _check_beginning(train: TrainConfig) -> None:
    """Raise Unusable if a trainer is to stand by for a run and to begin another one."""
    for named, flag in ((train.new, "--new"), (train.resume, "--resume")):
        if train.standby and named:
            raise Unusable(
                f"--standby waits for a run that another trainer has begun, and {flag} begins one: "
                "leave one of them out"
            )


def _given(settings: S, given: Mapping[str, Any]) -> S:
    """The settings with those values that a flag gives."""
    return dataclasses.replace(settings, **{name: v for name, v in given.items() if v})


def _resumed(named: str, config: NodeConfig) -> str:
    """The target to go on from: the one that was named, or the settings' own."""
    target = named or config.checkpoint.target
    if not target:
        raise Unusable("--resume names no target: add one, or set checkpoint.target in the file")
    return target


def _options(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> Options:
    values = {field.name: getattr(flags, field.name) for field in dataclasses.fields(Options)}
    options = Options(**values)
    for path in (options.json, options.plot):
        if path and not path.absolute().parent.is_dir():
            parser.error(f"there is no folder {path.parent} for {path.name}")
    if options.data and not options.data.exists():
        parser.error(f"there is no file or folder {options.data}")
    return options
