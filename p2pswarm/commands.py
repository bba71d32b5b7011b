"""Runs each command. Heavy modules are imported by name, when a command needs them.

So a node that others join through never loads torch, `--help` answers at once, and the demo prints
its first line before it loads a library.

Errors:  one line on stderr; exit code 2 for what the user can correct, 1 for a run that failed.
"""

import importlib
import json
import sys
import time
from collections.abc import Sequence

from p2pswarm.config import NodeConfig
from p2pswarm.demo.options import Options
from p2pswarm.errors import RunEnded, SwarmError, Unusable
from p2pswarm.flags import (
    CheckCommand,
    DoctorCommand,
    ExampleCommand,
    ExplainCommand,
    InvitationsCommand,
    InviteCommand,
    Owner,
    PlanCommand,
    RenewCommand,
    RevokeCommand,
    StatusCommand,
    VerifyCommand,
    parse,
)
from p2pswarm.flow.exception_group import cause_of
from p2pswarm.outfile import check_target
from p2pswarm.progress.printable import printable
from p2pswarm.setting_report import check_files, report

FAILED, UNUSABLE = 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the command that the flags name; returns the exit code."""
    begun_s = time.monotonic()
    try:
        return _run(argv, begun_s)
    except SwarmError as error:
        return _failed(error)
    except ExceptionGroup as group:
        cause = cause_of(group)
        if not isinstance(cause, SwarmError):
            raise
        return _failed(cause)


def _run(argv: Sequence[str], begun_s: float) -> int:
    match parse(argv):
        case ExampleCommand(text=text):
            sys.stdout.write(text)
            return 0
        case CheckCommand(config=config, source=source):
            check_files(config)
            sys.stdout.write(report(config, source))
            return 0
        case Options() as options:
            for path in (options.json, options.plot):
                if path:
                    check_target(path)
            sys.stdout.write("p2pswarm demo: starting\n")
            sys.stdout.flush()  # matplotlib takes a moment to load
            code: int = importlib.import_module("p2pswarm.demo.demo").main(options)
        case StatusCommand() | ExplainCommand() | DoctorCommand() as command:
            code = _ask(command)
        case VerifyCommand() | PlanCommand() as command:
            code = _work_on_file(command)
        case NodeConfig() as config:
            check_files(config)
            code = importlib.import_module("p2pswarm.node_process").main(config, begun_s)
        case owners:
            code = _owners(owners)
    return code


def _ask(command: StatusCommand | ExplainCommand | DoctorCommand) -> int:
    """Ask something of a swarm."""
    match command:
        case StatusCommand(config=config, run=run, json=json):
            code: int = importlib.import_module("p2pswarm.roles.status").main(
                config, run, json=json
            )
        case ExplainCommand(config=config, run=run, json=json):
            code = importlib.import_module("p2pswarm.roles.explain").main(config, run, json=json)
        case DoctorCommand(config=config, json=json):
            code = importlib.import_module("p2pswarm.roles.doctor").main(config, json=json)
    return code


def _owners(command: Owner) -> int:
    """Do what the owner of a closed run asks."""
    inviting = importlib.import_module("p2pswarm.roles.inviting")
    code = 0
    match command:
        case InviteCommand(config=config, lasts_s=lasts_s):
            asked = command.name, command.role, command.uses, command.peer
            _say(inviting.invite(config, asked, lasts_s))
        case InvitationsCommand(config=config, json=json):
            sys.stdout.write(inviting.listing(config, as_json=json))
        case RevokeCommand(config=config, whom=whom):
            code = inviting.revoke(config, whom)
        case RenewCommand(config=config, whom=whom, lasts_s=lasts_s):
            code = inviting.renew(config, whom, lasts_s)
    return code


def _work_on_file(command: VerifyCommand | PlanCommand) -> int:
    return _verify(command) if isinstance(command, VerifyCommand) else _plan(command)


def _plan(command: PlanCommand) -> int:
    """Plan with solvers that only this command needs."""
    try:
        planning = importlib.import_module("p2pswarm.roles.planning")
    except ModuleNotFoundError as error:
        raise Unusable(f"{error.name} is missing: pip install 'p2pswarm[plan]'") from error
    code: int = planning.main(command.matrix, command.seconds, command.seed, command.json)
    return code


def _verify(command: VerifyCommand) -> int:
    """Verify a checkpoint; scripts get their JSON whatever is found."""
    verification = importlib.import_module("p2pswarm.checkpoint.verification")
    proof = importlib.import_module("p2pswarm.roles.chain_proof")
    say = _say_beside if command.json else _say
    try:
        found = verification.verify(command.target, say, proof.check_records)
    except SwarmError:
        if command.json:
            _say(json.dumps(verification.NOTHING.as_json()))
        raise
    if command.json:
        _say(json.dumps(found.as_json()))
    return 0 if found.ok else FAILED


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()  # a large checkpoint takes minutes


def _say_beside(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # stdout is for the JSON


def _failed(error: SwarmError) -> int:
    sys.stderr.write(f"error: {printable(str(error))}\n")
    return FAILED if isinstance(error, RunEnded) else UNUSABLE
